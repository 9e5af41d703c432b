"""Text from a model: one run or a batch of them, at once, as a stream, or for an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from ctypes import byref, c_int32, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _library
from ._convert import Int32s, integer, seed_of
from ._errors import InvalidArgument
from ._library import C, check
from ._session import Session, sampling_of, step_sample
from ._tokenizer import Detokenizer, stop_strings

if TYPE_CHECKING:
    from ._model import Model

_BATCH = 64  # sessions that are held at a time


class Completion(NamedTuple):
    """What ``generate`` gives."""

    text: str
    """The text of the ids, up to a stop string; "" for a model without a tokenizer."""
    ids: Int32s
    """All tokens that were generated; those of a stop string are among them, EOS is not."""
    finish_reason: str
    """"stop": EOS or a stop string; "length": max_tokens."""
    prompt_tokens: int
    """How many tokens the prompt had, BOS included."""

    def __eq__(self, other: object) -> bool:
        """Whether all of it is the same."""
        if not isinstance(other, Completion):
            return NotImplemented
        return np.array_equal(self.ids, other.ids) and (self[:1] + self[2:]) == (other[:1] + other[2:])

    def __ne__(self, other: object) -> bool:
        """Whether something differs."""
        return not self == other

    def __hash__(self) -> int:
        """Of its text and end."""
        return hash((self.text, self.finish_reason, self.prompt_tokens))


class Piece(NamedTuple):
    """A token of a stream, and the text that has become certain with it: whole characters only, often none."""

    id: int
    text: str


class Settings:
    """The options of generate, checked."""

    def __init__(
        self,
        model: Model,
        max_tokens: int = 128,
        seed: int = 0,
        stop: str | bytes | Sequence[str | bytes] = (),
        **sampling: Any,
    ) -> None:
        self.model = model
        self.max_tokens = integer(max_tokens, "max_tokens", 0)
        self.seed = seed_of(seed)
        self.stop = stop_strings(stop)
        self.sampling = sampling
        self.sampling_struct: _library.Sampling = sampling_of(**sampling)
        self.tokenizer = model.tokenizer
        if self.tokenizer is None and self.stop:
            raise InvalidArgument("stop: this model has no tokenizer")
        eos = -1 if self.tokenizer is None else self.tokenizer.eos_id
        self.eos = eos if eos >= 0 else int(model.config.eos_token_id)


class Run:
    """One text on its way."""

    def __init__(self, settings: Settings, prompt: Int32s) -> None:
        if prompt.size == 0:
            raise InvalidArgument("prompt: no tokens")
        self.settings, self.prompt = settings, prompt
        self.text = Detokenizer(settings.tokenizer, settings.stop) if settings.tokenizer is not None else None
        self.ids: list[int] = []
        self.finish_reason = ""
        self.cancelled = False
        self.session = Session(settings.model, seed=settings.seed)
        # made once, as a token of a small model takes no longer than making them
        self._id, self._after = c_int32(), c_int32()
        handle = self.session._live()
        self._step = (
            byref(c_void_p(handle.pointer)),
            1,
            byref(self._id),
            byref(settings.sampling_struct),
            byref(self._after),
        )

    def begin(self) -> int:
        """Reads the prompt; the first token."""
        for first in range(0, self.prompt.size, self.session._shape.rows):
            if self.cancelled:
                return -1
            part = self.prompt[first : first + self.session._shape.rows]
            self.session.feed(part, logits=first + part.size == self.prompt.size)
        return self.session.sample(**self.settings.sampling)

    def next(self, id: int) -> int:
        """The token after this one."""
        handle = self.session._live()
        self._id.value = id
        with handle.lock, self.session._shape.owner.lock:
            check(C.hola_session_step_sample(*self._step))
        return self._after.value

    def take(self, id: int) -> Piece | None:
        """A token that was chosen; finish_reason says whether it is the last. None: it is EOS, and no text was left."""
        if id == self.settings.eos:
            self.finish_reason = "stop"
            rest = self.text.take(True) if self.text else ""
            return Piece(id, rest) if rest else None
        self.ids.append(id)
        if self.text and self.text.add(id):
            self.finish_reason = "stop"
        elif len(self.ids) >= self.settings.max_tokens:
            self.finish_reason = "length"
        return Piece(id, self.text.take(self.finish_reason != "") if self.text else "")

    def pieces(self) -> Iterator[Piece]:
        """The whole of it, token by token."""
        try:
            if self.settings.max_tokens == 0:
                self.finish_reason = "length"
                return
            id = self.begin()
            while not self.cancelled:
                piece = self.take(id)
                if piece is not None:
                    yield piece
                if self.finish_reason:
                    return
                id = self.next(id)
        finally:
            self.session.close()

    def completion(self, texts: list[str]) -> Completion:
        """What came of it."""
        return Completion("".join(texts), np.array(self.ids, np.int32), self.finish_reason, self.prompt.size)


def generate(settings: Settings, prompt: Int32s) -> Completion:
    """One text."""
    run = Run(settings, prompt)
    return run.completion([piece.text for piece in run.pieces()])


def generate_batch(settings: Settings, prompts: list[Int32s]) -> list[Completion]:
    """Many texts, in passes that they share."""
    if not all(prompt.size for prompt in prompts):
        raise InvalidArgument("prompts: one has no tokens")
    done: list[Completion] = []
    for first in range(0, len(prompts), _BATCH):
        done += _together(settings, prompts[first : first + _BATCH])
    return done


def _together(settings: Settings, prompts: list[Int32s]) -> list[Completion]:
    runs = [Run(settings, prompt) for prompt in prompts]
    texts: list[list[str]] = [[] for _ in runs]
    if settings.max_tokens == 0:
        return [Completion("", np.empty(0, np.int32), "length", run.prompt.size) for run in runs]
    try:
        chosen = {i: run.begin() for i, run in enumerate(runs)}
        while chosen:
            for i, id in list(chosen.items()):
                piece = runs[i].take(id)
                if piece is not None:
                    texts[i].append(piece.text)
                if runs[i].finish_reason:
                    del chosen[i]
            if chosen:
                after = step_sample([runs[i].session for i in chosen], list(chosen.values()), **settings.sampling)
                chosen = {i: int(id) for i, id in zip(chosen, after)}
    finally:
        for run in runs:
            run.session.close()
    return [run.completion(text) for run, text in zip(runs, texts)]


async def astream(settings: Settings, prompt: Int32s) -> AsyncIterator[Piece]:
    """A stream whose tokens are made in a thread of its own."""
    import asyncio  # here, as most programs that import this package do not need it
    from concurrent.futures import ThreadPoolExecutor

    run = Run(settings, prompt)
    pieces = run.pieces()
    loop = asyncio.get_running_loop()
    worker = ThreadPoolExecutor(1, "hola")
    try:
        while True:
            piece = await loop.run_in_executor(worker, next, pieces, None)
            if piece is None:
                return
            yield piece
    finally:  # also where the consumer left: the thread stops after the piece that it is at
        run.cancelled = True
        worker.submit(pieces.close)  # type: ignore[attr-defined]
        worker.shutdown(wait=False)
