"""The checker in Rust: it says of every file what the one in Python says."""

import copy
import gzip
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

import gradweave as gw
import gradweave_check as checker
from benchmarks.second_checker import SecondChecker
from gradweave.schedule.file import to_bytes
from gradweave.topology.formats.object import topology_to_object
from tests.test_gradweave_check import certificates_of_messages

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CLAIMS = BENCHMARKS / "claims" / "optimality.toml"
SCHEDULES = BENCHMARKS / "library" / "schedules"


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


def claimed() -> dict[str, int]:
    """Instances of the library, each with the rounds that are said to be the fewest."""
    rows = tomllib.loads(CLAIMS.read_text())["claim"]
    return {name: rounds for row in rows for name, rounds in row["fewest"].items()}


def test_each_claim_of_optimality_has_a_file_that_both_accept(second: SecondChecker):
    contents = []
    for name, fewest in claimed().items():
        content = json.loads(gzip.decompress((SCHEDULES / f"{name}.json.gz").read_bytes()))
        found = checker.check(content)
        assert all(good for good, *_ in found), name
        said = f"at least {fewest} rounds; the schedule takes {fewest} rounds: optimal in rounds"
        assert any(text.endswith(said) for *_, text in found), name
        contents.append(content)
    assert all(marks.strip("1") == "" for marks in second.verdicts(contents))


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
