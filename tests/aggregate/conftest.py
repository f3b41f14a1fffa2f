"""Quick compilation, here and in the processes that Ray starts."""

import os
from collections.abc import Iterator

import pytest

SETTING = "JAX_DISABLE_MOST_OPTIMIZATIONS"


@pytest.fixture(autouse=True, scope="package")
def quick_compilation() -> Iterator[None]:
    """Programs that run for a moment only: leave most of the compiler's work out."""
    jax = pytest.importorskip("jax")
    jax.config.update(SETTING.lower(), True)
    os.environ[SETTING] = "1"
    yield
    del os.environ[SETTING]
    jax.config.update(SETTING.lower(), False)
