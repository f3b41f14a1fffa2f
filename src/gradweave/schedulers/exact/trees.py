"""Which link directions a piece may take on its way to all servers, and how early."""

import dataclasses
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.routes import shortest_path_trees
from gradweave.topology.topology import Integers, Topology

Trees = Literal["free", "shortest", "fixed"]
"""The trees allowed: any trees, any shortest-path trees, or only the pinned trees."""
TREES: tuple[str, ...] = get_args(Trees)

_NEVER = 1 << 20
"""A distance larger than any path."""


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """The trees that an all-gather may use, as the link directions that each piece may take.

    Pieces are sent from servers through any number of switches to servers. For each piece and round
    this is a network flow that switches conserve, so it covers every route with only switches
    inside, and no list of routes is needed.
    """

    topology: Topology
    """The network, its capacities in the direction of the all-gather."""
    root: Integers
    """[P] node id of each piece's root."""
    allowed: NDArray[np.bool_]
    """[P, L] link directions that each piece may take."""

    @staticmethod
    def of(topology: Topology, root: NDArray, trees: Trees) -> "Choice":
        """The choice for a kind of trees.

        Args:
            topology: the network.
            root: [P] node id of each piece's root.
            trees: ``free``: every link direction; ``shortest``: those on a shortest path from the
                root, through servers or switches; ``fixed``: those of the pinned tree.
        """
        if trees == "free":
            allowed = np.ones((len(root), len(topology.source)), bool)
        elif trees == "fixed":
            toward_root = shortest_path_trees(topology, root)
            allowed = toward_root[:, topology.target] == topology.source
        else:
            everything = np.ones((len(root), len(topology.source)), bool)
            links = _distances(topology, root, everything, np.ones(topology.num_nodes, np.int64))
            allowed = links[:, topology.target] == links[:, topology.source] + 1
        return Choice(topology, root, allowed & (topology.target != root[:, None]))

    @cached_property
    def earliest(self) -> NDArray[np.int64]:
        """[P, V] rounds that must pass before the piece can be at a server, or pass a switch."""
        costs = self.topology.is_server.astype(np.int64)
        return _distances(self.topology, self.root, self.allowed, costs)

    @cached_property
    def rounds_after(self) -> NDArray[np.int64]:
        """[P, V] rounds that must follow once the piece is at a server: the forced chain behind it.

        A server depends on another if all its incoming links come from there; −1 for switches that
        no dependency forces the piece to pass.
        """
        source, target = self.topology.source, self.topology.target
        pieces, rows = np.nonzero(self.allowed)
        ways_in = np.zeros((len(self.root), self.topology.num_nodes), np.int64)
        np.add.at(ways_in, (pieces, target[rows]), 1)
        only = ways_in[pieces, target[rows]] == 1
        pieces, above, below = pieces[only], source[rows[only]], target[rows[only]]
        after = np.where(self.topology.is_server, 0, -1) + np.zeros_like(ways_in)
        while True:
            chain = after[pieces, below]
            raised = after.copy()
            longer = np.where(chain < 0, -1, chain + self.topology.is_server[below])
            np.maximum.at(raised, (pieces, above), longer)
            if (raised == after).all():
                return after
            after = raised

    @cached_property
    def least_rounds(self) -> int:
        """The smallest number of rounds that allows every piece's longest path."""
        needed = (self.earliest + self.rounds_after)[:, self.topology.servers]
        return int(needed.max())

    def to_go(self, piece: int) -> NDArray[np.int64]:
        """[N, V] rounds that the piece needs from each node to each server, by the server's rank.

        Nodes without a path to the server get a very large number.
        """
        topology, servers = self.topology, self.topology.servers
        need = np.full((len(servers), topology.num_nodes), _NEVER)
        need[np.arange(len(servers)), servers] = 0
        rows = np.flatnonzero(self.allowed[piece])
        source, target = topology.source[rows], topology.target[rows]
        cost = topology.is_server[target].astype(np.int64)
        while True:
            nearer = need.copy()
            np.minimum.at(nearer.T, source, (need[:, target] + cost).T)
            if (nearer == need).all():
                return need
            need = nearer

    def booleans(self, rounds: int) -> int:
        """Number of booleans of the model for a number of rounds.

        Args:
            rounds: the round count in question.
        """
        sending = np.maximum(rounds - self.earliest[:, self.topology.source], 0)
        holding = rounds - (self.earliest + self.rounds_after)[:, self.topology.servers]
        return int(sending[self.allowed].sum() + np.maximum(holding, 0).sum())


def _distances(
    topology: Topology, root: NDArray, allowed: NDArray[np.bool_], entering: NDArray
) -> NDArray[np.int64]:
    """[P, V] cost of the cheapest path from each root, given the cost of entering each node."""
    cost = np.full((len(root), topology.num_nodes), _NEVER)
    cost[np.arange(len(root)), root] = 0
    step = entering[topology.target]
    while True:
        onward = np.where(allowed, cost[:, topology.source] + step, _NEVER)
        cheaper = cost.copy()
        np.minimum.at(cheaper.T, topology.target, onward.T)
        if (cheaper == cost).all():
            return cost
        cost = cheaper
