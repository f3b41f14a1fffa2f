"""Finds schedules and bounds for the instances of the library, and keeps the better ones.

    taskset -c 0 python -m benchmarks.library.make [--time-limit SECONDS] [--only TEXT] [--again]
    taskset -c 0 python -m benchmarks.library.make --only TEXT --scheduler SPEC [--scheduler SPEC]
    taskset -c 0 python -m benchmarks.library.make --certify

A run goes on where another was ended: instances that have a record are left alone, unless `--again`
has the open ones searched anew. A record is replaced only by a better one, as if it were submitted;
schedules are judged by `gradweave_check` alone. `--scheduler` tries these strategies, with their
options, for the open ones, in place of the usual search. `--certify` bounds the open ones anew, by
the kinds of certificates that there are now.
"""

import argparse
import dataclasses
import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gradweave as gw
import gradweave_check as checker
from benchmarks.library.instances import RELEASE, Question, questions
from gradweave.bounds import with_certificates
from gradweave.errors import GradweaveError, InvalidScheduleError
from gradweave.library import Library, Record
from gradweave.library.instance import EXACT_WITHIN, Instance
from gradweave.library.judging import judge
from gradweave.library.store import INDEX
from gradweave.library.submission import Outcome, accept, first_record, schedule_of
from gradweave.schedulers.scheduler import to_spec
from gradweave.schedulers.spec import demand_strategy, from_spec
from gradweave.schedules import Schedule
from gradweave.schedules.file import demand_to_object, to_bytes
from gradweave.schedules.jobs import demand_of
from gradweave.topology import Topology
from gradweave.topology.formats.object import topology_to_object

FOLDER = Path(__file__).parent
BY = f"Gradweave {gw.__version__}"
MAX_TRANSFERS = 400_000
"""Of a schedule that is looked at: larger ones are not kept."""
COSTS_S = (None, 1e-6, 4e-6, 2e-5)
"""Seconds that messages are taken to cost in a search, in turn: the more, the fewer they are. None:
what they cost."""

SUMMED_AT_ONE = ("timed", "planned", "hierarchical", "ring")
"""Strategies that complete each sum at one server, as the rules ask; tried where the usual ones
found a schedule that does not."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A schedule with its certificates, and how it was found."""

    schedule: Schedule
    how: str


def searched(question: Question, topology: Topology, limit_s: float, seed: int) -> Iterator[Found]:
    """Schedules, one after the other, with certificates."""
    if question.model == "rounds":
        kind: Any = question.collective
        found = gw.solve(
            topology, objective="rounds", collective=kind, seed=seed, time_limit=limit_s
        )
        how = f"solve, objective rounds: {to_spec(found.scheduler)}, seed {seed}"
        yield Found(with_certificates(found.schedule), how)
        return
    for cost in COSTS_S:
        taken = topology
        if cost is not None:
            overhead = np.full_like(topology.overhead_s, cost)
            taken = dataclasses.replace(topology, overhead_s=overhead)
        beside = "" if cost is None else f", as if messages cost {cost * 1e6:g} µs"
        for made, name, bound in _in_seconds(question, taken, limit_s, seed):
            if made.num_transfers > MAX_TRANSFERS:
                continue
            schedule = made.replace(topology=topology, certificates=())
            bound = bound if cost is None else None
            size = None if question.jobs else question.bytes
            schedule = with_certificates(schedule, size, bound=bound)
            yield Found(schedule, f"solve, objective seconds: {name}{beside}, seed {seed}")


def _in_seconds(
    question: Question, topology: Topology, limit_s: float, seed: int
) -> Iterator[tuple[Schedule, str, Any]]:
    if question.jobs is not None:
        jobs = question.jobs(topology)
        of_jobs = gw.solve(topology, jobs=jobs, seed=seed, time_limit=limit_s)
        yield of_jobs.schedule, of_jobs.scheduler.name, of_jobs.bound
        return
    kind: Any = question.collective
    for schedulers in (None, SUMMED_AT_ONE):
        found = gw.solve(
            topology,
            collective=kind,
            objective="seconds",
            gradient_bytes=question.bytes,
            schedulers=schedulers,
            seed=seed,
            time_limit=limit_s,
        )
        yield found.schedule, to_spec(found.scheduler), None


def made_by(
    spec: str, question: Question, topology: Topology, limit_s: float, seed: int
) -> Schedule:
    """The schedule of one strategy, without certificates."""
    given: dict[str, Any] = {"seed": seed, "time_limit": limit_s}
    if question.jobs is not None:
        demand = demand_of(topology, question.jobs(topology))
        made = demand_strategy(spec).schedule(topology, demand, **given)
    else:
        kind: Any = question.collective
        made = from_spec(spec).schedule(topology, collective=kind, **given)
    return made.replace(certificates=())


def tried(
    library: Library, instance: Instance, question: Question, spec: str, limit_s: float, seed: int
) -> str:
    """Keeps what one strategy finds, where it is better; a line that says what came of it."""
    made = made_by(spec, question, question.topology(), limit_s, seed)
    taken: float = made.rounds
    if instance.unit == "seconds":
        size = None if question.jobs else instance.bytes
        taken = gw.simulator.seconds(made, size, "events")
    said = f"{taken / float(checker.exact(instance.record.bound)) - 1:.3%}, was {instance.gap:.3%}"
    if taken >= instance.record.value * (1 - EXACT_WITHIN):
        return said
    data = data_of(made)
    outcome = Outcome(instance, judge(data, instance), data)
    how = f"scheduler {spec}, seed {seed}"
    accepted = accept(library, outcome, BY, how, today())
    return f"{said}: {made.num_transfers} transfers, {accepted.status}"


def asked(question: Question, topology: Topology) -> Instance:
    """The instance, without a record."""
    network = checker.Network(topology_to_object(topology))
    demand = None
    if question.jobs is not None:
        content = demand_to_object(demand_of(topology, question.jobs(topology)))
        demand = checker.Asked("demand", content, network).hash
    return Instance(
        id=question.id,
        name=topology.name,
        kind=question.kind,
        collective=question.collective,
        model=question.model,  # pyright: ignore[reportArgumentType]
        bytes=question.bytes,
        network=network.hash,
        demand=demand,
        servers=topology.num_servers,
        switches=len(topology.switches),
        links=topology.num_links,
        record=Record(float("inf"), "0", BY, "", today(), ""),
    )


def today() -> str:
    """The date, in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def data_of(schedule: Schedule) -> dict[str, Any]:
    """A schedule's file, decoded."""
    return json.loads(to_bytes(schedule))


def improved(library: Library, question: Question, limit_s: float, seed: int) -> str:
    """Searches, and keeps what is better; a line that says what came of it."""
    topology = question.topology()
    known = library.instances if (library.path / INDEX).exists() else {}
    instance = known.get(question.id)
    best, said = instance or asked(question, topology), "nothing better"
    packed = b""
    for found in searched(question, topology, limit_s, seed):
        data = data_of(found.schedule)
        try:
            if instance is not None:
                outcome = Outcome(best, judge(data, best), data)
                if outcome.improves or outcome.raises_bound:
                    best = accept(library, outcome, BY, found.how, today())
            else:
                made, content = first_record(data, asked(question, topology))
                if not packed or made.record.value < best.record.value:
                    record = dataclasses.replace(made.record, how=found.how)
                    best, packed = dataclasses.replace(made, record=record), content
        except InvalidScheduleError as error:
            said = f"not kept: {error}"
            continue
        if best.record.sha256 and (best.status == "closed" or question.jobs is None):
            break  # in collectives among all, other costs find smaller schedules, not better ones
    if instance is None and packed:
        library.keep_all([(best, packed)], RELEASE)
    if best is instance or not best.record.sha256:
        return said
    record = best.record
    return f"{best.status}: {record.value:.9g} ≥ {float(checker.exact(record.bound)):.9g}"


def certify(library: Library, only: str) -> Iterator[str]:
    """Certificates of the kinds that there are now, for each open record."""
    for instance in list(library.instances.values()):
        if instance.status == "closed" or only not in instance.id:
            continue
        data = library.schedule(instance)
        schedule = schedule_of(data, instance.id)
        size = instance.bytes if instance.unit == "seconds" and instance.demand is None else None
        bounded = data_of(with_certificates(schedule, size))
        outcome = Outcome(instance, judge(bounded, instance), bounded)
        if outcome.raises_bound:
            accept(library, outcome, BY, "bounded anew", today())
            yield f"{instance.id}: {instance.record.bound} → {outcome.judged.least}"


def main() -> None:
    asking = argparse.ArgumentParser(description=__doc__)
    asking.add_argument("--time-limit", type=float, default=20.0)
    asking.add_argument("--only", default="", help="instances whose ids have this text")
    asking.add_argument("--again", action="store_true", help="search for the open ones anew")
    asking.add_argument("--seed", type=int, default=0)
    asking.add_argument("--scheduler", action="append", default=[], help="try these alone")
    asking.add_argument("--certify", action="store_true")
    given = asking.parse_args()
    library = Library(FOLDER)
    (FOLDER / "schedules").mkdir(exist_ok=True)
    if given.certify:
        for line in certify(library, given.only):
            print(line, flush=True)
        return
    known = library.instances if (FOLDER / INDEX).exists() else {}
    for question in sorted(questions(), key=lambda one: (one.model != "rounds", one.servers)):
        there = known.get(question.id)
        if given.only not in question.id or (there and not (given.again or given.scheduler)):
            continue
        for spec in given.scheduler or [""]:
            there = library.instances.get(question.id) if there else None
            if there and there.status == "closed":
                break
            begun = time.process_time()
            try:
                if there and spec:
                    said = tried(library, there, question, spec, given.time_limit, given.seed)
                else:
                    said = improved(library, question, given.time_limit, given.seed)
            except GradweaveError as error:
                said = f"failed: {error}"
            took = time.process_time() - begun
            print(f"{question.id}: {spec} {said} ({took:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
