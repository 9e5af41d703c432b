"""Where the program `hola` of this package is."""

from __future__ import annotations

import os

from . import _library
from ._errors import FileError


def program_path() -> str:
    """The program `hola`: beside the library that HOLA_LIBRARY names, or where the package's installation put it."""
    places = [os.path.join(os.path.dirname(_library.PATH), "hola")]
    if not os.environ.get("HOLA_LIBRARY"):
        from importlib import metadata  # takes a while, and few need it

        try:
            files = metadata.distribution("hola-lm").files or []
        except metadata.PackageNotFoundError:
            files = []
        places += [os.path.abspath(str(f.locate())) for f in files if f.parts[-2:] == ("bin", "hola")]
    for path in places:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise FileError(f"the program hola is not there; looked for {', '.join(places)}")
