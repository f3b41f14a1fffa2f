"""Blocks that pass several cuts, each piece whole: never above a schedule, and exact."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds.demands.pipelines import pipeline_bound
from gradweave.schedulers import ExactDemand
from gradweave.schedules import collective

LINK = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=1e-6, overhead_s=1e-6)
LINE = gw.topology.Topology.from_links(
    "line", servers=5, switches=0, links=[(0, 1), (1, 2), (2, 3), (3, 4)], link=LINK
)


def in_equal_pieces(size: int, pieces: int, hops: int) -> float:
    """Seconds of a chain of such links."""
    return (pieces + hops - 1) * (LINK.overhead_s + size / pieces / 1e9) + hops * LINK.latency_s


@pytest.mark.parametrize("size", [10**3, 10**4, 10**6, 10**8])
def test_a_chain_of_links_takes_longer_in_any_number_of_pieces(size: int):
    found = pipeline_bound(LINE, size, 0)
    assert found is not None and found.holds() and found.waits == 3
    least = min(in_equal_pieces(size, pieces, 4) for pieces in range(1, 2_000))
    assert 0.6 * least <= found.seconds <= least
    assert found.seconds > size / 1e9 + 4 * LINK.latency_s
    more = dataclasses.replace(found, least=found.least * Fraction(1_000_001, 1_000_000))
    assert not more.holds()


def test_a_reduction_takes_as_long():
    for spec in ("bcube:n=2,k=1", "star:4", "mesh:2x3"):
        net = gw.topology.from_spec(spec)
        one, other = (pipeline_bound(net, 10**6, 0, towards=towards) for towards in (False, True))
        assert one is not None and other is not None
        assert one.seconds == pytest.approx(other.seconds) and "each" in one.reason()


def test_two_servers_pass_nothing_on():
    assert pipeline_bound(gw.topology.from_spec("star:2"), 10**6, 0) is None


@pytest.mark.parametrize("spec", ["ring:4", "star:4", "mesh:1x4"])
@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_no_exact_optimum_is_below(spec: str, name: str):
    net = gw.topology.from_spec(spec)
    for size in (30_000, 300_000):
        demand = collective(name, net.servers, size, root=0)
        bound = gw.bounds.demand_bound(net, demand)
        best = ExactDemand(pieces=2).prove(net, demand).time
        assert 0 < bound.seconds_by("pipeline") <= best * (1 + 1e-9)


def spread_over(rates: dict[tuple[int, int], float], switches: int = 0) -> Fraction:
    """The bound's spread over the ports of the root or of the other servers."""
    ends, count = np.array(list(rates)).T, len(rates)
    net = gw.topology.Topology(
        name="by hand",
        is_server=np.arange(3 + switches) < 3,
        source=ends[0],
        target=ends[1],
        bandwidth_bytes_per_s=np.array(list(rates.values())),
        latency_s=np.full(count, 1e-6),
        capacity=np.ones(count, np.int64),
        overhead_s=np.full(count, 1e-6),
    )
    found = pipeline_bound(net, 10**6, 0)
    assert found is not None and found.ends == (0,) and found.holds()
    assert found.waits == Fraction(1, 2) and found.besides == Fraction(net.latency_s[0])
    return found.across


def test_the_ports_of_a_roots_neighbours_by_hand():
    """Into servers 1 and 2 lead 1 + 10 GB/s each, 11 on average; the root sends 2 GB/s in all."""
    rates = {(0, 1): 1e9, (0, 2): 1e9, (1, 0): 1e9, (2, 0): 1e9, (1, 2): 1e10, (2, 1): 1e10}
    assert spread_over(rates) == Fraction(11 * 10**9)
    # Links into the root do not count, and if the root sends more than that, this counts.
    assert spread_over(rates | {(1, 0): 1e11}) == Fraction(11 * 10**9)
    assert spread_over(rates | {(0, 1): 3e10}) == Fraction(31 * 10**9)
    # Links into a switch are no server's port: 5 GB/s into each.
    star = {(a, 3): 1e9 * (1 + a) for a in range(3)} | {(3, a): 5e9 for a in range(3)}
    assert spread_over(star, switches=1) == Fraction(5 * 10**9)
