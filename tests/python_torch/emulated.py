"""libhola with an emulated device (libhola-emu.so), for tensors on the CPU: hola.torch's CUDA path, all but the stream.

Every call's workspace is poisoned before it and its end is watched, and so is every array that the call is to write.
"""

import ctypes
import os

import torch

from hola.torch import _call, _raw

AFTER = 64  # bytes that are watched behind the workspace


class Emulated(_raw.Library):
    """calls: of each, the op, whether it is backward, and its arguments. refuse: makes the next calls fail."""

    def __init__(self):
        super().__init__(os.environ["HOLA_EMULATED"])
        self.calls, self.refuse = [], False

    def run(self, op, where, args, backward):
        assert where.work % 256 == 0 and where.device == 0 and where.stream is None
        if self.refuse:
            where.size = 0
        ctypes.memset(where.work, 0xFF, where.work_bytes)
        end, guard = where.work + where.work_bytes, b"\xa5" * AFTER
        before = ctypes.string_at(end, AFTER)
        ctypes.memmove(end, guard, AFTER)
        copy = type(args)()
        ctypes.pointer(copy)[0] = args
        self.calls.append((op, backward, copy))
        try:
            super().run(op, where, args, backward)
            assert ctypes.string_at(end, AFTER) == guard, f"{op}: written past the workspace"
        finally:
            ctypes.memmove(end, before, AFTER)


def poisoned(shape, size, dtype=torch.float32):
    """In place of Shape.new: NaN, and room behind a workspace."""
    n = torch.Size(size).numel()
    x = torch.empty(n + (AFTER if dtype == torch.uint8 else 0), dtype=dtype, device=shape.device)
    x.view(torch.uint8).fill_(0xFF)
    return x[:n].view(size)


def use(monkeypatch):
    library = Emulated()
    monkeypatch.setattr(_raw, "device_types", {"cpu"})
    monkeypatch.setattr(_raw, "_found", library)
    monkeypatch.setattr(_call, "_warned", set())
    monkeypatch.setattr(_call.Shape, "new", poisoned)
    return library
