"""Which tests are quick, by what they cost."""

import itertools
import json
import os
from pathlib import Path

import pytest

from tests import costs
from tests.costs import Cost


@pytest.mark.parametrize(
    ("cost", "cases"),
    [
        (Cost(shared_s=0, case_s=0.001, cases=200), 200),
        (Cost(shared_s=0, case_s=0.095, cases=200), 10),
        (Cost(shared_s=0.5, case_s=0.095, cases=200), 5),
        (Cost(shared_s=0, case_s=0.6, cases=3), 1),
        (Cost(shared_s=0, case_s=2.9, cases=3), 1),
        (Cost(shared_s=0, case_s=3.1, cases=3), 0),
        (Cost(shared_s=2.9, case_s=0, cases=3), 1),
        (Cost(shared_s=3.1, case_s=0, cases=3), 0),
    ],
)
def test_as_many_cases_as_are_worth_their_cost(cost: Cost, cases: int):
    assert cost.worth(share_s=1.0) == cases


def test_all_get_the_same_share_of_the_budget():
    cheap, table, dear = Cost(0, 0.1, 2), Cost(0, 0.1, 1000), Cost(0, 9.0, 1)
    assert 1.8 <= costs.share([cheap, table, dear], budget_s=2.0) < 1.9  # 2 and 18 cases
    assert costs.share([cheap, table, dear], budget_s=200.0) > 100
    assert costs.share([dear], budget_s=8.0) == pytest.approx(3.0)  # where it would come in


def test_few_cases_show_many_values():
    table = [{"network": n, "strategy": s} for n, s in itertools.product(range(6), range(4))]
    chosen = [table[position] for position in costs.spread(table, 6)]
    assert {case["network"] for case in chosen} == set(range(6))
    assert {case["strategy"] for case in chosen} == set(range(4))
    assert len(costs.spread(table, 3)) == 3 and costs.spread(table, 99) == list(range(24))


def test_cases_of_one_parameter_are_spread():
    chosen = costs.spread([{"size": size} for size in range(100)], 10)
    gaps = [after - before for before, after in itertools.pairwise(chosen)]
    assert len(set(chosen)) == 10 and chosen[0] == 0 and max(gaps) <= 20


@pytest.mark.parametrize(
    "cost", [Cost(0, 0.16, 635), Cost(35, 0.01, 4), Cost(2, 7, 5), Cost(0, 63, 1), Cost(0, 1, 7)]
)
def test_in_turns_each_case_runs_once_a_period_and_at_its_cost(cost: Cost):
    turn_s = 3.0
    runs = [
        [case for case in range(cost.cases) if costs.has_turn("test", cost, case, run, turn_s)]
        for run in range(1000, 1000 + cost.period(turn_s))
    ]
    assert sorted(itertools.chain(*runs)) == list(range(cost.cases))
    spent_s = sum(cost.shared_s + len(cases) * cost.case_s for cases in runs if cases)
    assert spent_s == pytest.approx(cost.run_s(turn_s) * len(runs))
    assert cost.run_s(turn_s) <= turn_s


def test_what_costs_little_takes_no_turns():
    assert all(costs.has_turn("test", Cost(0, 0.29, 10), 3, run, turn_s=3.0) for run in range(20))


def test_turns_are_as_long_as_the_budget_allows():
    known = [Cost(0, 0.1, 2), Cost(0, 1.0, 20), Cost(0, 60.0, 1)]
    for budget_s in (2.0, 10.0, 40.0):
        spent_s = sum(cost.run_s(costs.turn(known, budget_s)) for cost in known)
        assert 0.6 * budget_s < spent_s <= budget_s
    assert costs.turn(known, 1000.0) > 60.0


LINES = (
    {"fixture": "tests/a.py::training", "cost_s": 3.0},
    {"fixture": "tests/a.py::training", "cost_s": 2.0},  # of another worker
    {"test": "tests/a.py::test_x[1]", "cost_s": 0.5, "quick": True, "shared": []},
    {"test": "tests/a.py::test_x[2]", "cost_s": 1.5, "quick": False, "shared": []},
    {
        "test": "tests/a.py::test_y",
        "cost_s": 0.1,
        "quick": True,
        "shared": ["tests/a.py::training"],
    },
    {
        "test": "tests/a.py::T::test_z[a::b]",
        "cost_s": 0.0,
        "quick": False,
        "shared": ["tests/a.py::training"],
    },
    {"test": "tests/a.py::test_small", "cost_s": 0.01, "quick": False, "shared": []},
)


def test_costs_are_those_measured_and_come_back_from_the_file(tmp_path: Path):
    lines = tmp_path / "costs.jsonl"
    lines.write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    found, quick_s = costs.measured(lines)
    assert quick_s == pytest.approx(0.5 + 0.1 + 3.0)
    assert found["tests/a.py::test_x"] == Cost(0.0, 1.0, 2)
    assert found["tests/a.py::test_y"] == Cost(1.5, 0.1, 1)
    costs.write(found, tmp_path / "costs.tsv")
    assert costs.recorded(tmp_path / "costs.tsv") == {
        "tests/a.py::test_x": Cost(0.0, 1.0, 2),
        "tests/a.py::test_y": Cost(1.5, 0.1, 1),
        "tests/a.py::T::test_z": Cost(1.5, 0.0, 1),
    }


def test_what_the_first_case_pays_for_all_is_not_the_cases():
    assert costs.first_extra_s([5.0, 0.1, 0.3]) == pytest.approx(4.8)
    assert costs.first_extra_s([0.1, 5.0]) == 0.0 == costs.first_extra_s([5.0])


SHARING = """
import time
import pytest

def busy(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass

@pytest.fixture(scope="module")
def inner():
    busy(0.2)

@pytest.fixture(scope="module")
def outer(inner):
    busy(0.1)

@pytest.mark.parametrize("case", range(2))
def test_shares(outer, case):
    busy(0.05)
"""


def test_a_plugin_measures_tests_and_what_they_share(tmp_path: Path):
    (tmp_path / "test_sharing.py").write_text(SHARING)
    lines = tmp_path / "costs.jsonl"
    without = (f"-pno:{plugin}" for plugin in ("cacheprovider", "xdist", "benchmark"))
    options = ("-q", "-c", os.devnull, "--rootdir", str(tmp_path), *without)
    assert pytest.main([*options, str(tmp_path)], plugins=[costs.Recorder(lines)]) == 0
    fixtures, tests = {}, {}
    for line in map(json.loads, lines.read_text().splitlines()):
        place = line.get("fixture") or line["test"]
        (fixtures if "fixture" in line else tests)[place.rpartition("::")[2]] = line["cost_s"]
    assert 0.2 <= fixtures["inner"] < 0.3 and 0.1 <= fixtures["outer"] < 0.2
    assert sorted(tests) == ["test_shares[0]", "test_shares[1]"]
    assert all(0.05 <= cost_s < 0.15 for cost_s in tests.values())


def test_what_was_renamed_is_forgotten():
    here = "tests/test_costs.py"
    assert costs.exists(f"{here}::test_what_was_renamed_is_forgotten")
    assert not costs.exists(f"{here}::test_what_was_" + "removed")
    assert not costs.exists("tests/test_removed.py::test_what_was_renamed_is_forgotten")
