"""The checker in Rust: it says of every file what the one in Python says."""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import gradweave as gw
import gradweave_check as checker
from benchmarks.optimal_files import claims, contents, optimal
from benchmarks.second_checker import SecondChecker
from gradweave.schedule.file import to_bytes
from gradweave.topology.formats.object import topology_to_object
from tests.test_gradweave_check import certificates_of_messages


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> SecondChecker:
    if not SecondChecker.available():
        pytest.skip("no rustc")
    return SecondChecker.compiled(tmp_path_factory.mktemp("rust"), optimized=False)


def first_says(content: dict[str, Any]) -> str:
    try:
        return "".join(str(int(good)) for good, *_ in checker.check(content))
    except (checker.Wrong, *checker.BROKEN):
        return "0"


@pytest.mark.always
@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.get("archive", "library"))
def test_each_claim_of_optimality_has_files_that_both_accept(
    claim: dict[str, Any], second: SecondChecker
):
    files = list(contents(claim))
    rounds = {name: optimal(content) for name, content in files}
    assert None not in rounds.values()
    assert rounds == claim["fewest"] if "fewest" in claim else len(rounds) == claim["files"]
    marks = second.verdicts([content for _, content in files])
    assert all(mark.strip("1") == "" for mark in marks)


def test_both_recount_every_kind_and_refuse_what_is_forged(second: SecondChecker):
    contents = []
    for _, topology, proved in certificates_of_messages():
        forged = copy.deepcopy(dict(proved.certificate))
        forged["claim"]["least"] = str(2 * proved.least)
        other = {**proved.certificate, "network": "0" * 64}
        contents.append(
            {
                "collective": proved.certificate["claim"]["collective"],
                "topology": topology_to_object(topology),
                "certificates": [proved.certificate, forged, other],
            }
        )
    assert [first_says(content) for content in contents] == ["100"] * len(contents)
    assert second.verdicts(contents) == ["100"] * len(contents)


def by_propagation(clauses: Sequence[tuple[int, ...]]) -> Iterator[str]:
    """The proof of clauses that unit propagation alone shows to have no solution."""
    true, hints = set[int](), list[int]()
    while True:
        for number, clause in enumerate(clauses, 1):
            left = [x for x in clause if -x not in true]
            if len(left) < 2 and not true.issuperset(left or [0]):
                hints.append(number)
                true.update(left)
            if not left:
                yield " ".join(map(str, (len(clauses) + 1, 0, *hints, 0)))
                return


def test_of_a_schedule_that_takes_more_liberties_both_say_nothing(second: SecondChecker):
    wide = gw.topology.mesh((1, 3), link=gw.topology.Link(capacity=2))
    passing = gw.schedulers.Merged().schedule(wide, collective="all_gather")
    asked = {"stage": "all_gather", "rounds": 1, "counters": []}
    refuted = gw.bounds.refute(wide, asked, by_propagation)
    proved = gw.bounds.certify_refutation(wide, "all_gather", refuted)
    content = json.loads(to_bytes(passing.replace(certificates=(proved.certificate,))))
    rows = [(s, t, [s, 1, t] if {s, t} == {0, 2} else [s, t]) for s in range(3) for t in range(3)]
    rows = [row for row in rows if row[0] != row[1]]
    source, target, route = (list(column) for column in zip(*rows, strict=True))
    moved = {"round": [0] * 6, "piece": source, "op": ["copy"] * 6}
    moved |= {"source": source, "target": target, "route": route}
    through = {**content, "rounds": 1, "transfers": moved}
    bcube = gw.topology.bcube(n=3, k=1)
    along = gw.bounds.certify_fixed_trees(gw.schedule.FlowTrees.shortest_path(bcube))
    assert along is not None
    contents = [content, through]
    for strategy in ("merged", "symmetric"):
        made = gw.schedulers.from_spec(strategy).schedule(bcube, collective="reduce_scatter")
        contents.append(json.loads(to_bytes(made.replace(certificates=(along.certificate,)))))
    assert [first_says(content) for content in contents] == ["11", "10", "11", "10"]
    assert second.verdicts(contents) == ["11", "10", "11", "10"]


def test_both_judge_changed_schedules_alike(second: SecondChecker):
    ring = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    whole = json.loads(to_bytes(gw.bounds.with_certificates(ring, 1e6)))
    contents = [whole]
    for column, row, value in (
        ("round", 0, 2),
        ("target", 1, 0),
        ("op", 2, "copy"),
        ("route", 3, [0, 2]),
        ("piece", 4, "1"),
        ("source", 5, -1),
    ):
        changed = copy.deepcopy(whole)
        changed["transfers"][column][row] = value
        contents.append(changed)
    for field, value in (("version", 4), ("rounds", 7), ("root", []), ("topology", None)):
        contents.append({**whole, field: value})
    found = second.verdicts(contents)
    assert found[0] == "111" and found == [first_says(content) for content in contents]
