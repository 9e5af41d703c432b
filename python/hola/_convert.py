"""What callers pass, checked and turned into what the library takes. Wrong types are TypeErrors, wrong values
InvalidArgument."""

from __future__ import annotations

import numbers
import operator
import os
from collections.abc import Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from ._errors import InvalidArgument
from ._library import DTYPES

Ids = Union[Sequence[int], "npt.NDArray[np.integer[Any]]", Any]  # Any: arrays of other libraries, PyTorch's above all
Path = Union[str, "os.PathLike[str]"]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_LEAST, _MOST = -(2**31), 2**31 - 1


def ids_array(ids: Ids, name: str = "ids") -> Int32s:
    """Token ids as a contiguous int32 array: sequences of integers, integer arrays of NumPy, PyTorch and others."""
    array = _integers(ids, name)
    if array.ndim != 1:
        raise InvalidArgument(f"{name}: {array.ndim} axes, one is expected")
    if array.size and (int(array.min()) < _LEAST or int(array.max()) > _MOST):
        raise InvalidArgument(f"{name}: a number that is not in the range of int32")
    return np.ascontiguousarray(array, dtype=np.int32)


def positions_array(values: Any, name: str) -> npt.NDArray[np.int64]:
    """Positions, likewise, as int64."""
    array = _integers(values, name)
    if array.ndim != 1:
        raise InvalidArgument(f"{name}: {array.ndim} axes, one is expected")
    if array.size and int(array.max()) > 2**63 - 1:
        raise InvalidArgument(f"{name}: a number that is not in the range of int64")
    return np.ascontiguousarray(array, dtype=np.int64)


def flags_array(values: Any, name: str, size: int) -> npt.NDArray[np.uint8]:
    """As many flags as there are tokens: integers or booleans, of which those that are not 0 are set."""
    kind = getattr(values, "dtype", None)
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes, bytearray)):
        values = [int(x) if isinstance(x, bool) else x for x in values]
    elif kind is not None and "bool" in str(kind):
        values = values * 1
    array = _integers(values, name)
    if array.shape != (size,):
        raise InvalidArgument(f"{name}: {array.size} flags for {size} tokens")
    return np.ascontiguousarray(array != 0, dtype=np.uint8)


def _integers(values: Any, name: str) -> npt.NDArray[Any]:
    kind = type(values).__name__
    if hasattr(values, "detach") and hasattr(values, "cpu"):  # PyTorch; the tensor may be on a device
        values = values.detach().cpu().numpy()
    listed = not hasattr(values, "__array__") and not isinstance(values, memoryview)
    if listed and (not isinstance(values, Sequence) or isinstance(values, (str, bytes, bytearray))):
        if not hasattr(values, "typecode"):  # array.array
            raise TypeError(f"{name}: integers are expected, not {kind}")
    try:
        array = np.asarray(values)
    except ValueError:
        raise TypeError(f"{name}: a list of integers is expected") from None
    if array.dtype.kind in "iu":
        return array
    if listed and array.size == 0:
        return array.astype(np.int64)
    if listed and array.ndim == 1 and all(isinstance(x, (int, np.integer)) for x in values):
        if array.dtype.kind != "b":  # NumPy has no one type for these
            try:
                return np.array([int(x) for x in values], np.int64)
            except OverflowError:
                raise InvalidArgument(f"{name}: a number that is not in the range of int64") from None
    raise TypeError(f"{name}: integers are expected, not {kind} of {array.dtype}")


def integer(value: Any, name: str, least: int = -(2**63), most: int = 2**63 - 1) -> int:
    """An integer of this range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: an integer is expected, not {type(value).__name__}") from None
    if not least <= number <= most:
        raise InvalidArgument(f"{name}: {number} is not between {least} and {most}")
    return number


def seed_of(value: Any) -> int:
    """A seed of the sampler or of a new model."""
    return integer(value, "seed", 0, 2**64 - 1)


def real(value: Any, name: str) -> float:
    """A number as a float."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: a number is expected, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgument(f"{name}: the number is too large") from None


def boolean(value: Any, name: str) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: True or False is expected, not {type(value).__name__}")
    return bool(value)


PRECISIONS = ("auto", "bf16", "fp8")  # in the order of hola_precision


def choice(value: Any, name: str, names: Sequence[str]) -> int:
    """The place of a name in ``names``."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: a string is expected, not {type(value).__name__}")
    if value not in names:
        raise InvalidArgument(f"{name}: '{value}' is not one of {', '.join(names)}")
    return names.index(value)


def text_bytes(text: Any, name: str) -> bytes:
    """The UTF-8 of a str; bytes as they are."""
    if isinstance(text, (bytes, bytearray)):
        return bytes(text)
    if not isinstance(text, str):
        raise TypeError(f"{name}: str or bytes are expected, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise InvalidArgument(f"{name}: a character that UTF-8 does not have: {e.reason}") from None


def path_bytes(path: Any, name: str = "path") -> bytes:
    """A path for the library."""
    try:
        encoded = os.fsencode(path)
    except TypeError:
        raise TypeError(f"{name}: a path is expected, not {type(path).__name__}") from None
    if b"\0" in encoded:
        raise InvalidArgument(f"{name}: a path cannot hold a NUL byte")
    return encoded


def dtype_of(name: Any) -> int:
    """The number of a stored type, "f32" for example."""
    if not isinstance(name, str):
        raise TypeError(f"dtype: a string is expected, not {type(name).__name__}")
    if name not in DTYPES:
        raise InvalidArgument(f"dtype: {name!r} is not one of {', '.join(DTYPES)}")
    return DTYPES.index(name)
