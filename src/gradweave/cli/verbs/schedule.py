"""``gradweave schedule``: find a schedule, verify it, report its rounds, bound and seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave import simulate
from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.options import json_option, network_of, writable
from gradweave.cli.solving import (
    SearchOptions,
    gradient_option,
    ready_times_of,
    search,
    solving_options,
)
from gradweave.errors import OptionError
from gradweave.report.link_use import use_fields, use_lines
from gradweave.schedule import load
from gradweave.schedulers import Attempt, Objective, Solution, Timing, replan, to_spec
from gradweave.topology.units import parse_seconds

_MODELS: tuple[tuple[simulate.Model, str], ...] = (
    ("rounds", "with a barrier a round"),
    ("events", "without"),
    ("fair", "with links shared fairly"),
)


@click.command()
@click.argument("network")
@solving_options
@gradient_option
@click.option(
    "--changed-at",
    metavar="SECONDS",
    help="The schedule of --start-from was under way for so long, such as 50ms, when its network "
    "became NETWORK: what has not begun is planned anew. With --objective seconds.",
)
@click.option("--fair", is_flag=True, help="Predict the seconds on fairly shared links as well.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Schedule file to write: .json or .json.gz."
)
@json_option
def schedule(
    network: str,
    gradient_bytes: float,
    changed_at: str | None,
    fair: bool,
    output: Path | None,
    as_json: bool,
    **given: Unpack[SearchOptions],
) -> None:
    """Find a schedule for NETWORK, verify it, and bound how far from the best possible it is.

    NETWORK is a specification such as bcube:n=4,k=1 or torus:4x4, or the path of a file.
    """
    writable(output, ".json", ".json.gz")
    if changed_at is not None:
        at_s = parse_seconds("changed-at", changed_at)
        _replan(network, gradient_bytes, at_s, output, as_json, given)
        return
    with Progress(f"scheduling {network}") as progress:
        solution = search(network, gradient_bytes, progress, given)
        if output is not None:
            progress(f"writing {output}")
            solution.schedule.save(output)
    ready = ready_times_of(solution.schedule.topology, given["ready_at"])
    if as_json:
        summary = _summary(solution, output, given["objective"])
        summary |= use_fields(solution.schedule, gradient_bytes, ready)
        summary |= {"ready_at_s": ready} if ready else {}
        if fair:
            shared_s = simulate.seconds(solution.schedule, gradient_bytes, "fair", ready_at_s=ready)
            summary |= {"gradient_bytes": gradient_bytes, "fair_seconds": shared_s}
        print_json(summary)
    else:
        print_lines(*_lines(solution, gradient_bytes, ready, fair, output))


def _replan(
    network: str,
    gradient_bytes: float,
    at_s: float,
    output: Path | None,
    as_json: bool,
    given: SearchOptions,
) -> None:
    """Plans the rest of a schedule that is under way, and says what that gains."""
    if given["start_from"] is None or given["objective"] != "seconds":
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
        f"{gradient_bytes / 1e6:g} MB, links changed after {1e3 * at_s:.4g} ms: "
        f"{1e3 * found.seconds:.4g} ms in all, {1e3 * found.as_before_s:.4g} ms as planned before",
        f"planned anew: {found.replanned_share:.0%} of the gradient, verified",
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
        "steps": simulate.steps(best),
        "bound": {"rounds": solution.bound.rounds, "kind": solution.bound.kind},
        "optimal": solution.optimal,
        "optimal_in": list(solution.optimal_in),
        "verified": True,  # Every scheduler verifies before it returns.
        "wall_s": round(solution.wall_s, 4),
        "output": None if output is None else str(output),
    }
    if solution.timing is not None:
        summary |= _timing(solution.timing)
    if objective == "seconds":
        summary |= _timed_attempts(solution.attempts)
    return summary


def _timing(timing: Timing) -> dict[str, Any]:
    """Fields where rounds alone do not determine the time."""
    return {
        "gradient_bytes": timing.gradient_bytes,
        "seconds": timing.seconds,
        "barrier_seconds": timing.barrier_seconds,
        "seconds_bound": {"seconds": timing.bound.seconds, "kind": timing.bound.kind},
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
) -> list[str]:
    best, network = solution.schedule, solution.schedule.topology
    stages = [f"{rounds} {stage}" for stage, rounds in best.stages.items() if rounds]
    times = [
        f"{1e3 * simulate.seconds(best, gradient_bytes, model, ready_at_s=ready):.4g} ms {text}"
        for model, text in _MODELS
        if fair or model != "fair"
    ]
    lines = [
        f"{network.name}: {network.num_servers} servers, {len(network.switches)} switches, "
        f"{network.num_links} links",
        f"{best.rounds} rounds ({', '.join(stages)}), {best.num_transfers:,} transfers, verified",
        f"{_rounds_verdict(solution)}: {solution.bound}",
        f"{gradient_bytes / 1e6:g} MB: {', '.join(times)}",
        *use_lines(best, gradient_bytes, ready),
        f"found by {to_spec(solution.scheduler)} in {solution.wall_s:.2f} s",
    ]
    if solution.timing is not None:
        lines.insert(3, f"{_seconds_verdict(solution.timing)}: {solution.timing.bound}")
    if best.pieces != network.num_servers:
        lines[1] += f"; {best.pieces} pieces"
    others = [attempt for attempt in solution.attempts if attempt.scheduler != solution.scheduler]
    if others:
        tried = (f"{to_spec(attempt.scheduler)} {_result_of(attempt)}" for attempt in others)
        lines.append(f"also tried: {', '.join(tried)}")
    return lines if output is None else [*lines, f"written to {output}"]


def _rounds_verdict(solution: Solution) -> str:
    if not solution.optimal:
        return f"{solution.gap:.0%} above the bound in rounds"
    timing = solution.timing
    return "optimal in rounds" if timing is None or timing.optimal else "optimal in rounds only"


def _seconds_verdict(timing: Timing) -> str:
    return "optimal in seconds" if timing.optimal else f"{timing.gap:.0%} above the least time"


def _result_of(attempt: Attempt) -> str:
    if attempt.seconds is not None:
        return f"{1e3 * attempt.seconds:.4g} ms"
    return "none" if attempt.rounds is None else str(attempt.rounds)
