"""One tree per root over direct links, and when several are packed instead."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.common.stop import UNLIMITED
from gradweave.schedulers.grid.balanced_trees_kernel import balanced_trees
from gradweave.schedulers.grid.exchange import exchanges_of, hops_of, packed_exchanges
from gradweave.schedulers.grid.grid import Grid
from gradweave.topology import Topology


def bandwidths(network: Topology) -> np.ndarray:
    matrix = np.zeros((network.num_servers, network.num_servers))
    matrix[network.source, network.target] = network.bandwidth_bytes_per_s
    return matrix / matrix.max()


def fullest(bandwidth: np.ndarray, parent: np.ndarray) -> float:
    load = np.zeros(bandwidth.shape)
    for tree in parent:
        below = np.flatnonzero(tree != np.arange(len(tree)))
        load[tree[below], below] += 1 / bandwidth[tree[below], below]
    return float((load + load.T).max())


def mi250_boxes(boxes: int, card: float) -> Topology:
    """GPU i of all boxes on switch i."""
    one, gpu = gw.topology.gpu_boxes("mi250"), np.arange(16 * boxes)
    once = np.flatnonzero(one.source < one.target)
    ends = [
        np.add.outer(16 * np.arange(boxes), end[once]).ravel() for end in (one.source, one.target)
    ]
    links = [*zip(*ends, strict=True), *zip(gpu, 16 * boxes + gpu % 16, strict=True)]
    speeds = [*np.tile(one.bandwidth_bytes_per_s[once], boxes), *np.full(len(gpu), card)]
    return Topology.from_links(
        "boxes",
        servers=16 * boxes,
        switches=16,
        links=links,
        bandwidth_bytes_per_s=np.array(speeds),
    )


@pytest.mark.parametrize("spec", ["mi250", "torus:3x3", "ring:6", "complete:5"])
def test_each_root_has_a_tree_over_links(spec):
    bandwidth = bandwidths(gw.topology.from_spec(spec))
    parent, servers = balanced_trees(bandwidth), np.arange(len(bandwidth))
    for root, tree in enumerate(parent):
        reached = servers
        for _ in servers:
            reached = tree[reached]
        assert (reached == root).all()
        below = servers[servers != root]
        assert (bandwidth[tree[below], below] > 0).all()


def test_loads_are_alike():
    bandwidth = bandwidths(gw.topology.gpu_boxes("mi250"))
    # Cut by hand: bytes spread over all links by bandwidth would load each with 17.1.
    assert fullest(bandwidth, balanced_trees(bandwidth)) <= 24
    bandwidth = bandwidths(gw.topology.complete(8))
    assert fullest(bandwidth, balanced_trees(bandwidth)) == 2  # each sends to each directly


def test_packed_trees_take_the_same_dimensions():
    grid = Grid.of(mi250_boxes(3, 10e9))
    exchanges = exchanges_of(grid, hops_of(grid))
    packed = packed_exchanges(grid, exchanges, UNLIMITED)
    assert [len(one.root) for one in exchanges] == [16, 3]
    assert len(packed[0].root) > 16
    assert packed[1] is exchanges[1]
    assert np.bincount(packed[0].root, packed[0].share) == pytest.approx(np.ones(16))


@pytest.mark.parametrize(("cards", "several"), [(5e9, False), (20e9, True)])
def test_several_trees_a_root_only_where_links_inside_are_scarce(cards, several):
    network = mi250_boxes(2, cards)
    schedule = gw.schedulers.Hierarchical(gradient_bytes=1e9, chunks=1, orders=1).schedule(network)
    assert (schedule.pieces > network.num_servers) == several
