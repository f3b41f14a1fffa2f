"""The class of schedules that a bound holds for: all, or those that take no forbidden liberty.

`gradweave_check` reads the forbidden liberties from a certificate and puts them into words. This
module uses the same words for bounds without a certificate.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from gradweave.topology.spec import TopologyLike, as_topology
from gradweave_check import ADDED as SWITCHES_ADD
from gradweave_check import CLASSES, holds_for
from gradweave_check import FEWER as FEWER_PIECES
from gradweave_check import OVERLAP as STAGES_OVERLAP
from gradweave_check import PASSED as ROUTES_PASS_SERVERS
from gradweave_check import SEVERAL as SUMS_MEET_ANYWHERE
from gradweave_check import STRAYED as TREES_ARE_LEFT
from gradweave_check import UNEQUAL as UNEQUAL_PARTS

OTHER_ROOTS = "pieces are rooted elsewhere"
"""For bounds without a certificate on stages whose pieces are rooted at only some servers."""
LIBERTIES = {**CLASSES, OTHER_ROOTS: "have the same roots"}
"""Liberties that void some bounds, with the description of schedules that do not take them."""

__all__ = [
    "FEWER_PIECES",
    "LIBERTIES",
    "OTHER_ROOTS",
    "ROUTES_PASS_SERVERS",
    "STAGES_OVERLAP",
    "SUMS_MEET_ANYWHERE",
    "SWITCHES_ADD",
    "TREES_ARE_LEFT",
    "UNEQUAL_PARTS",
    "class_of",
    "holds_for",
    "impossible_on",
    "optimal_in",
]


def class_of(holds_unless: Iterable[str], pieces: Sequence[int] = (1,)) -> str:
    """The class as a phrase; empty if the bound holds for every schedule.

    Args:
        holds_unless: members of `LIBERTIES` that a schedule must not take.
        pieces: minimum number of pieces rooted at each server.

    >>> class_of({SUMS_MEET_ANYWHERE, SWITCHES_ADD})
    ' for schedules that sum each piece at one server and add at servers alone'
    >>> class_of(())
    ''
    """
    holds_unless = frozenset(holds_unless)
    return f" for {holds_for(holds_unless, pieces, classes=LIBERTIES)}" if holds_unless else ""


def optimal_in(unit: str, holds_unless: Iterable[str]) -> str:
    """The verdict on a schedule that meets a bound.

    >>> optimal_in("rounds", {STAGES_OVERLAP})
    'optimal in rounds among such schedules'
    """
    return f"optimal in {unit}{' among such schedules' * bool(frozenset(holds_unless))}"


def impossible_on(topology: TopologyLike) -> frozenset[str]:
    """Liberties that no schedule on the network can take, so bounds need not forbid them."""
    topology = as_topology(topology)
    degree = np.bincount(topology.source, minlength=topology.num_nodes)
    relays = topology.num_nodes > 2 and bool((degree[topology.servers] > 1).any())
    can = {ROUTES_PASS_SERVERS: relays, SWITCHES_ADD: topology.num_nodes > topology.num_servers}
    return frozenset(liberty for liberty, possible in can.items() if not possible)
