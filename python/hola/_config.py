"""hola.Config: the architecture of a model, field by field as hola_config of hola.h."""

from __future__ import annotations

import ctypes
import json
import math
from ctypes import byref, c_bool, c_double
from typing import Any, ClassVar

from . import _library
from ._convert import Path, boolean, integer, path_bytes, real
from ._errors import FormatError, InvalidArgument
from ._library import C, check

_KINDS: dict[str, Any] = {field[0]: field[1] for field in _library.Config._fields_}
_NAMES: dict[str, tuple[str | None, ...]] = {
    "model_type": _library.MODEL_TYPES,
    "cache_evict": _library.EVICTS,
    "cache_norm": _library.CACHE_NORMS,
    "feature_map": _library.FEATURE_MAPS,
}
# Other fields have defaults that depend on these: the library settles them as it does for a config.json.
_DERIVED_FROM = ("hidden_size", "hidden_ratio", "num_heads", "head_dim", "vocab_size")


def _expand(size: int, base: int) -> float:
    """The factor of config.json that gives a size, which is rounded down."""
    factor = size / base
    while math.floor(base * factor) < size:
        factor = math.nextafter(factor, math.inf)
    return factor


def _as_file(c: dict[str, Any], model_type: str) -> bytes:
    """What a config.json says of the fields that other defaults depend on."""
    file = {name: c[name] for name in _DERIVED_FROM if name in c}
    if any(isinstance(v, float) and not math.isfinite(v) for v in file.values()):
        raise InvalidArgument("Config: a number that is not finite")
    of_all_heads = model_type in ("delta_net", "gla", "gsa")
    base, heads = (c.get("hidden_size", 0), c.get("num_heads", 0)) if of_all_heads else (c.get("head_dim", 0), 1)
    for name, factor in (("head_dim", "expand_k"), ("head_v_dim", "expand_v")):
        if 0 < c.get(name, 0) < 2**16 and 0 < base < 2**20 and 0 < heads < 2**16:
            file[factor] = _expand(c[name] * heads, base)
    return json.dumps({"model_type": model_type, **file}).encode()


def _to_c(name: str, value: Any) -> Any:
    """A field as the struct has it."""
    kind = _KINDS[name]
    if name in _NAMES:
        if not isinstance(value, str) and (value is not None or None not in _NAMES[name]):
            raise TypeError(f"{name}: a string is expected, not {type(value).__name__}")
        if value not in _NAMES[name]:
            raise InvalidArgument(f"{name}: {value!r} is not one of {', '.join(map(str, _NAMES[name]))}")
        return _NAMES[name].index(value)
    if kind is c_bool:
        return boolean(value, name)
    return real(value, name) if kind is c_double else integer(value, name)


class Config:
    """The architecture of a model.

    ``Config(hidden_size=256, ...)`` takes the fields of hola_config (hola.h); those left out have the defaults of
    config.json for the ``model_type`` (default "hola"). Fields are attributes; enums are their names.
    """

    __slots__ = ("_struct",)
    _struct: _library.Config
    fields: ClassVar[tuple[str, ...]] = tuple(_KINDS)

    def __init__(self, **fields: Any) -> None:
        unknown = sorted(set(fields) - set(_KINDS))
        if unknown:
            raise TypeError(f"Config: there is no field {', '.join(unknown)}")
        fields.setdefault("model_type", "hola")
        settled = {name: _to_c(name, value) for name, value in fields.items()}
        struct = _library.Config()
        text = _as_file(settled, fields["model_type"])
        try:
            check(C.hola_config_parse(byref(struct), text, len(text)))
        except FormatError as e:  # there is no file: the argument was wrong
            raise InvalidArgument(str(e)) from None
        for name, value in settled.items():
            setattr(struct, name, value)
        check(C.hola_config_check(byref(struct)))
        object.__setattr__(self, "_struct", struct)

    @classmethod
    def _of(cls, struct: _library.Config) -> Config:
        config = cls.__new__(cls)
        object.__setattr__(config, "_struct", struct)
        return config

    @classmethod
    def preset(cls, name: str, model_type: str = "hola") -> Config:
        """The paper's sizes: "46m", "170m" or "340m", as hola_config_preset() has them."""
        if not isinstance(name, str):
            raise TypeError(f"preset: a string is expected, not {type(name).__name__}")
        struct = _library.Config()
        check(C.hola_config_preset(byref(struct), path_bytes(name, "preset"), _to_c("model_type", model_type)))
        return cls._of(struct)

    @classmethod
    def from_pretrained(cls, path: Path) -> Config:
        """The config.json of a model directory, or that file."""
        struct = _library.Config()
        check(C.hola_config_read(byref(struct), path_bytes(path)))
        return cls._of(struct)

    def to_dict(self) -> dict[str, Any]:
        """All fields; ``Config(**c.to_dict())`` is ``c`` again."""
        return {name: getattr(self, name) for name in _KINDS}

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained."""
        return int(C.hola_config_parameters(byref(self._struct)))

    def __getattr__(self, name: str) -> Any:
        if name not in _KINDS:
            raise AttributeError(f"Config has no field {name!r}")
        value = getattr(self._struct, name)
        return _NAMES[name][value] if name in _NAMES else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _KINDS:
            raise AttributeError(f"Config has no field {name!r}")
        setattr(self._struct, name, _to_c(name, value))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_KINDS]

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Config) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __copy__(self) -> Config:
        struct = _library.Config()
        ctypes.pointer(struct)[0] = self._struct
        return Config._of(struct)

    def __deepcopy__(self, memo: Any) -> Config:
        return self.__copy__()

    def __reduce__(self) -> Any:
        return _from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{n}={v!r}' for n, v in self.to_dict().items())})"


def _from_dict(fields: dict[str, Any]) -> Config:
    config = Config(model_type=fields["model_type"])
    for name, value in fields.items():
        setattr(config, name, value)
    return config
