"""Trees for a changed network: nearly minimum time, with most bytes on known hops."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.seconds.least_seconds import least_seconds
from gradweave.common.stop import Stop
from gradweave.schedulers.packing.master import relative
from gradweave.schedulers.packing.paths import PathCosts
from gradweave.schedulers.packing.tree_program import Tree, TreeSearch
from gradweave.schedulers.repairing.known_trees import KnownTree, regrown
from gradweave.schedules.schedule import Collective
from gradweave.topology.topology import Topology

HOLDS = (0.0, 10.0)
"""Extra costs of replacing a hop in `regrown`: once 0, which gives the cheapest tree, and once so
high that few hops are replaced. The linear program chooses between the two. Each costs a run of
Edmonds' algorithm for each tree with losses."""


class _Column(NamedTuple):
    """A tree of the program that shares hops with a known tree."""

    place: int
    """Index among the program's trees."""
    known: int
    """Number of the known tree from which it is derived."""
    kept: float
    """Share of the known tree's hops that it keeps."""


class Repacking:
    """The linear program over trees, started with known trees and variants that replace lost hops.

    It is solved like `pack_trees`, with column generation for trees that improve it. Then, within a
    small excess over the minimum time found, as many bytes as possible use the hops they used
    before: for each known tree i with share s_i, kept bytes k_ij ≤ x_j of its variants j, of which
    each keeps a share f_j of the hops, Σ_j k_ij ≤ s_i; maximise Σ f_j k_ij.

    Args:
        topology: the changed network.
        collective: a stage, or both.
        known: the trees of the schedule before.
        residual: as in `pack_trees`.
        gradient_bytes: size for which latency counts in addition to bytes; not at all if infinite.
        stop: when to stop looking for more trees.
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
        self._paths = PathCosts(topology, residual=residual)
        self._known = known
        self._search = search = TreeSearch(topology, collective, least, self._paths)
        link_duals = np.max(least.duals.link_duals, axis=0).astype(np.float64)
        by_bandwidth = 1 / topology.bandwidth_bytes_per_s
        self._columns: list[_Column] = []
        self._add_known(relative(link_duals[None])[0], relative(by_bandwidth[None])[0])
        search.run(stop)
        search.settle(gradient_bytes, stop)
        search.prefer(self._columns, [one.tree.share for one in known])

    def trees(self, slack: float) -> tuple[Tree, ...]:
        """Trees of nearly minimum time that have most in common with the known trees.

        Args:
            slack: how much longer than the minimum time found the trees may take, relative to it.
        """
        return self._search.within(slack).trees

    def _add_known(self, *duals: NDArray[np.float64]) -> None:
        """Adds the known trees that still work, and regrown variants of the others."""
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
    """The known trees with their shares, with as few hops replaced as possible.

    Args:
        topology: the changed network.
        known: the trees.

    Returns:
        The trees, or None if a server is cut off from a root.
    """
    by_bandwidth = 1 / topology.bandwidth_bytes_per_s
    paths = PathCosts(topology, residual=0.0).cheapest(relative(by_bandwidth[None])[0])
    trees: list[Tree] = []
    for one in known:
        made = (one.tree, 1.0) if one.whole else regrown(one, one.lost, paths, HOLDS[-1])
        if made is None:
            return None
        trees.append(made[0])
    return tuple(trees)
