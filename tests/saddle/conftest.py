"""Double precision, as errors of 1e-25 need, and quick compilation."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def in_double_precision() -> Iterator[None]:
    jax = pytest.importorskip("jax")
    pytest.importorskip("optax", reason="the extra train is not installed")
    settings = ("jax_enable_x64", "jax_disable_most_optimizations")
    for name in settings:
        jax.config.update(name, True)
    yield
    for name in settings:
        jax.config.update(name, False)
