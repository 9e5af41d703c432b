"""hola: HOLA language models from Python. docs/python.md is the tutorial.

import hola

m = hola.Model.load("model")
print(m.generate("Once upon a time").text)
"""

from ._config import Config
from ._errors import (
    DeviceError,
    Error,
    FileError,
    FormatError,
    InvalidArgument,
    NotSupported,
    NumericError,
    OutOfMemory,
)
from ._generate import Completion, Piece
from ._library import build_info, devices, library_path
from ._model import Model
from ._prepare import prepare
from ._program import program_path
from ._session import History, Kept, Session, step, step_sample
from ._tokenizer import Tokenizer
from ._trainer import Trainer
from ._version import __version__

__all__ = [
    "Completion",
    "Config",
    "DeviceError",
    "Error",
    "FileError",
    "FormatError",
    "History",
    "InvalidArgument",
    "Kept",
    "Model",
    "NotSupported",
    "NumericError",
    "OutOfMemory",
    "Piece",
    "Session",
    "Tokenizer",
    "Trainer",
    "__version__",
    "build_info",
    "devices",
    "library_path",
    "prepare",
    "program_path",
    "step",
    "step_sample",
]
