"""Servers confirmed by flows nearby: the bounds are the same as with a flow for every server."""

import numpy as np
import pytest
from hypothesis import given

from gradweave.bounds import free_trees, throughput
from gradweave.bounds.flows import MaximumFlows, NearbyFlows
from gradweave.topology import Topology, from_spec
from tests.simulator.random_networks import networks

SPECS = ["bcube:n=4,k=1", "dcell:n=4,k=1", "torus:5x5", "hypercube:4", "fat_tree:k=4", "mesh:4x5"]


def bounds(network: Topology) -> list:
    return [
        bound(network, collective)
        for collective in ("reduce_scatter", "all_gather")
        for bound in (free_trees, throughput)
    ]


@given(network=networks(max_servers=8, max_switches=4))
def test_bounds_are_those_of_a_flow_for_every_server(network):
    quick = bounds(network)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NearbyFlows, "confirms", lambda *_: False)
        assert bounds(network) == quick


@pytest.mark.parametrize("spec", SPECS)
def test_most_servers_of_regular_networks_are_confirmed_nearby(spec, monkeypatch):
    computed = []
    cut = MaximumFlows.cut
    monkeypatch.setattr(MaximumFlows, "cut", lambda *given: computed.append(given) or cut(*given))
    network = from_spec(spec)
    free_trees(network, "all_gather", aggregating_switches=True)
    assert 1 <= len(computed) <= network.num_servers // 4


def test_nothing_is_confirmed_without_a_confirmed_server_or_enough_room():
    ring = from_spec("ring:6")
    nearby = NearbyFlows(ring, ring.capacity)
    assert not nearby.confirms(1, 3, 5)
    nearby.confirm(0)
    assert not nearby.confirms(1, 2, 5)  # two links in, of two each
    assert nearby.confirms(1, 3, 5)
    assert nearby.confirms(2, 3, 6)


def test_cuts_of_bandwidths_beyond_64_bits_are_counted_exactly():
    rng = np.random.default_rng(0)
    torus = from_spec("torus:3x4")
    wide = [int(each) << 70 | int(each) for each in rng.integers(1, 1 << 40, len(torus.source))]
    flows = MaximumFlows(torus, np.array(wide, object))
    inside = flows.narrowest_cut()
    first, *others = torus.servers.tolist()
    pairs = [ends for other in others for ends in ((first, other), (other, first))]
    assert flows.leaving(inside) == min(flows.cut(*ends, 1, 0)[0] for ends in pairs)
    assert 0 < inside.sum() < torus.num_nodes
