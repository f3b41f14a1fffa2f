"""``gradweave schedule``: find a schedule, verify it, report its rounds, bound and seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gradweave import simulate
from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.options import (
    Size,
    json_option,
    schedulers_of,
    seed_option,
    time_limit_option,
    writable,
)
from gradweave.schedule import load
from gradweave.schedule.schedule import COLLECTIVES, Collective
from gradweave.schedulers import OBJECTIVES, Attempt, Objective, Solution, Timing, solve, to_spec
from gradweave.topology import from_spec

_MODELS: tuple[tuple[simulate.Model, str], ...] = (
    ("rounds", "with a barrier a round"),
    ("events", "without"),
)


@click.command()
@click.argument("network")
@click.option(
    "--scheduler",
    metavar="SCHEDULERS",
    help="Comma-separated strategies, such as merged:rule=deepest; the best counts. [default: all]",
)
@click.option(
    "--collective", type=click.Choice(COLLECTIVES), default="all_reduce", show_default=True
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default="rounds",
    show_default=True,
    help="What to make small; seconds count latency and bandwidth, for a gradient's size.",
)
@seed_option
@time_limit_option
@click.option(
    "--gradient-bytes",
    type=Size(),
    default="100MB",
    show_default=True,
    help="Size for the prediction, and for the objective, in seconds.",
)
@click.option(
    "--start-from",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Schedule of the network before a fault; what still works of it is kept.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Schedule file to write: .json or .json.gz."
)
@json_option
def schedule(
    network: str,
    scheduler: str | None,
    collective: Collective,
    objective: Objective,
    seed: int,
    time_limit: float | None,
    gradient_bytes: int,
    start_from: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Find a schedule for NETWORK, verify it, and say how far from the best possible it can be.

    NETWORK is a specification such as bcube:n=4,k=1 or torus:4x4, or the path of a file.
    """
    writable(output, ".json", ".json.gz")
    strategies = schedulers_of(scheduler) if scheduler is not None else None
    with Progress(f"scheduling {network}") as progress:
        topology = from_spec(network)
        solution = solve(
            topology,
            collective=collective,
            schedulers=strategies,
            objective=objective,
            gradient_bytes=gradient_bytes,
            start_from=None if start_from is None else load(start_from),
            seed=seed,
            time_limit=time_limit,
            progress=progress,
        )
        if output is not None:
            progress(f"writing {output}")
            solution.schedule.save(output)
    if as_json:
        print_json(_summary(solution, output))
    else:
        print_lines(*_lines(solution, gradient_bytes, output))


def _summary(solution: Solution, output: Path | None) -> dict[str, Any]:
    made = solution.schedule
    held = {
        "topology": made.topology.name,
        "scheduler": to_spec(solution.scheduler),
        "collective": made.collective,
        "servers": made.topology.num_servers,
        "links": made.topology.num_links,
        "rounds": made.rounds,
        "stages": made.stages,
        "bound": {"rounds": solution.bound.rounds, "kind": solution.bound.kind},
        "optimal": solution.optimal,
        "verified": True,  # No scheduler returns a schedule that was not.
        "wall_s": round(solution.wall_s, 4),
        "output": None if output is None else str(output),
    }
    if solution.timing is not None:
        held |= _timing(solution.timing, solution.attempts)
    return held


def _timing(timing: Timing, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """What the objective seconds adds."""
    return {
        "gradient_bytes": timing.gradient_bytes,
        "seconds": timing.seconds,
        "barrier_seconds": timing.barrier_seconds,
        "seconds_bound": {"seconds": timing.bound.seconds, "kind": timing.bound.kind},
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


def _lines(solution: Solution, gradient_bytes: float, output: Path | None) -> list[str]:
    made, network = solution.schedule, solution.schedule.topology
    stages = [f"{rounds} {stage}" for stage, rounds in made.stages.items() if rounds]
    gap = "optimal" if solution.optimal else f"{solution.gap:.0%} above the bound"
    times = [
        f"{1e3 * simulate.seconds(made, gradient_bytes, model):.4g} ms {text}"
        for model, text in _MODELS
    ]
    lines = [
        f"{network.name}: {network.num_servers} servers, {len(network.switches)} switches, "
        f"{network.num_links} links",
        f"{made.rounds} rounds ({', '.join(stages)}), {made.num_transfers:,} transfers, verified",
        f"{gap}: {solution.bound}",
        f"{gradient_bytes / 1e6:g} MB: {', '.join(times)}",
        f"found by {to_spec(solution.scheduler)} in {solution.wall_s:.2f} s",
    ]
    if solution.timing is not None:
        above = f"{solution.timing.gap:.0%} above the least time"
        lines.insert(-1, f"{made.pieces} pieces; {above}: {solution.timing.bound}")
    others = [attempt for attempt in solution.attempts if attempt.scheduler != solution.scheduler]
    if others:
        tried = (f"{to_spec(attempt.scheduler)} {_came_to(attempt)}" for attempt in others)
        lines.append(f"also tried: {', '.join(tried)}")
    return lines if output is None else [*lines, f"written to {output}"]


def _came_to(attempt: Attempt) -> str:
    if attempt.seconds is not None:
        return f"{1e3 * attempt.seconds:.4g} ms"
    return "none" if attempt.rounds is None else str(attempt.rounds)
