"""hola.Tokenizer, and the text of ids as they come."""

from __future__ import annotations

import codecs
import ctypes
import os
from collections.abc import Sequence
from ctypes import byref, c_bool, c_char_p, c_int64, c_void_p
from typing import Any

import numpy as np

from ._convert import Ids, Int32s, Path, boolean, ids_array, path_bytes, text_bytes
from ._errors import InvalidArgument
from ._handle import Handle, Resource
from ._library import C, check, created, free

_LONG = 1 << 20  # bytes of a text from which on all processors encode it


class Tokenizer(Resource):
    """A tokenizer: ``Tokenizer(path)`` of a model directory, tokenizer.model or tokenizer.json; ``Tokenizer("byte")``.

    It is read-only: threads may share it, and forked children may use it.
    """

    _what = "tokenizer"
    _forkable = True

    def __init__(self, path: Path) -> None:
        self._handle = Handle(created(C.hola_tokenizer_load, path_bytes(path)), C.hola_tokenizer_free)
        self.path = os.fspath(path)
        """Where it was loaded from."""

    @property
    def vocab_size(self) -> int:
        """All ids are below it."""
        return int(C.hola_tokenizer_size(self._live().pointer))

    @property
    def bos_id(self) -> int:
        """The id of BOS, -1 if there is none."""
        return int(C.hola_tokenizer_bos(self._live().pointer))

    @property
    def eos_id(self) -> int:
        """The id of EOS, -1 if there is none."""
        return int(C.hola_tokenizer_eos(self._live().pointer))

    def encode(self, text: str | bytes, bos: bool = False, eos: bool = False) -> Int32s:
        """The ids of a text, with BOS before and EOS after it where asked for."""
        handle = self._live()
        data = text_bytes(text, "text")
        around: list[list[int]] = [[], []]
        for i, (wanted, name, special) in enumerate(((bos, "bos", self.bos_id), (eos, "eos", self.eos_id))):
            if boolean(wanted, name):
                if special < 0:
                    raise InvalidArgument(f"{name}: this tokenizer has none")
                around[i] = [special]
        ids, n = c_void_p(), c_int64()
        threads = 0 if len(data) >= _LONG else 1
        check(C.hola_tokenizer_encode(handle.pointer, data, len(data), threads, byref(ids), byref(n)))
        try:
            raw = ctypes.string_at(ids.value, 4 * n.value) if n.value and ids.value else b""
        finally:
            free(ids.value)
        return np.concatenate(
            [np.array(x, dtype=np.int32) for x in (around[0], np.frombuffer(raw, np.int32), around[1])]
        )

    def decode_bytes(self, ids: Ids) -> bytes:
        """The bytes of ids, without special tokens."""
        handle = self._live()
        array = ids_array(ids)
        text, n = c_void_p(), c_int64()
        check(C.hola_tokenizer_decode(handle.pointer, array.ctypes.data, array.size, byref(text), byref(n)))
        try:
            return ctypes.string_at(text.value, n.value) if n.value and text.value else b""
        finally:
            free(text.value)

    def decode(self, ids: Ids) -> str:
        """The text of ids; what is not UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def __copy__(self) -> Tokenizer:
        return self  # nothing of it changes

    def __deepcopy__(self, memo: Any) -> Tokenizer:
        return self

    def __repr__(self) -> str:
        return f"Tokenizer({self.path!r})"


def stop_strings(stop: str | bytes | Sequence[str | bytes]) -> list[bytes]:
    """One stop string or several."""
    given = [stop] if isinstance(stop, (str, bytes)) else stop
    if not isinstance(given, Sequence):
        raise TypeError(f"stop: a string or a list of strings is expected, not {type(stop).__name__}")
    strings = [text_bytes(s, "stop") for s in given]
    if not all(strings):
        raise InvalidArgument("stop: an empty string")
    return strings


class Detokenizer:
    """The text of ids as they come, in whole characters, without stop strings."""

    def __init__(self, tokenizer: Tokenizer, stop: list[bytes]) -> None:
        owner = tokenizer._live()
        strings = (c_char_p * max(len(stop), 1))(*stop)
        lengths = (c_int64 * max(len(stop), 1))(*map(len, stop))
        pointer = created(C.hola_detokenizer_new, owner.pointer, strings, lengths, len(stop))
        self._handle = Handle(pointer, C.hola_detokenizer_free, owner)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        C.hola_detokenizer_begin(pointer, None, 0)
        self._stopped, self._n = c_bool(), c_int64()
        self._to_stopped, self._to_n = byref(self._stopped), byref(self._n)

    def add(self, id: int) -> bool:
        """Adds an id; True: a stop string is complete."""
        check(C.hola_detokenizer_add(self._handle.pointer, id, self._to_stopped))
        return self._stopped.value

    def take(self, end: bool) -> str:
        """What has become certain since the last call; end: all of it."""
        at = C.hola_detokenizer_take(self._handle.pointer, end, self._to_n)
        n = self._n.value
        if n == 0 and not end:
            return ""
        return self._decoder.decode(ctypes.string_at(at, n) if n else b"", end)
