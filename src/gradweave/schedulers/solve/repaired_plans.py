"""Plans in seconds after a fault: from the schedule as it was to shares that are balanced anew."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.solve.kept import check_start, kept_of, now_ids
from gradweave.schedulers.solve.variants import one_a_link
from gradweave.schedulers.unequal.known_trees import KnownTree, known_trees
from gradweave.schedulers.unequal.linear_program import Tree
from gradweave.schedulers.unequal.packed import schedule_with
from gradweave.schedulers.unequal.parts import parts_with
from gradweave.schedulers.unequal.paths import may_leave_residual
from gradweave.schedulers.unequal.repacking import Repacking, at_old_shares
from gradweave.stop import Stop
from gradweave.topology.topology import Topology
from gradweave.verify import verify


@dataclasses.dataclass(frozen=True)
class RepairTuning:
    """Limits and weights of repairs in seconds, chosen by hand unless said."""

    keep_within: float = 0.05
    """How much longer than the fastest plan known another may take that keeps more, and still be
    the answer. A transfer that stays needs no new route or program at its servers; that
    has no price in seconds, so this is a judgement: what is kept may cost one part in twenty."""
    slacks: tuple[float, ...] = (0.02, 0.0)
    """How much more than the least time, relative to it, the linear program may take for bytes that
    stay where they were. Each costs one solution of it, and the pieces' simulations."""
    residual_weights: tuple[float, ...] = (1.1, 0.75)
    """Of residual bandwidth behind switches, as `packed` weighs it: the two that were best most
    often there."""
    max_servers: int = 128
    """Up to which shares are balanced anew: the linear program's time grows with their cube."""
    max_transfers: int = 200_000
    """Schedules with more are not cut finer: simulation takes time in proportion."""
    pieces_per_tree: int = 4
    """Pieces for each tree up to which they are cut in two once more: with fewer, shares are far
    from those of the linear program. Where there are more, their number stays."""


REPAIR = RepairTuning()


@dataclasses.dataclass(frozen=True, eq=False)
class RepairedPlan:
    """A schedule for the network as it is now that is made of the one before."""

    schedule: Schedule
    seconds: float
    kept: float
    """Part of the bytes of the one before that go as they did."""
    as_before: bool
    """Whether it is that one, in its own order and shares."""


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
    """What may become of a schedule after a fault, timed.

    The schedule as it was, if it still works; the same trees with only lost hops replaced, in an
    order for the links as they are now; and trees whose shares a linear program balances anew, that
    starts with the known trees (`Repacking`). The last two exist where each piece moves over one
    tree to its root and one from it.

    Args:
        old: the schedule before; nodes are the same by label, or by id where there are no labels.
        topology: the network now.
        collective: a stage, or both.
        gradient_bytes: size of the whole gradient.
        seconds_of: the time of a schedule.
        ready_at_s: [N] seconds at which each server's own gradient is ready.
        stop: after which no further plan is begun.
        least_s: seconds that any plan takes, if known: later plans keep less, and none is made once
            one takes at most `RepairTuning.keep_within` longer than that.

    Returns:
        The plans, in that order; maybe none.

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
    """The plan that keeps most of those that take little longer than the fastest.

    Args:
        plans: to choose from; the faster of equals.
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
    """The plans' schedules, and whether each is the one before."""
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
    """The schedule on the network as it is now, in its own order; None where it lost something.

    Args:
        old: the schedule.
        topology: the network now.
        now: [V of the old network] as `now_ids` returns it.
    """
    if not np.array_equal(now, np.arange(topology.num_nodes)):
        return None
    if (topology.links_along(old.route_nodes, old.route_offsets) < 0).any():
        return None
    moved = old.replace(topology=topology, bound=None)
    if verify(moved, forwarding_servers=False).valid:
        return moved
    # Where a link has a smaller capacity than it had: the same order in more rounds.
    moved = moved.replace(round=one_a_link(moved))
    return moved if verify(moved, forwarding_servers=False).valid else None


def _packings(
    known: tuple[KnownTree, ...],
    topology: Topology,
    collective: Collective,
    gradient_bytes: float,
    stop: Stop,
) -> Iterator[tuple[Tree, ...]]:
    """Trees with their shares, from those that keep most to those that take least time."""
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
    """Numbers of pieces to try: as many as there were, and more where those are few."""
    counts, per_piece = [old.pieces], max(1, old.num_transfers // old.pieces)
    while (
        counts[-1] < REPAIR.pieces_per_tree * trees
        and 2 * counts[-1] * per_piece <= REPAIR.max_transfers
    ):
        counts.append(2 * counts[-1])
    return counts
