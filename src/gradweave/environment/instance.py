"""A network's scheduling problem: its workloads, their dependencies, and the links they use.

The learning environment and the learned scheduler read the same arrays; a finished episode is
converted back to a schedule.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradweave.bounds import fixed_trees, free_trees
from gradweave.environment.even_trees import even_trees
from gradweave.errors import OptionError, ScheduleError
from gradweave.schedulers.hops import Hops
from gradweave.schedules.flow_tree import FlowTrees, Workloads
from gradweave.schedules.schedule import (
    COPY,
    REDUCE,
    Collective,
    Provenance,
    Schedule,
    Stage,
    check_collective,
    table_of_rows,
    take_rows,
)
from gradweave.topology.topology import Topology

Trees = Literal["fixed", "even", "grown"]
"""Whether trees are fixed shortest-path trees, with ties by lowest ids or broken evenly, or emerge
from the schedule."""
TREES: tuple[str, ...] = get_args(Trees)

NEVER = -1
"""Marks transfers not yet sent in `sent_round` and `sent_hop`."""


@dataclasses.dataclass(frozen=True)
class Size:
    """The lengths of a problem's axes. Problems of one size can be batched and compile once."""

    servers: int
    """N."""
    trees: int
    """Q: one tree for each piece and stage."""
    hops: int
    """H: routes between two servers."""
    links: int
    """L: link directions, and a last entry that represents none."""
    route: int
    """R: links of the longest route."""

    @staticmethod
    def covering(sizes: "Iterable[Size]", *, multiple: int = 1) -> "Size":
        """The smallest size into which all given sizes fit.

        Args:
            sizes: at least one size.
            multiple: each axis except the route's is rounded up to a multiple of this.

        >>> from gradweave.environment import Size
        >>> Size.covering([Size(9, 9, 36, 37, 2), Size(8, 16, 40, 33, 3)], multiple=8)
        Size(servers=16, trees=16, hops=40, links=40, route=3)
        """
        largest = [max(axis) for axis in zip(*map(dataclasses.astuple, sizes), strict=True)]
        rounded = [-(-axis // multiple) * multiple for axis in largest[:-1]]
        return Size(*rounded, *largest[-1:])


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    """A scheduling problem, as NumPy arrays.

    Fixed trees follow the pinned shortest paths, even trees those of `even_trees`. (The paper's
    trees are also shortest paths, but it does not state how it breaks ties.) Grown trees are free:
    they may use any hop from a server that has a piece to a server that lacks it.
    """

    topology: Topology
    collective: Collective = "all_gather"
    trees: Trees = "grown"
    overlap: bool = False
    """Whether the stages of an all-reduce on fixed trees may overlap."""
    routes: int = 2
    """With grown trees: number of shortest routes to look for between two servers."""
    spread: int | None = None
    """With grown trees: number of servers, near and far, to which each may send; all if not
    given."""

    def __post_init__(self) -> None:
        check_collective(self.collective)
        if self.trees not in TREES:
            raise OptionError(f"trees: expected one of {', '.join(TREES)}, got {self.trees!r}")
        if self.overlap and (self.collective != "all_reduce" or self.trees == "grown"):
            raise OptionError(
                "overlap: only an all-reduce on fixed trees can overlap its stages; the "
                "reduce-scatter on grown trees is built backwards in time, from its end"
            )
        if self.topology.num_servers < 2:
            raise OptionError(f"{self.topology.name!r} has one server: there is nothing to send")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the collective, in their order."""
        if self.collective == "all_reduce":
            return ("reduce_scatter", "all_gather")
        return (self.collective,)

    @functools.cached_property
    def bounds(self) -> tuple[int, ...]:
        """Lower bound on the rounds of each stage."""
        if self.trees != "grown":
            return tuple(fixed_trees(self.flow_trees, stage).rounds for stage in self.stages)
        return tuple(free_trees(self.topology, stage).rounds for stage in self.stages)

    @functools.cached_property
    def bound(self) -> int:
        """Lower bound on all rounds; with overlap, the bound of the whole collective."""
        if self.overlap:
            return fixed_trees(self.flow_trees, "all_reduce", overlap=True).rounds
        return sum(self.bounds)

    @functools.cached_property
    def size(self) -> Size:
        """The smallest size that the problem fits into."""
        arrays = self.arrays
        servers, trees = arrays["waiting"].shape
        links = len(self.topology.source) + 1
        return Size(servers, trees, len(arrays["sender"]), links, arrays["hop_links"].shape[1])

    @functools.cached_property
    def workloads(self) -> Workloads:
        """With fixed trees, the workloads as in `simulator.rounds`."""
        return Workloads.of(self.flow_trees, self.collective)

    @functools.cached_property
    def flow_trees(self) -> FlowTrees:
        """With trees that do not grow, the trees."""
        if self.trees == "even":
            return even_trees(self.topology)
        return FlowTrees.shortest_path(self.topology)

    @functools.cached_property
    def hops(self) -> Hops:
        """The routes that workloads take, from sender to receiver."""
        if self.trees == "grown":
            found = Hops.of(self.topology, variants=self.routes, spread=self.spread)
            if self.collective != "all_reduce":
                return found
            return _concatenated(found, found)
        return _hops_of(self.workloads)

    @functools.cached_property
    def arrays(self) -> dict[str, NDArray]:
        """The problem's arrays by name, as `environment.Problem` documents them, not padded."""
        return _grown_arrays(self) if self.trees == "grown" else _fixed_arrays(self)

    def schedule(
        self,
        sent_round: ArrayLike,
        sent_hop: ArrayLike,
        scheduler: Provenance | None = None,
    ) -> Schedule:
        """The schedule of a finished episode.

        Args:
            sent_round: [N, Q] round of each transfer, as in `State`.
            sent_hop: [N, Q] hop of each transfer.
            scheduler: its provenance.

        Raises:
            ScheduleError: if a transfer was never sent.
        """
        servers, trees = self.size.servers, self.size.trees
        rounds = np.asarray(sent_round)[:servers, :trees].astype(np.int64)
        hops = np.asarray(sent_hop)[:servers, :trees].astype(np.int64)
        wanted = self.arrays["pending"]
        if (rounds[wanted] == NEVER).any():
            left = int((rounds[wanted] == NEVER).sum())
            raise ScheduleError(f"the episode is not finished: {left} transfers were never sent")
        place = np.nonzero(wanted)
        return self._schedule(rounds[place], hops[place], place[1], scheduler)

    def _schedule(
        self, rounds: NDArray, hop: NDArray, tree: NDArray, scheduler: Provenance | None
    ) -> Schedule:
        pieces = self.topology.num_servers
        stages = tree // pieces
        reduces = np.array([stage == "reduce_scatter" for stage in self.stages])[stages]
        if self.trees == "grown":  # a reduce-scatter's rounds were counted from its end
            last = rounds[stages == 0].max(initial=-1)
            rounds = np.where(reduces, last - rounds, rounds)
        order = np.lexsort((tree, rounds))
        rounds, hop, tree, reduces = (column[order] for column in (rounds, hop, tree, reduces))
        hops, servers = self.hops, self.topology.servers
        nodes, offsets = take_rows(hops.route_nodes, hops.route_offsets, hop)
        return Schedule(
            topology=self.topology,
            collective=self.collective,
            root=servers,
            round=rounds,
            piece=tree % pieces,
            source=servers[hops.source[hop]],
            target=servers[hops.target[hop]],
            op=np.where(reduces, REDUCE, COPY).astype(np.int8),
            route_nodes=nodes,
            route_offsets=offsets,
            scheduler=scheduler or Provenance("environment"),
        )


def _concatenated(first: Hops, second: Hops) -> Hops:
    return Hops(
        np.concatenate([first.source, second.source]),
        np.concatenate([first.target, second.target]),
        np.concatenate([first.route_nodes, second.route_nodes]),
        np.concatenate([first.route_offsets, second.route_offsets[1:] + first.route_offsets[-1]]),
        np.concatenate([first.links, second.links]),
    )


def _end_links(hops: Hops) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[H] the first and last link of each route."""
    return hops.links[hops.first_link[:-1]], hops.links[hops.first_link[1:] - 1]


def _intake(
    topology: Topology, hops: Hops, receiver: NDArray, *, at_end: NDArray | bool
) -> NDArray[np.int64]:
    """[N] transfers per round into each receiver: the capacity of its hops' links at its end."""
    first, last = _end_links(hops)
    link = np.where(at_end, last, first)
    pairs = np.unique(np.stack([receiver, link]), axis=1)
    into = np.bincount(pairs[0], topology.capacity[pairs[1]], minlength=topology.num_servers)
    return into.astype(np.int64)


def _common(instance: Instance) -> dict[str, NDArray]:
    """The arrays that fixed and grown trees have in common."""
    topology, hops, stages = instance.topology, instance.hops, len(instance.stages)
    servers = topology.num_servers
    both = stages == 2
    bounds = np.array([*instance.bounds, 0][:2])
    following = np.concatenate([np.arange(servers, 2 * servers), np.full(servers, -1)])
    return {
        "hop_links": table_of_rows(hops.links, hops.first_link, fill=len(topology.source)),
        "capacity": topology.capacity,
        "root": np.tile(np.arange(servers), stages),
        "stage": np.repeat(np.arange(stages), servers),
        "then": following if both else np.full(servers, -1),
        "bound": bounds,
        "limit": np.array(max(4 * int(bounds.sum()), 8)),
        "grown": np.array(instance.trees == "grown"),
        "barrier": np.array(not instance.overlap),
    }


def _grown_arrays(instance: Instance) -> dict[str, NDArray]:
    topology, hops = instance.topology, instance.hops
    servers, stages = topology.num_servers, instance.stages
    count = len(hops.source) // len(stages)
    backward = np.repeat([stage == "reduce_scatter" for stage in stages], count)
    own_stage = np.repeat(np.arange(len(stages)), count)
    sender = np.where(backward, hops.target, hops.source)
    receiver = np.where(backward, hops.source, hops.target)
    common = _common(instance)
    lacks = np.tile(~np.eye(servers, dtype=bool), (1, len(stages)))
    last = own_stage == len(stages) - 1
    intake = _intake(topology, _some(hops, last), receiver[last], at_end=~backward[last])
    first_link, last_link = _end_links(hops)
    return common | {
        "sender_link": np.where(backward, last_link, first_link),
        "receiver_link": np.where(backward, first_link, last_link),
        "sender": sender,
        "receiver": receiver,
        "allowed": own_stage[:, None] == common["stage"][None, :],
        "waiting": lacks.astype(np.int64),
        "pending": lacks,
        "by_sender": np.zeros(len(common["root"]), bool),
        "then": np.full(len(common["root"]), -1),
        "height": np.zeros(lacks.shape, np.int64),
        "intake": intake,
    }


def _some(hops: Hops, chosen: NDArray[np.bool_]) -> Hops:
    which = np.flatnonzero(chosen)
    nodes, offsets = take_rows(hops.route_nodes, hops.route_offsets, which)
    links, _ = take_rows(hops.links, hops.first_link, which)
    return Hops(hops.source[which], hops.target[which], nodes, offsets, links)


def _hops_of(workloads: Workloads) -> Hops:
    """The distinct routes of workloads."""
    topology = workloads.topology
    table = np.unique(table_of_rows(workloads.route_nodes, workloads.route_offsets), axis=0)
    lengths = (table >= 0).sum(axis=1)
    nodes = table[table >= 0].astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ends = table[:, 0], table[np.arange(len(table)), lengths - 1]
    source, target = (topology.rank[end].astype(np.int64) for end in ends)
    return Hops(source, target, nodes, offsets, topology.links_along(nodes, offsets))


def _hop_of_each(workloads: Workloads, hops: Hops) -> NDArray[np.int64]:
    """[W] the hop that each workload takes."""
    number = {
        route.tobytes(): hop
        for hop, route in enumerate(np.split(hops.route_nodes, hops.route_offsets[1:-1]))
    }
    routes = np.split(workloads.route_nodes.astype(np.int32), workloads.route_offsets[1:-1])
    return np.array([number[route.tobytes()] for route in routes], np.int64)


def _fixed_arrays(instance: Instance) -> dict[str, NDArray]:
    topology, hops, workloads = instance.topology, instance.hops, instance.workloads
    servers, stages = topology.num_servers, instance.stages
    common = _common(instance)
    shape = (servers, servers * len(stages))
    reduces = workloads.op == REDUCE
    offset = np.where(reduces | (len(stages) == 1), 0, servers)
    tree = workloads.piece + offset
    source, target = topology.rank[workloads.source], topology.rank[workloads.target]
    key = np.where(reduces, source, target)
    hop = _hop_of_each(workloads, hops)
    allowed = np.zeros((len(hops.source), shape[1]), bool)
    allowed[hop, tree] = True
    pending = np.zeros(shape, bool)
    pending[key, tree] = True
    height = np.zeros(shape, np.int64)
    height[key, tree] = _heights(instance)
    waiting = np.zeros(shape, np.int64)
    np.add.at(waiting, (target, tree), 1)
    if len(stages) == 2:  # a root's copies wait for the reductions into it
        roots = np.arange(servers)
        waiting[roots, roots + servers] = waiting[roots, roots]
    first_link, last_link = _end_links(hops)
    return common | {
        "sender_link": first_link,
        "receiver_link": last_link,
        "sender": hops.source,
        "receiver": hops.target,
        "allowed": allowed,
        "waiting": waiting,
        "pending": pending,
        "by_sender": np.array([stage == "reduce_scatter" for stage in stages])[common["stage"]],
        "height": height,
        "intake": _intake(topology, hops, hops.target, at_end=True),
    }


def _heights(instance: Instance) -> NDArray:
    """[W] the longest chain that each workload begins; within its stage if there is a barrier."""
    if instance.overlap or len(instance.stages) == 1:
        return instance.workloads.heights()
    stages = (Workloads.of(instance.flow_trees, stage) for stage in instance.stages)
    return np.concatenate([stage.heights() for stage in stages])
