"""Lazy imports of a package's names, and errors that name the extra to install.

A package that needs an extra, or is slow to import, imports its names only under ``TYPE_CHECKING``.
Type checkers read these imports, and the first use of a name follows them. `dir` lists
``__all__``.
"""

import ast
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from gradweave.errors import MissingExtraError

EXTRAS = {
    "brax": "mabrax",
    "equinox": "learn",
    "gymnasium": "learn",
    "imageio_ffmpeg": "film",
    "jax": "jax",
    "jaxmarl": "marl",
    "jaxtyping": "learn",
    "matplotlib": "plot",
    "mpi4py": "mpi",
    "optax": "train",
    "pyroute2": "lab",
    "ray": "ray",
    "tensorboardX": "learn",
    "torch": "torch",
}
"""The smallest extra that installs each module; see ``pyproject.toml``."""


def lazily(
    package: str, extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: name of the package.
        extra: the extra that installs everything the package needs; by default that of the missing
            module in `EXTRAS`.
    """

    @functools.cache
    def homes() -> dict[str, str]:
        """The module of each name, from the imports under ``TYPE_CHECKING``."""
        loader: Any = vars(sys.modules[package])["__spec__"].loader
        return {
            alias.name: statement.module or ""
            for block in ast.parse(loader.get_source(package)).body
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
            for statement in block.body
            if isinstance(statement, ast.ImportFrom)
            for alias in statement.names
        }

    def find(name: str) -> Any:
        home = homes().get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            if home == package:  # a submodule
                return importlib.import_module(f"{package}.{name}")
            return getattr(importlib.import_module(home), name)
        except ModuleNotFoundError as error:
            absent = (error.name or "").partition(".")[0]
            if isinstance(error, MissingExtraError) or absent not in EXTRAS:
                raise
            raise missing(f"{package}.{name}", absent, extra=extra) from error

    def names() -> list[str]:
        module = vars(sys.modules[package])
        return sorted({*(name for name in module if name.startswith("__")), *module["__all__"]})

    return find, names


class LazyModule:
    """A module that is imported when one of its names is first used.

    For modules that are mostly usable without an extra, or before JAX starts.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def missing(what: str, *modules: str, extra: str | None = None) -> MissingExtraError:
    """The error that names the extra to install.

    Args:
        what: the part of Gradweave that needs them.
        modules: modules that are not installed.
        extra: the extra that installs them; by default that of the first module in `EXTRAS`.
    """
    extra = extra or EXTRAS[modules[0]]
    return MissingExtraError(
        f"{what} needs {' and '.join(modules)}: pip install 'gradweave[{extra}]'"
    )


def require(what: str, *modules: str, extra: str | None = None) -> None:
    """Checks that some modules are installed, without importing them.

    Raises:
        MissingExtraError: one is not installed.
    """
    absent = [name for name in modules if not is_there(name)]
    if absent:
        raise missing(what, *absent, extra=extra)


def is_there(module: str) -> bool:
    """Whether a module is installed, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # a module in sys.modules without a specification
        return False


def tensorboard() -> Any:
    """The package tensorboardX, imported without torch.

    If torch is installed, tensorboardX imports it, which takes seconds, to accept its tensors.
    """
    loaded = "torch" in sys.modules
    if not loaded:
        sys.modules["torch"] = cast(ModuleType, None)  # None here blocks the import
    try:
        return importlib.import_module("tensorboardX")
    finally:
        if not loaded:
            del sys.modules["torch"]
