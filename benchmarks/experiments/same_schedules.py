"""Are the schedules and the bounds of every planner the same, bit for bit, as recorded?

    python benchmarks/experiments/same_schedules.py             records everything
    python benchmarks/experiments/same_schedules.py --check     exits with 1 if anything differs
    python benchmarks/experiments/same_schedules.py --check --quick     two networks per case
    python benchmarks/experiments/same_schedules.py --check --cases grown,joint --networks 10
    python benchmarks/experiments/same_schedules.py --cases grown     records these cases again

For changes that must not change a schedule. The cases: every scheduler and bound of an all-reduce
on 60 networks; and on 16 small networks every demand strategy with all eight collectives, several
jobs at once by each objective, repairs, late servers and runtimes. `solve` is the front door with
its defaults.

No case has a time limit, so the seed decides everything. A schedule is identified by a digest of
its columns. A bound is recorded as its value, and as a digest of its exact value, of the schedules
that it holds for and of its certificate. Processor seconds are recorded as well; `--check` compares
their sums per strategy, which mean something only on an idle machine.
"""

import dataclasses
import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.cluster_networks import cluster_network
from benchmarks.command_line import parser_of
from benchmarks.experiments import exact_demands
from benchmarks.random_networks import random_network, well_connected_network
from benchmarks.record import load, record, recorded
from benchmarks.unequal_networks import KINDS, unequal_network, wide_areas
from gradweave.bounds import SecondsBound, certify, seconds_bound
from gradweave.common.stop import UNLIMITED
from gradweave.errors import GradweaveError, TopologyError
from gradweave.schedulers import Packed, plan_unicast, replan
from gradweave.schedulers.spec import demand_strategy, from_spec, split_specs
from gradweave.schedules import Demand, Job, collective
from gradweave.schedules.demand import NAMES, ROOTED
from gradweave.schedules.objective import JOB_OBJECTIVES
from gradweave.schedules.schedule import COLUMNS
from gradweave.topology.faults import slowed, without_links
from gradweave.topology.spec import as_topology

NAME = "same_schedules"
FAMILIES = (
    "ring:6",
    "ring:12",
    "star:9",
    "torus:3x4",
    "torus:3x3x3",
    "hypercube:4",
    "complete:8",
    "bcube:n=4,k=1",
    "dcell:n=4,k=1",
    "fat_tree:k=4",
    "dgx1v",
    "a100:boxes=2",
)
SMALL_FAMILIES = (
    "ring:5",
    "star:4",
    "mesh:2x3",
    "hypercube:3",
    "dgx1v",
    "leaf_spine:leaves=2,spines=2,servers_per_leaf=3,oversubscription=2",
    "a100:boxes=2",
)
MANY = 1 << 30
SCHEDULERS = {
    "symmetric": MANY,
    "grown:restarts=3": MANY,
    "timed:restarts=2": MANY,
    "timed:restarts=2,gradient_bytes=1e8": MANY,
    "merged:tries=3": MANY,
    "merged:tries=2,rule=random,overlap=true": MANY,
    "learned:samples=2": MANY,
    "learned:samples=2,policy=trained": MANY,
    "learned:samples=2,repair=false,trees=fixed": MANY,
    "planned:gradient_bytes=1e8": MANY,
    "planned:plan=even": MANY,
    "packed:gradient_bytes=1e7,pieces=16": 16,
    "hierarchical:gradient_bytes=1e8": MANY,
    "exact:effort=3": 9,
    "ring": MANY,
    "ring:order=hamiltonian,directions=2": MANY,
    "halving_doubling": MANY,
    "recursive_doubling": MANY,
    "binomial": MANY,
    "double_tree": MANY,
    "postal:shape=root": MANY,
    "postal:shape=cross,pieces=8": MANY,
    "postal:shape=hubs": MANY,
    "parameter_server": MANY,
    "central_parameter_server": MANY,
}
"""Schedulers, and the largest number of servers on which each is worth its time."""
DEMAND_STRATEGIES = {
    "direct": MANY,
    "chain": MANY,
    "binomial_tree": MANY,
    "binomial_tree:radix=3": MANY,
    "double_binary_tree": MANY,
    "butterfly": MANY,
    "butterfly:partners=bine": MANY,
    "bruck": MANY,
    "bruck:radix=3": MANY,
    "hierarchical_ring": MANY,
    "postal_tree:tries=20": MANY,
    "disjoint_trees": MANY,
    "joint": MANY,
    "joint:residual=1": MANY,
    "flows": MANY,
    "group": 6,
    "exact:effort=1": 5,
    "exact:effort=1,unit=rounds": 5,
    "ring": MANY,
    "packed:gradient_bytes=1e8": MANY,
    "solve": 6,
}
"""The same for demand strategies. A scheduler plans the group's collective; `solve` is the front
door."""
QUICK_SERVERS = 10
SEED = 7
SIZE = 10**8
"""Bytes of a gradient, and of a job on every other small network."""
SMALL_SIZE = 10**5
"""Bytes of a job on the others, where latencies dominate."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to plan or to bound; a row for each of its networks."""

    name: str
    measure: Callable[[gw.Topology, int], "Result"]
    """Takes a network and its place in the set."""
    small: bool = True
    """Whether it runs on `small_networks`; otherwise on `networks`."""
    most_servers: int = MANY


@dataclasses.dataclass(frozen=True)
class Result:
    """A schedule, its bounds, or both."""

    schedule: gw.Schedule | None = None
    bounds: Sequence[str] = ()
    """Each bound in the form of `stated`."""


def networks() -> Iterator[gw.Topology]:
    """The set: 12 of families, 12 random, 12 like clusters, 24 with unequal links."""
    yield from map(as_topology, FAMILIES)
    for seed in range(8):
        yield random_network(seed, unlike_directions=seed % 2 == 1)
    yield from map(well_connected_network, range(4))
    for seed in range(12):
        yield cluster_network(seed)[1]
    for number in range(4):
        for make in KINDS.values():
            rng = np.random.default_rng([2040, number])
            yield wide_areas()[number] if make is None else make(rng)


def small_networks() -> Iterator[gw.Topology]:
    """16 networks of 4 to 16 servers: 7 of families, the others the smallest of each kind."""
    yield from map(as_topology, SMALL_FAMILIES)
    yield random_network(5, unlike_directions=True)
    yield well_connected_network(4)
    yield cluster_network(14)[1]
    for seed in (18, 20, 21, 5, 97):
        yield unequal_network(seed)[1]
    yield exact_demands.instance(3)[0]


def cases() -> list[Case]:
    """All cases, in the order in which they are measured."""
    of_one = [Case(name, of_scheduler(name), False, most) for name, most in SCHEDULERS.items()]
    of_one += [
        Case("solve", of_solution(objective="rounds"), False, 40),
        Case("solve for seconds", of_solution(objective="seconds", gradient_bytes=SIZE), False, 9),
    ]
    of_one += [
        Case(f"bound {name}", of_bound(collective=name, gradient_bytes=SIZE), False)
        for name in ("all_reduce", "all_gather", "reduce_scatter")
    ]
    of_one.append(Case("bound all_reduce overlap", of_bound(overlap=True), False))
    of_one += [
        Case(f"solve {name} {objective}", of_solution(collective=name, objective=objective))
        for name in ("all_gather", "reduce_scatter")
        for objective in ("rounds", "seconds")
    ]
    of_demand = [
        Case(f"{strategy} {name}", functools.partial(planned, strategy, name), True, most)
        for strategy, most in DEMAND_STRATEGIES.items()
        for name in NAMES
    ]
    of_demand += [Case(f"bound jobs {name}", functools.partial(bounded, name)) for name in NAMES]
    of_demand += [
        Case(f"flows in rounds {name}", functools.partial(in_rounds, name))
        for name in ("scatter", "gather", "all_to_all")
    ]
    of_jobs = [
        Case(f"jobs {objective}", functools.partial(jobs_at_once, objective))
        for objective in JOB_OBJECTIVES
    ]
    of_jobs.append(Case("jobs apart", jobs_apart, True, 6))
    return [
        *of_one,
        Case("bound time_expanded", in_time_slots, True, 6),
        Case("late servers", late_servers),
        *(
            Case(f"solve on {name}", of_solution(objective="seconds", runtime=name), True, 6)
            for name in ("gloo", "nccl")
        ),
        *of_demand,
        *of_jobs,
        Case("repair rounds", functools.partial(repaired, objective="rounds")),
        Case("repair seconds", functools.partial(repaired, objective="seconds")),
        Case("repair jobs", repaired_jobs),
        Case("replan", replanned, True, 6),
    ]


def of_scheduler(name: str) -> Callable[[gw.Topology, int], Result]:
    scheduler = from_spec(name)
    return lambda network, _: Result(scheduler.schedule(network, seed=SEED))


def of_solution(**options: Any) -> Callable[[gw.Topology, int], Result]:
    return lambda network, _: result_of(gw.solve(network, seed=SEED, **options))


def of_bound(**options: Any) -> Callable[[gw.Topology, int], Result]:
    return lambda network, _: Result(None, certified(gw.bound(network, **options)))


def planned(strategy: str, name: str, network: gw.Topology, place: int) -> Result:
    demand = demand_on(network, name, place)
    if strategy == "solve":
        return result_for_jobs(gw.solve(network, jobs=demand, seed=SEED))
    made, proved = demand_strategy(strategy).bounded(network, demand, UNLIMITED, seed=SEED)
    return Result(made, () if proved is None else [of_demand_bound(proved)])


def bounded(name: str, network: gw.Topology, place: int) -> Result:
    return Result(None, certified(gw.bound(network, jobs=demand_on(network, name, place))))


def in_rounds(name: str, network: gw.Topology, place: int) -> Result:
    made = plan_unicast(network, demand_on(network, name, place), "rounds", pieces=2, seed=SEED)
    return Result(made.schedule, [stated("rounds", made.bound.rounds)])


def in_time_slots(network: gw.Topology, _: int) -> Result:
    proved = certify(seconds_bound(network, "all_reduce", SMALL_SIZE).with_slots(8))
    return Result(None, [stated("seconds", proved.least, sorted(proved.forbids))])


def late_servers(network: gw.Topology, place: int) -> Result:
    """One server or two are late by half of the intact bound."""
    ready = np.zeros(network.num_servers)
    intact = gw.bounds.least_seconds(network, SIZE).seconds
    ready[: 1 + place % 2] = intact / 2
    options: dict[str, Any] = {"schedulers": "planned,packed,binomial,postal:shape=root"}
    options |= {"objective": "seconds", "gradient_bytes": SIZE, "ready_at_s": ready}
    return result_of(gw.solve(network, seed=SEED, **options))


def jobs_at_once(objective: Any, network: gw.Topology, place: int) -> Result:
    strategies = None if network.num_servers <= 6 else "direct,joint,chain"
    jobs = jobs_on(network, place)
    options: dict[str, Any] = {"objective": objective, "schedulers": strategies, "seed": SEED}
    return result_for_jobs(gw.solve(network, jobs=jobs, **options))


def jobs_apart(network: gw.Topology, place: int) -> Result:
    return result_for_jobs(
        gw.solve(network, jobs=jobs_on(network, place), schedulers="apart", seed=SEED)
    )


def repaired(network: gw.Topology, place: int, objective: Any) -> Result:
    options: dict[str, Any] = {"objective": objective, "seed": SEED}
    options |= {"schedulers": "grown:restarts=2" if objective == "rounds" else "packed"}
    options |= {"gradient_bytes": SIZE} if objective == "seconds" else {}
    before = gw.solve(network, **options)
    return result_of(gw.solve(faulty(network), start_from=before, **options))


def repaired_jobs(network: gw.Topology, place: int) -> Result:
    options: dict[str, Any] = {
        "jobs": jobs_on(network, place),
        "schedulers": "direct,joint",
        "seed": SEED,
    }
    before = gw.solve(network, **options)
    return result_for_jobs(gw.solve(faulty(network), start_from=before, **options))


def replanned(network: gw.Topology, _: int) -> Result:
    """A link is slowed when half of the schedule has run."""
    before = Packed(gradient_bytes=SIZE).schedule(network, seed=SEED)
    at_s = gw.simulator.seconds(before, SIZE, "events") / 2
    changed = slowed(network, {ends_of(network, 0): 0.5}).topology
    after = replan(before, changed, SIZE, at_s, seed=SEED)
    return Result(after.schedule)


def demand_on(network: gw.Topology, name: str, place: int) -> Demand:
    """A collective among all servers; on every third network, among some that others relay for."""
    group, relays = network.servers, ()
    if place % 3 == 2:
        group, relays = group[: len(group) // 2 + 1], group
    root = int(group[-1]) if name in ROOTED else None
    return collective(name, group, size_at(place), root=root, relays=relays)


def jobs_on(network: gw.Topology, place: int) -> list[Job]:
    """Three jobs of different sizes and weights, of which one is released later."""
    servers, size = network.servers.tolist(), size_at(place)
    half = servers[: len(servers) // 2 + 1]
    return [
        Job("all_reduce", size, servers),
        Job("all_to_all", size // 4, half, relays=servers, weight=2),
        Job("broadcast", size // 2, servers, root=servers[-1], ready_at=size / 1e11, weight=3),
    ]


def size_at(place: int) -> int:
    return SMALL_SIZE if place % 2 else SIZE


def faulty(network: gw.Topology) -> gw.Topology:
    """Without the first link that it can lose and stay connected; if none, with a slow link."""
    for link in range(network.num_links):
        try:
            return without_links(network, [ends_of(network, link)]).topology
        except TopologyError:
            continue
    return slowed(network, {ends_of(network, 0): 0.5}).topology


def ends_of(network: gw.Topology, link: int) -> tuple[int, int]:
    return int(network.source[link]), int(network.target[link])


def result_of(solution: gw.Solution) -> Result:
    """The schedule of a solution, and its bounds on rounds and, if there is one, on seconds."""
    certificates, rounds = list(solution.schedule.certificates), solution.rounds_bound
    bounds = [stated("rounds", rounds.rounds, rounds.kind, sorted(rounds.holds_unless))]
    if solution.timing is not None:
        least = solution.timing.bound
        bounds.append(stated("seconds", least.seconds, least.kind, sorted(least.holds_unless)))
    return Result(solution.schedule, [*bounds, *map(of_certificate, certificates)])


def result_for_jobs(solution: Any) -> Result:
    """The same for jobs."""
    bounds = [of_demand_bound(solution.makespan_bound)]
    if solution.of_objective is not None:
        bounds.append(stated("objective", solution.of_objective.exact))
    return Result(solution.schedule, bounds)


def of_demand_bound(bound: SecondsBound) -> str:
    length = bound.lengths.length.tolist()
    exact = str(bound.lengths.time), bound.since_s, length
    return stated("seconds", bound.seconds, *exact, sorted(bound.holds_unless))


def certified(bounds: Any) -> list[str]:
    """Each bound that `gradweave.bound` states, certified or not."""
    return [
        stated(one.unit, one.least, sorted(one.forbids), getattr(one, "certificate", None))
        for one in bounds.found
    ]


def of_certificate(certificate: Any) -> str:
    claim = certificate["claim"]
    return stated(claim["unit"], Fraction(claim["least"]), certificate)


def stated(unit: str, value: Any, *proof: Any) -> str:
    """A bound in text: unit, value as a float that reads back the same, digest of its proof."""
    exact = json.dumps([str(value), *proof], sort_keys=True, default=str)
    return f"{unit} {float(value)!r} {hashlib.sha256(exact.encode()).hexdigest()[:10]}"


def digest(schedule: gw.Schedule) -> str:
    """A digest of the columns, converted to one type, so that their storage does not count.

    The block of each piece counts only where blocks differ: an all-reduce has the same digest
    whether or not its schedule states a demand.
    """
    sha = hashlib.sha256()
    for name in (*COLUMNS, "shares", *(("block",) if len(schedule.demand or ()) > 1 else ())):
        column = getattr(schedule, name)
        sha.update(b"" if column is None else np.asarray(column).astype(np.int64).tobytes())
    return sha.hexdigest()[:20]


def entry(case: Case, network: gw.Topology, place: int) -> str:
    """The digest of the schedule and the bounds; or the name of the error."""
    try:
        result = case.measure(network, place)
    except GradweaveError as error:
        return type(error).__name__
    return "; ".join(("-" if result.schedule is None else digest(result.schedule), *result.bounds))


class Runs:
    """The networks that each case is measured on.

    Args:
        first: only that many networks of each set.
        quick: only two networks per case, of at most `QUICK_SERVERS`, which change from case to
            case.
    """

    def __init__(self, first: int | None = None, quick: bool = False) -> None:
        self._small, self._large = list(small_networks()), list(networks())
        self._first, self.quick = first, quick
        self.whole = first is None and not quick

    def of(self, case: Case) -> list[gw.Topology]:
        return self._small if case.small else self._large

    def places(self, case: Case, number: int) -> list[int]:
        """The places of the networks for the case with that number."""
        most = min(case.most_servers, QUICK_SERVERS if self.quick else MANY)
        named = list(enumerate(self.of(case)))[: self._first]
        fit = [place for place, network in named if network.num_servers <= most]
        if not self.quick or len(fit) <= 2:
            return fit
        return [fit[(number + step) % len(fit)] for step in (0, len(fit) // 2)]

    def rows(self, asked: Iterable[tuple[int, Case]]) -> Iterator[dict[str, Any]]:
        """A row per case; loops are compiled on a network that does not count."""
        for number, case in asked:
            if not self.quick:
                entry(case, as_topology("ring:4"), 0)
            every, began = self.of(case), time.process_time()
            found: list[str | None] = [None] * len(every)
            for place in self.places(case, number):
                found[place] = entry(case, every[place], place)
            seconds = round(time.process_time() - began, 2)
            yield {"case": case.name, "found": found, "seconds": seconds}


def difference(now: str, before: str | None) -> str:
    """The differences between two entries, in one line; empty if there are none.

    >>> difference("1f; seconds 0.25 bb", "1f; seconds 0.5 aa")
    'bound SMALLER: seconds 0.25, was 0.5'
    """
    if before is None:
        return "not recorded"
    (schedule, *bounds), (other, *others) = now.split("; "), before.split("; ")
    changes = [] if schedule == other else [f"schedule {schedule}, was {other}"]
    if len(bounds) != len(others):
        changes.append(f"{len(bounds)} bounds, was {len(others)}")
    for one, old in zip(bounds, others, strict=False):
        (unit, value, _), (_, was, _) = one.split(), old.split()
        if float(value) != float(was):
            which = "SMALLER" if float(value) < float(was) else "larger"
            changes.append(f"bound {which}: {unit} {value}, was {was}")
        elif one != old:
            changes.append(f"another proof of {unit} {value}")
    return "; ".join(changes)


def differences(asked: Sequence[tuple[int, Case]], runs: Runs) -> int:
    """Compares with the record; prints each difference, and the seconds per strategy."""
    known = {row["case"]: row for row in load(NAME)["rows"]}
    different, count = 0, 0
    spent: dict[str, list[float]] = {}
    for row, (_, case) in zip(runs.rows(asked), asked, strict=True):
        old = known.get(case.name, {"found": [None] * len(row["found"]), "seconds": 0.0})
        for network, now, before in zip(runs.of(case), row["found"], old["found"], strict=True):
            count += now is not None
            if now is not None and (change := difference(now, before)):
                different += 1
                print(f"DIFFERS: {case.name} on {network.name}: {change}", flush=True)
        sums = spent.setdefault(case.name.split()[0], [0.0, 0.0])
        sums[:] = sums[0] + row["seconds"], sums[1] + old["seconds"]
    for strategy, (now, before) in spent.items() if runs.whole else ():
        print(f"{strategy}: {now:.2f} s, was {before:.2f}")
    print(f"{different} of {count} differ")
    return different


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the record")
    parser.add_argument("--quick", action="store_true", help="check two networks per case")
    parser.add_argument("--networks", type=int, help="check only that many networks of each set")
    parser.add_argument("--cases", default="", help="only these, by the beginning of their names")
    options = parser.parse_args()
    every, begins = cases(), tuple(split_specs(options.cases)) or ("",)
    asked = [one for one in enumerate(every) if one[1].name.startswith(begins)]
    runs = Runs(options.networks, options.quick)
    if options.check:
        sys.exit(differences(asked, runs) > 0)
    if not runs.whole:
        parser.error("expected --check next to --quick or --networks: all networks are recorded")
    rows = {row["case"]: row for row in recorded(NAME, ["rows"])[0].get("rows", [])}
    for row in runs.rows(asked):
        print(f"{row['case']}: {row['seconds']} s", flush=True)
        rows[row["case"]] = row
    record(NAME, seeds=[SEED], rows=[rows[case.name] for case in every if case.name in rows])


if __name__ == "__main__":
    main()
