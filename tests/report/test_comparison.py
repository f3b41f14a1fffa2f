"""The comparison behind ``gradweave compare``: runs, means, bounds, and the paper's figures."""

import dataclasses

import pytest

from gradweave.bounds import free_trees
from gradweave.errors import NoScheduleError
from gradweave.report.comparison import LEARNED, TABLE_2, Case, compare
from gradweave.report.paper import NOT_REPRODUCED, PAPER, PAPER_LEARNED
from gradweave.report.timed import TimedRow
from gradweave.schedulers import Merged, ParameterServer, Ring
from gradweave.schedulers.scheduler import to_spec
from gradweave.schedulers.spec import from_spec as scheduler_from_spec


def test_the_nine_networks_of_table_2():
    sizes = {case.label: (case.network(0).num_nodes, case.network(0).num_links) for case in TABLE_2}
    assert sizes == {
        "B3": (15, 18),
        "B4": (24, 32),
        "B5": (35, 50),
        "D4": (25, 30),
        "D5": (36, 45),
        "D6": (49, 63),
        "J10": (20, 30),
        "J15": (30, 45),
        "J20": (40, 59),
    }
    one_stage = {case.label for case in TABLE_2 if case.stages == "reduce_scatter"}
    assert one_stage == {"D4", "D5", "D6"}


def test_each_seed_on_jellyfish_is_another_reference_graph():
    case = next(case for case in TABLE_2 if case.label == "J10")
    names = [case.network(seed).name for seed in range(40)]
    assert len(set(names)) == 20 and names[:20] == names[20:]
    assert names[3] == "jellyfish:reference=J10,seed=3"


def test_a_row_is_the_mean_and_the_least_of_its_runs():
    network = Case("net", "dcell:n=3,k=1", "reduce_scatter")
    (row,) = compare([network], [ParameterServer()], seeds=5)
    rounds = [
        ParameterServer()
        .schedule(network.network(0), collective="reduce_scatter", seed=seed)
        .rounds
        for seed in range(5)
    ]
    assert row.rounds_mean == sum(rounds) / 5
    assert row.rounds_min == min(rounds)
    assert row.bound == free_trees(network.network(0), "reduce_scatter").rounds
    assert (row.label, row.topology, row.seeds) == ("net", "dcell:n=3,k=1", 5)
    assert (row.stages, row.scheduler, row.paper) == ("reduce_scatter", "parameter_server", None)


def test_rows_come_by_case_then_scheduler():
    said: list[str] = []
    rows = compare(
        [Case("a", "ring:3"), Case("b", "star:3")],
        [Ring(), Merged("deepest")],
        seeds=1,
        progress=said.append,
    )
    names = ["a: ring", "a: merged:rule=deepest", "b: ring", "b: merged:rule=deepest"]
    assert [f"{row.label}: {row.scheduler}" for row in rows] == names == said


def test_the_bound_of_several_networks_is_their_mean():
    case = Case("graphs", "jellyfish:switches=10,degree=3", instances=4)
    (row,) = compare([case], [Ring()], seeds=4)
    bounds = [free_trees(case.network(seed)).rounds for seed in range(4)]
    assert row.bound == sum(bounds) / 4


def test_each_strategy_stands_beside_the_bound_that_holds_for_it():
    case = Case("line", "mesh:3")
    rows = compare([case], [Merged(), Merged(overlap=True)], seeds=1)
    network = case.network(0)
    assert [row.bound for row in rows] == [4, free_trees(network, overlap=True).rounds] == [4, 3]


def test_a_whole_bound_is_written_as_one():
    (row,) = compare([Case("a", "ring:3")], [Ring()], seeds=3)
    assert type(row.bound) is int


def test_where_a_run_finds_nothing_there_is_a_reason_and_no_mean():
    (row,) = compare([Case("line", "mesh:3")], [Ring(order="hamiltonian")], seeds=2)
    assert row.rounds_mean is None and row.rounds_min is None
    assert "no Hamiltonian cycle" in row.reason
    assert row.as_object()["reason"] == row.reason
    (row,) = compare([Case("ring", "ring:3")], [Ring()], seeds=1)
    assert "reason" not in row.as_object()


def test_only_a_schedule_not_found_is_passed_over():
    class Broken(Ring):
        def make(self, *_):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compare([Case("a", "ring:3")], [Broken()], seeds=1)
    assert issubclass(NoScheduleError, Exception)


def test_the_papers_figures_stand_beside_its_own_networks_only():
    rows = compare(TABLE_2[:1], [ParameterServer(), Ring(steps="paper"), Ring()], seeds=1)
    assert [row.paper for row in rows] == [16.8, 18.0, None]
    same_but_named_otherwise = Case("B3", "bcube:n=3,k=1", "reduce_scatter")
    (row,) = compare([same_but_named_otherwise], [ParameterServer()], seeds=1)
    assert row.paper is None


def test_the_papers_figures_belong_to_strategies_and_networks_that_exist():
    labels = [case.label for case in TABLE_2]
    for name, figures in PAPER.items():
        assert to_spec(scheduler_from_spec(name)) == name
        assert list(figures) == labels
    assert list(PAPER_LEARNED) == labels
    assert set(NOT_REPRODUCED) < set(labels)
    assert PAPER_LEARNED["J20"] == 62.2 and PAPER["ring:steps=paper"]["B5"] == 150.0


def test_the_mean_of_drawn_episodes_is_taken_of_a_hundred():
    network = Case("net", "bcube:n=2,k=1", "all_gather")
    drawn, best_actions = LEARNED[0], LEARNED[1]
    schedulers = [scheduler_from_spec(spec) for spec in (drawn, best_actions)]
    rows = compare([network], schedulers, seeds=2)
    assert [(row.scheduler, row.seeds) for row in rows] == [(drawn, 100), (best_actions, 2)]
    rounds = [
        schedulers[0].schedule(network.network(0), collective="all_gather", seed=seed).rounds
        for seed in range(100)
    ]
    assert rows[0].rounds_mean == sum(rounds) / 100


def test_a_row_of_seconds_tells_its_gap_and_a_reason_where_there_is_one():
    row = TimedRow("a", "ring:3", 3, "ring", "all_reduce", 1e6, 3.0, 2.5, 2, 2.0)
    told = row.as_object()
    assert told["seconds_gap"] == 0.5 and told["seconds_min"] == 2.5 and "reason" not in told
    none = dataclasses.replace(row, seconds_mean=None, seconds_min=None, reason="no cycle")
    assert none.as_object()["seconds_gap"] is None and none.as_object()["reason"] == "no cycle"
