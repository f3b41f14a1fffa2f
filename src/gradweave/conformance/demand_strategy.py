"""The promises of every demand strategy, as functions that raise if a promise is broken."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from gradweave.bounds.demands.demand_bound import demand_bound
from gradweave.conformance.finding import Findings, attempt, expect
from gradweave.conformance.networks import network, relabelled
from gradweave.conformance.scheduler import same_schedule
from gradweave.errors import GradweaveError, NoScheduleError
from gradweave.processes.owned import temporary_folder
from gradweave.schedulers.scheduler import DemandStrategy
from gradweave.schedulers.solving.demands import solve_demand
from gradweave.schedules.demand import NAMES, ROOTED, Demand, collective, sends
from gradweave.schedules.file import load
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.seconds import event_seconds
from gradweave.topology.topology import Topology
from gradweave.verifier import verify

SMALL = ("star:4", "ring:4", "leaf_spine:leaves=2,spines=1,servers_per_leaf=2", "irregular")
"""Networks on which other people's strategies are tried."""
BYTES = 1200
"""Size of a message, small enough that no strategy cuts it into many pieces."""


def demands(topology: Topology) -> dict[str, Demand]:
    """Demands of every kind, by name, for a network of at least four servers.

    Each collective among all servers, and among three with all others as relays; parts of
    different sizes, one of them empty; messages; and jobs with overlapping groups.
    """
    everyone = topology.servers.tolist()
    some = everyone[::-1][:3]
    made: dict[str, Demand] = {}
    for name in NAMES:
        made[f"{name}, all"] = _collective(name, everyone)
        made[f"{name}, some"] = _collective(name, some, relays=topology.servers)
    parts = [BYTES * place for place in range(len(everyone))]
    for name in ("scatter", "gather", "all_gather", "reduce_scatter"):
        root = everyone[1] if name in ROOTED else None
        made[f"{name}, lists"] = collective(name, everyone, parts, root=root)
    table = np.outer(parts, [1, *[0] * (len(everyone) - 2), 3])
    made["all_to_all, lists"] = collective("all_to_all", everyone, table.tolist())
    first, second, *_, last = everyone
    messages = sends([(first, last, BYTES), (first, last, 7), (last, second, BYTES)])
    made["messages"] = dataclasses.replace(messages, relays=topology.servers)
    pairs = _collective("all_reduce", some, relays=topology.servers)
    made["overlapping"] = Demand.together([pairs, _collective("all_to_all", everyone)])
    made["all at once"] = Demand.together([_collective(name, everyone) for name in NAMES])
    return made


def _collective(name: str, servers: list[int], relays: object = ()) -> Demand:
    root = servers[-1] if name in ROOTED else None
    return collective(name, servers, BYTES, root=root, relays=relays)  # type: ignore[arg-type]


def is_valid(strategy: DemandStrategy, schedule: Schedule) -> None:
    """The schedule is valid under exactly the rules of the strategy."""
    verdict = verify(schedule, forwarding_servers=strategy.forwards)
    expect(verdict.valid, f"the schedule is invalid: {verdict.violation}")


def is_of_the_demand(strategy: DemandStrategy, schedule: Schedule, demand: Demand) -> None:
    """Its demand is the given one, and its provenance the strategy with its options and seed."""
    got = schedule.demand
    expect(got is not None, "the schedule has no demand")
    assert got is not None
    alike = np.array_equal(got.bytes, demand.bytes) and got.jobs == demand.jobs
    alike = alike and got.contributors.same(demand.contributors)
    alike = alike and got.destinations.same(demand.destinations)
    expect(alike, "the schedule is of another demand than was given")
    made_by = schedule.scheduler
    by = made_by.name, made_by.options, made_by.seed
    expected = (strategy.name, strategy.options(), 0)
    expect(by == expected, f"expected provenance {expected}, got {by}")


def is_not_better_than_possible(schedule: Schedule, demand: Demand) -> None:
    """It takes at least as long as the bound."""
    bound = demand_bound(schedule.topology, demand).seconds
    took = float(event_seconds(schedule)[1].max())
    expect(took >= bound * (1 - 1e-9), f"{took:g} s, where at least {bound:g} s are needed")


def proves_no_more_than_it_takes(strategy: DemandStrategy, schedule: Schedule) -> None:
    """`solve_demand` reports the simulator's seconds, and a bound that does not exceed them."""
    demand = schedule.demand
    assert demand is not None
    found = solve_demand(schedule.topology, demand, strategies=[strategy])
    played = float(event_seconds(found.schedule)[1].max())
    expect(
        abs(found.seconds - played) <= 1e-12 * played,
        f"{found.seconds:g} s are stated, the simulator has {played:g} s",
    )
    expect(
        found.least <= found.seconds * (1 + 1e-9),
        f"its bound, {found.least:g} s, is above what it takes, {found.seconds:g} s",
    )


def is_determined_by_the_seed(strategy: DemandStrategy, schedule: Schedule) -> None:
    """The same seed gives the same schedule."""
    demand = schedule.demand
    assert demand is not None
    again = strategy.schedule(schedule.topology, demand)
    same_schedule(again, schedule, "two schedules of seed 0 differ")


def does_under_other_node_ids(strategy: DemandStrategy, schedule: Schedule) -> None:
    """With other node ids, its schedule is valid and keeps the bound; or it finds none."""
    topology, new_id = relabelled(schedule.topology)
    assert schedule.demand is not None
    demand = schedule.demand.mapped(new_id)
    try:
        anew = strategy.schedule(topology, demand)
    except NoScheduleError:  # the strategy may depend on ids
        return
    is_valid(strategy, anew)
    is_not_better_than_possible(anew, demand)


def is_kept_by_a_file(schedule: Schedule) -> None:
    """A schedule is unchanged by saving and loading, so its options can be written."""
    with temporary_folder() as folder:
        path = Path(folder, "schedule.json")
        schedule.save(path)
        same_schedule(load(path), schedule, "a file of it holds something else")


def made_or_refused(
    strategy: DemandStrategy,
    topology: Topology,
    demand: Demand,
    *,
    time_limit: float | None = None,
) -> Schedule | None:
    """A schedule, or None if the strategy says in one line that it has none."""
    try:
        return strategy.schedule(topology, demand, time_limit=time_limit)
    except NoScheduleError as error:
        expect("\n" not in str(error), f"{str(error)!r:.80} is more than a line")
    except GradweaveError as error:
        expect(False, f"expected NoScheduleError, got {type(error).__name__}: {error}")
    return None


def check_demand_strategy(strategy: DemandStrategy) -> Findings:
    """Checks every promise of a strategy with its options on `SMALL` and `demands`."""
    found = 0
    for name in SMALL:
        topology = network(name)
        for what, demand in demands(topology).items():
            made: list[Schedule] = []
            case = f"{name}, {what}"
            make = partial(_make, strategy, topology, demand, made)
            yield attempt("makes a schedule or refuses", case, make)
            for schedule in made:
                found += 1
                for promise, check in promises(strategy, schedule, demand):
                    yield attempt(promise, case, check)
    some = partial(expect, found, "no schedule of any of these demands")
    yield attempt("finds schedules", ", ".join(SMALL), some)


def promises(
    strategy: DemandStrategy, schedule: Schedule, demand: Demand
) -> Iterator[tuple[str, Callable[[], object]]]:
    """The promises about a schedule that the strategy made with seed 0, and their checks."""
    yield "valid", partial(is_valid, strategy, schedule)
    yield "of the demand", partial(is_of_the_demand, strategy, schedule, demand)
    yield "keeps the bound", partial(is_not_better_than_possible, schedule, demand)
    yield "file", partial(is_kept_by_a_file, schedule)
    yield "states what is played", partial(proves_no_more_than_it_takes, strategy, schedule)
    yield "same seed, same schedule", partial(is_determined_by_the_seed, strategy, schedule)
    yield "other node ids", partial(does_under_other_node_ids, strategy, schedule)


def _make(
    strategy: DemandStrategy, topology: Topology, demand: Demand, made: list[Schedule]
) -> None:
    schedule = made_or_refused(strategy, topology, demand)
    if schedule is not None:
        made.append(schedule)
