"""``gradweave solve``: find a schedule, verify it, report its rounds, bound and seconds."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from gradweave.bounds import with_certificates
from gradweave.bounds.classes import optimal_in
from gradweave.bounds.scale import has_equal_links
from gradweave.cli.console import Progress, print_json, print_lines, print_table, table
from gradweave.cli.groups import command
from gradweave.cli.implicit_plans import is_implicit, solve_implicit
from gradweave.cli.options import json_option, network_of, refuse, writable
from gradweave.cli.planned_jobs import (
    asked_jobs,
    job_lines,
    job_option,
    job_summary,
    mesh_option,
    search_jobs,
)
from gradweave.cli.sizes import sizes_option
from gradweave.cli.solving import (
    SearchOptions,
    as_planned,
    objective_of,
    ready_times_of,
    search,
    solving_options,
)
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.report.link_use import use_fields, use_lines
from gradweave.report.rounds_bound import SEARCHED, rounds_verdict
from gradweave.schedulers.repairing.under_way import replan
from gradweave.schedulers.scheduler import to_spec
from gradweave.schedulers.solving.own import own_schedule
from gradweave.schedulers.solving.solution import Attempt, Solution
from gradweave.schedulers.solving.solve import Objective
from gradweave.schedulers.solving.timing import Timing
from gradweave.schedules.file import load
from gradweave.schedules.planned_for import planned_for
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.bandwidths import algorithm_bandwidth, bus_bandwidth
from gradweave.simulator.runtime import runtime_of
from gradweave.simulator.seconds import Model, seconds
from gradweave.simulator.sequential_steps import steps
from gradweave.topology.units import format_rate, format_seconds, format_size, parse_seconds

if TYPE_CHECKING:
    from rich.table import Table

_MODELS: tuple[tuple[Model, str], ...] = (
    ("rounds", "with a barrier per round"),
    ("events", "without"),
    ("fair", "with links shared fairly"),
)
_SHOWN = 3
"""Number of other strategies whose results are printed."""
_OF_GPUS = 20e9
"""Bytes per second of a link from which hosts are assumed to have GPUs and run NCCL, not gloo."""
_NEAR = 0.05
"""Gap to the lower bound below which no hint recommends seconds."""

_ENDED = {"time": ", when time was up", "interrupt": ", until Ctrl-C"}
"""The end of the line about the search, by why it stopped."""


@command(
    examples=[
        "bcube:n=4,k=1 --output plan.json",
        "cluster.yaml --runtime gloo --size 1MB..64MB",
        "dgx1v --collective all_to_all --size 64MB",
    ]
)
@click.argument("network")
@solving_options
@sizes_option("100MB", "Predict and minimise the time for a gradient of this size.")
@click.option(
    "--changed-at",
    metavar="SECONDS",
    help="The network became NETWORK when the schedule of --start-from had run for this time, such "
    "as 50ms; plan the rest again. Needs --objective seconds.",
)
@click.option("--fair", is_flag=True, help="Also predict the time if links are shared fairly.")
@click.option(
    "--implicit",
    is_flag=True,
    help="Make an implicit schedule: one tree, moved by the network's symmetries. Always on "
    "above 16,384 servers of a family.",
)
@job_option
@mesh_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write the schedule to this file, .json or .json.gz.",
)
@json_option
def solve(
    network: str,
    gradient_bytes: tuple[int, ...],
    changed_at: str | None,
    fair: bool,
    implicit: bool,
    jobs: tuple[str, ...],
    mesh: str | None,
    output: Path | None,
    as_json: bool,
    **given: Unpack[SearchOptions],
) -> None:
    """Find a schedule for NETWORK and bound its gap.

    NETWORK is a specification such as bcube:n=4,k=1 or torus:4x4, or the path of a file. Several
    sizes make a table of the best schedule for each. A search for jobs ends after 60 s unless
    --time-limit is given.
    """
    writable(output, ".json", ".json.gz")
    if mesh is not None and not jobs:
        raise OptionError("--mesh: expected --job with it, such as all_reduce:bytes=1GB,axis=dp")
    if implicit:
        refuse(["jobs", "mesh"], "no --implicit with it")
    elif jobs := asked_jobs(network, jobs, gradient_bytes, given):
        _jobs(network, jobs, mesh, output, as_json, given)
        return
    first, *others = gradient_bytes
    if others:
        only_one = {"changed_at": changed_at, "fair": fair or None, "implicit": implicit or None}
        _refuse_several(**only_one, output=output)
        _sweep(network, gradient_bytes, as_json, given)
    else:
        _one(network, first, changed_at, fair, implicit, output, as_json, given)


def _with_seconds_certified(solution: Solution) -> Schedule:
    """The schedule, with a certificate of its time if time was the objective."""
    schedule, timing = solution.schedule, solution.timing
    size = planned_for(schedule).gradient_bytes
    known = None if timing is None else timing.bound
    return schedule if size is None else with_certificates(schedule, size, bound=known)


def _jobs(
    network: str,
    jobs: tuple[str, ...],
    mesh: str | None,
    output: Path | None,
    as_json: bool,
    given: SearchOptions,
) -> None:
    """Several collectives at once."""
    with Progress(f"scheduling {network}") as progress:
        solution = search_jobs(network, jobs, mesh, progress, given)
        if output is not None:
            progress(f"writing {output}")
            solution.schedule.save(output)  # even if its certificates fail
            with_certificates(solution.schedule, bound=solution.makespan_bound).save(output)
    if as_json:
        print_json(job_summary(solution, output))
    else:
        print_lines(*job_lines(solution, output))


def _refuse_several(**given: object) -> None:
    """Refuses options of a single schedule."""
    for name, value in given.items():
        if value is not None:
            raise OptionError(f"--{name.replace('_', '-')}: expected one --size with it")


def _sweep(network: str, sizes: tuple[int, ...], as_json: bool, given: SearchOptions) -> None:
    """The best schedule for each size, in seconds."""
    if given["objective"] == "rounds":
        raise OptionError("--size: rounds do not depend on size; several need --objective seconds")
    given = {**given, "objective": "seconds"}
    solutions: list[Solution] = []
    with Progress(f"scheduling {network}") as progress:
        for size in sizes:
            say = functools.partial(_say, progress, format_size(size))
            solutions.append(search(network, size, say, given))
            if solutions[-1].stopped == "interrupt":
                break
    if as_json:
        print_json({"sizes": [_summary(one, None, "seconds") for one in solutions]})
    else:
        print_lines(solutions[0].schedule.topology.name)
        print_table(_sweep_table(solutions))


def _say(progress: Progress, size: str, doing: str) -> None:
    progress(f"{size}: {doing}")


def _sweep_table(solutions: Sequence[Solution]) -> "Table":
    """The columns of nccl-tests, and the lower bound."""
    shown = table(
        ["size", "time", "least", "above it", "algbw", "busbw", "found by", "pieces", "search"]
    )
    for one in solutions:
        assert one.timing is not None  # the objective seconds always has one
        size, taken, made = one.timing.gradient_bytes, one.timing.seconds, one.schedule
        bus = bus_bandwidth(size, taken, made.topology.num_servers, made.collective)
        shown.add_row(
            format_size(size),
            format_seconds(taken),
            format_seconds(one.timing.bound.seconds),
            f"{one.timing.gap:.1%}",
            format_rate(algorithm_bandwidth(size, taken)),
            format_rate(bus),
            one.scheduler.name,
            f"{made.pieces:,}",
            f"{one.wall_s:.2f} s",
        )
    return shown


def _one(
    network: str,
    gradient_bytes: float,
    changed_at: str | None,
    fair: bool,
    implicit: bool,
    output: Path | None,
    as_json: bool,
    given: SearchOptions,
) -> None:
    """One size's schedule."""
    given, gradient_bytes, as_planned_line = as_planned(given, gradient_bytes)
    if changed_at is not None:
        at_s = parse_seconds("changed-at", changed_at)
        _replan(network, gradient_bytes, at_s, output, as_json, given)
        return
    with Progress(f"scheduling {network}") as progress:
        topology = network_of(network, given)
        if is_implicit(topology, implicit, given):
            solve_implicit(topology, gradient_bytes, output, as_json, given, progress)
            return
        solution = search(topology, gradient_bytes, progress, given)
        if output is not None:
            progress(f"writing {output}")
            solution.schedule.save(output)  # even if its certificates fail
            _with_seconds_certified(solution).save(output)
    ready = ready_times_of(solution.schedule.topology, given["ready_at"])
    if as_json:
        summary = _summary(solution, output, objective_of(solution.schedule.topology, given))
        summary |= use_fields(solution.schedule, gradient_bytes, ready)
        summary |= {"ready_at_s": ready} if ready else {}
        if fair:
            shared_s = seconds(solution.schedule, gradient_bytes, "fair", ready_at_s=ready)
            summary |= {"gradient_bytes": gradient_bytes, "fair_seconds": shared_s}
        print_json(summary)
    else:
        lines = _lines(solution, gradient_bytes, ready, fair, output, given)
        print_lines(*lines, *filter(None, [as_planned_line]))


def _replan(
    network: str,
    gradient_bytes: float,
    at_s: float,
    output: Path | None,
    as_json: bool,
    given: SearchOptions,
) -> None:
    """Plans the rest of a running schedule, and prints the gain."""
    if given["start_from"] is None or given["objective"] == "rounds":
        raise OptionError(
            "--changed-at: expected --start-from FILE, the schedule that is under way, and "
            "--objective seconds"
        )
    with Progress(f"scheduling {network}") as progress:
        topology = network_of(network, given)
        progress("planning what has not begun")
        limit, seed = given["time_limit"], given["seed"]
        under_way = load(given["start_from"])
        found = replan(under_way, topology, gradient_bytes, at_s, seed=seed, time_limit=limit)
        if output is not None:
            progress(f"writing {output}")
            found.schedule.save(output)
    if as_json:
        summary = {
            "topology": topology.name,
            "gradient_bytes": gradient_bytes,
            "changed_at_s": at_s,
            "seconds": found.seconds,
            "as_before_s": found.as_before_s,
            "replanned_share": found.replanned_share,
            "verified": True,
            "output": None if output is None else str(output),
        }
        print_json(summary)
        return
    lines = [
        f"{format_size(gradient_bytes)}, links changed after {format_seconds(at_s)}: "
        f"{format_seconds(found.seconds)} in all, {format_seconds(found.as_before_s)} as planned "
        "before",
        f"planned again: {found.replanned_share:.0%} of the gradient, verified",
    ]
    print_lines(*lines, *([] if output is None else [f"written to {output}"]))


def _summary(solution: Solution, output: Path | None, objective: Objective) -> dict[str, Any]:
    best = solution.schedule
    summary = {
        "topology": best.topology.name,
        "scheduler": to_spec(solution.scheduler),
        "collective": best.collective,
        "servers": best.topology.num_servers,
        "links": best.topology.num_links,
        "rounds": best.rounds,
        "stages": best.stages,
        "steps": steps(best),
        "bound": _bound(solution),
        "optimal": solution.optimal,
        "optimal_in": list(solution.optimal_in),
        "verified": True,  # Every scheduler verifies before it returns.
        "wall_s": round(solution.wall_s, 4),
        "stopped": solution.stopped,
        "output": None if output is None else str(output),
    }
    if solution.kept is not None:
        names = "kept_transfers", "start_transfers", "kept_bytes_share"
        summary |= dict(zip(names, solution.kept, strict=True))
    if solution.repair is not None:
        summary["repair"] = dataclasses.asdict(solution.repair)
    if solution.timing is not None:
        summary |= _timing(solution.timing)
    if objective == "seconds":
        summary |= _timed_attempts(solution.attempts)
    if solution.runtime is not None:
        summary["runtime"] = dataclasses.asdict(solution.runtime)
    return summary


def _bound(solution: Solution) -> dict[str, Any] | None:
    """The bound on rounds, or None if the rounds do not compare with a bound."""
    bound = solution.rounds_bound
    if bound is None or not solution.scheduler.traits.rounds_compare:
        return None
    kept = bool(solution.schedule.certificates)
    return {
        "rounds": bound.rounds,
        "kind": bound.kind,
        "source": "computed",
        "certified": kept,
        "holds_for": bound.holds_for.removeprefix(" for ") or "every schedule",
    }


def _timing(timing: Timing) -> dict[str, Any]:
    """Fields if rounds do not determine the time."""
    return {
        "gradient_bytes": timing.gradient_bytes,
        "seconds": timing.seconds,
        "barrier_seconds": timing.barrier_seconds,
        "seconds_bound": {
            "seconds": timing.bound.seconds,
            "kind": timing.bound.kind,
            "holds_for": timing.bound.holds_for.removeprefix(" for ") or "every schedule",
        },
        "seconds_gap": timing.gap,
    }


def _timed_attempts(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Fields of the objective seconds."""
    return {
        "attempts": [
            {
                "scheduler": to_spec(attempt.scheduler),
                "pieces": attempt.pieces,
                "overlapped": attempt.overlapped,
                "improved": attempt.improved,
                "seconds": attempt.seconds,
                "barrier_seconds": attempt.barrier_seconds,
            }
            for attempt in attempts
        ],
    }


def _lines(
    solution: Solution,
    gradient_bytes: float,
    ready: list[float] | None,
    fair: bool,
    output: Path | None,
    given: SearchOptions,
) -> list[str]:
    best, network = solution.schedule, solution.schedule.topology
    objective = objective_of(network, given)
    stages = [f"{rounds} {stage}" for stage, rounds in best.stages.items() if rounds]
    pieces = f"; {counted(best.pieces, 'piece')}" * (best.pieces != network.num_servers)
    times = [
        f"{format_seconds(seconds(best, gradient_bytes, model, ready_at_s=ready))} {text}"
        for model, text in _MODELS
        if fair or model != "fair"
    ]
    return [
        f"{network.name}: {counted(network.num_servers, 'server')}, "
        f"{counted(len(network.switches), 'switch', 'switches')}, "
        f"{counted(network.num_links, 'link')}",
        f"{counted(best.rounds, 'round')} ({', '.join(stages)}), "
        f"{counted(best.num_transfers, 'transfer')}, verified{pieces}",
        *_default_line(solution, gradient_bytes, objective, given),
        *_verdicts(solution, objective),
        *_runtime_lines(solution),
        f"{format_size(gradient_bytes)}: {', '.join(times)}",
        *use_lines(best, gradient_bytes, ready),
        *_kept_lines(solution, given["start_from"]),
        *_hint(solution, gradient_bytes, objective),
        *_message_hint(solution, gradient_bytes, objective, ready, given),
        f"found by {to_spec(solution.scheduler)} in {solution.wall_s:.2f} s"
        + _ENDED.get(solution.stopped, ""),
        *_tried_line(solution),
        *([] if output is None else [f"written to {output}"]),
    ]


def _verdicts(solution: Solution, objective: Objective) -> list[str]:
    """The gaps of rounds and seconds to their bounds, depending on the objective."""
    lines, timing, bound = [], solution.timing, solution.rounds_bound
    assert bound is not None  # only solutions for jobs have none
    least = bound.described(solution.schedule.topology.id_name)
    if not solution.schedule.certificates and bound.kind != SEARCHED:  # whose reason says so
        least += ", not certified"
    if objective == "seconds":
        pass  # rounds were not looked for
    elif not solution.scheduler.traits.rounds_compare:
        own = "one piece" if solution.schedule.pieces == 1 else "pieces chosen by the strategy"
        lines.append(f"its rounds are of {own} and do not compare with a bound")
    elif solution.optimal:
        only = "" if timing is None or timing.optimal else " only"
        lines.append(f"{optimal_in(f'rounds{only}', bound.holds_unless)}: {least}")
    else:
        lines.append(f"{rounds_verdict(solution.rounds, bound.rounds, bound.holds_for)}: {least}")
    if timing is not None:
        far = f"{timing.gap:.2%} above the lower bound in seconds"
        if timing.optimal:
            far = optimal_in("seconds", timing.bound.holds_unless)
        lines.append(f"{far}: {timing.bound}")
    return lines


def _runtime_lines(solution: Solution) -> list[str]:
    """The plan compared with the runtime's own all-reduce."""
    there = solution.runtime
    if there is None:
        return []
    own, plan = format_seconds(there.own_s), format_seconds(there.plan_s)
    if there.own_chosen:
        return [
            f"on {there.name}: its own {there.own} takes {own}, the best plan {plan}: nothing to "
            f"gain, so this is {there.name}'s own, which executors call"
        ]
    return [f"on {there.name}: {plan}; its own {there.own} takes {own}"]


def _message_hint(
    solution: Solution,
    gradient_bytes: float,
    objective: Objective,
    ready: list[float] | None,
    given: SearchOptions,
) -> list[str]:
    """Where a plan for seconds is none for a runtime that people have: what to ask for instead."""
    schedule = solution.schedule
    if objective != "seconds" or given["runtime"] != "ideal" or schedule.collective != "all_reduce":
        return []
    fast = schedule.topology.bandwidth_bytes_per_s.max() >= _OF_GPUS
    runtime = runtime_of("nccl" if fast else "gloo")
    own = own_schedule(schedule.topology, runtime, gradient_bytes)
    if own is None:
        return []
    plan_s = runtime.seconds(schedule, gradient_bytes, ready)
    own_s = runtime.own_seconds(own, gradient_bytes, ready)
    if plan_s <= own_s:
        return []
    name = runtime.name
    return [
        f"planned without message costs (--runtime ideal); on {name} it would take "
        f"{format_seconds(plan_s)}, {name}'s own {own.scheduler.name} {format_seconds(own_s)}: "
        f"--runtime {name} plans for that"
    ]


def _default_line(
    solution: Solution, gradient_bytes: float, objective: Objective, given: SearchOptions
) -> list[str]:
    """A line if seconds are the objective by default, with the reason."""
    if objective != "seconds" or given["objective"] or given["runtime"] != "ideal":
        return []
    return [
        f"its links differ, so the time for {format_size(gradient_bytes)} is minimised; "
        "--objective rounds minimises rounds"
    ]


def _kept_lines(solution: Solution, start_from: Path | None) -> list[str]:
    """The kept share of the schedule before a fault, and the cost of keeping it."""
    if solution.kept is None:
        return []
    kept, of, share = solution.kept
    counts = f"{kept:,} of the {counted(of, 'transfer')} in {start_from}"
    lines, repair = [f"kept {counts}, {share:.0%} of its bytes"], solution.repair
    if repair is None:
        return lines
    as_before = "a link that it uses is lost"
    if repair.as_before_s is not None:
        as_before = f"as it was it would take {format_seconds(repair.as_before_s)}"
    anew = "so near the lower bound that no new plan was searched for"
    if repair.anew_s is not None:
        anew = f"planned anew {format_seconds(repair.anew_s)}"
    return [*lines, f"{as_before}; repaired {format_seconds(repair.repaired_s)}, {anew}"]


def _hint(solution: Solution, gradient_bytes: float, objective: Objective) -> list[str]:
    """A recommendation if rounds are the objective and do not determine the time."""
    timing, schedule = solution.timing, solution.schedule
    tells = has_equal_links(schedule.topology) and solution.scheduler.traits.rounds_compare
    near = timing is not None and timing.gap < _NEAR
    if objective == "seconds" or tells or near or schedule.collective != "all_reduce":
        return []
    unequal = "its links differ" if not has_equal_links(schedule.topology) else "its pieces do"
    size = format_size(gradient_bytes).replace(" ", "")
    return [
        f"rounds do not tell the time here, since {unequal}: "
        f"--objective seconds --size {size} minimises the time"
    ]


def _tried_line(solution: Solution) -> list[str]:
    """The best of the other strategies; the JSON of the objective seconds has all."""
    others = [attempt for attempt in solution.attempts if attempt.scheduler != solution.scheduler]
    others.sort(key=_rank_of)
    shown = [f"{to_spec(attempt.scheduler)} {_result_of(attempt)}" for attempt in others[:_SHOWN]]
    rest = len(others) - len(shown)
    more = f" and {counted(rest, 'strategy', 'strategies')} more" if rest else ""
    return [f"also tried: {', '.join(shown)}{more}"] if shown else []


def _rank_of(attempt: Attempt) -> tuple[float, float]:
    """Sorts attempts by seconds or rounds, failed attempts last."""
    none = math.inf
    seconds = none if attempt.seconds is None else attempt.seconds
    return seconds, none if attempt.rounds is None else attempt.rounds


def _result_of(attempt: Attempt) -> str:
    if attempt.seconds is not None:
        return format_seconds(attempt.seconds)
    return "none" if attempt.rounds is None else str(attempt.rounds)
