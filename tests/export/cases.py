"""The schedules on which the exports are tried."""

import functools

import numpy as np

import gradweave as gw
from gradweave.schedules import COPY, REDUCE, Schedule
from gradweave.topology import Topology
from tests.conformance.networks import network, relabelled

CASES = (
    ("complete:2", "recursive doubling", "all_reduce"),
    ("complete:4", "grown", "all_reduce"),
    ("complete:4", "binomial", "reduce_scatter"),
    ("ring:8", "ring, both ways", "all_reduce"),
    ("ring:8", "ring", "reduce_scatter"),
    ("ring:8", "ring", "all_gather"),
    ("mesh:3x3", "merged, overlap", "all_reduce"),
    ("torus:3x3", "symmetric", "all_reduce"),
    ("torus:3x3", "grown", "all_gather"),
    ("hypercube:3", "recursive doubling", "all_reduce"),
    ("hypercube:3", "halving and doubling", "all_reduce"),
    ("star:5", "recursive doubling", "all_reduce"),
    ("star:5", "parameter server", "all_reduce"),
    ("star:5", "merged", "reduce_scatter"),
    ("irregular", "central", "all_reduce"),
    ("irregular", "grown", "all_gather"),
    ("lopsided", "merged", "all_reduce"),
    ("lopsided", "parameter server", "reduce_scatter"),
    ("bcube:n=3,k=1", "grown", "all_reduce"),
    ("jellyfish:reference=J10", "merged, random", "all_reduce"),
)
ONE_EACH = (
    ("ring:8", "ring, both ways", "all_reduce"),
    ("hypercube:3", "recursive doubling", "all_reduce"),
    ("star:5", "merged", "reduce_scatter"),
    ("irregular", "grown", "all_gather"),
)


def laid_out(made: Schedule) -> bool:
    """Whether GPU executors have buffers for it: roots of equally many pieces."""
    count = np.bincount(made.topology.rank[made.root], minlength=made.topology.num_servers)
    return made.collective == "all_reduce" or bool((count == count[0]).all())


@functools.cache
def on_other_numbers(collective: str) -> Schedule:
    """Servers whose ids are not their ranks, and roots in an order that is not theirs."""
    topology, _ = relabelled(network("irregular"))
    made = gw.schedulers.Merged().schedule(topology, collective=collective)
    return permuted(made, np.random.default_rng(0).permutation(made.pieces))


def permuted(made: Schedule, number: np.ndarray) -> Schedule:
    """The same schedule with its pieces numbered anew."""
    root = np.empty_like(made.root)
    root[number] = made.root
    return made.replace(root=root, piece=number[made.piece])


def twice(made: Schedule) -> Schedule:
    """A schedule of two pieces for one, the second's transfers after the first's."""
    return made.replace(
        root=np.concatenate([made.root, made.root]),
        **{
            column: np.concatenate([getattr(made, column)] * 2)
            for column in ("source", "target", "op", "route_nodes")
        },
        piece=np.concatenate([made.piece, made.piece + made.pieces]),
        round=np.concatenate([made.round, made.round + made.rounds]),
        route_offsets=np.concatenate(
            [made.route_offsets, made.route_offsets[1:] + made.route_offsets[-1]]
        ),
    )


def swap_of_two() -> Schedule:
    """Both servers add what the other has, in one round, over two links' worth of capacity.

    The rows name the pieces in opposite orders at the two ends.
    """
    pair = Topology.from_links("pair", servers=2, switches=0, links=[(0, 1)], capacity=[2])
    rows = [(0, 0, REDUCE, (0, 1)), (0, 1, REDUCE, (0, 1))]
    rows += [(0, 1, REDUCE, (1, 0)), (0, 0, REDUCE, (1, 0))]
    return Schedule.from_rows(pair, rows)


def useless_copy() -> Schedule:
    """Server 0 tells server 1 its own contribution first, which is then written over."""
    line = Topology.from_links("line", servers=3, switches=0, links=[(0, 1), (1, 2), (0, 2)])
    rows = [
        (0, 0, REDUCE, (1, 0)),
        (0, 0, COPY, (0, 1)),  # what server 0 had before it heard of server 1's
        (1, 0, REDUCE, (2, 0)),
        (2, 0, COPY, (0, 1)),
        (2, 0, COPY, (0, 2)),
    ]
    return Schedule.from_rows(line, rows, root=[0])


BY_HAND = (swap_of_two, useless_copy)
