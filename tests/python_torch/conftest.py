"""hola.torch is found through PYTHONPATH; HOLA names the program, VECTORS the folder of test vectors."""

import os
import pathlib

import pytest
import torch

torch.set_num_threads(1)  # small work; and the tests run beside others


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(1)


@pytest.fixture
def program():
    path = os.environ.get("HOLA", "")
    if not os.access(path, os.X_OK):
        pytest.skip("the hola program is not built")
    return path


@pytest.fixture
def vectors():
    path = pathlib.Path(os.environ.get("VECTORS", ""))
    if not (path / "hola_betae_rms.json").is_file():
        pytest.skip("the test vectors are not here")
    return path


@pytest.fixture
def emulated(monkeypatch):
    """hola.torch with an emulated device for tensors on the CPU; its calls."""
    if not os.path.isfile(os.environ.get("HOLA_EMULATED", "")):
        pytest.skip("libhola-emu.so is not built (HOLA_EMULATED)")
    from emulated import use

    return use(monkeypatch)
