"""Packed trees as parts of the gradient: each with a tree to its root and one from it."""

import dataclasses
import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.kernels.wires import Wires, wires_over
from gradweave.schedulers.packing.linear_program import Stage, Tree
from gradweave.schedulers.packing.packing import pack_trees
from gradweave.schedulers.packing.straggler_packing import pack_straggler_trees
from gradweave.schedules.schedule import Collective
from gradweave.stop import UNLIMITED, Stop
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING

if TYPE_CHECKING:
    from gradweave.schedulers.ordering.event_simulation_kernel import Trees


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """Parts of the gradient, with the transfers of each of their pieces."""

    topology: Topology
    root: NDArray[np.int64]
    """[parts] rank of each root."""
    share: NDArray[np.float64]
    """[parts] share of the gradient; shares sum to one."""
    fixed_roots: bool
    """Whether every server must root an equal part, as in a single stage."""
    reduces: int
    """Number of reducing transfers of a piece; they come first."""
    trees: "Trees"
    wires: Wires
    source: NDArray[np.int64]
    """[H] rank of the server at the start of each hop."""
    target: NDArray[np.int64]
    """[H] rank of the server at the end of each hop."""


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
    from gradweave.schedulers.kernels.precedence import tails
    from gradweave.schedulers.ordering.event_simulation_kernel import Trees

    paired = _paired(trees)
    hops = Hops(topology)
    rows = [_transfers(trees, hops) for trees, _ in paired]
    following = [list(each) for _, _, follow in rows for each in follow]
    lengths = np.array([len(each) for each in following], np.int64).reshape(len(rows), -1)
    ends = np.cumsum(lengths).reshape(lengths.shape)
    share = np.array([share for _, share in paired])
    root = np.array([trees[0].root for trees, _ in paired], np.int64)
    hop = np.array([hop for hop, _, _ in rows], np.int64)
    places = hops.arrays()
    ready = np.zeros(hop.shape)
    if ready_at_s is not None:
        source = places["source"][hop]
        own = (source == root[:, None]) | (collective != "all_gather")
        ready = np.where(own, np.array(ready_at_s)[source], 0.0)
    waits = np.array([waits for _, waits, _ in rows], np.int64)
    followers = np.array([f for each in following for f in each], np.int64)
    first = np.column_stack([ends[:, :1] - lengths[:, :1], ends])
    wires = places["wires"]
    held_s = (wires.latency + wires.overhead)[hop]
    tail_s, tail_s_per_byte = tails(
        waits, first, followers, held_s, np.zeros(hop.shape), (1 / wires.rate)[hop]
    )
    return Parts(
        topology=topology,
        root=root,
        share=share / share.sum(),
        fixed_roots=collective != "all_reduce",
        reduces=0 if collective == "all_gather" else topology.num_servers - 1,
        trees=Trees(hop, waits, followers, first, ready, tail_s, tail_s_per_byte),
        **places,
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


def ends_of_hops(topology: Topology, links: NDArray, first: NDArray) -> dict[str, NDArray]:
    """The fields of `Parts` with the ends of hops.

    Args:
        topology: the network.
        links: links of the hops, concatenated.
        first: [H+1] index of each hop's first link.
    """
    rank = topology.rank.astype(np.int64)
    return {
        "source": rank[topology.source[links[first[:-1]]]],
        "target": rank[topology.target[links[first[1:] - 1]]],
    }


class Hops:
    """Distinct routes, by number."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._number: dict[tuple[int, ...], int] = {}

    def number(self, links: tuple[int, ...]) -> int:
        """The number of a route, which is added if it is new."""
        return self._number.setdefault(links, len(self._number))

    def arrays(self) -> dict:
        """The fields of `Parts` that describe the hops."""
        topology = self._topology
        routes = list(self._number)
        lengths = np.array([len(route) for route in routes], np.int64)
        links = np.array([link for route in routes for link in route], np.int64)
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return {
            "wires": wires_over(topology, links, first),
            **ends_of_hops(topology, links, first),
        }


def _transfers(trees: tuple[Tree, ...], hops: Hops) -> tuple[list[int], list[int], list[list[int]]]:
    """The hop of each transfer of a piece, how many it waits for, and which transfers wait for it.

    Reductions come first; each stage is in the order of the servers whose hops they are.
    """
    servers = len(trees[0].parent)
    number: dict[tuple[Stage, int], int] = {}
    for tree in trees:
        for server in range(servers):
            if server != tree.root:
                number[tree.stage, server] = len(number)
    hop, waits = [0] * len(number), [0] * len(number)
    following: list[list[int]] = [[] for _ in number]
    for tree in trees:
        towards = tree.stage == "reduce_scatter"
        for server, up in enumerate(tree.parent.tolist()):
            if server == tree.root:
                continue
            transfer = number[tree.stage, server]
            hop[transfer] = hops.number(tree.routes[server])
            if up != tree.root:
                first, then = (transfer, number[tree.stage, up])
                first, then = (first, then) if towards else (then, first)
                following[first].append(then)
                waits[then] += 1
    if len(trees) == 2:
        _join(trees, number, waits, following)
    return hop, waits, following


def _join(
    trees: tuple[Tree, ...],
    number: dict[tuple[Stage, int], int],
    waits: list[int],
    following: list[list[int]],
) -> None:
    """Makes the copies from the root wait for all reductions into it."""
    into, out_of = (
        [number[tree.stage, int(server)] for server in np.flatnonzero(tree.parent == tree.root)]
        for tree in trees
    )
    for reduce in into:
        following[reduce].extend(out_of)
    for copy in out_of:
        waits[copy] += len(into)
