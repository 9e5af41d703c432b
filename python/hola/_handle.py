"""Who owns what of the library, and until when.

A Handle holds one pointer and frees it when its last holder lets go. Objects that need another one to live hold its
handle too: a session its model's, a history its session's. So closing a model that sessions still use closes the Python
object, and the memory goes with the last session.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Callable, NoReturn, TypeVar

from ._errors import Error, InvalidArgument

_Self = TypeVar("_Self", bound="Resource")


class Handle:
    """A pointer of the library. A forked child never frees it: the threads behind it are not there any more."""

    __slots__ = ("pointer", "lock", "pid", "_free", "_keep")

    def __init__(self, pointer: int, free: Callable[[int], Any], *keep: Any) -> None:
        self.pointer = pointer
        self.lock = threading.RLock()
        self.pid = os.getpid()
        self._free = free
        self._keep = keep

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        if getpid() == self.pid:
            self._free(self.pointer)


class Resource:
    """What can be closed: with ``close()``, at the end of a ``with``, or by being dropped."""

    _what = "object"
    _forkable = False
    _handle: Handle | None = None

    def _live(self) -> Handle:
        """The handle, to be held while it is used: another thread may close this object meanwhile."""
        handle = self._handle
        if handle is None:
            raise InvalidArgument(f"this {self._what} is closed")
        if not self._forkable and handle.pid != os.getpid():
            error = Error(
                f"this {self._what} belongs to process {handle.pid}, and its threads were not forked with it: "
                "load the model again in the child"
            )
            error.status = 5
            raise error
        return handle

    @contextmanager
    def _using(self) -> Iterator[int]:
        """The pointer, with the object's lock: another thread waits."""
        handle = self._live()
        with handle.lock:
            yield handle.pointer

    @property
    def closed(self) -> bool:
        """Whether ``close()`` was called."""
        return self._handle is None

    def close(self) -> None:
        """Gives the memory back, if nothing else needs it. A second call does nothing."""
        self._handle = None

    def __enter__(self: _Self) -> _Self:
        self._live()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied; save it to a file")
