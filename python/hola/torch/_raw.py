"""include/hola_ops.h through ctypes: its structs, and libhola's functions on pointers. It needs no torch."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int32, c_int64, c_void_p
from typing import Any, Mapping, Optional

DTYPES = {"float32": 0, "bfloat16": 1}  # hola_dtype
EVICT = {"score": 0, "recency": 3}  # hola_evict


class Where(ctypes.Structure):
    _fields_ = [("size", c_int32), ("device", c_int32), ("stream", c_void_p), ("work", c_void_p),
                ("work_bytes", c_int64)]


class Rows(ctypes.Structure):
    _fields_ = [("T", c_int64), ("N", c_int64), ("longest", c_int64), ("cu", c_void_p), ("cu_bits", c_int32)]


def _args(name: str, numbers: str, more: list[tuple[str, Any]], pointers: str) -> Any:
    """A struct of arguments: what all begin with, integers of 64 bits, others, and pointers."""
    fields = [("size", c_int32), ("flags", c_int32), ("rows", Rows)]
    fields += [(n, c_int64) for n in numbers.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields + more + [(n, c_void_p) for n in pointers.split()]})


_SCALE = ("scale", c_float)
_GRADS = "dout dht dq dk dv"
GdnArgs = _args("GdnArgs", "H HV K V", [("dtype", c_int), ("gate_dtype", c_int), _SCALE],
                f"q k v g beta A_log dt_bias h0 out ht m kept {_GRADS} dg dbeta dh0 dA_log ddt_bias")
CacheArgs = _args("CacheArgs", "H HV K V window chunk", [("dtype", c_int), ("evict", c_int), _SCALE],
                  "q k v score sink tau gate out kept dout dq dk dv dsink dtau dgate")
KdaArgs = _args("KdaArgs", "H HV K V", [("dtype", c_int), _SCALE],
                f"q k v g beta h0 out ht m kept {_GRADS} dg dbeta dh0")
GlaArgs = _args("GlaArgs", "H HK K V", [("dtype", c_int), _SCALE], f"q k v g h0 out ht {_GRADS} dg dh0")
AttentionArgs = _args("AttentionArgs", "H HK D window", [("dtype", c_int), _SCALE], "q k v out lse dout dq dk dv")
OPS = {"gdn": GdnArgs, "cache": CacheArgs, "kda": KdaArgs, "gla": GlaArgs, "attention": AttentionArgs}
KEEPS_NOTHING = ("gla", "attention")  # or what they keep is an output
STRUCTS = {"hola_where": Where, "hola_rows": Rows, **{f"hola_{op}_args": args for op, args in OPS.items()}}


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
        self._functions: dict[str, tuple[Any, ...]] = {}
        try:
            for op, args in OPS.items():
                kept, work = None, getattr(lib, f"hola_{op}_work_bytes")
                if op not in KEEPS_NOTHING:
                    kept = getattr(lib, f"hola_{op}_kept_bytes")
                    kept.restype, kept.argtypes = c_int64, [POINTER(args)]
                work.restype, work.argtypes = c_int64, [POINTER(args), c_int, c_bool]
                calls = getattr(lib, f"hola_{op}_forward"), getattr(lib, f"hola_{op}_backward")
                for f in calls:
                    f.restype, f.argtypes = c_int, [POINTER(Where), POINTER(args)]
                self._functions[op] = kept, work, *calls
            self._error, sizeof = lib.hola_last_error, lib.hola_sizeof
        except AttributeError as error:
            raise Missing(f"{path} was built without the operations of hola_ops.h ({error})") from None
        self._error.restype, self._error.argtypes = c_char_p, []
        sizeof.restype, sizeof.argtypes = ctypes.c_size_t, [c_char_p]
        for name, struct in STRUCTS.items():  # no compiler compares them with hola_ops.h
            there = sizeof(name.encode())
            if there != ctypes.sizeof(struct):
                raise Missing(f"{path}: {name} has {there} bytes, this package's has {ctypes.sizeof(struct)}")

    def _fail(self, what: str) -> RuntimeError:
        return RuntimeError(f"{what}: {(self._error() or b'').decode(errors='replace')}")

    def bytes(self, op: str, args: ctypes.Structure, device: int, backward: bool) -> tuple[int, int]:
        """-> bytes that the backward call needs of the forward one, bytes of the workspace. Of shapes alone."""
        count, measure = self._functions[op][:2]
        kept, work = int(count(args)) if count else 0, int(measure(args, device, backward))
        if kept < 0 or work < 0:
            raise self._fail(f"hola_{op}_{'kept' if kept < 0 else 'work'}_bytes")
        return kept, work

    def run(self, op: str, where: Where, args: ctypes.Structure, backward: bool) -> None:
        if self._functions[op][3 if backward else 2](where, args) != 0:
            raise self._fail(f"hola_{op}_{'backward' if backward else 'forward'}")


def shape_args(op: str, rows: tuple[int, int, int, int], numbers: Mapping[str, Any]) -> Any:
    """The arguments without pointers. rows: T, N, longest, the bits of cu or 0."""
    a = OPS[op]()
    a.size = ctypes.sizeof(a)
    a.rows.T, a.rows.N, a.rows.longest, a.rows.cu_bits = rows
    a.rows.cu = 16 if rows[3] else None  # sizes depend on whether it is there; nobody looks at it
    for name, number in numbers.items():
        setattr(a, name, number)
    return a


def where_of(device: int, stream: Optional[int], memory: int, work_bytes: int) -> Where:
    """memory: of work_bytes + 256 bytes, wherever it begins."""
    w = Where()
    w.size, w.device, w.stream, w.work_bytes = ctypes.sizeof(w), device, stream, work_bytes
    w.work = (memory + 255) // 256 * 256
    return w


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
