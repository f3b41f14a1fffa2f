"""The portfolio: the nine networks proved optimal, on the command line too."""

import dataclasses
import json
import time

import pytest

import gradweave as gw
from gradweave.bounds import free_trees
from gradweave.cli.main import main
from gradweave.errors import SpecError
from gradweave.report import TABLE_2
from gradweave.report.page import page
from gradweave.schedulers import DEFAULT, Merged, solve
from gradweave.schedulers.spec import as_schedulers, from_spec
from gradweave.schedules import COLLECTIVES
from gradweave.verifier import verify
from tests.schedules.same import same_columns

OPTIMUM = {"B3": 8, "B4": 16, "B5": 24, "D4": 10, "D5": 15, "D6": 21, "J10": 18, "J15": 28,
           "J20": 38}  # fmt: skip
"""SPEC 5; the reduce-scatter alone on DCell, as Table 2 counts."""


@pytest.mark.parametrize("case", TABLE_2, ids=lambda case: case.label)
@pytest.mark.parametrize("seed", range(2))
def test_the_papers_networks_are_optimal(case, seed):
    network = case.network(seed)
    solution = solve(network, collective=case.stages, seed=seed)
    assert solution.optimal and solution.gap == 0
    assert solution.rounds == solution.bound.rounds == OPTIMUM[case.label]
    assert verify(solution.schedule, forwarding_servers=False).valid


@pytest.mark.parametrize("case", TABLE_2, ids=lambda case: case.label)
def test_the_command_says_optimal(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["solve", case.network(0).name, "--scheduler", "portfolio", "--json"]
    with pytest.raises(SystemExit) as exited:
        main([*arguments, "--collective", case.stages])
    assert exited.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert said["optimal"] is True and said["rounds"] == OPTIMUM[case.label]


THIN = ("2x64", "3x50", "2x2x34", "1x40", "4x4x5", "2x3x5", "7x9", "2x2x2x2x3", "5x51", "3x3x28")


@pytest.mark.parametrize("sizes", THIN)
@pytest.mark.parametrize("family", ["torus", "mesh"])
def test_an_all_gather_on_a_grid_is_at_the_bound(family, sizes):
    """A sample; benchmarks/experiments/all_gathers.py has all up to 256 servers."""
    solution = solve(gw.topology.from_spec(f"{family}:{sizes}"), collective="all_gather")
    assert solution.optimal


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("spec", ["dcell:n=5,k=1", "mesh:3x3", "jellyfish:reference=J15"])
def test_the_seed_decides(spec, collective):
    network = gw.topology.from_spec(spec)
    one, again = (solve(network, collective=collective, seed=5).schedule for _ in range(2))
    assert same_columns(one, again)
    assert one.rounds >= free_trees(network, collective).rounds


def test_the_word_stands_for_what_solve_tries_by_default():
    network = gw.topology.from_spec("jellyfish:reference=J10")
    made = solve(network).schedule
    assert same_columns(made, solve(network, schedulers="portfolio").schedule)
    assert same_columns(made, solve(network, schedulers=DEFAULT).schedule)
    assert as_schedulers("portfolio") == as_schedulers(["Portfolio"]) == DEFAULT
    assert as_schedulers("merged:tries=1,portfolio") == (Merged(tries=1), *DEFAULT)


def test_where_one_strategy_is_wanted_the_word_is_refused_in_one_line():
    with pytest.raises(SpecError, match=r"^portfolio: expected one scheduler, .* or name one$"):
        from_spec("portfolio")


def test_a_schedule_file_that_names_it_is_read(tmp_path):
    """The file as the strategy of that name wrote it."""
    made = solve("ring:4").schedule
    old = made.replace(scheduler=dataclasses.replace(made.scheduler, name="portfolio", options={}))
    old.save(tmp_path / "old.json")
    read = gw.load(tmp_path / "old.json")
    assert read.scheduler.name == "portfolio" and same_columns(read, made)
    assert "portfolio" in page(read)


@pytest.mark.parametrize(
    "spec",
    ["fat_tree:4", "mesh:3x3", "dragonfly:groups=3,routers_per_group=2,servers_per_router=2"],
)
def test_a_time_limit_is_kept(spec):
    network = gw.topology.from_spec(spec)
    solve("mesh:2x3")  # compiles
    began = time.process_time()
    solution = solve(network, time_limit=0.01)
    assert verify(solution.schedule).valid
    assert solution.stopped == ("bound" if solution.optimal else "time")
    assert time.process_time() - began < 10


def test_attempts_are_told_in_order_with_the_winner():
    solution = solve(gw.topology.from_spec("mesh:3x3"))
    tried = [attempt.scheduler for attempt in solution.attempts]
    assert tried == list(DEFAULT[: len(tried)])
    assert solution.scheduler == tried[-1] and solution.attempts[-1].rounds == solution.rounds


def test_where_a_ring_can_meet_the_bound_it_is_tried_first():
    # Among schedules with equally few rounds, its predicted time is the most reliable.
    solution = solve(gw.topology.from_spec("jellyfish:reference=J10"))
    assert solution.optimal and [one.scheduler.name for one in solution.attempts] == ["ring"]
