"""hola's kernels under flash-linear-attention's layers and models: patch_fla() and unpatch_fla()."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from typing import Any, Callable

from . import _functions, _functions_linear

_NAMES = {  # fla's module: its names, and where ours are
    "fla.ops.gated_delta_rule": (("chunk_gated_delta_rule", "chunk_gdn", "fused_recurrent_gated_delta_rule",
                                  "fused_recurrent_gdn"), _functions),
    "fla.ops.kda": (("chunk_kda",), _functions_linear),
    "fla.ops.gla": (("chunk_gla",), _functions_linear),
}
_replaced: dict[str, tuple[Any, Any]] = {}  # name: fla's function, ours
_places: list[tuple[Any, str]] = []  # modules and names that hold ours
_warned: set[str] = set()


def _with_own(name: str, own: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """ours; own where ours refuses the arguments."""

    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return ours(*args, **kwargs)
        except (NotImplementedError, TypeError, ValueError) as error:
            reason = str(error)
        if name not in _warned:
            _warned.add(name)
            warnings.warn(f"hola.torch: fla's own {name} is used: {reason}", RuntimeWarning, stacklevel=2)
        return own(*args, **kwargs)

    return call


def _find() -> None:
    made: dict[int, Any] = {}  # two names of one function stay one
    for home_name, (names, ours) in _NAMES.items():
        try:
            home = importlib.import_module(home_name)
        except ImportError:
            if home_name == "fla.ops.gated_delta_rule":
                raise
            continue  # an fla that has no such op
        for name in names:
            own = getattr(home, name, None)
            if own is None:
                continue
            if id(own) not in made:
                made[id(own)] = _with_own(name, own, getattr(ours, name))
            _replaced[name] = own, made[id(own)]


def patch_fla() -> list[str]:
    """Puts hola's functions in place of fla's chunk_gated_delta_rule, chunk_gdn, fused_recurrent_gated_delta_rule,
    fused_recurrent_gdn, chunk_kda and chunk_gla, in every module of fla that is loaded, and in those loaded later.
    -> the places, "module.name".

    Called again, it takes in what was loaded since. Calls that hola.torch has nothing for (cp_context, gk, gv) go to
    fla's own function, with one warning. Modules outside of fla that import these names later, transformers' Qwen3-Next
    for one, get hola's too; those that have imported them before keep fla's."""
    if not _replaced:
        _find()
    for module_name, module in list(sys.modules.items()):
        if module is None or not (module_name == "fla" or module_name.startswith("fla.")):
            continue
        for name, (own, ours) in _replaced.items():
            if vars(module).get(name) is own:
                setattr(module, name, ours)
                _places.append((module, name))
    return [f"{module.__name__}.{name}" for module, name in _places]


def unpatch_fla() -> None:
    """Puts fla's own functions back."""
    for module, name in _places:
        own, ours = _replaced[name]
        if vars(module).get(name) is ours:
            setattr(module, name, own)
    _places.clear()
    _replaced.clear()
    _warned.clear()
