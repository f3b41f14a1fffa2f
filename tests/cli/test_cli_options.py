"""Options that no other test of the commands uses with success: each runs once, and says so."""

from collections.abc import Callable
from pathlib import Path

import pytest

import gradweave as gw
from tests.cli.conftest import Answer

MODEL = "--model transformer:layers=4,width=64"
NETWORK = """nodes: [{id: a}, {id: b}, {id: c}, {id: d}]
links:
- {source: a, target: b, bandwidth: 10Gbit/s}
- {source: b, target: c, bandwidth: 10Gbit/s}
- {source: c, target: d, bandwidth: 10Gbit/s}
- {source: d, target: a, bandwidth: 10Gbit/s}
"""
MACHINE = """start: begin
final: end
moves:
  begin: {coffee: has}
  has: {office: end}
agents:
  robot: [coffee, office]
"""
RUNS = {
    "solve net.yaml --collective broadcast --root c": "broadcast",
    "solve net.yaml --scheduler ring --runtime mpi": "mpi",
    "solve net.yaml --scheduler ring --seed 3": "6 rounds",
    "solve complete:4 --scheduler ring --without-server 3": "4 rounds",
    "solve complete:4 --scheduler ring --without-link 0-1": "rounds",
    "solve net.yaml --scheduler ring --slow a-b=0.5": "minimised",
    "solve net.yaml --scheduler ring --size 1MB --fair": "shared fairly",
    "solve net.yaml --slow a-b=0.5 --start-from s.json --objective seconds --size 1MB "
    "--changed-at 0.1ms": "planned again",
    "solve complete:4 --mesh dp=2,tp=2 --job all_reduce:bytes=1MB,axis=tp": "2 blocks",
    "compare net.yaml --scheduler ring --objective seconds --size 1MB,2MB": "2 MB",
    "compare net.yaml --scheduler ring --seeds 2": "ring",
    "compare net.yaml --scheduler ring --time-limit 5": "ring",
    "compare complete:4 --scheduler ring --without-server 3": "ring",
    "compare complete:4 --scheduler ring --without-link 0-1": "ring",
    "compare net.yaml --scheduler ring --slow a-b=0.5": "ring",
    "compare complete:4 --scheduler group --mesh dp=2,tp=2 --job "
    "all_reduce:bytes=1MB,axis=tp": "group",
    "bound net.yaml --collective broadcast --root c --size 1MB": "at least",
    "bound net.yaml --overlap --size 1MB": "at least",
    "bound complete:4 --mesh dp=2,tp=2 --job all_reduce:bytes=1MB,axis=tp": "at least",
    "bound complete:4 --without-server 3": "at least",
    "bound complete:4 --without-link 0-1": "at least",
    "bound net.yaml --slow a-b=0.5": "at least",
    "bound net.yaml --output bound.json": "bound.json",
    "verify s.json --strict": "valid",
    "verify s.json --aggregating-switches": "valid",
    "show s.json --title Mine --output page.html": "page.html",
    "show s.json --round 2 --output r.svg": "r.svg",
    "show s.json --round 2 --width 300 --output r.svg": "r.svg",
    "show s.json --size 1MB --output page.html": "page.html",
    "show net.yaml --scheduler ring --output page.html": "page.html",
    "show net.yaml --scheduler ring --collective all_gather --output page.html": "page.html",
    "show net.yaml --scheduler ring --seed 3 --output page.html": "page.html",
    "show complete:4 --scheduler ring --without-server 3 --output page.html": "page.html",
    "show net.yaml --scheduler ring --runtime gloo --size 1MB --output p.html": "p.html",
    f"place net.yaml {MODEL} --pipeline 2 --memory 8GB": "step",
    f"place net.yaml {MODEL} --pipeline 2 --pipeline-schedule gpipe": "step",
    f"place net.yaml {MODEL} --pipeline 2 --pipeline-schedule interleaved --chunks 2": "step",
    f"place net.yaml {MODEL} --pipeline 2 --no-step": "stage",
    f"place net.yaml {MODEL} --pipeline 2 --cost scheduled": "step",
    f"place complete:4 {MODEL} --pipeline 3 --without-server 3": "step",
    f"place net.yaml {MODEL} --pipeline 2 --without-link a-b": "step",
    f"place net.yaml {MODEL} --pipeline 2 --slow a-b=0.5": "step",
    f"place net.yaml {MODEL} --pipeline 2 --output placed.html": "placed.html",
    "ranks net.yaml --runtime ideal": "ranks:",
    "ranks net.yaml --seed 3": "ranks:",
    "ranks net.yaml --time-limit 2": "ranks:",
    "ranks complete:4 --without-server 3": "ranks: 0 1 2",
    "ranks net.yaml --without-link a-b": "ranks:",
    "ranks net.yaml --slow a-b=0.5": "ranks:",
    "ranks hosts.txt --bandwidth 10Gbit/s --oversubscription 4": "ranks:",
    "ranks ring:4 --hosts e,f,g,h --output hostfile": "hostfile",
    "library list --kind torus": "torus",
    "library list --status open": "open",
    "library list --collective all_to_all": "all_to_all",
    "topology show complete:4 --without-server 3": "3 servers",
    "topology show complete:4 --without-link 0-1": "5 links",
    "topology show net.yaml --slow a-b=0.5": "5 Gbit/s",
    "job plan --list --cache empty": "",
    "export s.json --format msccl-xml --name mine --output x.xml": "x.xml",
    "export s.json --format msccl-xml --instances 2 --output x.xml": "x.xml",
    "export s.json --format mscclpp-json --out-of-place --output x.json": "x.json",
    "export s.json --format msccl-xml --min-bytes 1MB --max-bytes 1GB --output x.xml": "x.xml",
    "export s.json --format msccl-xml --protocol LL --output x.xml": "x.xml",
    "export s.json --format msccl-xml --dialect rccl --output x.xml": "x.xml",
    "export s.json --format chakra-et --size 1MB --element-bytes 2 --output trace": "trace",
    "export s.json --format rankfile --hosts n1:2,n2:2 --output ranks": "ranks",
    "machine check m.yaml --without-causal": "valid",
    "machine show m.yaml --output m.html": "m.html",
    "plugins list schedulers": "ring",
}
"""Command lines, and words that each prints."""


@pytest.fixture
def files(here: Path) -> Path:
    (here / "net.yaml").write_text(NETWORK)
    (here / "m.yaml").write_text(MACHINE)
    (here / "hosts.txt").write_text("rack1:n1\nrack1:n2\nrack2:n3\nrack2:n4\n")
    gw.schedulers.Ring().schedule(here / "net.yaml").save(here / "s.json")
    return here


@pytest.mark.parametrize("line", RUNS)
def test_an_option_runs(gradweave: Callable[..., Answer], files: Path, line: str):
    arguments = line.split()
    answer = gradweave(*arguments)
    assert answer.status == 0, answer
    assert RUNS[line] in answer.stdout, answer
    if "--output" in arguments:
        written = list(files.glob(f"{arguments[-1]}*"))
        assert written and all(file.stat().st_size for file in written)


FIRST = {line.split()[0]: line for line in reversed(RUNS)}
"""One line of each command or group."""


@pytest.mark.parametrize("line", FIRST.values())
def test_a_command_also_answers_as_one_object(
    gradweave: Callable[..., Answer], files: Path, line: str
):
    answer = gradweave(*line.split(), "--json")
    assert answer.status == 0, answer
    assert isinstance(answer.json, dict)
