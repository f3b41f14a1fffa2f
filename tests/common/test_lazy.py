"""Names that are imported when first used: listed and found; a missing extra is named."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import gradweave as gw
from gradweave.common import lazy
from gradweave.errors import MissingExtraError, OptionError
from tests.patience import PATIENCE_S

LAZY = ("aggregate", "environment", "jax", "lab", "learning", "marl", "mpi", "torch")


@pytest.mark.parametrize("name", ["gradweave", *(f"gradweave.{name}" for name in LAZY)])
def test_dir_lists_all_that_is_there(name):
    package = importlib.import_module(name)
    listed = {name for name in dir(package) if not name.startswith("__")} | {"__version__"}
    assert listed == {*package.__all__, "__version__"}


@pytest.mark.parametrize("name", ["gradweave", *(f"gradweave.{name}" for name in LAZY)])
def test_every_name_is_imported_for_type_checkers_too(name):
    package = importlib.import_module(name)
    imported = {
        alias.name
        for node in ast.walk(ast.parse(inspect.getsource(package)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(package.__all__) - {"__version__"} <= imported


def test_an_unknown_name_is_no_attribute():
    for package in (gw, gw.aggregate, gw.learning, gw.marl):
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            _ = package.nonsense


def test_parts_are_found_from_the_package_and_loaded_late():
    program = (
        "import sys, gradweave as gw\n"
        "late = ('environment', 'lab', 'learning', 'marl', 'report')\n"
        "assert set(late) <= set(dir(gw))\n"
        "assert not {f'gradweave.{name}' for name in late} & set(sys.modules)\n"
        "names = [getattr(gw, name).__name__ for name in late]\n"
        "assert names == [f'gradweave.{name}' for name in late]\n"
        "assert not {'jax', 'torch', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)


@pytest.fixture
def modules_as_before():
    """Afterwards, packages have the modules again that they had, not those loaded in between."""
    before = {name: one for name, one in sys.modules.items() if name.startswith("gradweave")}
    inside = {name: dict(vars(one)) for name, one in before.items()}
    yield
    for name in [one for one in sys.modules if one.startswith("gradweave") and one not in before]:
        del sys.modules[name]
    for name, module in before.items():
        sys.modules[name] = module
        package, _, last = name.rpartition(".")
        if last in inside.get(package, {}):
            setattr(before[package], last, inside[package][last])


@pytest.mark.usefixtures("modules_as_before")
@pytest.mark.parametrize(
    ("package", "name", "module", "extra"),
    [
        ("mpi", "Collective", "mpi4py", "mpi"),
        ("torch", "Collective", "torch", "torch"),
        ("jax", "Collective", "jax", "jax"),
        ("aggregate", "mean", "optax", "train"),
        ("marl", "train", "jax", "marl"),
        ("learning", "HierarchicalPolicy", "equinox", "learn"),
        ("environment", "SchedulingEnvironment", "jax", "learn"),
    ],
)
def test_a_missing_extra_is_named(package, name, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    rooms = (f"gradweave.{package}.", "gradweave.execute.")  # where the front doors lead
    for loaded in [one for one in sys.modules if one.startswith(rooms)]:
        monkeypatch.delitem(sys.modules, loaded)
    part = importlib.import_module(f"gradweave.{package}")
    monkeypatch.delitem(vars(part), name, raising=False)
    with pytest.raises(MissingExtraError) as refused:
        getattr(part, name)
    wanted = f"gradweave.{package}.{name} needs {module}: pip install 'gradweave[{extra}]'"
    assert str(refused.value) == wanted
    assert isinstance(refused.value, ImportError) and isinstance(refused.value, OptionError)


def test_a_fault_of_our_own_is_not_called_a_missing_extra(tmp_path: Path, monkeypatch):
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner/__init__.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from owner import part\n"
    )
    (tmp_path / "owner/part.py").write_text("import owner.nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("owner")
    find, _ = lazy.lazily("owner")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'owner\.nothing'") as failed:
        find("part")
    assert not isinstance(failed.value, MissingExtraError)


def test_a_board_is_written_without_torch(tmp_path: Path):
    """In a process of its own: here another test may have imported torch."""
    pytest.importorskip("tensorboardX")
    program = (
        "import sys; from pathlib import Path; from gradweave.common import lazy; "
        "from gradweave.training.curves import Curves; board = Curves(Path(sys.argv[1]), 1); "
        "board.add_scalar('return', 1.0, 3); board.close(); assert 'torch' not in sys.modules; "
        "assert not lazy.is_there('torch') or __import__('torch')"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=PATIENCE_S)
    assert any(path.stat().st_size for path in tmp_path.iterdir())


def test_every_extra_exists():
    assert set(lazy.EXTRAS.values()) <= set(metadata("gradweave").get_all("Provides-Extra") or ())


@pytest.mark.parametrize("extra", ["jax", "mpi", "train", "learn", "marl", "ray"])
def test_without_torch_nobody_downloads_it(extra):
    asked = [Requirement(line) for line in requires("gradweave") or []]
    with_it = [one for one in asked if one.marker and one.marker.evaluate({"extra": extra})]
    names = {one.name for one in with_it}
    extras = set().union(*(one.extras for one in with_it if one.name == "gradweave"))
    assert names and "torch" not in names
    assert not extras & {"torch", "run", "lab", "all"}


def test_mpi4py_comes_by_its_own_extra_alone():
    """Without MPI, mpi4py fails in every program that looks for it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def packages(extra: str) -> set[str]:
        found = set[str]()
        for needed in extras[extra]:
            ours = re.fullmatch(r"gradweave\[(.+)\]", needed)
            parts = map(packages, ours[1].split(",")) if ours else [{re.split("[<>=[]", needed)[0]}]
            found.update(*parts)
        return found

    assert {extra for extra in extras if "mpi4py" in packages(extra)} == {"mpi"}
    assert packages("run") == {"jax", "torch"}
