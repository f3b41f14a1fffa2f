"""The search's parts by hand: moves, every ring by brute force, nearness, and what is sent."""

import itertools
import math

import numpy as np
import pytest

import gradweave as gw
from gradweave.ranks import search_kernel
from gradweave.ranks.libraries import own_all_reduces
from gradweave.ranks.mesh import Mesh
from gradweave.ranks.pattern import pattern_of, ring, routes_of
from gradweave.ranks.search_kernel import TIE
from gradweave.ranks.starts import by_nearness
from gradweave.topology import Topology
from tests.interpreted import interpreted
from tests.ranks.test_ranks import random_network


def network(rates: dict[tuple[int, int], float]) -> Topology:
    """Servers 0, 1, … with links of the given bytes per second."""
    ends, count = np.array(list(rates)).T, len(rates)
    return Topology(
        name="by hand",
        is_server=np.ones(int(ends.max()) + 1, bool),
        source=ends[0],
        target=ends[1],
        bandwidth_bytes_per_s=np.array(list(rates.values())),
        latency_s=np.full(count, 1e-6),
        capacity=np.ones(count, np.int64),
    )


def test_each_move_of_an_order():
    start = list("abcdefg")
    for a, b in itertools.combinations_with_replacement(range(7), 2):
        swapped = start.copy()
        swapped[a], swapped[b] = swapped[b], swapped[a]
        turned = start[:a] + start[a : b + 1][::-1] + start[b + 1 :]
        expected = {(0, b): swapped, (1, b): turned}
        for c in range(b + 1, 7):
            expected[2, c] = start[:a] + start[b + 1 : c + 1] + start[a : b + 1] + start[c + 1 :]
        for (kind, c), after in expected.items():
            order = np.arange(7)
            with interpreted(search_kernel):
                search_kernel._move(order, kind, a, b, c)
            assert [start[k] for k in order] == after, (kind, a, b, c)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_rings_are_those_of_brute_force_with_their_costs(seed: int):
    net = random_network(seed, servers=5)
    routes, pattern = routes_of(net), ring(5, 4e6, 1)
    load = np.zeros(len(routes.seconds_per_byte))
    cost_of = {}
    with interpreted(search_kernel):
        for rest in itertools.permutations(range(1, 5)):
            order = np.array([0, *rest])
            seconds, work, _ = search_kernel._cost(order, routes, pattern, load)
            cost_of[0, *rest] = seconds + TIE * work
            assert search_kernel.steady_seconds(order, routes, pattern) == seconds
        costs, orders, complete = search_kernel.every_ring(
            routes,
            float(pattern.size[0]),
            float(pattern.piece[0]),
            float(pattern.times[0]),
            np.full(5, -1),
            6,
            math.inf,
            np.zeros(1, bool),
        )
    assert complete and len(costs) == 6
    np.testing.assert_allclose(costs, sorted(cost_of.values())[:6], rtol=1e-9)
    for cost, order in zip(costs, orders, strict=True):
        assert cost_of[tuple(order.tolist())] == pytest.approx(cost, rel=1e-9)


def test_servers_are_as_near_as_the_slower_direction():
    """From 0 to 1 lead 10 GB/s, and 1 GB/s back: 0 and 2 are nearest, then 1 and 2."""
    rates = {(0, 1): 10e9, (1, 0): 1e9, (0, 2): 5e9, (2, 0): 5e9, (1, 2): 4e9, (2, 1): 4e9}
    assert by_nearness(routes_of(network(rates))).tolist() == [0, 2, 1]


def test_a_pipeline_sends_between_stages_that_follow_each_other():
    mesh = Mesh({"pp": 4, "tp": 2}, {"pp": 1e6})
    phase = mesh.phase("pp")
    forward = {(s * 2 + t, s * 2 + t + 2) for s in range(3) for t in range(2)}
    pairs = sorted(zip(phase.source.tolist(), phase.target.tolist(), strict=True))
    assert pairs == sorted(forward | {(b, a) for a, b in forward})
    assert (phase.size == 1e6).all() and not pattern_of([phase]).is_ring[0]


@pytest.mark.parametrize(
    "library, size, name, phases, sent",
    [
        # two trees of 7 edges, half of the gradient up and down each
        ("nccl", 1e4, "double_tree", 1, 2 * 7 * 2 * 0.5),
        # each of 8 sends all to its partner, thrice
        ("openmpi", 4e3, "recursive_doubling", 3, 8 * 3),
        # each of 8 sends a half, a quarter and an eighth, and the same again
        ("openmpi", 4e6, "halving_doubling", 3, 8 * 2 * 7 / 8),
        # each of 8 sends an eighth 14 times
        ("gloo", 4e6, "ring", 1, 8 * 14 / 8),
    ],
)
def test_what_libraries_send_in_all(library, size, name, phases, sent):
    reduce = next(one for one in own_all_reduces(library, 8, size) if one.name == name)
    pattern = reduce.pattern(8)
    assert len(pattern.piece) == phases
    assert pattern.size.sum() == pytest.approx(sent * size)
    assert bool(pattern.is_ring[0]) == (name == "ring") == reduce.is_ring


def test_a_network_by_hand_is_searched_as_well():
    found = gw.ranks.optimize(
        network({(a, b): 1e9 for a in range(3) for b in range(3) if a != b}), "gloo"
    )
    assert found.compared_all and sorted(found.ranks) == [0, 1, 2]


def test_groups_of_a_mesh_of_three_axes():
    """Rank of (pp, dp, tp) is 6 pp + 2 dp + tp; groups along an axis differ in it alone."""
    mesh = Mesh({"pp": 2, "dp": 3, "tp": 2}, {"pp": 1.0})
    assert mesh.groups("pp").tolist() == [[k, k + 6] for k in range(6)]
    dp = [[6 * pp + tp + 2 * k for k in range(3)] for pp in range(2) for tp in range(2)]
    assert mesh.groups("dp").tolist() == dp
    assert mesh.groups("tp").tolist() == [[2 * k, 2 * k + 1] for k in range(6)]
