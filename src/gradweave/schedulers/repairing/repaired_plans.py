"""Fast plans after a fault, from the unchanged schedule to one with rebalanced shares."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.schedulers.ordering.lower import earliest_rounds
from gradweave.schedulers.packing.packed import schedule_with
from gradweave.schedulers.packing.parts import parts_with
from gradweave.schedulers.packing.paths import may_leave_residual
from gradweave.schedulers.packing.tree_program import Tree
from gradweave.schedulers.repairing.kept import check_start, kept_of, now_ids
from gradweave.schedulers.repairing.known_trees import KnownTree, known_trees
from gradweave.schedulers.repairing.repacking import Repacking, at_old_shares
from gradweave.schedules.schedule import Collective, Schedule
from gradweave.topology.topology import Topology
from gradweave.verifier import verify


@dataclasses.dataclass(frozen=True)
class RepairTuning:
    """Limits and weights of repairs that minimise time; chosen by hand unless noted."""

    keep_within: float = 0.05
    """How much longer than the fastest known plan a plan that keeps more may take and still be the
    answer. A transfer that stays needs no new route or program at its servers. That has no price in
    seconds, so this is a judgement: keeping may cost one part in twenty."""
    slacks: tuple[float, ...] = (0.02, 0.0)
    """Relative excess over the minimum time that the linear program may use to keep bytes where
    they were. Each value costs one solution of the program and simulations of its pieces."""
    residual_weights: tuple[float, ...] = (1.1, 0.75)
    """Weights of residual bandwidth behind switches, as in `packed`: the two that were best there
    most often."""
    max_servers: int = 128
    """Most servers for rebalancing shares: the linear program's time grows with their cube."""
    max_transfers: int = 200_000
    """Larger schedules are not cut finer: simulation time is proportional to transfers."""
    pieces_per_tree: int = 4
    """Pieces are cut in two until each tree has this many on average: with fewer, shares are far
    from those of the linear program. If there are more already, their number stays."""


REPAIR = RepairTuning()


@dataclasses.dataclass(frozen=True, eq=False)
class RepairedPlan:
    """A schedule for the changed network, derived from the schedule before the fault."""

    schedule: Schedule
    seconds: float
    kept: float
    """Share of the earlier schedule's bytes that still move as before."""
    as_before: bool
    """Whether it is the earlier schedule unchanged, with the same order and shares."""


def repaired_plans(
    old: Schedule,
    topology: Topology,
    collective: Collective,
    gradient_bytes: float,
    *,
    seconds_of: Callable[[Schedule], float],
    ready_at_s: NDArray[np.float64],
    stop: Stop,
    least_s: float = 0.0,
) -> list[RepairedPlan]:
    """The possible repairs of a schedule after a fault, timed.

    There are three kinds: the schedule as it was, if it still works; the same trees with only their
    lost hops replaced, in an order for the changed links; and trees whose shares a linear program
    rebalances, starting from the known trees (`Repacking`). The last two exist only if each piece
    moves over one tree to its root and over one tree from it.

    Args:
        old: the schedule before the fault; nodes are matched by label, or by id without labels.
        topology: the network now.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient.
        seconds_of: returns the time of a schedule.
        ready_at_s: [N] seconds at which each server's own gradient is ready.
        stop: after which no further plan is started.
        least_s: lower bound on any plan's seconds, if known. Later plans keep less, so none is
            made once a plan takes at most `RepairTuning.keep_within` longer than the bound.

    Returns:
        The plans in that order, possibly none.

    Raises:
        OptionError: for a schedule of another network.
    """
    check_start(topology, old.topology)
    plans: list[RepairedPlan] = []
    made = _schedules(old, topology, collective, gradient_bytes, ready_at_s, stop)
    for schedule, as_before in made:
        kept = kept_of(old, schedule).bytes_share
        plans.append(RepairedPlan(schedule, seconds_of(schedule), kept, as_before))
        if plans[-1].seconds <= least_s * (1 + REPAIR.keep_within):
            break
    return plans


def most_kept(plans: Sequence[RepairedPlan], fastest_s: float) -> RepairedPlan | None:
    """Among the plans that take little longer than the fastest, the one that keeps most.

    Args:
        plans: the plans to choose from; ties go to the faster plan.
        fastest_s: seconds of the fastest plan known, repaired or not.
    """
    limit = fastest_s * (1 + REPAIR.keep_within)
    within = [plan for plan in plans if plan.seconds <= limit]
    return max(within, key=lambda plan: (plan.kept, -plan.seconds), default=None)


def _schedules(
    old: Schedule,
    topology: Topology,
    collective: Collective,
    gradient_bytes: float,
    ready_at_s: NDArray[np.float64],
    stop: Stop,
) -> Iterator[tuple[Schedule, bool]]:
    """The plans' schedules, and whether each is the earlier schedule unchanged."""
    now = now_ids(topology, old.topology)
    same = as_it_was(old, topology, now) if old.collective == collective else None
    if same is not None:
        yield same, True
    known = known_trees(old, topology, now) if old.collective == collective else None
    if known is None:
        return
    ready = tuple(ready_at_s.tolist()) if ready_at_s.any() else None
    for trees in _packings(known, topology, collective, gradient_bytes, stop):
        parts = parts_with(topology, collective, trees, ready)
        yield (
            schedule_with(
                topology,
                collective,
                gradient_bytes,
                parts,
                _counts(old, len(parts.root)),
                stop,
                waiting=ready is not None,
            ),
            False,
        )
        if stop.reached():
            return


def as_it_was(old: Schedule, topology: Topology, now: NDArray[np.int64]) -> Schedule | None:
    """The earlier schedule, in its order, on the changed network, or None if something is lost.

    Args:
        old: the schedule.
        topology: the network now.
        now: [V of the old network] current node ids, from `now_ids`.
    """
    if not np.array_equal(now, np.arange(topology.num_nodes)):
        return None
    if (topology.links_along(old.route_nodes, old.route_offsets) < 0).any():
        return None
    moved = old.replace(topology=topology, bound=None)
    if verify(moved, forwarding_servers=False).valid:
        return moved
    # A link's capacity may be smaller than before: keep the order, in more rounds.
    moved = moved.replace(round=earliest_rounds(moved))
    return moved if verify(moved, forwarding_servers=False).valid else None


def _packings(
    known: tuple[KnownTree, ...],
    topology: Topology,
    collective: Collective,
    gradient_bytes: float,
    stop: Stop,
) -> Iterator[tuple[Tree, ...]]:
    """Trees with their shares, from those that keep most to the fastest."""
    trees = at_old_shares(topology, known)
    if trees is None:
        return
    yield trees
    if topology.num_servers > REPAIR.max_servers or not math.isfinite(gradient_bytes):
        return
    for residual in REPAIR.residual_weights if may_leave_residual(topology) else (0.0,):
        if stop.reached():
            return
        repacking = Repacking(
            topology,
            collective,
            known,
            residual=residual,
            gradient_bytes=gradient_bytes,
            stop=stop,
        )
        for slack in REPAIR.slacks:
            yield repacking.trees(slack)


def _counts(old: Schedule, trees: int) -> list[int]:
    """Numbers of pieces to try: as many as before, and more if those are few."""
    counts, per_piece = [old.pieces], max(1, old.num_transfers // old.pieces)
    while (
        counts[-1] < REPAIR.pieces_per_tree * trees
        and 2 * counts[-1] * per_piece <= REPAIR.max_transfers
    ):
        counts.append(2 * counts[-1])
    return counts
