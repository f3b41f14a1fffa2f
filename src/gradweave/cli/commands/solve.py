"""``gradweave solve``: find a schedule, verify it, report its rounds, bound and seconds."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave.bounds.classes import optimal_in
from gradweave.bounds.scale import has_equal_links
from gradweave.cli.answers import Answer
from gradweave.cli.combinations import excludes, needs
from gradweave.cli.console import Progress, Table, fields_of, network_fields, network_line
from gradweave.cli.groups import command
from gradweave.cli.implicit_plans import EXPLICIT_ONLY, is_implicit, solve_implicit
from gradweave.cli.options import network_of, option, refuse, sizes_option, written_option
from gradweave.cli.planned_jobs import asked_jobs, job_answer, job_options, search_jobs
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
from gradweave.simulator.bandwidths import algorithm_bandwidth, bus_bandwidth
from gradweave.simulator.runtime import runtime_of
from gradweave.simulator.seconds import Model, seconds
from gradweave.simulator.sequential_steps import steps
from gradweave.topology.units import format_rate, format_seconds, format_size, parse_seconds

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
@option(
    "--changed-at",
    "The network became NETWORK when the schedule of --start-from had run for this time, such "
    "as 50ms; plan the rest again. Needs --objective seconds.",
    metavar="SECONDS",
)
@needs("--start-from", "--changed-at", more=": the schedule that is under way")
@excludes("--objective rounds", "--changed-at")
@option("--fair", "Also predict the time if links are shared fairly.", bool)
@option(
    "--implicit",
    "Make an implicit schedule: one tree, moved by the network's symmetries. Always on "
    "above 16,384 servers of a family.",
    bool,
)
@excludes("--implicit", "--job", "--mesh", *EXPLICIT_ONLY)
@job_options(
    *("--collective", "--root", "--size", "--workers", "--ready-at", "--changed-at", "--fair")
)
@written_option(
    "--output", "Write the schedule to this file, .json or .json.gz.", (".json", ".json.gz")
)
def solve(
    network: str,
    gradient_bytes: tuple[int, ...],
    changed_at: str | None,
    fair: bool,
    implicit: bool,
    jobs: tuple[str, ...],
    mesh: str | None,
    output: Path | None,
    **given: Unpack[SearchOptions],
) -> Answer:
    """Find a schedule for NETWORK and bound its gap.

    NETWORK is a specification such as bcube:n=4,k=1 or torus:4x4, or the path of a file. Several
    sizes make a table of the best schedule for each. A search for jobs ends after 60 s unless
    --time-limit is given.
    """
    if not implicit and (jobs := asked_jobs(network, jobs, gradient_bytes, given)):
        with Progress(f"scheduling {network}") as progress:
            solution = search_jobs(network, jobs, mesh, progress, given)
            _write(solution, output, progress)
        return job_answer(solution).written_to(output)
    first, *others = gradient_bytes
    if others:
        refuse(("changed_at", "fair", "implicit", "output"), "one --size with it")
        return _sweep(network, gradient_bytes, given)
    given, size, as_planned_line = as_planned(given, first)
    if changed_at is not None:
        at_s = parse_seconds("changed-at", changed_at)
        return _replan(network, size, at_s, output, given)
    with Progress(f"scheduling {network}") as progress:
        topology = network_of(network, given)
        if is_implicit(topology, implicit, given):
            return solve_implicit(topology, size, output, given, progress)
        solution = search(topology, size, progress, given)
        _write(solution, output, progress)
    one = _One(solution, size, given)
    return Answer(lambda: one.summary(fair), one.lines(fair, as_planned_line)).written_to(output)


def _write(solution: Solution, output: Path | None, progress: Progress) -> None:
    if output is not None:
        progress(f"writing {output}")
        solution.schedule.save(output)  # even if its certificates fail
        solution.certified().save(output)


def _sweep(network: str, sizes: tuple[int, ...], given: SearchOptions) -> Answer:
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
    found = [_summary(one, "seconds") | {"output": None} for one in solutions]
    return Answer({"sizes": found}, [solutions[0].schedule.topology.name, _sweep_table(solutions)])


def _say(progress: Progress, size: str, doing: str) -> None:
    progress(f"{size}: {doing}")


def _sweep_table(solutions: Sequence[Solution]) -> Table:
    """The columns of nccl-tests, and the lower bound."""
    shown = Table(
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


def _replan(
    network: str, gradient_bytes: float, at_s: float, output: Path | None, given: SearchOptions
) -> Answer:
    """Plans the rest of a running schedule."""
    assert given["start_from"] is not None  # --changed-at needs it
    with Progress(f"scheduling {network}") as progress:
        topology = network_of(network, given)
        progress("planning what has not begun")
        limit, seed = given["time_limit"], given["seed"]
        under_way = load(given["start_from"])
        found = replan(under_way, topology, gradient_bytes, at_s, seed=seed, time_limit=limit)
        if output is not None:
            progress(f"writing {output}")
            found.schedule.save(output)
    summary = {
        "topology": topology.name,
        "gradient_bytes": gradient_bytes,
        "changed_at_s": at_s,
        **fields_of(found, "seconds", "as_before_s", "replanned_share"),
        "verified": True,
    }
    lines = [
        f"{format_size(gradient_bytes)}, links changed after {format_seconds(at_s)}: "
        f"{format_seconds(found.seconds)} in all, {format_seconds(found.as_before_s)} as planned "
        "before",
        f"planned again: {found.replanned_share:.0%} of the gradient, verified",
    ]
    return Answer(summary, lines).written_to(output)


def _summary(solution: Solution, objective: Objective) -> dict[str, Any]:
    best = solution.schedule
    summary = network_fields(best.topology) | {
        "scheduler": to_spec(solution.scheduler),
        **fields_of(best, "collective", "rounds", "stages"),
        "steps": steps(best),
        "bound": _bound(solution),
        **fields_of(solution, "optimal", "optimal_in", "stopped"),
        "verified": True,  # Every scheduler verifies before it returns.
        "wall_s": round(solution.wall_s, 4),
    }
    if solution.kept is not None:
        names = "kept_transfers", "start_transfers", "kept_bytes_share"
        summary |= dict(zip(names, solution.kept, strict=True))
    if solution.repair is not None:
        summary["repair"] = dataclasses.asdict(solution.repair)
    if solution.timing is not None:
        summary |= _timing(solution.timing)
    if objective == "seconds":
        keys = ("pieces", "overlapped", "improved", "seconds", "barrier_seconds")
        summary["attempts"] = [
            {"scheduler": to_spec(one.scheduler)} | fields_of(one, *keys)
            for one in solution.attempts
        ]
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
        **fields_of(timing, "gradient_bytes", "seconds", "barrier_seconds"),
        "seconds_bound": {
            "seconds": timing.bound.seconds,
            "kind": timing.bound.kind,
            "holds_for": timing.bound.holds_for.removeprefix(" for ") or "every schedule",
        },
        "seconds_gap": timing.gap,
    }


@dataclasses.dataclass(frozen=True)
class _One:
    """The schedule for one size, as it is reported."""

    solution: Solution
    gradient_bytes: float
    given: SearchOptions

    @functools.cached_property
    def ready(self) -> list[float] | None:
        """Release times of the servers, if any is late."""
        return ready_times_of(self.solution.schedule.topology, self.given["ready_at"])

    @property
    def objective(self) -> Objective:
        """The objective, given or by default."""
        return objective_of(self.solution.schedule.topology, self.given)

    def seconds(self, model: Model) -> float:
        """The time in one of the models."""
        best, ready = self.solution.schedule, self.ready
        return seconds(best, self.gradient_bytes, model, ready_at_s=ready)

    def summary(self, fair: bool) -> dict[str, Any]:
        """The result for JSON."""
        ready, size = self.ready, self.gradient_bytes
        summary = _summary(self.solution, self.objective)
        summary |= use_fields(self.solution.schedule, size, ready)
        summary |= {"ready_at_s": ready} if ready else {}
        if fair:
            summary |= {"gradient_bytes": size, "fair_seconds": self.seconds("fair")}
        return summary

    def lines(self, fair: bool, as_planned_line: str) -> Iterator[str]:
        """The result for people."""
        solution, best, size = self.solution, self.solution.schedule, self.gradient_bytes
        yield network_line(best.topology)
        stages = [f"{rounds} {stage}" for stage, rounds in best.stages.items() if rounds]
        uneven = best.pieces != best.topology.num_servers
        yield (
            f"{counted(best.rounds, 'round')} ({', '.join(stages)}), "
            f"{counted(best.num_transfers, 'transfer')}, verified"
            + f"; {counted(best.pieces, 'piece')}"
            * uneven
        )
        by_default = not self.given["objective"] and self.given["runtime"] == "ideal"
        if self.objective == "seconds" and by_default:
            yield (
                f"its links differ, so the time for {format_size(size)} is minimised; "
                "--objective rounds minimises rounds"
            )
        yield from _verdicts(solution, self.objective)
        yield from _runtime_lines(solution)
        times = [
            f"{format_seconds(self.seconds(model))} {text}"
            for model, text in _MODELS
            if fair or model != "fair"
        ]
        yield f"{format_size(size)}: {', '.join(times)}"
        yield from use_lines(best, size, self.ready)
        yield from _kept_lines(solution, self.given["start_from"])
        yield from self._hint()
        yield from self._message_hint()
        ended = _ENDED.get(solution.stopped, "")
        yield f"found by {to_spec(solution.scheduler)} in {solution.wall_s:.2f} s{ended}"
        yield from _tried_line(solution)
        if as_planned_line:
            yield as_planned_line

    def _hint(self) -> Iterator[str]:
        """A recommendation if rounds are the objective and do not determine the time."""
        timing, schedule = self.solution.timing, self.solution.schedule
        equal = has_equal_links(schedule.topology)
        tells = equal and self.solution.scheduler.traits.rounds_compare
        near = timing is not None and timing.gap < _NEAR
        if self.objective == "seconds" or tells or near or schedule.collective != "all_reduce":
            return
        size = format_size(self.gradient_bytes).replace(" ", "")
        why = "pieces do" if equal else "links differ"
        yield (
            f"rounds do not tell the time here, since its {why}: "
            f"--objective seconds --size {size} minimises the time"
        )

    def _message_hint(self) -> Iterator[str]:
        """The runtime to plan for, if the plan would be slow on the one that people have."""
        best = self.solution.schedule
        ideal = self.objective == "seconds" and self.given["runtime"] == "ideal"
        if not ideal or best.collective != "all_reduce":
            return
        fast = best.topology.bandwidth_bytes_per_s.max() >= _OF_GPUS
        runtime = runtime_of("nccl" if fast else "gloo")
        own = own_schedule(best.topology, runtime, self.gradient_bytes)
        if own is None:
            return
        plan_s = runtime.seconds(best, self.gradient_bytes, self.ready)
        own_s = runtime.own_seconds(own, self.gradient_bytes, self.ready)
        if plan_s > own_s:
            name = runtime.name
            yield (
                f"planned without message costs (--runtime ideal); on {name} it would take "
                f"{format_seconds(plan_s)}, {name}'s own {own.scheduler.name} "
                f"{format_seconds(own_s)}: --runtime {name} plans for that"
            )


def _verdicts(solution: Solution, objective: Objective) -> Iterator[str]:
    """The gaps of rounds and seconds to their bounds, depending on the objective."""
    timing, bound = solution.timing, solution.rounds_bound
    assert bound is not None  # only solutions for jobs have none
    least = bound.described(solution.schedule.topology.id_name)
    if not solution.schedule.certificates and bound.kind != SEARCHED:  # whose reason says so
        least += ", not certified"
    if objective == "seconds":
        pass  # rounds were not looked for
    elif not solution.scheduler.traits.rounds_compare:
        own = "one piece" if solution.schedule.pieces == 1 else "pieces chosen by the strategy"
        yield f"its rounds are of {own} and do not compare with a bound"
    elif solution.optimal:
        only = "" if timing is None or timing.optimal else " only"
        yield f"{optimal_in(f'rounds{only}', bound.holds_unless)}: {least}"
    else:
        yield f"{rounds_verdict(solution.rounds, bound.rounds, bound.holds_for)}: {least}"
    if timing is not None:
        far = f"{timing.gap:.2%} above the lower bound in seconds"
        if timing.optimal:
            far = optimal_in("seconds", timing.bound.holds_unless)
        yield f"{far}: {timing.bound}"


def _runtime_lines(solution: Solution) -> Iterator[str]:
    """The plan compared with the runtime's own all-reduce."""
    there = solution.runtime
    if there is None:
        return
    own, plan = format_seconds(there.own_s), format_seconds(there.plan_s)
    if there.own_chosen:
        yield (
            f"on {there.name}: its own {there.own} takes {own}, the best plan {plan}: nothing to "
            f"gain, so this is {there.name}'s own, which executors call"
        )
    else:
        yield f"on {there.name}: {plan}; its own {there.own} takes {own}"


def _kept_lines(solution: Solution, start_from: Path | None) -> Iterator[str]:
    """The kept share of the schedule before a fault, and the cost of keeping it."""
    if solution.kept is None:
        return
    kept, of, share = solution.kept
    repair, transfers = solution.repair, counted(of, "transfer")
    yield f"kept {kept:,} of the {transfers} in {start_from}, {share:.0%} of its bytes"
    if repair is not None:
        as_before = "a link that it uses is lost"
        if repair.as_before_s is not None:
            as_before = f"as it was it would take {format_seconds(repair.as_before_s)}"
        anew = "so near the lower bound that no new plan was searched for"
        if repair.anew_s is not None:
            anew = f"planned anew {format_seconds(repair.anew_s)}"
        yield f"{as_before}; repaired {format_seconds(repair.repaired_s)}, {anew}"


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
