"""hola.Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_double, c_int64
from typing import Any

from . import _library
from ._convert import PRECISIONS, Ids, boolean, choice, flags_array, ids_array, integer, positions_array, real
from ._errors import InvalidArgument
from ._handle import Handle, Resource
from ._library import C, check, created
from ._model import Model


class Trainer(Resource):
    """Trains a model with AdamW: ``accumulate`` gradients of some documents, then ``update``.

    max_tokens: the most of one call. weight_decay 0: none; clip: the largest norm of all gradients together, None: any.
    recompute: compute activations again in the backward pass, with about half the memory.
    precision: of the large products: ``"auto"``, ``"bf16"`` (on the CPU; a GPU's own) or ``"fp8"`` (on a Hopper GPU; on
    the CPU a slow simulation). A model has one trainer.
    """

    _what = "trainer"

    def __init__(
        self,
        model: Model,
        *,
        max_tokens: int = 4096,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        clip: float | None = 1.0,
        recompute: bool = False,
        precision: str = "auto",
    ) -> None:
        if not isinstance(model, Model):
            raise TypeError(f"model: a Model is expected, not {type(model).__name__}")
        # hola.h takes 0 for "the default" and a negative number for "none"
        options = _library.options(
            _library.TrainOpts,
            max_tokens=integer(max_tokens, "max_tokens", 1),
            beta1=_above_zero(beta1, "beta1"),
            beta2=_above_zero(beta2, "beta2"),
            eps=_above_zero(eps, "eps"),
            weight_decay=_or_none(weight_decay, "weight_decay"),
            clip=_or_none(0.0 if clip is None else clip, "clip"),
            recompute=boolean(recompute, "recompute"),
            precision=choice(precision, "precision", PRECISIONS),
        )
        owner = model._live()
        with owner.lock:
            pointer = created(C.hola_trainer_new, owner.pointer, byref(options))
        self._owner = owner
        self._handle = Handle(pointer, C.hola_trainer_free, owner)

    def _losses(
        self, function: Any, ids: Ids, starts: Sequence[int], mask: Sequence[int] | None, *weight: float
    ) -> tuple[float, int]:
        array, begin = ids_array(ids), positions_array(starts, "starts")
        trained = None if mask is None else flags_array(mask, "mask", array.size)
        loss, targets = c_double(), c_int64()
        handle = self._live()
        with self._owner.lock:
            where = array.ctypes.data, array.size, begin.ctypes.data, begin.size
            chosen = None if trained is None else trained.ctypes.data
            check(function(handle.pointer, *where, chosen, *weight, byref(loss), byref(targets)))
        return loss.value, targets.value

    def accumulate(
        self, ids: Ids, starts: Sequence[int] = (0,), weight: float = 1.0, mask: Sequence[int] | None = None
    ) -> tuple[float, int]:
        """Adds the gradient of weight * (sum of the losses) of documents that begin at starts: the sum, and the number
        of targets. mask: a token is a target only where its mask is not 0."""
        return self._losses(C.hola_trainer_accumulate_masked, ids, starts, mask, real(weight, "weight"))

    def evaluate(
        self, ids: Ids, starts: Sequence[int] = (0,), mask: Sequence[int] | None = None
    ) -> tuple[float, int]:
        """The same losses, without gradients."""
        return self._losses(C.hola_trainer_evaluate_masked, ids, starts, mask)

    def update(self, lr: float) -> float:
        """One step of AdamW with the gradient so far, which is then cleared; the gradient's norm before clipping."""
        rate, norm = real(lr, "lr"), c_double()
        handle = self._live()
        with self._owner.lock:
            check(C.hola_trainer_update(handle.pointer, rate, byref(norm)))
        return norm.value


def _above_zero(value: Any, name: str) -> float:
    number = real(value, name)
    if not number > 0:
        raise InvalidArgument(f"{name}: {number} is not above 0")
    return number


def _or_none(value: Any, name: str) -> float:
    number = real(value, name)
    if number < 0:
        raise InvalidArgument(f"{name}: {number} is negative")
    return number if number != 0 else -1.0
