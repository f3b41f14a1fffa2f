"""A schedule's trees after a fault: lost and slowed hops, regrowing, and repacking."""

import dataclasses

import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds import least_seconds
from gradweave.common.stop import UNLIMITED
from gradweave.schedulers import Packed, ParameterServer, Ring
from gradweave.schedulers.packing.paths import PathCosts
from gradweave.schedulers.packing.tree_program import Tree, pack_trees
from gradweave.schedulers.repairing.known_trees import KnownTree, known_trees, regrown
from gradweave.schedulers.repairing.repacking import Repacking, at_old_shares
from gradweave.schedules import Schedule
from gradweave.topology.faults import slowed, without_links, without_servers

SAME = np.arange(4)
RING = gw.topology.ring(4)


def of_ring(topology: gw.Topology, now: np.ndarray = SAME) -> tuple[KnownTree, ...]:
    known = known_trees(Ring().schedule(RING), topology, now)
    assert known is not None
    return known


def hops(tree: Tree) -> set[tuple[int, int]]:
    """Pairs of server and parent."""
    return {(s, p) for s, p in enumerate(tree.parent.tolist()) if s != tree.root}


def test_the_ring_is_one_path_to_each_root_and_one_from_it():
    known = of_ring(RING)
    assert [one.tree.stage for one in known] == ["reduce_scatter"] * 4 + ["all_gather"] * 4
    for one in known:
        root = one.tree.root
        step = 1 if one.tree.stage == "reduce_scatter" else -1
        assert hops(one.tree) == {
            ((root - i * step) % 4, (root - i * step + step) % 4) for i in (1, 2, 3)
        }
        assert one.whole and not one.slowed.any() and one.tree.share == 0.25
        assert all(len(route) == 1 for s, route in enumerate(one.tree.routes) if s != root)


@pytest.mark.parametrize("fault", ["lost", "slowed"])
def test_what_passes_a_lost_or_slowed_link(fault):
    left = slowed(RING, {(0, 1): 0.5}).topology
    if fault == "lost":
        left = without_links(RING, [(0, 1)]).topology
    for one in of_ring(left):
        # The ring sends 0→1, never 1→0: the hop is 0's towards a root, otherwise 1's.
        server = 0 if one.tree.stage == "reduce_scatter" else 1
        expected = [] if one.tree.root == server else [server]
        assert np.flatnonzero(getattr(one, fault)).tolist() == expected
        assert one.whole == (fault == "slowed" or not expected)


def test_all_links_slower_is_no_reason_to_leave_one():
    half = dataclasses.replace(RING, bandwidth_bytes_per_s=RING.bandwidth_bytes_per_s / 2)
    assert not any(one.slowed.any() for one in of_ring(half))


def test_roots_that_are_gone_leave_their_share_to_the_others():
    fault = without_servers(gw.topology.complete(4), [3])
    old = gw.schedulers.Merged().schedule(gw.topology.complete(4))
    known = known_trees(old, fault.topology, np.array(fault.node_map))
    assert known is not None
    assert sorted(one.tree.root for one in known) == [0, 0, 1, 1, 2, 2]
    assert sum(one.tree.share for one in known) == pytest.approx(2.0)


def test_no_trees_where_servers_forward_or_exchange():
    stars = known_trees(ParameterServer().schedule(RING), RING, SAME)
    assert stars is not None and all(one.lost.sum() == 1 for one in stars)  # over two hops
    doubling = gw.schedulers.RecursiveDoubling().schedule(RING)
    assert known_trees(doubling, RING, SAME) is None


@pytest.mark.parametrize("hold", [0.0, 10.0])
def test_what_was_dropped_grows_again(hold):
    net = gw.topology.complete(5)
    left = without_links(net, [(0, 1)]).topology
    known = known_trees(Ring().schedule(net), left, np.arange(5))
    assert known is not None and any(one.lost.any() for one in known)
    paths = PathCosts(left, residual=0.0).cheapest(np.ones(len(left.source)))
    for one in known:
        made = regrown(one, one.lost, paths, hold)
        assert made is not None
        tree, kept = made
        changed = hops(tree) - hops(one.tree)
        assert kept == (4 - len(changed)) / 4
        assert set(np.flatnonzero(one.lost)) <= {server for server, _ in changed}
        assert len(changed) <= 2  # that hop, and one of the others' if all are behind it
        for server, parent in hops(tree):
            assert {server, parent} != {0, 1}
            assert left.find_links(*np.array([[server], [parent]])).min() >= 0


def test_none_where_a_server_is_cut_off():
    known = of_ring(without_links(RING, [(0, 1)]).topology)
    paths = PathCosts(RING, residual=0.0).cheapest(np.ones(8))
    cost = paths.cost.copy()
    cost[0], cost[:, 0] = np.inf, np.inf
    cut = dataclasses.replace(paths, cost=cost)
    assert regrown(known[1], known[1].lost, paths, 0.0) is not None
    assert regrown(known[1], known[1].lost, cut, 0.0) is None


def uneven() -> tuple[gw.Topology, gw.Topology, Schedule]:
    net = gw.topology.torus((3, 3))
    rates = 1e9 * (1 + (net.source * 7 + net.target * 7) % 5)
    before = dataclasses.replace(net, bandwidth_bytes_per_s=rates)
    return before, slowed(before, {(0, 1): 0.3}).topology, Packed(pieces=64).schedule(before)


def load_s(topology: gw.Topology, trees: tuple[Tree, ...]) -> float:
    """Seconds for which the busiest link carries one byte of the gradient."""
    carried = np.zeros(len(topology.source))
    for tree in trees:
        for route in tree.routes:
            carried[list(route)] += tree.share
    return float((carried / topology.bandwidth_bytes_per_s).max())


def test_repacking_takes_about_the_least_time_and_more_slack_keeps_more():
    _, left, old = uneven()
    known = known_trees(old, left, np.arange(9))
    before = {(one.tree.stage, one.tree.root, *sorted(hops(one.tree))): one for one in known}
    again = Repacking(left, "all_reduce", known, residual=0.0, gradient_bytes=1e8, stop=UNLIMITED)
    least = least_seconds(left, 1.0, "all_reduce", shares="any")
    least_s = float(least.duals.seconds_per_byte)
    unbalanced = load_s(left, at_old_shares(left, known))
    anew = pack_trees(left, "all_reduce").trees

    def kept(trees: tuple[Tree, ...]) -> float:
        return sum(
            min(tree.share, before[key].tree.share)
            for tree in trees
            if (key := (tree.stage, tree.root, *sorted(hops(tree)))) in before
        )

    shares = []
    for slack in (0.0, 0.02, 0.5):
        trees = again.trees(slack)
        for stage in ("reduce_scatter", "all_gather"):
            assert sum(tree.share for tree in trees if tree.stage == stage) == pytest.approx(1.0)
        assert load_s(left, trees) <= least_s * (1 + slack + 0.05)
        shares.append(kept(trees))
    assert load_s(left, anew) <= least_s * 1.05 < unbalanced
    assert shares == sorted(shares) and shares[0] < shares[-1]
    assert shares[1] > 2 * kept(anew)
