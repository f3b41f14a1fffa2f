"""Trees that ForestColl writes: an all-gather over spanning trees, or an all-reduce over both ways.

    <Algo nchunkspernode="2">
      <tree root="(0, 'GPU', 0)" index="0" nchunks="1" height="3">
        <send src="(0, 'GPU', 0)" dst="(0, 'GPU', 1)" path="(0, 'GPU', 0),…,(0, 'GPU', 1)"/>

Nodes have names; in the order of these the roots are the network's servers. The switches of a path
are not looked at: each hop takes the network's own route. Trees say what goes where, not when: each
is cut into equal pieces, which follow each other.
"""

import re
from collections import defaultdict
from typing import Any

from gradweave.errors import FileError, OptionError
from gradweave.library.importers.messages import MAX_MESSAGES, Asked, Message, as_schedule
from gradweave.schedule.schedule import COPY, REDUCE, Schedule
from gradweave.topology.topology import Topology

TOOL = "ForestColl"
_DIGITS = re.compile(r"(\d+)")


def is_forest_coll(root: Any) -> bool:
    """Whether an XML element holds trees of ForestColl."""
    return root.tag == "Algo" and root.find("tree") is not None


def read_forest_coll(
    root: Any, topology: Topology, collective: Any = "all_gather", pieces: int = 1
) -> Schedule:
    """The trees as a schedule.

    Args:
        root: the XML's root element, not trusted.
        topology: the network.
        collective: ``all_gather``; ``reduce_scatter``, by the trees reversed; or ``all_reduce``,
            by one after the other.
        pieces: into which each tree's part is cut.

    Raises:
        FileError: the trees are of other servers, or none.
        OptionError: more pieces than are read.
    """
    trees = [_Tree(element) for element in root.iterfind("tree")]
    names = sorted({tree.root for tree in trees}, key=_natural)
    if len(names) != topology.num_servers:
        raise FileError(
            f"{TOOL}: its trees have {len(names)} roots; the network has "
            f"{topology.num_servers} servers"
        )
    if pieces < 1 or pieces * sum(len(tree.sends) for tree in trees) > MAX_MESSAGES // 2:
        raise OptionError(f"pieces: expected 1 to as many as make {MAX_MESSAGES:,} messages")
    server = dict(zip(names, topology.servers.tolist(), strict=True))
    messages: list[Message] = []
    roots, shares = [], []
    trees.sort(key=lambda tree: server[tree.root])
    for cut in range(pieces):
        for tree in trees:
            _add(messages, tree, server, len(roots), collective, cut)
            roots.append(server[tree.root])
            shares.append(tree.chunks)
    options = {"pieces_a_tree": pieces}
    return as_schedule(topology, messages, Asked(collective, roots, shares), TOOL, options)


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


def _natural(name: str) -> list[tuple[int, str | int]]:
    """Names in the order of the numbers in them."""
    parts = _DIGITS.split(name)
    return [(0, int(part)) if part.isdigit() else (1, part) for part in parts]


def _add(
    messages: list[Message],
    tree: _Tree,
    server: dict[str, int],
    piece: int,
    collective: Any,
    cut: int,
) -> None:
    """The messages of one piece of a tree."""
    for _, child in tree.sends:
        if child not in server:
            raise FileError(f"{TOOL}: {child!r:.60} is the root of no tree")
    ended: dict[str, list[int]] = defaultdict(list)
    if collective != "all_gather":
        for parent, child in reversed(tree.sends):
            ended[parent].append(len(messages))
            ends, after = (server[child], server[parent]), tuple(ended[child])
            messages.append(Message(*ends, piece, REDUCE, after, (), None, cut))
    if collective != "reduce_scatter":
        brought = {tree.root: tuple(ended[tree.root])}
        for parent, child in tree.sends:
            brought[child] = (len(messages),)
            ends = server[parent], server[child]
            messages.append(Message(*ends, piece, COPY, brought[parent], (), None, cut))
