"""Trees for a network that has changed: of the least time, as much as can be over known ones."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.least_seconds import least_seconds
from gradweave.schedule.schedule import Collective
from gradweave.schedulers.unequal.known_trees import KnownTree, regrown
from gradweave.schedulers.unequal.linear_program import Tree, relative
from gradweave.schedulers.unequal.packing import TreeSearch
from gradweave.schedulers.unequal.paths import Paths
from gradweave.schedulers.unequal.tuning import TUNING
from gradweave.stop import Stop
from gradweave.topology.topology import Topology

HOLDS = (0.0, 10.0)
"""What replacing a hop costs beside its path in `regrown`: once nothing, so that the cheapest tree
comes out, and once so much that few hops are replaced. Of two the linear program takes its
choice; each costs a run of Edmonds' algorithm for each tree that lost something."""


class _Column(NamedTuple):
    """A tree of the program that has hops of a known one."""

    place: int
    """Of the program's trees."""
    known: int
    """Number of the tree that it comes of."""
    kept: float
    """Part of that one's hops that it has."""


class Repacking:
    """The linear program over trees, started with known trees and what replaces lost hops.

    It is solved as `pack_trees` does, with column generation for trees that pay more. Then, within
    a little of the least that was found, as many bytes as possible go over hops that they went over
    before: for each known tree i with share s_i, kept bytes k_ij ≤ x_j of its variants j, of which
    each keeps a part f_j of the hops, Σ_j k_ij ≤ s_i; maximise Σ f_j k_ij.

    Args:
        topology: the network as it is now.
        collective: a stage, or both.
        known: the trees of the schedule before.
        residual: as `pack_trees` takes it.
        gradient_bytes: for which latency counts beside bytes; not at all if infinite.
        stop: when no more trees are sought.
    """

    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        known: Sequence[KnownTree],
        *,
        residual: float,
        gradient_bytes: float,
        stop: Stop,
    ) -> None:
        shares = "any" if collective == "all_reduce" else "equal"
        least = least_seconds(topology, 1.0, collective, shares=shares)
        self._paths = Paths(topology, residual=residual)
        self._known = known
        self._search = search = TreeSearch(topology, collective, least, self._paths)
        link_duals = np.max(least.duals.link_duals, axis=0).astype(np.float64)
        by_bandwidth = 1 / topology.bandwidth_bytes_per_s
        self._columns: list[_Column] = []
        self._add_known(relative(link_duals[None])[0], relative(by_bandwidth[None])[0])
        search.run(TUNING.tolerance, stop)
        search.settle(gradient_bytes, stop)
        search.prefer(self._columns, [one.tree.share for one in known])

    def trees(self, slack: float) -> tuple[Tree, ...]:
        """Trees of about the least time that have most in common with the known ones.

        Args:
            slack: how much more time they may take than the least found, relative to it.
        """
        return self._search.within(slack).trees

    def _add_known(self, *duals: NDArray[np.float64]) -> None:
        """Adds the known trees as far as they still work, and those regrown."""
        cheapest = [self._paths.cheapest(each) for each in duals]
        for number, known in enumerate(self._known):
            if known.whole:
                self._add(number, known.tree, 1.0)
            dropped = known.lost | known.slowed
            if not dropped.any():
                continue
            seen: set[tuple[bytes, tuple]] = set()
            for paths in cheapest:
                for hold in HOLDS:
                    made = regrown(known, dropped, paths, hold)
                    if made is None:
                        continue
                    tree, kept = made
                    key = tree.parent.tobytes(), tree.routes
                    if key not in seen:
                        seen.add(key)
                        self._add(number, tree, kept)

    def _add(self, number: int, tree: Tree, kept: float) -> None:
        place = self._search.add_tree(tree)
        self._columns.append(_Column(place, number, kept))


def at_old_shares(topology: Topology, known: Sequence[KnownTree]) -> tuple[Tree, ...] | None:
    """The known trees with their shares, and as few hops replaced as possible.

    Args:
        topology: the network as it is now.
        known: the trees.

    Returns:
        The trees; None where a server is cut off from a root.
    """
    by_bandwidth = 1 / topology.bandwidth_bytes_per_s
    paths = Paths(topology, residual=0.0).cheapest(relative(by_bandwidth[None])[0])
    trees: list[Tree] = []
    for one in known:
        made = (one.tree, 1.0) if one.whole else regrown(one, one.lost, paths, HOLDS[-1])
        if made is None:
            return None
        trees.append(made[0])
    return tuple(trees)
