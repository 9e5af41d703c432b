"""hola.Model."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from ctypes import byref
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from . import _generate, _library
from ._config import Config
from ._convert import (
    PRECISIONS,
    Doubles,
    Floats,
    Ids,
    Int32s,
    Path,
    choice,
    dtype_of,
    ids_array,
    integer,
    path_bytes,
    seed_of,
)
from ._errors import InvalidArgument, NumericError
from ._generate import Completion, Piece, Settings
from ._handle import Handle, Resource
from ._library import C, check, created, devices
from ._session import Session, Shape
from ._tokenizer import Tokenizer

Prompt = Union[str, bytes, Ids]
TOKENIZER_FILES = ("tokenizer.model", "tokenizer.json")
# What `hola convert` takes along beside the weights and config.json.
_COMPANIONS = (
    *TOKENIZER_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "hola_chat.json",
)


def _rows(backend: str, parameters: int) -> int:
    """How many tokens one call of the library gets, so that it takes a fraction of a second and Ctrl-C is heard. A
    function of the model alone: where a text is cut must not depend on the clock."""
    if backend.startswith("cuda"):
        return 8192
    return 512 if parameters < 60e6 else 256 if parameters < 200e6 else 128


def _tokenizer_of(tokenizer: Tokenizer | Path | None, path: Path | None) -> Tokenizer | None:
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if tokenizer is not None:
        return Tokenizer(tokenizer)
    if path is not None and any(os.path.exists(os.path.join(os.fspath(path), name)) for name in TOKENIZER_FILES):
        return Tokenizer(path)
    return None


class Model(Resource):
    """A model: ``Model.load(path)`` or ``Model.new(config)``. Threads may share it.

    backend: one of ``hola.devices()``; None: the first of them. threads: of the CPU, 0: one per processor. tokenizer: a
    Tokenizer, a path or "byte"; None: the one in the model's directory, if there is one. precision: "bf16" rounds the
    operands of the large products on the CPU, too.
    """

    _what = "model"

    def __init__(self) -> None:
        raise TypeError("use Model.load(path) or Model.new(config)")

    @classmethod
    def _begin(
        cls, make: Any, backend: str | None, threads: int, tokenizer: Any, path: Path | None, precision: str
    ) -> Model:
        if backend is not None and not isinstance(backend, str):
            raise TypeError(f"backend: a string is expected, not {type(backend).__name__}")
        name = devices()[0] if backend is None else backend
        number = integer(threads, "threads", 0, 4096)
        options = _library.options(
            _library.Options,
            threads=number,
            backend=path_bytes(name, "backend"),
            precision=choice(precision, "precision", PRECISIONS),
        )
        model = cls.__new__(cls)
        model._tokenizer = _tokenizer_of(tokenizer, path)
        model._handle = Handle(make(options), C.hola_model_free)
        model._backend, model._path = name, path
        struct = model._c_config()
        parameters = int(C.hola_config_parameters(byref(struct)))
        model._form = Shape(
            model._handle,
            struct.vocab_size,
            _rows(name, parameters),
            struct.num_hidden_layers,
            struct.num_v_heads,
            struct.cache_window,
        )
        return model

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        backend: str | None = None,
        threads: int = 0,
        tokenizer: Tokenizer | Path | None = None,
        precision: str = "auto",
    ) -> Model:
        """Loads a model directory: config.json and safetensors."""
        source = path_bytes(path)
        return cls._begin(
            lambda options: created(C.hola_model_load, source, byref(options)),
            backend,
            threads,
            tokenizer,
            path,
            precision,
        )

    from_pretrained = load

    @classmethod
    def new(
        cls,
        config: Config,
        *,
        seed: int = 0,
        backend: str | None = None,
        threads: int = 0,
        tokenizer: Tokenizer | Path | None = None,
        precision: str = "auto",
    ) -> Model:
        """A new model with random weights, the same for the same seed."""
        if not isinstance(config, Config):
            raise TypeError(f"config: a Config is expected, not {type(config).__name__}")
        number = seed_of(seed)
        return cls._begin(
            lambda options: created(C.hola_model_new, byref(config._struct), number, byref(options)),
            backend,
            threads,
            tokenizer,
            None,
            precision,
        )

    _tokenizer: Tokenizer | None
    _backend: str
    _path: Path | None
    _form: Shape

    def _shape(self) -> Shape:
        self._live()
        return self._form

    def _c_config(self) -> _library.Config:
        return _library.Config.from_buffer_copy(_library.Config.from_address(C.hola_model_config(self._live().pointer)))

    def close(self) -> None:
        """Gives the memory back, once no session needs it. A second call does nothing."""
        super().close()
        self.__dict__.pop("_form", None)

    def save(self, path: Path, dtype: str = "f32") -> None:
        """Writes config.json and model.safetensors, and copies the tokenizer's files. dtype: "f32", "bf16" or "f16"."""
        to, kind = path_bytes(path), dtype_of(dtype)
        handle = self._live()
        with handle.lock:
            check(C.hola_model_save(handle.pointer, to, kind))
        source = self._tokenizer.path if self._tokenizer is not None else None
        if source is not None and os.path.isdir(source) and not os.path.samefile(source, path):
            for name in _COMPANIONS:
                if os.path.exists(os.path.join(source, name)):
                    _copy(os.path.join(source, name), os.path.join(os.fspath(path), name))
        elif source is not None and os.path.basename(source) in TOKENIZER_FILES and os.path.isfile(source):
            _copy(source, os.path.join(os.fspath(path), os.path.basename(source)))

    @property
    def config(self) -> Config:
        """Its architecture, as a copy."""
        return Config._of(self._c_config())

    @property
    def backend(self) -> str:
        """Where it runs: "cuda:0" or "cpu"."""
        self._live()
        return self._backend

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer, or None."""
        self._live()
        return self._tokenizer

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained."""
        return self.config.num_parameters

    def _tensors(self) -> Iterator[tuple[int, _library.TensorInfo]]:
        handle = self._live()
        for i in range(C.hola_model_tensor_count(handle.pointer)):
            info = _library.TensorInfo()
            check(C.hola_model_tensor(handle.pointer, i, byref(info)))
            yield i, info

    def tensor_names(self) -> list[str]:
        """The names of its tensors, as in the file."""
        return [info.name.decode() for _, info in self._tensors()]

    def tensor(self, name: str) -> Floats:
        """A tensor as float32."""
        if not isinstance(name, str):
            raise TypeError(f"name: a string is expected, not {type(name).__name__}")
        handle = self._live()
        for i, info in self._tensors():
            if info.name.decode() == name:
                out = np.empty(tuple(info.dim[: info.ndim]), np.float32)
                with handle.lock:
                    check(C.hola_model_tensor_read(handle.pointer, i, out.ctypes.data))
                return out
        raise InvalidArgument(f"tensor: this model has no {name!r}")

    def _ids(self, prompt: Prompt, name: str = "prompt") -> Int32s:
        """A text with BOS before it, or ids as they are."""
        if not isinstance(prompt, (str, bytes)):
            return ids_array(prompt, name)
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise InvalidArgument(f"{name}: this model has no tokenizer, so token ids are expected")
        return tokenizer.encode(prompt, bos=tokenizer.bos_id >= 0)

    def session(self, seed: int = 0) -> Session:
        """A new, empty session."""
        return Session(self, seed=seed)

    def score(self, text_or_ids: Prompt) -> Doubles:
        """log p(token | all before it) of every token but the first, as ``hola score``."""
        self._live()
        ids = self._ids(text_or_ids, "text_or_ids")
        if ids.size == 0:
            raise InvalidArgument("text_or_ids: no tokens")
        if ids.size == 1:
            self._check_ids(ids)
            return np.empty(0, np.float64)
        with self.session() as s:
            scores = s.score(ids[:-1], ids[1:])
        wrong = np.flatnonzero(~np.isfinite(scores))
        if wrong.size:
            raise NumericError(f"the log-probability of token {wrong[0] + 1} is not a finite number")
        return scores

    def _check_ids(self, ids: Int32s) -> None:
        wrong = np.flatnonzero((ids < 0) | (ids >= self._form.vocab))
        if wrong.size:
            at = int(wrong[0])
            raise InvalidArgument(f"token {at}: id {ids[at]} is not in the vocabulary of {self._form.vocab}")

    def loglikelihood(self, pairs: Iterable[tuple[Ids, Ids]]) -> tuple[Doubles, npt.NDArray[np.bool_]]:
        """For pairs of ids (context, continuation): the sums of log p(continuation | context), and whether each
        continuation is what greedy decoding gives. Pairs share passes; alike contexts are read once."""
        handle = self._live()
        parts: list[Int32s] = []
        starts, asked = [0], []
        for context, continuation in pairs:
            before, after = ids_array(context, "context"), ids_array(continuation, "continuation")
            parts += [before, after]
            starts.append(starts[-1] + before.size + after.size)
            asked.append(after.size)
        scores, greedy = np.empty(len(asked), np.float64), np.empty(len(asked), np.bool_)
        if asked:
            all_ids, begin, count = np.concatenate(parts), np.array(starts, np.int64), np.array(asked, np.int64)
            with handle.lock:
                to = scores.ctypes.data, greedy.ctypes.data
                arrays = all_ids.ctypes.data, begin.ctypes.data, count.ctypes.data
                check(C.hola_model_score(handle.pointer, *arrays, len(asked), *to))
        return scores, greedy

    def _settings(self, **options: Any) -> Settings:
        self._live()
        return Settings(self, **options)

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 128,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        repeat_last_n: int = 64,
        seed: int = 0,
        stop: str | bytes | Sequence[str | bytes] = (),
    ) -> Completion:
        """Continues a prompt. temperature 0 is greedy; the same seed gives the same text."""
        settings = self._settings(
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            repeat_last_n=repeat_last_n,
            seed=seed,
            stop=stop,
        )
        return _generate.generate(settings, self._ids(prompt))

    def generate_batch(self, prompts: Sequence[Prompt], **options: Any) -> list[Completion]:
        """Continues many prompts in shared passes, each as ``generate`` with these options would."""
        if isinstance(prompts, (str, bytes)) or not isinstance(prompts, (Sequence, np.ndarray)):
            raise TypeError(f"prompts: a list of prompts is expected, not {type(prompts).__name__}")
        return _generate.generate_batch(self._settings(**options), [self._ids(p, "prompts") for p in prompts])

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Piece]:
        """``generate``, token by token. Joined, the texts of the pieces are generate's text."""
        return _generate.Run(self._settings(**options), self._ids(prompt)).pieces()

    def astream(self, prompt: Prompt, **options: Any) -> AsyncIterator[Piece]:
        """``stream`` for an event loop, which stays free: the tokens are made in a thread."""
        settings, ids = self._settings(**options), self._ids(prompt)
        if ids.size == 0:
            raise InvalidArgument("prompt: no tokens")
        return _generate.astream(settings, ids)

    def __copy__(self) -> Model:
        """An independent copy, through a file: models have no other way out of the library."""
        import tempfile

        self._live()
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)
            return Model.load(folder, backend=self._backend, tokenizer=self._tokenizer)

    def __deepcopy__(self, memo: Any) -> Model:
        return self.__copy__()

    def __repr__(self) -> str:
        if self.closed:
            return "<hola.Model, closed>"
        c = self.config
        return f"<hola.Model {c.model_type}, {self.num_parameters:,} parameters, on {self._backend}>"


def _copy(source: str, to: str) -> None:
    """Whole or not at all."""
    import shutil

    partial = f"{to}.{os.getpid()}.tmp"
    try:
        shutil.copyfile(source, partial)
        os.replace(partial, to)
    finally:
        if os.path.exists(partial):
            os.remove(partial)
