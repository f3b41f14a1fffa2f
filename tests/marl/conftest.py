"""Fixtures of the tests of multi-agent learners: quick compilation."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    """Programs that run for a moment only: leave most of the compiler's work out."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
