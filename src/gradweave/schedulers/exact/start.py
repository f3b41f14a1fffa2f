"""All-gathers to start an exact search from: those in a given schedule, and a quick one."""

import numpy as np

from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.schedulers.exact.trees import Choice
from gradweave.schedulers.ordering.list_scheduling_in_rounds import Rule, list_schedule
from gradweave.schedules.compose import reverse
from gradweave.schedules.flow_tree import FlowTrees, Workloads
from gradweave.schedules.schedule import COPY, REDUCE, Provenance, Schedule
from gradweave.simulator.rounds import schedule_from_rounds
from gradweave.verifier import verify


def quick(choice: Choice, seed: int, least: int) -> Schedule:
    """An all-gather on the pinned shortest-path trees, by list scheduling.

    Args:
        choice: the network and the roots.
        seed: the seed of the orders tried.
        least: rounds to stop at.
    """
    trees = FlowTrees.shortest_path(choice.topology, choice.root)
    workloads = Workloads.of(trees, "all_gather")
    found = []
    # As `Merged` by default, with fewer tries: the solver improves on it.
    for attempt in range(4):
        rounds = list_schedule(
            workloads, Rule.MOST_LOADED, seed * 4 + attempt, target=least, swap_passes=8
        )
        assert rounds is not None
        found.append(rounds)
        if rounds.max() < least:
            break
    best = min(found, key=lambda rounds: int(rounds.max()))
    return schedule_from_rounds(workloads, best, Provenance("merged"))


def gathers(schedule: Schedule, choice: Choice) -> list[Schedule]:
    """The all-gathers in a schedule, for the network and the roots of a choice; not verified.

    A reduce-scatter is a reversed all-gather, and an all-reduce contains two.

    Args:
        schedule: any schedule on as many nodes; its network may have other links.
        choice: the network and roots that they are for.

    Raises:
        OptionError: if its nodes or pieces differ.
    """
    if schedule.topology.num_nodes != choice.topology.num_nodes:
        raise OptionError(
            f"start_from: expected a schedule for {choice.topology.num_nodes} nodes, got one for "
            f"{schedule.topology.num_nodes}"
        )
    by_root = np.argsort(schedule.root, kind="stable")
    if not np.array_equal(schedule.root[by_root], choice.root):
        raise OptionError(
            f"start_from: expected {len(choice.root)} pieces, equally many per server, got "
            f"{counted(schedule.pieces, 'piece')} rooted elsewhere; set pieces_per_server to match"
        )
    number = np.argsort(by_root)
    stages = []
    for op in (COPY, REDUCE):
        rows = np.flatnonzero(schedule.op == op)
        if rows.size:
            stage = schedule.take(
                rows,
                topology=choice.topology,
                collective="all_gather" if op == COPY else "reduce_scatter",
                root=choice.root,
                round=schedule.round[rows] - schedule.round[rows[0]],
                piece=number[schedule.piece[rows]],
                shares=None,
            )
            stages.append(stage if op == COPY else reverse(stage))
    return stages


def fits(gather: Schedule, choice: Choice) -> bool:
    """Whether an all-gather is valid, and uses only allowed trees."""
    links, transfer = gather.route_links
    if (links < 0).any() or not choice.allowed[gather.piece[transfer], links].all():
        return False
    return verify(gather, forwarding_servers=False).valid
