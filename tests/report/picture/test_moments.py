"""What is under way, and held, by rounds and by seconds."""

import dataclasses
from itertools import combinations, pairwise

import numpy as np
import pytest

from gradweave.errors import OptionError
from gradweave.report.picture.geometry import Geometry
from gradweave.report.picture.holdings import Holdings, asked, complete
from gradweave.report.picture.moments import ByRounds, BySeconds, clock_of
from gradweave.schedules.schedule import COPY, Schedule
from gradweave.simulator.seconds import event_seconds
from tests.conformance.made import made
from tests.report.small_schedules import ring_all_reduce, star_all_reduce, uneven_star
from tests.schedules.small_demands import two_jobs

BYTES = 1e9


def slowed(schedule: Schedule, factor: float = 4.0) -> Schedule:
    """The schedule where the link between nodes 0 and 1, or its first, is slower."""
    topology = schedule.topology
    first = (np.arange(len(topology.source)) == 0) | (
        np.arange(len(topology.source)) == (topology.opposite[0])
    )
    bandwidth = np.where(first, 1 / factor, 1.0) * topology.bandwidth_bytes_per_s
    return schedule.replace(topology=dataclasses.replace(topology, bandwidth_bytes_per_s=bandwidth))


def test_contributions_are_counted_as_reduce_scatter_does() -> None:
    servers = 6
    schedule = ring_all_reduce(servers)
    holdings = Holdings(schedule)
    holdings.arrive(np.arange(schedule.round_offsets[servers - 1]))
    distance = (np.arange(servers)[:, None] - np.arange(servers)[None] - 1) % servers
    assert np.array_equal(holdings.held, distance + 1)


def test_of_a_demand_contributors_alone_hold_something_at_first() -> None:
    holdings = Holdings(two_jobs())
    assert holdings.held.tolist() == [[1, 0], [1, 0], [1, 0], [0, 1]]
    holdings.arrive(np.arange(3))
    assert holdings.held.tolist() == [[1, 0], [2, 0], [3, 1], [0, 1]]
    assert complete(two_jobs()).tolist() == [3, 1]
    assert asked(two_jobs()).tolist() == [[False] * 2] * 2 + [[True] * 2, [False] * 2]


@pytest.mark.parametrize(
    "schedule",
    [ring_all_reduce(4), star_all_reduce(5), uneven_star(), made("bcube:n=3,k=1", "symmetric")],
    ids=["ring", "star", "uneven", "bcube"],
)
@pytest.mark.parametrize("kind", [ByRounds, BySeconds])
def test_all_is_complete_at_the_end(schedule: Schedule, kind: type) -> None:
    play = kind(Geometry.of(schedule.topology, 600), schedule, BYTES)
    seen = [
        moment.held[schedule.topology.servers].copy()
        for moment in play.moments(np.linspace(0, 1, 13).tolist())
    ]
    servers = schedule.topology.num_servers
    assert (seen[0] == 1).all() and (seen[-1] == servers).all()
    assert all((after >= before).all() for before, after in pairwise(seen))


def test_by_seconds_transfers_take_as_long_as_they_take() -> None:
    schedule = slowed(ring_all_reduce(4))
    begin, end = event_seconds(schedule, BYTES)
    total = float(end.max())
    shares = np.linspace(0, 1, 29).tolist()
    play = BySeconds(Geometry.of(schedule.topology, 600), schedule, BYTES)
    for share, moment in zip(shares, play.moments(shares), strict=True):
        now = share * total
        here = np.flatnonzero((begin <= now) & (now < end)).tolist()
        assert [one.transfer for one in moment.moving] == here
        for one in moment.moving:
            t = one.transfer
            assert one.share == pytest.approx((now - begin[t]) / (end[t] - begin[t]))


@pytest.mark.parametrize("network", ["bcube:n=3,k=1", "dgx1v"])
def test_transfers_at_once_do_not_lie_on_each_other(network: str) -> None:
    schedule = slowed(made(network, "ring" if network == "dgx1v" else "symmetric"))
    play = BySeconds(Geometry.of(schedule.topology, 1000), schedule, BYTES)
    for moment in play.moments([0.05, 0.3, 0.55, 0.8]):
        for a, b in combinations(moment.moving, 2):
            middles = {tuple(np.round(one.way.at(0.5), 1)) for one in (a, b)}
            assert len(middles) == 2


def test_a_round_is_drawn_at_rest_after_it() -> None:
    schedule = star_all_reduce(4)
    play = ByRounds(Geometry.of(schedule.topology, 600), schedule, BYTES)
    moment = play.still(3)
    assert [one.transfer for one in moment.moving] == list(range(12, 16))
    assert (schedule.op[12:16] == COPY).all()
    assert moment.heading == "Round 3 of 0–5 · all-gather"
    with pytest.raises(OptionError, match="expected 0 to 5, got 6"):
        play.still(6)


def test_seconds_where_rounds_do_not_tell_the_time() -> None:
    assert clock_of(ring_all_reduce(4)) == "rounds"
    assert clock_of(slowed(ring_all_reduce(4))) == "seconds"
    assert clock_of(uneven_star()) == "seconds"
