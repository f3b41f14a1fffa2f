"""`gw.solve`, `verify`, `bound`, `simulate`, `show`, `load` and `ranks.optimize`: what they take.

Sizes may be text, networks specifications or paths, and schedules solutions or paths.
"""

import dataclasses
from pathlib import Path

import pytest

import gradweave as gw
from gradweave.errors import OptionError, SpecError
from gradweave.schedulers.solving.timing import timing_of

RING = "ring:n=4,bandwidth=10Gbit/s"
SIZE, TEXT = 100e6, "100MB"


@pytest.fixture(scope="module")
def solution() -> gw.Solution:
    return gw.solve(RING, schedulers=["ring"])


@pytest.fixture
def path(solution: gw.Solution, tmp_path: Path) -> Path:
    solution.schedule.save(tmp_path / "s.json")
    return tmp_path / "s.json"


def test_a_solution_prints_three_lines(solution: gw.Solution):
    assert str(solution).splitlines() == [
        "all_reduce on ring:n=4,bandwidth=10Gbit/s: 6 rounds, 24 transfers, by ring",
        "6 rounds, 50.00% above the lower bound of 4 rounds for schedules that root a piece at "
        "each server, sum each piece at one server and finish every sum before the first copy",
        "verified; the bound's certificate is in the schedule, for gradweave-check",
    ]


def test_a_solution_for_seconds_prints_its_size_and_the_bounds_condition(solution: gw.Solution):
    timing = timing_of(solution.schedule, SIZE)
    found = dataclasses.replace(solution, timing=timing, objective="seconds")
    assert str(found).splitlines()[1:] == [
        "120 ms for 100 MB, 100.01% above the lower bound of 60 ms for every schedule",
        "verified; the bound is not certified: gw.bound(solution) adds certificates if it can",
    ]


def test_solutions_and_paths_stand_for_schedules(solution: gw.Solution, path: Path):
    for given in (solution, solution.schedule, path, str(path)):
        assert gw.verify(given).valid
        assert gw.simulate(given, TEXT).seconds == pytest.approx(0.120012)
        assert gw.simulator.seconds(given, TEXT, "fair") == pytest.approx(0.120012)
        assert gw.simulator.traffic(given, TEXT).sent_bytes.tolist() == [1.5e8] * 4
        assert gw.bound(given).rounds == 4
        assert gw.show(given, given, gradient_bytes=TEXT).is_page
    assert gw.load(path).rounds == 6
    assert gw.solve(RING, start_from=solution).kept is not None


def test_sizes_are_text_or_numbers(solution: gw.Solution):
    assert gw.simulate(solution, TEXT).seconds == gw.simulate(solution, SIZE).seconds
    assert (
        gw.bound(RING, gradient_bytes=TEXT).seconds == gw.bound(RING, gradient_bytes=SIZE).seconds
    )
    by_text = gw.ranks.optimize(RING, "gloo", TEXT, runtime="ideal")
    assert by_text.seconds == gw.ranks.optimize(RING, "gloo", SIZE, runtime="ideal").seconds
    with pytest.raises(SpecError, match="100XB"):
        gw.simulate(solution, "100XB")


def test_networks_are_specifications_or_paths(tmp_path: Path):
    gw.topology.save(gw.topology.from_spec(RING), tmp_path / "net.json")
    net = tmp_path / "net.json"
    assert str(gw.bound(net)) == str(gw.bound(RING))
    assert not gw.show(net).is_page and gw.solve(net, schedulers=["ring"]).rounds == 6


def test_the_simulation_in_a_line(solution: gw.Solution):
    assert str(gw.simulate(solution)) == (
        "100 MB in 6 rounds: 120 ms without barriers, 120 ms with a barrier after each round, "
        "120 ms with fairly shared links"
    )


@pytest.mark.parametrize("call", [gw.verify, gw.simulate, gw.bound])
def test_anything_else_is_named(call):
    with pytest.raises(OptionError, match="a Solution, or the path of a schedule file; got int"):
        call(3)


def test_the_busiest_links_of_a_file_are_those_of_its_schedule(tmp_path):
    schedule = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    schedule.save(tmp_path / "ring.json")
    by_file, given = (
        gw.simulator.busiest_links(one, "1GB") for one in (tmp_path / "ring.json", schedule)
    )
    assert [use.link for use in by_file] == [use.link for use in given] != []
