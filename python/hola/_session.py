"""hola.Session, hola.History, and steps of many sessions at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import byref, c_int32, c_int64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _library
from ._convert import (
    Doubles,
    Floats,
    Ids,
    Int32s,
    Path,
    boolean,
    dtype_of,
    ids_array,
    integer,
    path_bytes,
    real,
    seed_of,
)
from ._errors import InvalidArgument
from ._handle import Handle, Resource
from ._library import RECENT, C, check, created

if TYPE_CHECKING:
    from ._model import Model

_serials = itertools.count()


class Kept(NamedTuple):
    """What one head of the exact memory keeps: ascending positions, and what the eviction rule compares."""

    positions: npt.NDArray[np.int64]
    scores: Floats


def sampling_of(
    temperature: float = 0.8,
    top_k: int = 40,
    top_p: float = 0.95,
    min_p: float = 0.05,
    repeat_penalty: float = 1.0,
    repeat_last_n: int = 64,
) -> _library.Sampling:
    """The sampler's options as the library takes them; it checks their ranges."""
    made: _library.Sampling = _library.options(
        _library.Sampling,
        temp=real(temperature, "temperature"),
        top_k=integer(top_k, "top_k"),
        top_p=real(top_p, "top_p"),
        min_p=real(min_p, "min_p"),
        repeat_penalty=real(repeat_penalty, "repeat_penalty"),
        repeat_last_n=integer(repeat_last_n, "repeat_last_n"),
    )
    return made


class Shape(NamedTuple):
    """What sessions need to know of their model."""

    owner: Handle
    vocab: int
    rows: int  # how many tokens go into one call of the library, between which Ctrl-C is heard
    layers: int
    heads: int
    window: int


class Session(Resource):
    """One sequence of tokens: the state of every layer, the position, the last ids and logits, the sampler's seed.

    Calls of several threads take turns. After Ctrl-C in a long ``feed`` or ``score``, ``position`` says how far it
    came.
    """

    _what = "session"

    def __init__(self, model: Model, *, seed: int = 0) -> None:
        seed = seed_of(seed)
        shape = model._shape()
        with shape.owner.lock:
            pointer = created(C.hola_session_new, shape.owner.pointer)
        self._begin(shape, pointer)
        C.hola_session_seed(pointer, seed)

    def _begin(self, shape: Shape, pointer: int) -> None:
        self._shape = shape
        self._handle = Handle(pointer, C.hola_session_free, shape.owner)
        self._serial = next(_serials)

    @contextmanager
    def _running(self) -> Iterator[int]:
        """For one call that runs the model, which trainers may use too; the session's lock is held."""
        handle = self._live()
        with handle.lock, self._shape.owner.lock:
            yield handle.pointer

    def _pieces(self, ids: Int32s) -> Iterator[slice]:
        """Where a long text is cut. A wrong id must be found before anything is fed."""
        if ids.size > self._shape.rows:
            wrong = np.flatnonzero((ids < 0) | (ids >= self._shape.vocab))
            if wrong.size:
                at = int(wrong[0])
                raise InvalidArgument(f"token {at}: id {ids[at]} is not in the vocabulary of {self._shape.vocab}")
        for first in range(0, max(ids.size, 1), self._shape.rows):
            yield slice(first, min(first + self._shape.rows, ids.size))

    def feed(self, ids: Ids, logits: bool = True) -> Floats | None:
        """Feeds tokens; the logits after the last one, unless they are not wanted."""
        array = ids_array(ids)
        out = np.empty(self._shape.vocab, np.float32) if boolean(logits, "logits") else None
        with self._using():
            for piece in self._pieces(array):
                part = array[piece]
                to = out.ctypes.data if out is not None and piece.stop == array.size else None
                with self._running() as s:
                    check(C.hola_session_feed(s, part.ctypes.data, part.size, to))
        return out

    def feed_each(self, ids: Ids) -> Floats:
        """Feeds tokens; the logits after each of them, [n, vocab]."""
        array = ids_array(ids)
        out = np.empty((array.size, self._shape.vocab), np.float32)
        with self._using():
            for piece in self._pieces(array):
                part = array[piece]
                with self._running() as s:
                    check(C.hola_session_feed_each(s, part.ctypes.data, part.size, out[piece].ctypes.data))
        return out

    def score(self, ids: Ids, targets: Ids) -> Doubles:
        """Feeds ids; log p(targets[i] | everything up to ids[i])."""
        array, after = ids_array(ids), ids_array(targets, "targets")
        if array.size != after.size:
            raise InvalidArgument(f"score: {array.size} ids and {after.size} targets")
        out = np.empty(array.size, np.float64)
        with self._using():
            list(self._pieces(after))  # wrong targets too are found first
            for piece in self._pieces(array):
                part, then = array[piece], after[piece]
                with self._running() as s:
                    to = out[piece].ctypes.data
                    check(C.hola_session_score(s, part.ctypes.data, then.ctypes.data, part.size, to))
        return out

    def sample(self, **sampling: Any) -> int:
        """A token from the last logits, which is not fed. The options are generate's: temperature, top_k, top_p, ..."""
        how = sampling_of(**sampling)
        id = c_int32()
        with self._running() as s:
            check(C.hola_session_sample(s, byref(how), byref(id)))
        return id.value

    @property
    def position(self) -> int:
        """Tokens fed so far."""
        with self._using() as s:
            return int(C.hola_session_position(s))

    @property
    def nbytes(self) -> int:
        """Bytes of its state."""
        with self._using() as s:
            return int(C.hola_session_bytes(s))

    @property
    def seed(self) -> int:
        """The sampler's seed; the random number is a function of it and of the position."""
        with self._using() as s:
            return int(C.hola_session_seed_of(s))

    @seed.setter
    def seed(self, value: int) -> None:
        seed = seed_of(value)
        with self._using() as s:
            C.hola_session_seed(s, seed)

    @property
    def logits(self) -> Floats | None:
        """The logits after the last token, if the call that fed it asked for them."""
        with self._using() as s:
            at = C.hola_session_logits(s)
            return np.array(np.ctypeslib.as_array(at, (self._shape.vocab,))) if at else None

    def recent(self, n: int = RECENT) -> Int32s:
        """The last n ids, the oldest first; at most 1024 are kept."""
        room = np.empty(min(integer(n, "n", 0), RECENT), np.int32)
        with self._using() as s:
            count = int(C.hola_session_recent(s, room.ctypes.data, room.size))
        return np.array(room[:count], np.int32)

    def clone(self) -> Session:
        """An independent copy."""
        twin = Session.__new__(Session)
        with self._running() as s:
            twin._begin(self._shape, created(C.hola_session_clone, s))
        return twin

    __copy__ = clone

    def __deepcopy__(self, memo: Any) -> Session:
        return self.clone()

    def reset(self) -> None:
        """Empties it; the seed stays."""
        with self._running() as s:
            seed = C.hola_session_seed_of(s)
            C.hola_session_reset(s)
            C.hola_session_seed(s, seed)

    def mark(self) -> None:
        """Marks this point for ``rollback``."""
        with self._running() as s:
            check(C.hola_session_mark(s))

    def rollback(self, k: int) -> None:
        """Takes back the last k tokens, at most those since the mark."""
        count = integer(k, "k")
        with self._running() as s:
            check(C.hola_session_rollback(s, count))

    def save(self, path: Path, dtype: str = "f32") -> None:
        """Saves the whole session; "f32" is exact."""
        to, kind = path_bytes(path), dtype_of(dtype)
        with self._running() as s:
            check(C.hola_session_save(s, to, kind))

    def load(self, path: Path) -> None:
        """Replaces this session by a saved one of the same model."""
        source = path_bytes(path)
        with self._running() as s:
            check(C.hola_session_load(s, source))

    def kept(self, layer: int, head: int) -> Kept:
        """The positions that a value head's exact memory keeps, without those of the block that is still open."""
        where = integer(layer, "layer"), integer(head, "head")
        positions = np.empty(self._shape.window + 1, np.int64)
        scores = np.empty(self._shape.window + 1, np.float32)
        n = c_int64()
        with self._running() as s:
            check(C.hola_session_kept(s, *where, positions.ctypes.data, scores.ctypes.data, byref(n)))
        return Kept(positions[: n.value].copy(), scores[: n.value].copy())


@contextmanager
def _together(sessions: Sequence[Session]) -> Iterator[tuple[Any, Shape]]:
    """The pointers of sessions of one model, all locked; in one order, so that two threads cannot block each other."""
    if not isinstance(sessions, Sequence) or not all(isinstance(s, Session) for s in sessions):
        raise TypeError("sessions: a list of Session is expected")
    if not sessions:
        raise InvalidArgument("step: 0 sessions")
    handles = [s._live() for s in sessions]
    first: dict[int, int] = {}
    for i, s in enumerate(sessions):
        if first.setdefault(id(s), i) != i:
            raise InvalidArgument(f"step: sessions {first[id(s)]} and {i} are the same")
        if s._shape.owner is not sessions[0]._shape.owner:
            raise InvalidArgument(f"step: session {i} is of another model")
    with ExitStack() as stack:
        for i in sorted(range(len(sessions)), key=lambda i: sessions[i]._serial):
            stack.enter_context(handles[i].lock)
        stack.enter_context(sessions[0]._shape.owner.lock)
        yield (c_void_p * len(handles))(*[h.pointer for h in handles]), sessions[0]._shape


def _one_each(sessions: Sequence[Session], ids: Ids) -> Int32s:
    array = ids_array(ids)
    if isinstance(sessions, Sequence) and array.size != len(sessions):
        raise InvalidArgument(f"step: {len(sessions)} sessions and {array.size} ids")
    return array


def step(sessions: Sequence[Session], ids: Ids) -> Floats:
    """Feeds one token to each session in one pass, each at its own position; the logits after it, [n, vocab]."""
    array = _one_each(sessions, ids)
    with _together(sessions) as (pointers, shape):
        out = np.empty((array.size, shape.vocab), np.float32)
        check(C.hola_session_step(pointers, array.size, array.ctypes.data, out.ctypes.data))
    return out


def step_sample(sessions: Sequence[Session], ids: Ids, **sampling: Any) -> Int32s:
    """``step``, then ``sample`` of each session, without copying all logits to the host."""
    array, how = _one_each(sessions, ids), sampling_of(**sampling)
    out = np.empty(array.size, np.int32)
    with _together(sessions) as (pointers, _):
        check(C.hola_session_step_sample(pointers, array.size, array.ctypes.data, byref(how), out.ctypes.data))
    return out


class History(Resource):
    """The ids of an empty session from now on, and copies of it at some points, to go back to any position.

    every: tokens between two points (0: 512, on a GPU 8192); most: points that are kept (0: 8).
    """

    _what = "history"

    def __init__(self, session: Session, *, every: int = 0, most: int = 0) -> None:
        if not isinstance(session, Session):
            raise TypeError(f"session: a Session is expected, not {type(session).__name__}")
        how = _library.options(_library.HistoryOpts, every=integer(every, "every", 0), most=integer(most, "most", 0))
        with session._running() as s:
            pointer = created(C.hola_history_new, s, byref(how))
        self.session = session
        """The session that it follows."""
        self._handle = Handle(pointer, C.hola_history_free, session._live())

    @contextmanager
    def _running(self) -> Iterator[int]:
        handle = self._live()
        with self.session._running():
            yield handle.pointer

    def feed(self, ids: Ids, logits: bool = True) -> Floats | None:
        """Feeds the session and keeps points on the way."""
        array = ids_array(ids)
        out = np.empty(self.session._shape.vocab, np.float32) if boolean(logits, "logits") else None
        with self.session._using():
            for piece in self.session._pieces(array):
                part = array[piece]
                to = out.ctypes.data if out is not None and piece.stop == array.size else None
                with self._running() as h:
                    check(C.hola_history_feed(h, part.ctypes.data, part.size, to))
        return out

    def keep(self) -> None:
        """Keeps a point here."""
        with self._running() as h:
            check(C.hola_history_keep(h))

    def prompt(self, ids: Ids) -> tuple[Floats, int]:
        """Brings the session to exactly these tokens: the logits after them, and how many were not fed again."""
        array = ids_array(ids)
        out = np.empty(self.session._shape.vocab, np.float32)
        reused = c_int64()
        with self.session._using() as s:
            list(self.session._pieces(array))  # a wrong id is found before anything changes
            # What the session has read may be kept, so the first call goes that far; the rest is fed in pieces.
            first = min(max(int(C.hola_session_position(s)), self.session._shape.rows), array.size)
            to = out.ctypes.data if first == array.size else None
            with self._running() as h:
                check(C.hola_history_prompt(h, array.ctypes.data, first, to, byref(reused)))
            if first < array.size:
                out = self.feed(array[first:])  # type: ignore[assignment]
        return out, reused.value

    def rollback(self, k: int) -> None:
        """Takes back the last k tokens, however many."""
        count = integer(k, "k")
        with self._running() as h:
            check(C.hola_history_rollback(h, count))
