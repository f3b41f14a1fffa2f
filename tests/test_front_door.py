"""`gw.solve`, `verify`, `bound`, `simulate`, `show`, `load` and `ranks.optimize`: what they take.

Sizes may be text, networks specifications or paths, and schedules solutions or paths.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds.classes import impossible_on
from gradweave.errors import OptionError, SpecError
from gradweave.schedulers.solving.timing import timing_of
from gradweave.topology.units import as_size
from tests.test_package import public_packages

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


BYTES_THAT_ARE_NUMBERS = {"element_bytes", "block_bytes", "max_bytes"}
"""Of a number's type, and limits of what is read: nobody writes them with a unit."""


def given(named: str) -> list[tuple[str, str, str]]:
    """(function, parameter, type) of exported functions with parameters that match."""
    return [
        (f"{package.__name__}.{name}", parameter.name, str(parameter.annotation))
        for package in public_packages()
        for name in package.__all__
        if inspect.isfunction(member := getattr(package, name))
        for parameter in inspect.signature(member, follow_wrapped=False).parameters.values()
        if re.search(named, f"{parameter.name}: {parameter.annotation}")
        and parameter.name not in BYTES_THAT_ARE_NUMBERS
    ]


def test_every_exported_function_takes_paths_and_sizes_as_text():
    networks = given(r": .*\b(Schedule|Topology)\b|: .*Like\b")
    sizes = given(r"^\w*_bytes:")
    assert len(networks) > 60 and len(sizes) > 15
    assert [one for one in networks if not re.search(r"str\b|Like\b", one[2])] == []
    assert [one for one in sizes if not re.search(r"str\b|Any\b", one[2])] == []


def _export(name: str, **more: Any) -> Callable[..., Any]:
    return lambda schedule: getattr(gw.export, name)(schedule, **more)


OF_SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "bound": lambda s: gw.bound(s).rounds,
    "busiest_links": lambda s: [one.link for one in gw.simulator.busiest_links(s, "1GB")],
    "certificates_in": lambda s: len(gw.bounds.certificates_in(s)),
    "chakra": _export("to_chakra_et", gradient_bytes="96MB"),
    "changed_seconds": lambda s: gw.simulator.changed_seconds(s, "1GB", RING, 0.01)[1].tolist(),
    "event_seconds": lambda s: gw.simulator.event_seconds(s, "1GB")[1].tolist(),
    "compose": lambda s: gw.schedules.compose(gw.schedules.reverse(GATHER), GATHER).rounds,
    "equal pieces": lambda s: _export("in_equal_pieces", gradient_bytes="1MB")(s).rounds,
    "msccl": _export("to_msccl_xml", min_bytes="1MB", max_bytes="1GB"),
    "mscclpp": _export("to_mscclpp_json", min_bytes="1MB", max_bytes="1GB"),
    "of_schedule": lambda s: str(gw.bounds.of_schedule(s)),
    "overlap": lambda s: gw.schedules.overlap(s).rounds,
    "page": lambda s: gw.report.page(s, s, gradient_bytes="1MB"),
    "perfetto": _export("to_perfetto", gradient_bytes="1MB"),
    "play": lambda s: gw.execute.play(s, np.ones((4, 12))).tolist(),
    "program": lambda s: gw.execute.Program.of(s, 0, gradient_bytes="1MB").peer.tolist(),
    "rankfile": _export("to_rankfile", hosts=list("abcd")),
    "replan": lambda s: gw.schedulers.replan(s, RING, "1MB", 0.0).seconds,
    "same_bits": gw.execute.same_bits,
    "steps": gw.simulator.steps,
    "svg": lambda s: gw.report.to_svg(s, round=1, gradient_bytes="1MB"),
    "verify": lambda s: gw.verify(s).valid,
    "with_certificates": lambda s: len(gw.bounds.with_certificates(s, "1MB").certificates),
}
GATHER = gw.schedulers.Ring().schedule(RING, collective="all_gather")


@pytest.mark.parametrize("name", OF_SCHEDULES)
def test_functions_of_schedules_take_solutions_and_files(
    name: str, solution: gw.Solution, path: Path
):
    answer = OF_SCHEDULES[name]
    expected = answer(solution.schedule)
    assert answer(solution) == expected
    if name != "page":  # which shows the file's name
        assert answer(path) == answer(str(path)) == expected


STAGES = gw.placement.even_stages(2, activation_bytes="1MB", gradient_bytes="1GB")
OF_NETWORKS: dict[str, Callable[[Any], Any]] = {
    "absent_workers": lambda n: gw.aggregate.absent_workers(n, 0.1, 0.5).period,
    "changing_matchings": lambda n: gw.aggregate.changing_matchings(n).period,
    "degraded": lambda n: gw.topology.degraded(n, links=[(0, 1)]).topology.num_nodes,
    "demand_of": lambda n: gw.schedules.demand_of(n, [JOB]).total_bytes,
    "emulated": lambda n: gw.lab.emulated(
        n, bandwidth_bytes_per_s=1e6
    ).bandwidth_bytes_per_s.tolist(),
    "exchange_seconds": lambda n: gw.aggregate.exchange_seconds(
        n, gw.aggregate.MixingMatrix.metropolis_hastings(n), "1MB"
    ).tolist(),
    "failing_links": lambda n: gw.aggregate.failing_links(n, 0.1).period,
    "fast_matchings": lambda n: gw.aggregate.fast_matchings(n, "1MB").period,
    "free_groups": lambda n: any(gw.topology.free_groups(n)),
    "hop_distances": lambda n: gw.topology.hop_distances(n).tolist(),
    "latency_bound": lambda n: float(gw.bounds.latency_bound(n).seconds),
    "layout": lambda n: gw.report.layout(n).tolist(),
    "least_seconds": lambda n: gw.bounds.least_seconds(n, "1GB").seconds,
    "place": lambda n: gw.placement.place(n, STAGES, memory_bytes="1GB").cost_s,
    "rank order": lambda n: gw.export.to_rank_order(n, [0, 1, 2, 3], "hostfile", list("abcd")),
    "refute": lambda n: impossible_on(n),
    "seconds_bound": lambda n: gw.bounds.seconds_bound(n, "all_reduce", "1GB").seconds,
    "shortest_path_trees": lambda n: gw.topology.shortest_path_trees(n).tolist(),
    "slowed": lambda n: gw.topology.slowed(
        n, {(0, 1): 0.5}
    ).topology.bandwidth_bytes_per_s.tolist(),
    "solve": lambda n: gw.solve(n, schedulers=["ring"]).rounds,
    "subnetwork": lambda n: gw.topology.subnetwork(n, np.array([0, 1]))[0].num_servers,
    "throughput": lambda n: gw.bounds.throughput(n, "all_reduce").seconds(1e9),
    "to_networkx": lambda n: gw.topology.to_networkx(n).number_of_edges(),
    "without_servers": lambda n: gw.topology.without_servers(n, [3]).topology.num_servers,
}
JOB = gw.schedules.Job("all_to_all", "3MB")


@pytest.mark.parametrize("name", OF_NETWORKS)
def test_functions_of_networks_take_specifications_and_files(name: str, tmp_path: Path):
    gw.topology.save(RING, tmp_path / "net.json")
    answer = OF_NETWORKS[name]
    expected = answer(gw.topology.from_spec(RING))
    assert answer(RING) == expected
    assert answer(tmp_path / "net.json") == expected


def test_bytes_of_a_job_are_text_or_numbers():
    for bytes in ("4MB", ["1MB", 10**6, "1MB", "1000KB"]):
        demand = gw.schedules.collective("all_gather", range(4), bytes)
        assert demand.bytes.tolist() == [10**6] * 4
    assert as_size(7) == 7 and as_size("7KB") == 7000
