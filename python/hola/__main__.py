"""``python -m hola ...`` is the program ``hola ...``."""

import os
import sys

from ._errors import Error
from ._program import program_path

try:
    program = program_path()
except Error as e:
    sys.exit(f"hola: {e}")
os.execv(program, ["hola", *sys.argv[1:]])
