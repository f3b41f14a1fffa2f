"""Fixtures of the learning tests: quick compilation, and programs compiled once for all."""

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    """Programs that run for a moment only: leave most of the compiler's work out."""
    if importlib.util.find_spec("jax") is None:  # episodes need none
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True)
def one_compilation_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training of the same config as one before it needs no compilation of its own."""

    def once(*arguments: Any) -> Any:
        from tests.learning.tiny import compiled_once

        return compiled_once(*arguments)

    if importlib.util.find_spec("jax") is not None:
        monkeypatch.setattr("gradweave.learning.training.CompiledUpdate", once)
