"""Trees in ForestColl's format, for an all-gather or, in both directions, for an all-reduce.

    <Algo nchunkspernode="2">
      <tree root="(0, 'GPU', 0)" index="0" nchunks="1" height="3">
        <send src="(0, 'GPU', 0)" dst="(0, 'GPU', 1)" path="(0, 'GPU', 0),…,(0, 'GPU', 1)"/>

Nodes have names; sorted by name, the roots are the network's servers. The switches of a path are
ignored: each hop takes a route of the network. Trees say how much data goes where, but not when.
They are cut into pieces and timed as in `Packed`.
"""

import re
from collections import defaultdict
from typing import Any

import numpy as np

from gradweave.common.stop import UNLIMITED
from gradweave.errors import FileError
from gradweave.schedulers.flows.even_routes import EvenRoutes
from gradweave.schedulers.packing.packed import schedule_with
from gradweave.schedulers.packing.parts import parts_with
from gradweave.schedulers.packing.tree_program import Tree
from gradweave.schedules.schedule import Provenance, Schedule, Stage
from gradweave.topology.topology import Topology

TOOL = "ForestColl"
_DIGITS = re.compile(r"(\d+)")
_CUTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of pieces per tree, tried in turn as long as more pieces help."""
MAX_TREES = 4096


def is_forest_coll(root: Any) -> bool:
    """Whether an XML element contains trees of ForestColl."""
    return root.tag == "Algo" and root.find("tree") is not None


def read_forest_coll(
    root: Any, topology: Topology, collective: Any, gradient_bytes: float
) -> Schedule:
    """The trees as a schedule.

    Args:
        root: the XML's root element, not trusted.
        topology: the network.
        collective: ``all_gather``; ``reduce_scatter``, which reverses the trees; or
            ``all_reduce``, which uses both.
        gradient_bytes: size of the whole gradient, which determines the number of pieces.

    Raises:
        FileError: the trees are missing, or are for other servers.
    """
    read = [_Tree(element) for element in root.iterfind("tree")]
    names = sorted({tree.root for tree in read}, key=_natural)
    if len(names) != topology.num_servers or len(read) > MAX_TREES:
        raise FileError(
            f"{TOOL}: its {len(read)} trees have {len(names)} roots; the network has "
            f"{topology.num_servers} servers"
        )
    rank = {name: at for at, name in enumerate(names)}
    total = sum(tree.chunks for tree in read)
    stages: list[Stage] = ["reduce_scatter", "all_gather"]
    trees: list[Tree] = []
    for stage in stages:
        if collective in (stage, "all_reduce"):
            routes = EvenRoutes(topology)
            trees += [one.on(topology, rank, stage, one.chunks / total, routes) for one in read]
    parts = parts_with(topology, collective, trees)
    counts = [cuts * len(parts.root) for cuts in _CUTS]
    made = schedule_with(topology, collective, gradient_bytes, parts, counts, UNLIMITED)
    return made.replace(scheduler=Provenance(TOOL, {"timed_by": "packed"}))


class _Tree:
    """One tree: its sends from parent to child, parents first."""

    def __init__(self, element: Any) -> None:
        self.root = element.get("root", "")
        chunks = element.get("nchunks", "")
        if not (self.root and re.fullmatch(r"[1-9]\d{0,6}", chunks)):
            raise FileError(f"{TOOL}: tree: expected root and nchunks, got {chunks!r:.40}")
        self.chunks = int(chunks)
        children = defaultdict(list)
        for send in element.iterfind("send"):
            children[send.get("src", "")].append(send.get("dst", ""))
        self.sends: list[tuple[str, str]] = []
        reached, left = {self.root}, [self.root]
        while left:
            parent = left.pop(0)
            for child in children[parent]:
                if child in reached:
                    raise FileError(f"{TOOL}: tree of {self.root!r:.60}: {child!r:.60} twice")
                reached.add(child)
                left.append(child)
                self.sends.append((parent, child))
        if len(self.sends) != sum(map(len, children.values())):
            raise FileError(f"{TOOL}: tree of {self.root!r:.60}: sends that it does not reach")

    def on(
        self, topology: Topology, rank: dict[str, int], stage: Stage, share: float, even: EvenRoutes
    ) -> Tree:
        """The tree on a network, for one stage."""
        servers = topology.num_servers
        parent = np.full(servers, -1)
        routes: list[tuple[int, ...]] = [()] * servers
        for above, below in self.sends:
            if below not in rank:
                raise FileError(f"{TOOL}: {below!r:.60} is the root of no tree")
            up, down = rank[above], rank[below]
            ends = (up, down) if stage == "all_gather" else (down, up)
            if not np.isfinite(even.cost[ends]):
                raise FileError(f"{TOOL}: no route from {above!r:.60} to {below!r:.60} on its own")
            parent[down], routes[down] = up, even.route(share, *ends)
        if len(self.sends) != servers - 1:
            raise FileError(f"{TOOL}: tree of {self.root!r:.60}: it does not reach all")
        return Tree(stage, rank[self.root], parent, tuple(routes), share)


def _natural(name: str) -> list[tuple[int, str | int]]:
    """Sort key that orders names by the numbers in them."""
    parts = _DIGITS.split(name)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]
