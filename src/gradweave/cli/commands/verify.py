"""``gradweave verify``: check a schedule file."""

import dataclasses
from pathlib import Path
from typing import Any

import click

from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.groups import command
from gradweave.cli.implicit_plans import verify_implicit
from gradweave.cli.options import json_option
from gradweave.common.wording import counted
from gradweave.placement.placing import recounted
from gradweave.report.certified import checked_bounds
from gradweave.report.rounds_bound import bound_fields, bound_lines, rounds_bound
from gradweave.schedules.file import load, load_implicit
from gradweave.schedules.kinds import check_schedule_file, is_implicit_file, is_placement_file
from gradweave.topology.names import name_of
from gradweave.topology.topology import Topology
from gradweave.verifier.verdict import Violation
from gradweave.verifier.verify import verify as check


@command(examples=["plan.json"])
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--strict",
    is_flag=True,
    help="Refuse routes through other servers, which unmerged baselines use.",
)
@click.option("--aggregating-switches", is_flag=True, help="Let switches reduce what they receive.")
@json_option
@click.pass_context
def verify(
    context: click.Context, file: Path, strict: bool, aggregating_switches: bool, as_json: bool
) -> None:
    """Check the schedule in FILE, transfer by transfer.

    It checks routes, the capacities of links and contribution counts.

    The exit status is 1 if the schedule is invalid, and the first violation is named. For a valid
    schedule it also prints the lower bound on its rounds. A bound that the file states is no proof;
    its certificates are, once they have been recounted. For a placement that 'gradweave place'
    wrote, the cost and the certificate of the bound are recounted. An implicit schedule is checked
    without writing it out.
    """
    if is_placement_file(file):
        _placement(file, as_json)
        return
    check_schedule_file(file, "verify")
    if is_implicit_file(file):
        with Progress(f"verifying {file}"):
            plan = load_implicit(file)
            verdict = verify_implicit(file, plan, strict, aggregating_switches, as_json)
        if not verdict.valid:
            context.exit(1)
        return
    with Progress(f"reading {file}") as progress:
        schedule = load(file)
        progress(f"verifying {counted(schedule.num_transfers, 'transfer')}")
        verdict = check(
            schedule, forwarding_servers=not strict, aggregating_switches=aggregating_switches
        )
        bound, certified = None, []
        if verdict.valid:
            progress("recounting the certificates")
            certified = checked_bounds(schedule)
            bound = rounds_bound(schedule, certified)
    violation = verdict.violation
    if as_json:
        print_json(
            {
                "file": str(file),
                "valid": verdict.valid,
                "topology": schedule.topology.name,
                "collective": schedule.name,
                "rounds": schedule.rounds,
                "transfers": verdict.transfers,
                "forwarded": verdict.forwarded,
                "violation": _as_object(violation, schedule.topology) if violation else None,
            }
            | bound_fields(schedule, bound)
            | {"certificates": [one.as_object() for one in certified]}
        )
    elif violation:
        print_lines(f"invalid: {violation.message}")
    else:
        forwarded = (
            f", {verdict.forwarded:,} of them through other servers" if verdict.forwarded else ""
        )
        print_lines(
            f"valid: {schedule.name} on {schedule.topology.name}, "
            f"{counted(schedule.rounds, 'round')}, {counted(verdict.transfers, 'transfer')}"
            f"{forwarded}",
            *bound_lines(schedule, bound, certified),
        )
    if violation:
        context.exit(1)


def _placement(file: Path, as_json: bool) -> None:
    """Counts a placement's cost and bound again."""
    with Progress(f"counting {file} again"):
        placement = recounted(file)
    bound, stages = placement.bound, placement.servers.shape
    if as_json:
        seconds = None if bound is None else bound.seconds
        print_json({"file": str(file), "valid": True, "cost_s": placement.cost_s}
            | {"bound_s": seconds, "optimal": placement.optimal})  # fmt: skip
        return
    proved = "without a certificate of a bound"
    if bound is not None:
        gap = placement.gap or 0.0
        above = "the least possible" if placement.optimal else f"{gap:.1%} above the bound"
        proved = f"{above}: {bound}"
    print_lines(
        f"valid: {stages[0]} stages × {stages[1]} pipelines on {placement.topology.name}, "
        f"{placement.cost_s:.4g} s of communication in the exchange model",
        proved,
    )


def _as_object(violation: Violation, topology: Topology) -> dict[str, Any]:
    """A violation for JSON, with ids and names of nodes, and the rank of the server."""
    link, server = violation.link, violation.server
    return dataclasses.asdict(violation) | {
        "link_names": None if link is None else [name_of(topology, node) for node in link],
        "server_name": None if server is None else name_of(topology, server),
        "server_rank": None if server is None else int(topology.rank[server]),
    }
