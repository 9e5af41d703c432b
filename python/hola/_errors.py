"""The exceptions of this package: one per hola_status of hola.h, each also a built-in exception of its kind."""

from __future__ import annotations


class Error(RuntimeError):
    """A call of libhola failed; the text is one line that says what and where. ``status`` is hola.h's hola_status."""

    status: int = 0


class InvalidArgument(Error, ValueError):
    """An argument that the call cannot take, or an object that was closed (HOLA_EINVAL)."""

    status = 1


class FileError(Error, OSError):
    """A file that cannot be read or written (HOLA_EIO)."""

    status = 2


class FormatError(Error, ValueError):
    """A file whose contents are damaged or are not what they should be (HOLA_EFORMAT)."""

    status = 3


class OutOfMemory(Error, MemoryError):
    """There is not enough memory, of the host or of the device (HOLA_ENOMEM)."""

    status = 4


class NotSupported(Error, NotImplementedError):
    """Something that this build, backend or model cannot do (HOLA_ENOTSUP)."""

    status = 5


class DeviceError(Error):
    """A GPU is missing or failed (HOLA_EDEVICE)."""

    status = 6


class NumericError(Error, ArithmeticError):
    """Logits, a gradient or a log-probability are not finite (HOLA_ENUMERIC)."""

    status = 7


BY_STATUS: dict[int, type[Error]] = {
    e.status: e for e in (InvalidArgument, FileError, FormatError, OutOfMemory, NotSupported, DeviceError, NumericError)
}


def error_of(status: int, text: str) -> Error:
    """The exception for a status of the library."""
    kind = BY_STATUS.get(status)
    if kind is not None:
        return kind(text)
    error = Error(text)
    error.status = status
    return error
