"""The checker in Rust: it says of every file what the one in Python says."""

import copy
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import gradweave as gw
import gradweave_check as checker
from benchmarks.optimal_files import claims, contents, optimal
from benchmarks.second_checker import SecondChecker
from gradweave.schedulers.spec import from_spec
from gradweave.schedules.file import to_bytes
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
    along = gw.bounds.certify_fixed_trees(gw.schedules.FlowTrees.shortest_path(bcube))
    assert along is not None
    contents = [content, through]
    for strategy in ("merged", "symmetric"):
        made = from_spec(strategy).schedule(bcube, collective="reduce_scatter")
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


def changed(content: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A copy in which one value, such as that at ``topology.links.capacity.0``, is another."""
    made = copy.deepcopy(content)
    *path, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    inner: Any = made
    for key in path:
        inner = inner[key]
    inner[last] = value
    return made


ODD = {
    "version": (True, 1.0, "1"),
    "rounds": (True, 6.0),
    "pieces": (True, 4.0),
    "root.1": (True, 1.0),
    "topology.switches": ("", {}),
    "topology.links.bandwidth_bytes_per_s.0": ("1e10", "100000000000.0", True, None),
    "topology.links.capacity.0": (True, 1.0),
    "topology.links.overhead_s": (None, []),
    "transfers.source.0": (0.0, False),
    "shares": ({}, []),
    "certificates": (None, {}),
    "certificates.0.version": (True, 1.0),
    "certificates.0.claim.least": ("\u0664", "\u00b2", 4, "4\n"),
    "certificates.0.claim.holds_unless": ([], ["stages overlap"], ["birds fly"], None),
    "certificates.0.proof.0.servers": ([False], [0.0], "", {}),
    "certificates.1.claim.bytes": ("1000000\u0660", "1e6", 1000000),
}
"""Wrong values at places of a schedule's file, among them the Arabic digit four, a superscript two,
and numbers written as texts."""


def test_both_refuse_what_is_of_another_type(second: SecondChecker):
    ring = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    whole = json.loads(to_bytes(gw.bounds.with_certificates(ring, 1e6)))
    assert first_says(whole) == "111"
    made = [changed(whole, place, value) for place, values in ODD.items() for value in values]
    marks = second.verdicts(made)
    assert [first_says(content) for content in made] == marks
    assert all("0" in mark for mark in marks)


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (b"{", b"\xef\xbb\xbf{", "a mark of byte order"),
        (b"{", b'{"note": NaN, ', "not a number"),
        (b"{", b'{"note": -Infinity, ', "infinity"),
        (b"{", b'{"note": 01, ', "a leading zero"),
        (b"{", b'{"note": 1., ', "no digit after the point"),
        (b"{", b'{"note": "\\x", ', "no such escape"),
        (b"{", b'{"note": "\n", ', "a line's end in a text"),
        (b"{", b'{"note": ' + b"9" * 50 + b", ", "more than 127 bits"),
        (b"{", b'{"note": ' + b"[" * 120 + b"]" * 120 + b", ", "nested deeply"),
        (b"{", b"\xff{", "not UTF-8"),
    ],
)
def test_both_refuse_what_is_not_json(
    second: SecondChecker, tmp_path: Path, before: bytes, after: bytes, what: str
):
    ring = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    text = to_bytes(gw.bounds.with_certificates(ring))
    path = tmp_path / "s.json"
    path.write_bytes(text)
    assert run([second.program], path) == 0 == run([sys.executable, checker.__file__], path)
    path.write_bytes(text.replace(before, after, 1))
    assert run([second.program], path) == 2 == run([sys.executable, checker.__file__], path), what


def run(command: list[Any], path: Path) -> int:
    return subprocess.run([*command, path], capture_output=True).returncode


def test_both_name_the_schedules_in_the_same_words(second: SecondChecker, tmp_path: Path):
    for strategy, bytes_ in (("recursive_doubling", 4e3), ("merged", None), ("packed", 1e6)):
        made = from_spec(strategy).schedule(gw.topology.hypercube(3))
        path = tmp_path / f"{strategy}.json"
        gw.bounds.with_certificates(made, bytes_).save(path)
        said = subprocess.run([second.program, path], capture_output=True, text=True).stdout
        first = [f"{what}: {text}" for _, what, text in checker.check(json.loads(path.read_text()))]
        classes = [line.partition(": at least")[0] for line in first]
        assert [line.partition(": at least")[0] for line in said.splitlines()] == classes
        assert all(": proved for " in line for line in classes[1:]) and len(classes) > 1
