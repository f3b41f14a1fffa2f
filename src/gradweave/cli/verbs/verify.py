"""``gradweave verify``: check a schedule file."""

import dataclasses
from pathlib import Path

import click

from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.options import json_option
from gradweave.schedule import load
from gradweave.verify import verify as check


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--strict",
    is_flag=True,
    help="Refuse routes through other servers, as the unmerged baselines have.",
)
@click.option("--aggregating-switches", is_flag=True, help="Let switches reduce what they receive.")
@json_option
@click.pass_context
def verify(
    context: click.Context, file: Path, strict: bool, aggregating_switches: bool, as_json: bool
) -> None:
    """Check the schedule in FILE: its routes, the links' capacities, the contribution counts.

    Exits with 1 if it is invalid, and names the first violation.
    """
    with Progress(f"reading {file}") as progress:
        schedule = load(file)
        progress(f"verifying {schedule.num_transfers:,} transfers")
        verdict = check(
            schedule, forwarding_servers=not strict, aggregating_switches=aggregating_switches
        )
    violation = verdict.violation
    if as_json:
        print_json(
            {
                "file": str(file),
                "valid": verdict.valid,
                "topology": schedule.topology.name,
                "collective": schedule.collective,
                "rounds": schedule.rounds,
                "transfers": verdict.transfers,
                "forwarded": verdict.forwarded,
                "violation": dataclasses.asdict(violation) if violation else None,
            }
        )
    elif violation:
        print_lines(f"invalid: {violation.message}")
    else:
        forwarded = (
            f", {verdict.forwarded:,} of them through other servers" if verdict.forwarded else ""
        )
        print_lines(
            f"valid: {schedule.collective} on {schedule.topology.name}, {schedule.rounds} rounds, "
            f"{verdict.transfers:,} transfers{forwarded}"
        )
    if violation:
        context.exit(1)
