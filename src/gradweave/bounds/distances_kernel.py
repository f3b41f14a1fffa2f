"""Bellman and Ford's algorithm, compiled."""

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Floats, Integers


@kernel(allocates=False)
def shorten(least: Floats, cost: Floats, start: Integers, end: Integers) -> None:
    """Lowers the costs of nodes until no link offers a cheaper path.

    Sums are rounded, but rounding keeps their order, so the result does not depend on the order in
    which links are visited: it is the minimum over paths of the sum from the path's end.

    Args:
        least: [V, S] initial costs, changed in place.
        cost: [L] of each link; infinite if it must not be used.
        start: [L] nodes that links leave.
        end: [L] nodes that links enter.
    """
    shorter = True
    while shorter:
        shorter = False
        for link in range(len(cost)):
            if cost[link] == float("inf"):
                continue
            here, there = start[link], end[link]
            for column in range(least.shape[1]):
                over = least[there, column] + cost[link]
                if over < least[here, column]:
                    least[here, column] = over
                    shorter = True
