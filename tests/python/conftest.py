"""What the tests of the Python package share."""

from pathlib import Path

import pytest

import hola

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "data" / "hola_tiny"

SMALL = dict(
    hidden_size=32,
    num_heads=2,
    head_dim=16,
    head_v_dim=16,
    num_hidden_layers=2,
    vocab_size=258,
    intermediate_size=48,
    cache_window=4,
    cache_chunk=16,
    initializer_range=0.2,
)


@pytest.fixture(scope="session")
def tiny_path() -> Path:
    return TINY


@pytest.fixture(scope="session")
def tiny() -> hola.Model:
    """A model of 61 ids without a tokenizer; expected.json has what PyTorch computed with it."""
    return hola.Model.load(TINY, threads=1)


@pytest.fixture(scope="session")
def config() -> hola.Config:
    return hola.Config(**SMALL)


@pytest.fixture(scope="session")
def byte(config: hola.Config) -> hola.Model:
    """A random model of bytes."""
    return hola.Model.new(config, seed=3, threads=1, tokenizer="byte")
