"""Blocks that pass several cuts, each piece whole: never above a schedule, and exact."""

import dataclasses
from fractions import Fraction

import pytest

import gradweave as gw
from gradweave.bounds.pipelines import pipeline_bound
from gradweave.schedule import collective
from gradweave.schedulers import ExactDemand

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
        assert bound.pipeline is not None and bound.pipeline.holds()
        best = ExactDemand(pieces=2).prove(net, demand).time
        assert bound.pipeline.seconds <= best * (1 + 1e-9)
