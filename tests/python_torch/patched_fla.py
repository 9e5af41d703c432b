"""A plugin of pytest that runs fla's own tests on hola's functions (docs/python_torch.md has the command).

FLA_ON=cpu: on the CPU, as far as they go there. Kernels of fla that are left in the models are not tuned: each takes the
first of its candidates that runs.
"""

import os

import torch
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources

import fla.utils
import hola.torch

if os.environ.get("FLA_ON") == "cpu":
    fla.utils.device = "cpu"
    torch.cuda.synchronize = lambda *_: None


def first_that_runs(self, *args, **kwargs):
    self.nargs = dict(zip(self.arg_names, args))
    for config in self.prune_configs(kwargs):
        try:
            return self.fn.run(*args, **kwargs, **config.all_kwargs())
        except OutOfResources as error:
            last = error
    raise last


Autotuner.run = first_that_runs
PLACES = hola.torch.patch_fla()


def pytest_report_header():
    return f"fla {fla.__version__}: {len(PLACES)} places are hola's; {hola.torch.__file__}"
