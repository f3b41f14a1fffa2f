"""The promises of every scheduler, as functions that raise if a promise is broken."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from gradweave.conformance.finding import Findings, attempt, expect
from gradweave.conformance.networks import SMALL, network, relabelled
from gradweave.errors import ConformanceError, NoScheduleError
from gradweave.processes.owned import temporary_folder
from gradweave.schedulers.scheduler import Scheduler, Traits, to_spec
from gradweave.schedulers.solving.solution import bound_for
from gradweave.schedulers.spec import from_spec
from gradweave.schedules.file import load
from gradweave.schedules.schedule import COLLECTIVES, COPY, REDUCE, Schedule
from gradweave.topology.topology import Topology
from gradweave.verifier import verify

COLUMNS = ("root", "round", "piece", "source", "target", "op", "route_nodes", "route_offsets")
"""Columns that equal schedules share, in addition to network and collective."""


def is_valid(scheduler: Scheduler, schedule: Schedule) -> None:
    """The schedule is valid under exactly the rules of the strategy."""
    verdict = verify(
        schedule,
        forwarding_servers=scheduler.traits.forwards,
        aggregating_switches=scheduler.traits.aggregates,
    )
    expect(verdict.valid, f"the schedule is invalid: {verdict.violation}")


def says_who_made_it(scheduler: Scheduler, schedule: Schedule, seed: int = 0) -> None:
    """Its provenance is the strategy, its options and the seed; its network is the given one."""
    made_by = schedule.scheduler
    got = (made_by.name, made_by.options, made_by.seed)
    expected = (scheduler.name, scheduler.options(), seed)
    expect(got == expected, f"expected provenance {expected}, got {got}")


def is_not_better_than_possible(scheduler: Scheduler, schedule: Schedule) -> int:
    """Checks that a schedule has at least as many rounds as the bound, which is returned.

    The bound is the one for schedules with the freedoms that the strategy declares.
    """
    bound = bound_for(schedule.topology, schedule.collective, [scheduler]).rounds
    expect(
        schedule.rounds >= bound,
        f"{schedule.rounds} rounds, where at least {bound} are needed: its traits leave out a "
        "freedom that it takes",
    )
    return bound


def is_determined_by_the_seed(scheduler: Scheduler, schedule: Schedule, seed: int = 0) -> None:
    """The same seed gives the same schedule."""
    again = scheduler.schedule(schedule.topology, collective=schedule.collective, seed=seed)
    expect(again.topology is schedule.topology, "the schedule is of another network than was given")
    same_schedule(again, schedule, f"two schedules of seed {seed} differ")


def holds_renamed(scheduler: Scheduler, schedule: Schedule) -> None:
    """It stays valid if nodes are renamed in the network and in the schedule."""
    topology, new_id = relabelled(schedule.topology)
    columns = ("root", "source", "target", "route_nodes")
    renamed = {column: new_id[getattr(schedule, column)] for column in columns}
    is_valid(scheduler, schedule.replace(topology=topology, **renamed))


def does_under_other_node_ids(scheduler: Scheduler, schedule: Schedule) -> None:
    """On the renamed network its schedule is valid and keeps the bound; or it finds none."""
    topology, _ = relabelled(schedule.topology)
    try:
        anew = scheduler.schedule(topology, collective=schedule.collective, seed=0)
    except NoScheduleError:  # for example a strategy that tries ids in order
        return
    is_valid(scheduler, anew)
    is_not_better_than_possible(scheduler, anew)


def goes_in_stages(scheduler: Scheduler, schedule: Schedule) -> None:
    """An all-reduce's stages add up to its rounds unless the strategy overlaps them."""
    if schedule.collective != "all_reduce" or scheduler.traits.overlaps:
        return
    total = sum(schedule.stages.values())
    expect(total == schedule.rounds, f"its stages have {total} rounds, it has {schedule.rounds}")


def copies_come_last(schedule: Schedule) -> None:
    """No copy takes place before the reduce-scatter's last round has ended."""
    reduces = schedule.round[schedule.op == REDUCE]
    copies = schedule.round[schedule.op == COPY]
    expect(len(reduces), "nothing is reduced")
    expect(
        not len(copies) or reduces.max() < copies.min(),
        "a copy comes before the last addition; say so by Traits(overlaps=True)",
    )


def is_kept_by_a_file(scheduler: Scheduler, schedule: Schedule) -> None:
    """A schedule is unchanged by saving and loading, so its options can be written."""
    with temporary_folder() as folder:
        path = Path(folder, "schedule.json")
        schedule.save(path)
        same_schedule(load(path), schedule, "a file of it holds something else")


def is_written_as_a_specification(scheduler: Scheduler) -> None:
    """Its options as text make the same strategy."""
    _, _, options = to_spec(scheduler).partition(":")
    kind = type(scheduler)
    spec = f"{kind.__module__}:{kind.__qualname__}" + (f":{options}" if options else "")
    again = from_spec(spec)
    expect(again == scheduler, f"{to_spec(scheduler)} makes {again}")


def has_traits(scheduler: Scheduler) -> None:
    """Its traits are `Traits`."""
    traits = scheduler.traits
    expect(isinstance(traits, Traits), f"traits: expected Traits, got {type(traits).__name__}")


def check_scheduler(scheduler: Scheduler) -> Findings:
    """Checks every promise of a strategy with its options on `networks.SMALL`."""
    yield attempt("has traits", scheduler.name, partial(has_traits, scheduler))
    yield attempt(
        "specification", scheduler.name, partial(is_written_as_a_specification, scheduler)
    )
    found = 0
    for name in SMALL:
        topology = network(name)
        for collective in COLLECTIVES:
            made: list[Schedule] = []
            case = f"{name}, {collective}"
            yield attempt(
                "makes a schedule", case, partial(_make, scheduler, topology, collective, made)
            )
            for schedule in made:
                found += 1
                for check, promise in _PROMISES.items():
                    yield attempt(check, case, partial(promise, scheduler, schedule))
    some = partial(expect, found, "no schedule on any of these networks")
    yield attempt("finds schedules", ", ".join(SMALL), some)


def _copies_after(scheduler: Scheduler, schedule: Schedule) -> None:
    goes_in_stages(scheduler, schedule)
    if schedule.collective == "all_reduce" and not scheduler.traits.overlaps:
        copies_come_last(schedule)


def _other_seed(scheduler: Scheduler, schedule: Schedule) -> None:
    other = scheduler.schedule(schedule.topology, collective=schedule.collective, seed=1)
    is_valid(scheduler, other)
    says_who_made_it(scheduler, other, seed=1)


_PROMISES: dict[str, Callable[[Scheduler, Schedule], object]] = {
    "valid": is_valid,
    "provenance": says_who_made_it,
    "keeps the bound": is_not_better_than_possible,
    "stages": _copies_after,
    "same seed, same schedule": is_determined_by_the_seed,
    "another seed": _other_seed,
    "renamed": holds_renamed,
    "other node ids": does_under_other_node_ids,
    "file": is_kept_by_a_file,
}


def _make(scheduler: Scheduler, topology: Topology, collective: str, made: list[Schedule]) -> None:
    """Makes a schedule, or none if the strategy says that it has none."""
    try:
        schedule = scheduler.schedule(topology, collective=collective, seed=0)  # type: ignore[arg-type]
    except NoScheduleError:
        return
    expect(isinstance(schedule, Schedule), f"expected a Schedule, got {type(schedule).__name__}")
    expect(schedule.collective == collective, f"asked for {collective}, got {schedule.collective}")
    made.append(schedule)


def same_schedule(one: Schedule, other: Schedule, fault: str) -> None:
    """Two schedules are the same except for their bounds.

    Args:
        one: a schedule.
        other: another schedule.
        fault: fault to report if they differ.
    """
    if not one.topology.same_network(other.topology):
        raise ConformanceError(f"{fault}: networks")
    for column in COLUMNS:
        if not np.array_equal(getattr(one, column), getattr(other, column)):
            raise ConformanceError(f"{fault}: {column}")
    plain = [msgspec.json.encode(msgspec.to_builtins(each.scheduler)) for each in (one, other)]
    expect(plain[0] == plain[1], f"{fault}: provenance")
