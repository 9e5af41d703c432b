"""include/hola_ops.h through ctypes: its structs, and libhola's functions on pointers."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from typing import Optional

DTYPES = {"float32": 0, "bfloat16": 1}  # hola_dtype


class Where(ctypes.Structure):
    _fields_ = [("size", c_int32), ("device", c_int32), ("stream", c_void_p), ("work", c_void_p),
                ("work_bytes", c_int64)]


class Rows(ctypes.Structure):
    _fields_ = [("T", c_int64), ("N", c_int64), ("longest", c_int64), ("cu", c_void_p), ("cu_bits", c_int32)]


class GdnArgs(ctypes.Structure):
    _fields_ = [
        ("size", c_int32), ("flags", c_int32),
        ("rows", Rows), ("H", c_int64), ("HV", c_int64), ("K", c_int64), ("V", c_int64),
        ("dtype", c_int), ("gate_dtype", c_int), ("scale", c_float),
        ("q", c_void_p), ("k", c_void_p), ("v", c_void_p), ("g", c_void_p), ("beta", c_void_p),
        ("A_log", c_void_p), ("dt_bias", c_void_p), ("h0", c_void_p),
        ("out", c_void_p), ("ht", c_void_p), ("m", c_void_p), ("kept", c_void_p),
        ("dout", c_void_p), ("dht", c_void_p),
        ("dq", c_void_p), ("dk", c_void_p), ("dv", c_void_p),
        ("dg", c_void_p), ("dbeta", c_void_p), ("dh0", c_void_p), ("dA_log", c_void_p), ("ddt_bias", c_void_p),
    ]  # fmt: skip


STRUCTS = {"hola_where": Where, "hola_rows": Rows, "hola_gdn_args": GdnArgs}


class Missing(Exception):
    """There is no library, or it has no such functions; the text says why."""


class Library:
    """libhola's operations. A failed call raises RuntimeError with the library's own line."""

    def __init__(self, path: str):
        try:
            lib = ctypes.CDLL(path)
        except OSError as error:
            raise Missing(str(error)) from None
        self.path = path
        try:
            self._kept, self._work = lib.hola_gdn_kept_bytes, lib.hola_gdn_work_bytes
            self._forward, self._backward = lib.hola_gdn_forward, lib.hola_gdn_backward
            self._error = lib.hola_last_error
        except AttributeError as error:
            raise Missing(f"{path} was built without the operations of hola_ops.h ({error})") from None
        self._kept.restype, self._kept.argtypes = c_int64, [POINTER(GdnArgs)]
        self._work.restype, self._work.argtypes = c_int64, [POINTER(GdnArgs), c_int, c_bool]
        for f in (self._forward, self._backward):
            f.restype, f.argtypes = c_int, [POINTER(Where), POINTER(GdnArgs)]
        self._error.restype, self._error.argtypes = c_char_p, []
        sizeof = getattr(lib, "hola_sizeof", None)
        if sizeof is not None:  # no compiler compares the structs above with hola_ops.h
            sizeof.restype, sizeof.argtypes = ctypes.c_size_t, [c_char_p]
            for name, struct in STRUCTS.items():
                there = sizeof(name.encode())
                if there not in (0, ctypes.sizeof(struct)):  # 0: it does not know the name
                    raise Missing(f"{path}: {name} has {there} bytes, this package's has {ctypes.sizeof(struct)}")

    def _fail(self, what: str) -> RuntimeError:
        return RuntimeError(f"{what}: {(self._error() or b'').decode(errors='replace')}")

    def kept_bytes(self, args: GdnArgs) -> int:
        n = int(self._kept(args))
        if n < 0:
            raise self._fail("hola_gdn_kept_bytes")
        return n

    def work_bytes(self, args: GdnArgs, device: int, backward: bool) -> int:
        n = int(self._work(args, device, backward))
        if n < 0:
            raise self._fail("hola_gdn_work_bytes")
        return n

    def run(self, where: Where, args: GdnArgs, backward: bool) -> None:
        if (self._backward if backward else self._forward)(where, args) != 0:
            raise self._fail("hola_gdn_backward" if backward else "hola_gdn_forward")


device_types = {"cuda"}  # of tensors that the library takes
_lock = threading.Lock()
_found: Optional[Library] = None
_why: Optional[str] = None


def library_path() -> str:
    """The package's libhola.so, else the one that HOLA_LIBRARY names; Missing where there is none."""
    try:
        from hola import library_path as of_package
    except ImportError:
        path = os.environ.get("HOLA_LIBRARY", "")
        if not path:
            raise Missing("there is no libhola: HOLA_LIBRARY names none") from None
        return path
    return str(of_package())


def library() -> Library:
    """Loads it once; Missing says why there is none."""
    global _found, _why
    with _lock:
        if _found is None and _why is None:
            try:
                _found = Library(library_path())
            except Missing as error:
                _why = str(error)
        if _found is None:
            raise Missing(_why)
        return _found


def forget() -> None:
    """Looks for the library anew at the next call."""
    global _found, _why
    with _lock:
        _found = _why = None
