"""Kernels as plain Python, so that a test of few steps need not compile them."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest


@contextmanager
def interpreted(*modules: ModuleType) -> Iterator[None]:
    """Inside, the modules' kernels, and those that they call by name, are Python's."""
    with pytest.MonkeyPatch.context() as patched, np.errstate(over="ignore"):
        for module in modules:
            for name, kernel in list(vars(module).items()):
                if hasattr(kernel, "py_func"):
                    patched.setattr(module, name, kernel.py_func)
        yield
