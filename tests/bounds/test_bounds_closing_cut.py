"""Cuts that close in on a server: certificates recounted, and networks that CP-SAT alone proved."""

import networkx as nx
import pytest

import gradweave as gw
from gradweave.bounds import ClosingCut, free_trees
from gradweave.bounds.rounds import closing_cut as module
from gradweave.topology import Topology
from tests.bounds.test_bounds_free_trees import with_capacity
from tests.bounds.test_bounds_late_entry import WEAKEST, random_network


def three_rings(size: int) -> Topology:
    """Three rings of servers, each two joined by a link between their first servers."""
    links = [(r * size + a, r * size + b) for r in range(3) for a, b in nx.cycle_graph(size).edges]
    links += [(0, size), (0, 2 * size), (size, 2 * size)]
    return Topology.from_links("three rings", servers=3 * size, switches=0, links=links)


def recounted(network: Topology, certificate: ClosingCut) -> int:
    """Checks every number of a certificate against the network; returns the rounds it proves."""
    capacity = network.capacity[network.opposite] if certificate.leaving else network.capacity
    count, servers = len(certificate.capacities), set(network.servers.tolist())
    links = list(
        zip(network.source.tolist(), network.target.tolist(), capacity.tolist(), strict=True)
    )
    assert len(certificate.servers) == count + 1 and len(certificate.switches) == count
    assert certificate.target in certificate.servers[-1]
    for k, room in enumerate(certificate.capacities):
        before, after = (set(certificate.servers[t]) for t in (k, k + 1))
        switches = set(certificate.switches[k])
        assert after <= before <= servers and not switches & servers
        tails, heads = before | switches, after | switches
        assert room == sum(c for a, b, c in links if a not in tails and b in heads)
    outside = len(servers - set(certificate.servers[0]))
    assert certificate.pieces % outside == 0 and certificate.pieces > sum(certificate.capacities)
    return count + 1


def test_pieces_that_come_round_both_ways_of_a_ring():
    network = three_rings(9)
    bound = free_trees(network, "all_gather")
    (certificate,) = bound.certificates
    assert (bound.rounds, bound.kind) == (14, "closing_cut")
    assert isinstance(certificate, ClosingCut) and recounted(network, certificate) == 14
    mirrored, _ = free_trees(network).certificates
    assert isinstance(mirrored, ClosingCut) and mirrored.leaving
    assert recounted(network, mirrored) == 14
    strategies = ["grown:restarts=4", "exact:effort=1.5,open_questions=1"]
    made = gw.solve(network, collective="all_gather", schedulers=strategies)
    assert made.optimal and made.bound.kind == "closing_cut"


@pytest.mark.parametrize("seed", [28, 476, 840, 995])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_certificates_hold_and_are_the_optimum(seed, collective, monkeypatch):
    drawn = random_network(seed)
    network = (
        drawn
        if collective == "all_gather"
        else with_capacity(drawn, drawn.capacity[drawn.opposite])
    )
    bound = free_trees(network, collective)
    (certificate,) = bound.certificates
    assert isinstance(certificate, ClosingCut)
    assert certificate.leaving == (collective == "reduce_scatter")
    assert recounted(network, certificate) == bound.rounds
    monkeypatch.setattr(gw.schedulers.exact.exact, "free_trees", lambda *_, **__: WEAKEST)
    assert gw.schedulers.Exact().prove(network, collective).rounds == bound.rounds


def test_it_is_left_out_where_it_takes_long(monkeypatch):
    monkeypatch.setattr(module, "MAX_WORK", 10)
    assert free_trees(three_rings(9), "all_gather").kind == "cut"
