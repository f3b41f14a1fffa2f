"""Parts of another package, installed: found, listed, run, conforming. Files import nothing."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gradweave as gw
from gradweave.common import plugins
from gradweave.conformance import conform
from gradweave.errors import ConformanceError, OptionError
from gradweave.schedulers import Ring
from gradweave.schedulers.spec import from_spec
from gradweave.schedules import Provenance
from tests.patience import PATIENCE_S

PACKAGE = Path(__file__).parents[1] / "plugins" / "outside_package"


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    """Where the package is installed, without network."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("outside")
    shutil.copytree(PACKAGE, folder / "source")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"),
            *("--no-build-isolation", "--disable-pip-version-check"),
            *("--target", folder / "installed", folder / "source"),
        ],
        check=True,
        timeout=PATIENCE_S,
    )
    return folder / "installed"


@pytest.fixture
def outside(target, monkeypatch):
    monkeypatch.syspath_prepend(target)
    yield
    for name in [name for name in sys.modules if name.startswith("outside_parts")]:
        del sys.modules[name]


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that leaves a mark once it is imported, and the mark."""
    mark, folder = tmp_path / "imported", tmp_path / "modules"
    folder.mkdir()
    (folder / "evil_module.py").write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\nclass Boom: pass\n"
    )
    monkeypatch.syspath_prepend(folder)
    yield mark
    sys.modules.pop("evil_module", None)


def test_what_is_installed_is_listed_and_what_is_broken_breaks_nothing_else(outside, gradweave):
    answer = gradweave("plugins", "list", "schedulers")
    assert answer.status == 0
    lines = answer.stdout.splitlines()
    assert any(line.startswith("ring ") for line in lines)
    found, of_demands = [line for line in lines if "outside-parts 1.0" in line]
    assert found.startswith("pass_along ") and "hands the sum out" in found
    assert of_demands.startswith("straight ") and "from its contributors" in of_demands
    refused = answer.stderr.splitlines()
    assert len(refused) == 2
    assert "'broken' of outside-parts 1.0: cannot be imported: RuntimeError: this was" in refused[0]
    assert "'ring' of outside-parts 1.0: refused, since ring is Gradweave's own" in refused[1]
    brought = {"topologies": ["ladder:rungs=int"], "environments": ["corridor", "hallway"]}
    for what, names in brought.items():
        command = ("topology", "list") if what == "topologies" else ("plugins", "list", what)
        listed = gradweave(*command, "--json").json[what]
        assert [one["name"] for one in listed if one["package"] == "outside-parts 1.0"] == names
    algorithms = gradweave("plugins", "list", "algorithms", "--json").json["algorithms"]
    assert {"ippo", "qmix"} < {one["name"] for one in algorithms}
    assert all(one["summary"] for one in algorithms)


def test_they_run_like_any_other(outside, gradweave, here):
    answer = gradweave(
        "solve", "ladder:4,bandwidth=10Gbit/s", "--scheduler", "pass_along:last=true",
        "--output", "made.json", "--json",
    )  # fmt: skip
    assert (answer.status, answer.json["scheduler"]) == (0, "pass_along:last=true")
    assert answer.json["topology"] == "ladder:rungs=4,bandwidth=10Gbit/s"
    assert answer.json["rounds"] == 14
    assert gradweave("verify", "made.json").status == 0
    given = "outside_parts.scheduler:PassAlong"
    for spec, last in ((given, False), (f"{given}:last=true", True)):
        assert from_spec(spec).options() == {"last": last}
    made = gw.solve("ring:4", schedulers=[given])
    assert made.rounds == 6
    spec = f"{given}:last=true"
    assert gradweave("solve", "ring:4", "--scheduler", spec).status == 0
    job = ("--job", "all_to_all:bytes=1MB", "--scheduler", "straight")
    assert gradweave("solve", "ring:4", *job, "--json").json["scheduler"] == "straight"


def test_the_names_of_others_are_known_to_messages(outside, refused):
    assert "did you mean pass_along?" in refused("solve", "ring:4", "--scheduler", "pass_alon")
    assert "straight: plans jobs only" in refused("solve", "ring:4", "--scheduler", "straight")
    assert "did you mean ladder?" in refused("solve", "lader:4")
    assert "rungs is missing" in refused("solve", "ladder")
    assert "cannot be imported: RuntimeError" in refused("solve", "ring:4", "--scheduler", "broken")


def needs_jaxmarl() -> None:
    """Skips without it, and does not import it: its import replaces `sys.stdout`."""
    if importlib.util.find_spec("jaxmarl") is None:
        pytest.skip("needs jaxmarl")


@pytest.mark.parametrize(
    "target_", ["pass_along", "straight", "ladder:rungs=3,twisted=true", "corridor"]
)
def test_they_conform(outside, gradweave, target_):
    if target_ == "corridor":
        needs_jaxmarl()
    answer = gradweave("plugins", "check", target_, "--json")
    assert answer.json["broken"] == [] and answer.json["conforms"]
    assert answer.status == 0 and sum(answer.json["checks"].values()) > 5


@pytest.mark.slow  # compiles a training
def test_a_game_of_others_is_made_and_trained(outside, gradweave, here):
    needs_jaxmarl()
    game = gw.marl.make("corridor", agents=3)
    assert (len(game.agents), game.family, game.id) == (3, "corridor", "corridor:agents=3")
    answer = gradweave(
        "train", "--env", "corridor", "--algorithm", "ippo", "--steps", "4096", "--output", "run",
        "--set", "environments=32", "--set", "rollout=32", "--json",
    )  # fmt: skip
    assert answer.status == 0, answer.stderr
    assert gw.marl.load_trained(here / "run").environment.family == "corridor"


def test_nothing_of_others_is_imported_before_it_is_asked_for(target):
    program = """
import sys
import gradweave as gw
assert "importlib.metadata" not in sys.modules, "import gradweave looks for entry points"
from gradweave.schedulers.spec import from_spec
gw.topology.from_spec("ring:4")
from_spec("ring:order=hamiltonian")
import gradweave.cli.main
asked = []
gw_plugins = sys.modules["gradweave.common.plugins"]
gw_plugins.plugins = lambda kind: asked.append(kind) or []
gw.topology.from_spec("bcube:n=3,k=1")
from_spec("merged:tries=1")
assert not asked and not [name for name in sys.modules if name.startswith("outside_parts")]
"""
    environment = {**os.environ, "PYTHONPATH": str(target)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S, env=environment)


def test_a_file_that_names_a_module_imports_nothing(evil, gradweave, here):
    topology = gw.topology.ring(4)
    schedule = Ring().schedule(topology).replace(scheduler=Provenance("evil_module:Boom", {}, 0))
    schedule.save("made.json")
    held = json.loads(Path("made.json").read_text())
    assert held["scheduler"]["name"] == "evil_module:Boom"
    held["topology"]["name"] = "evil_module:Boom"
    Path("named.json").write_text(json.dumps(held))
    gw.topology.save(topology, "net.json")
    network = json.loads(Path("net.json").read_text()) | {"name": "evil_module:Boom"}
    Path("net.json").write_text(json.dumps(network))
    for name in ("made.json", "named.json"):
        assert gradweave("verify", name).status == 0
        assert gradweave("show", name, "--output", "page.html").status == 0
        assert gradweave("export", name, "--format", "msccl-xml", "--output", "m.xml").status == 0
    assert gradweave("solve", "net.json", "--start-from", "made.json").status in (0, 1, 2)
    assert gradweave("show", "net.json", "--output", "net.html").status == 0
    assert not evil.exists()


def test_a_network_s_name_in_a_file_runs_no_family_of_others(outside, gradweave, here):
    Ring().schedule(gw.topology.from_spec("ladder:3")).save("made.json")
    for name in [name for name in sys.modules if name.startswith("outside_parts")]:
        del sys.modules[name]
    assert gradweave("show", "made.json", "--output", "page.html").status == 0
    assert not [name for name in sys.modules if name.startswith("outside_parts")]


def test_an_environment_s_module_is_imported_for_an_option_and_not_for_a_file(
    evil, gradweave, here
):
    for line in ('env = "evil_module:Boom"', 'network = "evil_module:Boom"'):
        Path("train.toml").write_text(f'{line}\nalgorithm = "ippo"\n')
        answer = gradweave("train", "--config", "train.toml", "--output", "run")
        assert (answer.status, answer.stderr.count("\n")) == (2, 1)
    assert not evil.exists()
    answer = gradweave("train", "--env", "evil_module:Boom", "--output", "run")
    assert (answer.status, answer.stderr.count("\n")) == (2, 1)
    assert "evil_module:Boom: expected a game" in answer.stderr and evil.exists()


def test_a_package_s_entry_point_may_name_a_game_itself(outside):
    environment = gw.marl.make("hallway:agents=3")
    assert (environment.id, environment.num_agents) == ("hallway:agents=3", 3)


@pytest.mark.parametrize(
    ("scheduler", "reason"),
    [
        ("no_such_module:Snake", "cannot be imported: ModuleNotFoundError"),
        ("math:Snake", "the module has no Snake"),
        ("math:pi", "expected a subclass of gradweave.schedulers.Scheduler or DemandStrategy, got"),
        ("gradweave.schedulers:Scheduler", "needs both a name and a make"),
        ("gradweave.schedulers:Ring:order=id,steps=no", "steps must be one of"),
    ],
)
def test_what_is_no_scheduler_is_refused_in_one_line(refused, scheduler, reason):
    assert reason in refused("solve", "ring:4", "--scheduler", scheduler)


def test_a_name_of_gradweave_s_own_is_refused(tmp_path, monkeypatch):
    (tmp_path / "taken.py").write_text(
        "import dataclasses\nfrom gradweave.schedulers import Ring\n"
        "@dataclasses.dataclass(frozen=True)\nclass Mine(Ring):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match="refused, since ring is Gradweave's own"):
        from_spec("taken:Mine")
    sys.modules.pop("taken", None)


def test_two_packages_with_one_name_are_told_apart_by_neither(outside, monkeypatch):
    (one,) = [each for each in plugins.plugins(plugins.SCHEDULER) if each.name == "pass_along"]
    monkeypatch.setattr(plugins, "plugins", lambda kind: [one, one])
    with pytest.raises(OptionError, match=r"brought by outside-parts 1\.0 and outside-parts 1\.0"):
        from_spec("pass_along")


def test_a_broken_promise_is_one_line_and_status_1(tmp_path, monkeypatch, gradweave):
    (tmp_path / "careless.py").write_text(CARELESS)
    monkeypatch.syspath_prepend(tmp_path)
    answer = gradweave("plugins", "check", "careless:Careless", "--json")
    assert answer.status == 1
    faults = {one["check"]: one["fault"] for one in answer.json["broken"]}
    assert set(faults) == {"same seed, same schedule", "other node ids", "makes a schedule"}
    assert "differ" in faults["same seed, same schedule"]
    assert "ZeroDivisionError" in faults["makes a schedule"]
    assert not any("\n" in fault for fault in faults.values())
    lines = gradweave("plugins", "check", "careless:crooked:n=4").stdout.splitlines()
    assert [line for line in lines if line.startswith("broken: name is its specification")]
    assert [line for line in lines if line.startswith("broken: link properties")]
    sys.modules.pop("careless", None)


CARELESS = '''
import dataclasses
import random

from gradweave.schedulers import Merged
from gradweave.topology import Topology


@dataclasses.dataclass(frozen=True)
class Careless(Merged):
    """Draws from a seed of its own, counts on node ids, and divides by no switches."""

    name = "careless"

    def make(self, topology, collective, seed, stop):
        if topology.name == "star:n=4":
            1 / 0
        if topology.name.endswith("relabelled"):
            raise KeyError(0)
        return super().make(topology, collective, random.randrange(10**6), stop)


def crooked(n: int, *, link=None) -> Topology:
    links = [(0, i) for i in range(1, n)]
    return Topology.from_links("crooked", servers=n, switches=0, links=links)
'''


def test_what_is_checked_may_be_given_as_itself():
    kind, findings = conform(gw.placement.RankOrder)
    assert kind == "placement strategy rank_order"
    assert not [finding for finding in findings if finding.fault]
    with pytest.raises(OptionError, match="expected a scheduler"):
        conform(42)
    assert issubclass(ConformanceError, gw.errors.Negative)
