"""The strongest bounds with certificates, one for each class of schedules.

A bound that holds for every schedule is often far below a bound for schedules of one kind: two
servers that exchange their data finish in half the time of any tree. So several bounds are
computed, each with its class of schedules; the first bound in each list holds for all schedules.
"""

from collections.abc import Sequence
from typing import Any

from gradweave.bounds.certificates import (
    NEARLY,
    Certified,
    certify_rounds,
    recounted_of_each,
    recounted_parts,
)
from gradweave.bounds.rounds.free_trees import free_trees
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.schedules.schedule import Collective
from gradweave.topology.routes import hop_distances
from gradweave.topology.spec import TopologyLike, as_topology


def certify_rounds_of_each_class(
    topology: TopologyLike, collective: Collective, *, overlap: bool = False
) -> list[Certified]:
    """The strongest bounds on rounds: first for every schedule, then for narrower classes.

    Args:
        topology: the network, of at most `MOST_NODES` nodes.
        collective: a stage, or both.
        overlap: whether to leave out bounds that need a barrier between the stages.

    >>> import gradweave as gw
    >>> for one in certify_rounds_of_each_class(gw.topology.ring(8), "all_reduce"):
    ...     print(f"{one.least}{one.of_class}")
    2
    4 for schedules that route through no other server
    7 for schedules that root a piece at each server
    8 for schedules that root a piece at each server, sum each piece at one server and finish
    every sum before the first copy
    """
    topology = as_topology(topology)
    both = collective == "all_reduce"
    claim: dict[str, Any] = {"unit": "rounds", "collective": collective}
    claim |= {"overlap": True} if both else {}
    grows = {"kind": "growth", "stage": collective}
    ways = {"all_gather": (True,), "reduce_scatter": (False,)}.get(collective, (True, False))
    tried = [
        (claim, {**grows, "leaving": leaving, "switches": switches})
        for leaving in ways
        for switches in ((True, False) if len(topology.switches) else (False,))
    ]
    if both:
        hops = hop_distances(topology)
        source, target = topology.servers[list(divmod(int(hops.argmax()), len(hops)))].tolist()
        ends = {"source": source, "target": target}
        tried.append((claim, {"kind": "depth", "stage": collective, **ends}))
    found = recounted_of_each(topology, None, tried)
    for overlaps in {True, overlap} if both else {False}:
        bound = free_trees(topology, collective, overlap=overlaps)
        certified = certify_rounds(topology, bound, collective)
        found += [] if certified is None else [certified]
    return of_each_class(found)


def certify_each_class(bound: SecondsBound) -> list[Certified]:
    """The strongest bounds on seconds: first for every schedule, then for narrower classes.

    Args:
        bound: from `seconds_bound`, `demand_bound` or a strategy.
    """
    return of_each_class(recounted_parts(bound))


def of_each_class(found: Sequence[Certified]) -> list[Certified]:
    """Bounds that exceed every other bound of the same or a wider class, widest class first.

    Args:
        found: certificates that answer the same question.
    """
    kept = [
        one
        for place, one in enumerate(found)
        if not any(
            other.forbids <= one.forbids
            and other.least >= one.least * (1 - NEARLY)
            and (other.forbids < one.forbids or (other.least, -at) > (one.least, -place))
            for at, other in enumerate(found)
            if other.unit == one.unit and at != place
        )
    ]
    return sorted(kept, key=lambda one: (one.unit, bool(one.forbids), one.least))
