"""Names of a package that are imported on first use, and the extra to install where that fails.

A package that needs an extra, or is slow to import, imports its names under ``TYPE_CHECKING``
alone. Type checkers read these imports, and so does the first use of one of the names. `dir` lists
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
        package: its name.
        extra: that installs all that the package needs; if not given, that of the missing module
            in `EXTRAS`.
    """

    @functools.cache
    def homes() -> dict[str, str]:
        """The module of each name, as the imports under ``TYPE_CHECKING`` have it."""
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

    For modules of which the greater part can be used without an extra, or before JAX starts.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


def missing(what: str, *modules: str, extra: str | None = None) -> MissingExtraError:
    """The error that names the extra to install.

    Args:
        what: the part of Gradweave that needs them.
        modules: that are not installed.
        extra: that installs them; that of the first in `EXTRAS` if not given.
    """
    extra = extra or EXTRAS[modules[0]]
    return MissingExtraError(
        f"{what} needs {' and '.join(modules)}: pip install 'gradweave[{extra}]'"
    )


def require(what: str, *modules: str, extra: str | None = None) -> None:
    """Refuses to begin without some modules, which it does not import.

    Raises:
        MissingExtraError: where one is not installed.
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


def summary_writer() -> Any:
    """The class ``SummaryWriter`` of tensorboardX, imported without torch.

    tensorboardX imports torch where that is installed, which takes seconds, to accept its tensors.
    """
    loaded = "torch" in sys.modules
    if not loaded:
        sys.modules["torch"] = cast(ModuleType, None)  # None here blocks the import
    try:
        return importlib.import_module("tensorboardX").SummaryWriter
    finally:
        if not loaded:
            del sys.modules["torch"]
