"""The checker of its own: what it accepts is so, and it needs nothing of the package."""

import ast
import copy
import itertools
import json
import random
import subprocess
import sys
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest

import gradweave as gw
import gradweave_check as checker
from gradweave.errors import InvalidCertificateError
from gradweave.schedulers.spec import from_spec
from gradweave.schedules.file import to_bytes
from tests.bounds.random_latencies import slow_middle
from tests.bounds.test_bounds_closing_cut import three_rings
from tests.verifier.checked_files import accepted, as_file
from tests.verifier.mutations import mutants, verdict_on
from tests.verifier.oracle import Draft
from tests.verifier.random_demands import random_draft

BARRIER = (
    "root a piece at each server, sum each piece at one server and finish every sum "
    "before the first copy"
)
FILE = Path(checker.__file__)
NETWORKS = ("bcube:n=3,k=1", "mi250", "a100:boxes=4", "rings")
"""On which cuts, depth, late entry and cuts that close in are the strongest."""


TABLE_2 = {
    "bcube:n=3,k=1": 8,
    "bcube:n=4,k=1": 16,
    "bcube:n=5,k=1": 24,
    "dcell:n=4,k=1": 20,
    "dcell:n=5,k=1": 30,
    "dcell:n=6,k=1": 42,
    "jellyfish:reference=J10,seed=0": 18,
    "jellyfish:reference=J15,seed=0": 28,
    "jellyfish:reference=J20,seed=0": 38,
}
"""Rounds of both stages that README says are the fewest."""


def network(spec: str) -> gw.topology.Topology:
    return three_rings(9) if spec == "rings" else gw.topology.from_spec(spec)


def test_it_imports_the_standard_library_alone():
    tree = ast.parse(FILE.read_text())
    names = {x.name for node in ast.walk(tree) if isinstance(node, ast.Import) for x in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= {*sys.stdlib_module_names, "gradweave_refute"}  # which lies beside it


def test_a_wheel_has_each_script_with_its_file():
    whole = tomllib.loads((FILE.parents[1] / "pyproject.toml").read_text())
    packed = whole["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    modules = [target.partition(":")[0] for target in whole["project"]["scripts"].values()]
    assert "gradweave_check" in modules
    for module in modules:
        file = f"src/{module.replace('.', '/')}.py"
        assert (FILE.parents[1] / file).is_file()
        assert any(file == one or file.startswith(f"{one}/") for one in packed), file


def test_a_copy_runs_by_itself(tmp_path):
    ring = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    path = tmp_path / "ring.json.gz"
    gw.bounds.with_certificates(ring, 1e6).save(path)
    (tmp_path / "copied.py").write_text(FILE.read_text())
    command = [sys.executable, "-I", "-S", str(tmp_path / "copied.py"), str(path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[:2] == [
        "schedule: valid: all_reduce, 6 rounds, 24 transfers",
        f"certificate 0: proved for schedules that {BARRIER}: at least 4 rounds; "
        "the schedule takes 6 rounds: within 50 %",
    ]


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("spec", NETWORKS)
def test_bounds_on_rounds_are_proved_and_no_more(spec: str, collective):
    topology = network(spec)
    bound = gw.bounds.free_trees(topology, collective)
    found = gw.bounds.certify_rounds(topology, bound, collective)
    assert found is not None and found.least == bound.rounds
    more = copy.deepcopy(dict(found.certificate))
    more["claim"]["least"] = str(bound.rounds + 1)
    with pytest.raises(InvalidCertificateError, match=f"it proves {bound.rounds} alone"):
        gw.bounds.check_certificate(more, topology)
    with pytest.raises(InvalidCertificateError, match="another network"):
        gw.bounds.check_certificate(found.certificate, gw.topology.ring(4))


@pytest.mark.parametrize("spec", TABLE_2)
def test_schedules_of_table_2_are_optimal(spec: str):
    strategy = "ring:order=hamiltonian" if "jellyfish" in spec else "symmetric"
    schedule = from_spec(strategy).schedule(gw.topology.from_spec(spec))
    found = checker.check(json.loads(to_bytes(gw.bounds.with_certificates(schedule))))
    rounds = TABLE_2[spec]
    said = f"at least {rounds} rounds; the schedule takes {rounds} rounds: optimal in rounds"
    assert [good for good, *_ in found] == [True, True]
    assert found[1][2].startswith(f"proved for schedules that {BARRIER}")
    assert found[1][2].endswith(f": {said} among such schedules")


def test_a_negative_length_proves_nothing():
    topology = gw.topology.ring(4)
    demand = gw.schedules.collective("broadcast", range(4), 10**6, root=0)
    bound = gw.bounds.demand_bound(topology, demand)
    found = gw.bounds.certify(bound)
    assert float(found.least) == pytest.approx(bound.seconds_of_parts, rel=1e-9)
    wrong = copy.deepcopy(dict(found.certificate))
    lengths = [-1, *bound.lengths.length.tolist()[1:]]
    wrong["proof"] = [{"kind": "lengths", "stage": "demand", "lengths": lengths}]
    with pytest.raises(InvalidCertificateError, match="lengths: out of range"):
        gw.bounds.check_certificate(wrong, topology, demand)


def certificates_of_messages() -> list[tuple[str, gw.topology.Topology, gw.bounds.Certified]]:
    """Of each kind in seconds, with what Gradweave itself finds for the same question."""
    found = []
    for spec, collective in (
        ("star:6,latency=10us", "all_reduce"),
        ("bcube:n=3,k=1", "all_gather"),
        ("bcube:n=3,k=1", "reduce_scatter"),
        (slow_middle(), "all_reduce"),
    ):
        topology = gw.topology.from_spec(spec) if isinstance(spec, str) else spec
        proved = gw.bounds.certify(gw.bounds.seconds_bound(topology, collective, 1, trees=False))
        bound = gw.bounds.latency_bound(topology, collective)
        assert bound.seconds <= proved.least <= bound.seconds * (1 + 1e-3)
        found.append((bound.kind, topology, proved))
    link = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=1e-3)
    ring = gw.topology.ring(4, link=link)
    slots = gw.bounds.time_expanded(ring, 4e6, slots=64)
    assert slots is not None
    proved = gw.bounds.certify(gw.bounds.seconds_bound(ring, "all_reduce", 4e6).with_slots(64))
    assert float(proved.least) == pytest.approx(slots.seconds, rel=1e-6)
    found.append(("slots", ring, proved))
    star, ready = gw.topology.star(8), [0.07, 0.03, *[0] * 6]
    late = gw.bounds.least_seconds(star, 1e9, ready_at_s=ready)
    proved = gw.bounds.certify(gw.bounds.seconds_bound(star, "all_reduce", 1e9, ready_at_s=ready))
    assert late.seconds <= proved.least <= late.seconds * (1 + 1e-3)
    found.append(("crossings", star, proved))
    return found


def test_messages_late_servers_and_slots_are_proved_and_no_more():
    kinds = []
    for _, topology, proved in certificates_of_messages():
        (step,) = proved.certificate["proof"]
        kinds.append(step["kind"])
        if time := Fraction(step.get("seconds", "0")):
            more = copy.deepcopy(dict(proved.certificate))
            more["proof"][0]["seconds"] = str(time * (1 + Fraction(1, 10**6)))
            with pytest.raises(InvalidCertificateError, match="there is time enough"):
                gw.bounds.check_certificate(more, topology)
        more = copy.deepcopy(dict(proved.certificate))
        more["claim"]["least"] = str(proved.least * (1 + Fraction(1, 10**12)))
        with pytest.raises(InvalidCertificateError, match="it proves"):
            gw.bounds.check_certificate(more, topology)
    assert kinds == ["meeting", "reach", "reach", "reach", "slots", "crossings"]


def test_jobs_that_are_late_prove_nothing_where_there_are_none():
    topology = gw.topology.ring(4)
    demand = gw.schedules.collective("broadcast", range(4), 10**6, root=0)
    bound = gw.bounds.demand_bound(topology, demand)
    content = copy.deepcopy(dict(gw.bounds.certify(bound).certificate))
    lengths = bound.lengths.length.tolist()
    content["proof"] = [{"kind": "lengths", "stage": "demand", "lengths": lengths}]
    content["claim"] |= {"since_s": "1000", "least": "1000"}
    with pytest.raises(InvalidCertificateError, match="of no block"):
        gw.bounds.check_certificate(content, topology, demand)


@pytest.mark.parametrize(("unit", "block"), [("rounds", 0), ("seconds", -1)])
def test_a_reach_is_of_a_block_and_in_seconds(unit: str, block: int):
    topology = gw.topology.star(4)
    demand = gw.schedules.collective("broadcast", range(4), 10**6, root=0)
    bound = gw.bounds.demand_bound(topology, demand)
    found = gw.bounds.certify(bound)
    content = copy.deepcopy(dict(found.certificate))
    assert content["proof"][0]["kind"] == "reach"
    content["claim"]["unit"], content["proof"][0]["block"] = unit, block
    with pytest.raises(InvalidCertificateError, match="reach: "):
        gw.bounds.check_certificate(content, topology, demand)


def test_of_a_schedule_that_exchanges_sums_a_bound_of_trees_says_nothing():
    topology = gw.topology.hypercube(2)
    doubling = from_spec("recursive_doubling").schedule(topology)
    bound = gw.bounds.free_trees(topology)
    certificate = gw.bounds.certify_rounds(topology, bound, "all_reduce").certificate
    content = json.loads(to_bytes(doubling.replace(certificates=(certificate,))))
    (valid, *_), (holds, _, text) = checker.check(content)
    assert valid and not holds and "sums meet at several servers" in text


@pytest.mark.parametrize("spec", ["bcube:n=3,k=1", "ring:4,capacity=2", "mi250"])
def test_seconds_are_those_of_the_event_model_and_not_below_the_proof(spec: str):
    topology = gw.topology.from_spec(spec)
    schedule = from_spec("merged").schedule(topology)
    proved = gw.bounds.certify(gw.bounds.seconds_bound(topology, "all_reduce", 1e6))
    content = checker.Network(json.loads(to_bytes(schedule))["topology"])
    asked = checker.Asked("all_reduce", None, content)
    plan = checker.Plan(json.loads(to_bytes(schedule)), content, asked, False)
    taken = plan.seconds(content, Fraction(10**6), [0] * topology.num_nodes)
    assert taken == pytest.approx(gw.simulator.seconds(schedule, 1e6, "events"), rel=1e-12)
    assert proved.least <= taken


def test_least_trees_are_those_of_all():
    draw = random.Random(0)
    for count, most in ((2, 5), (4, 2), (4, 9), (5, 3), (5, 20)):
        cost = {a: {b: draw.randrange(most) for b in range(count)} for a in range(count)}
        trees = itertools.product(range(count), repeat=count - 1)
        found = min(
            sum(cost[a][b] for b, a in enumerate(parents, 1))
            for parents in trees
            if all(leads_to_root(b, parents) for b in range(1, count))
        )
        assert checker.arborescence(cost, 0) == found


def leads_to_root(node: int, parents: tuple[int, ...]) -> bool:
    for _ in parents:
        node = parents[node - 1] if node else 0
    return node == 0


@pytest.mark.parametrize("seed", range(2))
def test_checker_and_verifier_agree_on_mutants(seed: int):
    draft = random_draft(random.Random(seed))
    assert accepted(draft, False)
    for name, mutant in itertools.islice(mutants(draft, most=1, seed=seed), 0, None, 13):
        assert accepted(mutant, False) == (verdict_on(mutant) is None), name


def test_files_that_are_none_are_refused():
    ring = Draft.of(gw.schedulers.Ring().schedule(gw.topology.ring(3)))
    for field, value in (("version", 4), ("rounds", 3), ("root", [0, 1, "2"]), ("pieces", 2)):
        content = {**as_file(ring), field: value}
        try:
            assert not checker.check(content)[0][0], field
        except checker.BROKEN:
            pass


def test_implicit_schedules_are_referred_to_expansion(tmp_path: Path):
    gw.schedulers.implicit("ring:3").save(tmp_path / "ring.json")
    with pytest.raises(checker.Wrong, match=r"an implicit schedule; gradweave.load\(path\)"):
        checker.check(json.loads((tmp_path / "ring.json").read_text()))
    gw.load(tmp_path / "ring.json").save(tmp_path / "whole.json")
    assert checker.check(json.loads((tmp_path / "whole.json").read_text()))[0][0]
