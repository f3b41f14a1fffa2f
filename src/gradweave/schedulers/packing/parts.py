"""Packed trees as parts of the gradient: each with a tree to its root and one from it."""

import dataclasses
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import UNLIMITED, Stop
from gradweave.schedulers.carriers import Carrier
from gradweave.schedulers.ordering.transfers import CarrierTransfers
from gradweave.schedulers.packing.straggler_packing import pack_straggler_trees
from gradweave.schedulers.packing.tree_program import Tree, pack_trees
from gradweave.schedules.schedule import COPY, REDUCE, Collective, Stage
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING


@dataclasses.dataclass(frozen=True, eq=False)
class Parts(CarrierTransfers):
    """Parts of the gradient, with the transfers of each of their pieces."""

    root: NDArray[np.int64]
    """[parts] rank of each root."""
    share: NDArray[np.float64]
    """[parts] share of the gradient; shares sum to one."""
    fixed_roots: bool
    """Whether every server must root an equal part, as in a single stage."""


class Stragglers(NamedTuple):
    """When servers are ready, for a gradient's size."""

    gradient_bytes: float
    ready_at_s: tuple[float, ...]
    """[N] ready times in seconds, by rank."""
    spread: bool = True
    """Whether to equalise shares as far as that costs little time."""


def parts_of(
    topology: Topology,
    collective: Collective,
    *,
    residual: float = 0.0,
    gradient_bytes: float = math.inf,
    stragglers: Stragglers | None = None,
    stop: Stop = UNLIMITED,
) -> Parts:
    """Packs trees, and pairs the trees of each root.

    Args:
        topology: the network.
        collective: a stage, or both.
        residual: weight of the bandwidth that transfers leave unusable, see `pack_trees`.
        gradient_bytes: size for which latency counts in addition to bytes; not at all if not given.
        stragglers: when servers are ready, if some are late; `residual` and `gradient_bytes` are
            then ignored.
        stop: when to end with the trees found so far.
    """
    if stragglers is None or collective != "all_reduce":
        # In a single stage, trees as if all servers were ready.
        trees = pack_trees(
            topology,
            collective,
            residual=residual,
            gradient_bytes=gradient_bytes,
            stop=stop,
        ).trees
    else:
        trees = pack_straggler_trees(topology, *stragglers, stop=stop).trees
    ready = None if stragglers is None else stragglers.ready_at_s
    return parts_with(topology, collective, trees, ready)


def parts_with(
    topology: Topology,
    collective: Collective,
    trees: Sequence[Tree],
    ready_at_s: Sequence[float] | None = None,
) -> Parts:
    """Pairs given trees of each root.

    Args:
        topology: the network.
        collective: a stage, or both.
        trees: the trees, with the same share per root in both stages, and routes over the network's
            links.
        ready_at_s: [N] when servers are ready, by rank; 0 if not given.
    """
    paired = _paired(trees)
    made = CarrierTransfers.of(topology, [_carrier(topology, trees) for trees, _ in paired])
    share = np.array([share for _, share in paired])
    root = np.array([trees[0].root for trees, _ in paired], np.int64)
    ready = made.trees.ready
    if ready_at_s is not None:
        source = made.source[made.trees.hop]
        # In an all-gather only the root's data is waited for; otherwise each server adds its own.
        own = (source == root[:, None]) | (collective != "all_gather")
        ready = np.where(own, np.array(ready_at_s)[source], 0.0)
    return Parts(
        topology,
        made.trees._replace(ready=ready),
        made.wires,
        made.op,
        root=root,
        share=share / share.sum(),
        fixed_roots=collective != "all_reduce",
    )


def _paired(trees: Sequence[Tree]) -> list[tuple[tuple[Tree, ...], float]]:
    """Pairs of trees of the same root, one per stage, with the share that both carry.

    Each root's trees carry the same total in both stages; if a tree carries more than its partner,
    the rest is paired with the next tree.
    """
    queues: dict[tuple[int, Stage], deque[Tree]] = {}
    for tree in sorted(trees, key=lambda tree: -tree.share):
        queues.setdefault((tree.root, tree.stage), deque()).append(tree)
    stages: list[Stage] = sorted({tree.stage for tree in trees}, reverse=True)  # reduces first
    paired: list[tuple[tuple[Tree, ...], float]] = []
    for root in sorted({tree.root for tree in trees}):
        waiting = [queues.get((root, stage), deque()) for stage in stages]
        while all(waiting):
            pair = tuple(queue[0] for queue in waiting)
            share = min(tree.share for tree in pair)
            paired.append((pair, share))
            for queue, tree in zip(waiting, pair, strict=True):
                queue.popleft()
                if tree.share - share > ROUNDING:
                    queue.appendleft(dataclasses.replace(tree, share=tree.share - share))
    return paired


def _carrier(topology: Topology, trees: tuple[Tree, ...]) -> Carrier:
    """The transfers over a tree to a root, over one from it, or both: all reductions first.

    Each stage is in the order of the servers whose hops they are.
    """
    root = trees[0].root
    others = [server for server in range(len(trees[0].parent)) if server != root]
    number = {server: place for place, server in enumerate(others)}
    routes: list[tuple[int, ...]] = []
    ops: list[int] = []
    waits: list[tuple[int, ...]] = []
    complete: tuple[int, ...] = ()  # the reductions into the root
    for tree in trees:
        above, before = tree.parent.tolist(), len(routes)
        if tree.stage == "reduce_scatter":
            into: dict[int, list[int]] = {}
            for server in others:
                into.setdefault(above[server], []).append(number[server])
            waits += [tuple(into.get(server, ())) for server in others]
            complete = tuple(into[root])
        else:
            waits += [
                complete if above[server] == root else (before + number[above[server]],)
                for server in others
            ]
        routes += [tree.routes[server] for server in others]
        ops += [REDUCE if tree.stage == "reduce_scatter" else COPY] * len(others)
    return Carrier(int(topology.servers[root]), tuple(routes), tuple(ops), tuple(waits))
