"""The package as a whole: light to import, and its public names are what they are said to be."""

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import entry_points, version
from importlib.resources import files
from types import ModuleType

import pytest

import gradweave
from tests.patience import PATIENCE_S

IMPORT_BUDGET = 1.6
"""Processor time that `import gradweave` may take, in that of numpy with networkx."""
ATTEMPTS = 5
"""Other tests share the machine, so the best of several imports counts."""
NOT_AT_IMPORT = (
    "jax",
    "matplotlib",
    "mpi4py",
    "networkx",
    "numba",
    "ortools",
    "pandas",
    "plotly",
    "pyroute2",
    "torch",
)

_IMPORT = """
import json, sys, time
begin = time.process_time()
import MODULES
taken = time.process_time() - begin
print(json.dumps([taken, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def import_in_fresh_process(modules: str = "gradweave") -> tuple[float, list[str]]:
    """Processor time of an import, and the top-level modules loaded afterwards."""
    program = _IMPORT.replace("MODULES", modules)
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    taken, loaded = json.loads(run.stdout)
    return taken, loaded


def modules() -> Iterator[ModuleType]:
    yield gradweave
    for found in pkgutil.walk_packages(gradweave.__path__, "gradweave."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def public_packages() -> list[ModuleType]:
    return [module for module in modules() if hasattr(module, "__all__")]


def test_import_is_quick():
    pairs = [
        (import_in_fresh_process()[0], import_in_fresh_process("numpy, networkx")[0])
        for _ in range(ATTEMPTS)
    ]
    ours, theirs = (min(times) for times in zip(*pairs, strict=True))
    assert ours < IMPORT_BUDGET * theirs, f"{ours:.2f} s at best, numpy with networkx {theirs:.2f}"


def test_import_loads_nothing_heavy():
    _, loaded = import_in_fresh_process()
    assert not set(NOT_AT_IMPORT) & set(loaded)


def test_only_the_command_that_is_used_is_imported():
    program = """
import sys
from gradweave.cli.main import COMMANDS, cli
import click
assert [name for name in sys.modules if name.startswith("gradweave.cli.commands")] == []
assert "gradweave.schedulers" not in sys.modules
context = click.Context(cli)
assert [cli.get_command(context, name).name for name in COMMANDS] == list(COMMANDS)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


def test_version_is_the_installed_one():
    assert gradweave.__version__ == version("gradweave")


def test_what_is_visible_is_all():
    visible = {name for name in dir(gradweave) if not name.startswith("_")} | {"__version__"}
    # Submodules that have been imported become attributes, listed or not.
    listed = set(gradweave.__all__)
    assert listed - visible == set(), "in __all__ but not visible to dir()"
    unlisted = {name for name in visible - listed if not inspect.ismodule(getattr(gradweave, name))}
    assert unlisted == set(), "visible but not in __all__"


@pytest.mark.parametrize("package", public_packages(), ids=lambda package: package.__name__)
def test_all_is_sound(package: ModuleType):
    names = list(package.__all__)
    assert len(names) == len(set(names)), "a name is listed twice"
    missing = [name for name in names if not hasattr(package, name)]
    assert not missing


@pytest.mark.parametrize("package", public_packages(), ids=lambda package: package.__name__)
def test_public_names_are_documented(package: ModuleType):
    undocumented = [
        name
        for name in package.__all__
        if (inspect.isroutine(member := getattr(package, name)) or inspect.isclass(member))
        and not inspect.getdoc(member)
    ]
    assert not undocumented


RUNTIMES = ("gradweave.jax", "gradweave.mpi", "gradweave.torch")
SAME_IN_ALL_RUNTIMES = {"Collective", "all_reduce", "exchange"}


def test_a_public_name_has_one_meaning_and_a_public_object_one_door():
    homes: dict[str, dict[int, str]] = defaultdict(dict)
    doors: dict[int, set[str]] = defaultdict(set)
    for package in public_packages():
        for name in package.__all__:
            member = getattr(package, name)
            if not (package.__name__ in RUNTIMES and name in SAME_IN_ALL_RUNTIMES):
                homes[name].setdefault(id(member), f"{package.__name__}.{name}")
            if package is not gradweave and (inspect.isroutine(member) or inspect.isclass(member)):
                doors[id(member)].add(f"{package.__name__}.{name}")
    assert [sorted(of.values()) for of in homes.values() if len(of) > 1] == []
    assert [sorted(names) for names in doors.values() if len(names) > 1] == []


def test_packages_are_not_hidden_behind_functions():
    for package in modules():
        parent, _, name = package.__name__.rpartition(".")
        if parent and hasattr(package, "__path__"):
            assert getattr(sys.modules[parent], name) is package


def test_every_module_says_what_it_is_for():
    silent = [module.__name__ for module in modules() if len((module.__doc__ or "").strip()) < 10]
    assert not silent


def test_the_command_is_installed():
    (command,) = entry_points(group="console_scripts", name="gradweave")
    assert callable(command.load())


@pytest.mark.parametrize("path", ["py.typed", "topology/families/data/jellyfish-reference.json"])
def test_data_ship_with_the_package(path: str):
    assert files("gradweave").joinpath(path).is_file()
