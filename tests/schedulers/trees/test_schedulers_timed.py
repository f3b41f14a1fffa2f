"""Grown trees on a continuous clock: near the bound if bandwidths differ."""

import dataclasses
import math

import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds import throughput
from gradweave.errors import OptionError
from gradweave.schedulers import Timed, solve, to_spec
from gradweave.schedulers.solving.pieces import piece_counts
from gradweave.schedulers.solving.tuning import TUNING
from gradweave.schedulers.spec import from_spec
from gradweave.simulator import event_seconds, seconds
from gradweave.topology import Link, Topology

GIB = 2.0**30


def mesh(
    rows: int,
    columns: int,
    across: float,
    down: float,
    latency: float = 1e-6,
    overhead: float = 0.0,
) -> Topology:
    """A mesh whose horizontal links have one bandwidth and whose vertical ones have another."""
    node = np.arange(rows * columns).reshape(rows, columns)
    horizontal = np.stack([node[:, :-1].ravel(), node[:, 1:].ravel()], axis=1)
    vertical = np.stack([node[:-1].ravel(), node[1:].ravel()], axis=1)
    links = np.concatenate([horizontal, vertical])
    bandwidth = np.repeat([across, down], [len(horizontal), len(vertical)])
    return Topology.from_links(
        "unequal mesh",
        servers=node.size,
        switches=0,
        links=links,
        bandwidth_bytes_per_s=bandwidth,
        link=Link(latency_s=latency, overhead_s=overhead),
        capacity=[1] * len(links),
    )


def least(network: Topology, gradient_bytes: float) -> float:
    return throughput(network, "all_gather").seconds(gradient_bytes)


@pytest.mark.parametrize(
    ("network", "gradient_bytes"),
    [(mesh(7, 10, 16 * GIB, 73 * GIB), 4 * GIB), (mesh(8, 5, 80 * GIB, 35 * GIB), GIB)],
)
def test_unequal_meshes_are_near_the_least_time(network, gradient_bytes):
    made = Timed(gradient_bytes=gradient_bytes, pieces_per_server=8).schedule(
        network, collective="all_gather"
    )
    assert seconds(made, gradient_bytes, "events") < 1.002 * least(network, gradient_bytes)


@pytest.mark.parametrize("seed", [1, 3])
def test_links_of_any_bandwidth_and_latency(seed):
    rng = np.random.default_rng(seed)
    plain = mesh(4, 5, 1e9, 1e9)
    bandwidth = 10e9 * 10 ** rng.random(plain.num_links)
    ends = plain.source < plain.target
    network = Topology.from_links(
        "random bandwidths",
        servers=20,
        switches=0,
        links=np.stack([plain.source[ends], plain.target[ends]], axis=1),
        bandwidth_bytes_per_s=bandwidth,
        link=Link(latency_s=20e-6, overhead_s=0.0),
        capacity=[1] * plain.num_links,
    )
    solution = solve(network, collective="all_gather", objective="seconds", gradient_bytes=GIB)
    assert solution.timing is not None and solution.timing.gap < 0.03


@pytest.mark.parametrize("overhead", [0.0, 300e-6])
def test_the_schedule_takes_the_time_for_which_it_was_made(overhead):
    """The event model, which plays rounds, agrees with the search, which has none."""
    from gradweave.schedulers.hops import Hops
    from gradweave.schedulers.kernels.rarest_piece import Rarity
    from gradweave.schedulers.trees.timed_kernel import grow_in_time

    network, size = mesh(3, 4, 1e9, 3e9, overhead=overhead), 24e6
    strategy = Timed(gradient_bytes=size, pieces_per_server=2)
    hops, root = Hops.of(network, variants=4), np.repeat(np.arange(12), 2)
    clocked = strategy._clocked(network, hops, root)
    sent, start, took = grow_in_time(clocked, Rarity(1024, 0, 512), math.inf, math.inf, 7)
    from gradweave.schedulers.trees.timed import _schedule

    made = _schedule(network, clocked, sent)
    began, ended = event_seconds(made, size)
    assert ended.max() == pytest.approx(took)
    np.testing.assert_allclose(np.sort(began), np.sort(start), atol=1e-12)


def test_a_trunk_carries_as_many_slow_transfers_at_once_as_it_can():
    servers = [*((s, 8) for s in range(4)), *((s, 9) for s in range(4, 8))]
    network = Topology.from_links(
        "trunk",
        servers=8,
        switches=2,
        links=[*servers, (8, 9)],
        bandwidth_bytes_per_s=np.array([*[1e9] * 8, 4e9]),
        link=Link(latency_s=0.0, overhead_s=0.0),
        capacity=[1] * 9,
    )
    made = Timed(gradient_bytes=8e9).schedule(network, collective="all_gather")
    # Seven pieces enter each server over its link; the trunk is no bottleneck.
    assert seconds(made, 8e9, "events") == pytest.approx(7.0)


def test_the_seed_decides():
    network = mesh(3, 3, 1e9, 2.5e9)
    one, again, other = (
        Timed(gradient_bytes=1e8).schedule(network, collective="all_gather", seed=seed)
        for seed in (3, 3, 4)
    )
    assert one.round.tolist() == again.round.tolist()
    assert one.piece.tolist() == again.piece.tolist()
    assert one.piece.tolist() != other.piece.tolist()


def test_its_specification():
    strategy = Timed(gradient_bytes=1e9, pieces_per_server=3)
    assert from_spec(to_spec(strategy)) == strategy
    with pytest.raises(OptionError, match="timed: gradient_bytes: expected more than 0, got 0"):
        Timed(gradient_bytes=0)


@pytest.mark.parametrize(
    ("spec", "fills"), [("torus:4x2x3", 5), ("mi250", 3), ("ring:8", 2), ("bcube:n=3,k=1", 1)]
)
def test_piece_counts_fill_the_bottleneck(spec, fills):
    counts = piece_counts(gw.topology.from_spec(spec), "all_gather")
    assert counts[0] == 1 and fills in counts and counts == tuple(sorted(set(counts)))
    assert counts[-1] == TUNING.max_pieces // fills * fills
    # With `fills` pieces the bottleneck's time is a whole number of rounds.
    best = throughput(gw.topology.from_spec(spec), "all_gather")
    assert (best.time_per_piece * fills).denominator == 1


def test_with_more_pieces_a_torus_takes_the_least_time():
    network = gw.topology.torus((4, 2, 3), link=Link(overhead_s=0.0))
    solution = solve(network, collective="all_gather", objective="seconds", gradient_bytes=1e9)
    assert solution.timing is not None and solution.timing.gap < 1e-3


def test_pieces_are_fewer_where_messages_cost_more():
    network = gw.topology.torus((4, 2, 3))
    by_size = [piece_counts(network, "all_gather", size) for size in (1e3, 1e6, 1e8, math.inf)]
    assert by_size[0] == by_size[1] == (1,) and by_size[3] == (1, 3, 5, 15)
    assert [max(counts) for counts in by_size] == sorted(max(counts) for counts in by_size)


def test_a_reduce_scatter_is_planned_for_the_directions_that_it_uses():
    """On the network with all directions exchanged it is the reversed all-gather, as fast."""
    plain, rng = mesh(3, 3, 1e9, 1e9), np.random.default_rng(0)
    count = len(plain.source)
    network = dataclasses.replace(
        plain,
        bandwidth_bytes_per_s=1e9 * 2.0 ** rng.integers(0, 4, count),
        latency_s=1e-6 * rng.integers(1, 9, count),
        overhead_s=1e-6 * rng.integers(0, 3, count),
    )
    timed = Timed(gradient_bytes=1e6, restarts=4)
    gather = timed.schedule(network, collective="all_gather")
    scatter = timed.schedule(network.mirrored(), collective="reduce_scatter")
    assert seconds(scatter, 1e6, "events") == pytest.approx(seconds(gather, 1e6, "events"))
    both = seconds(timed.schedule(network), 1e6, "events")
    scatter = timed.schedule(network, collective="reduce_scatter")
    assert both <= 1.001 * (seconds(scatter, 1e6, "events") + seconds(gather, 1e6, "events"))
