"""``gradweave verify``: check a schedule file."""

import dataclasses
from pathlib import Path
from typing import Any

import click

from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress, fields_of
from gradweave.cli.groups import command
from gradweave.cli.implicit_plans import verify_implicit
from gradweave.cli.options import FILE, option
from gradweave.cli.placing import bound_line
from gradweave.common.wording import counted
from gradweave.errors import ANSWER_IS_NO
from gradweave.placement.placing import recounted
from gradweave.report.certified import checked_bounds
from gradweave.report.rounds_bound import bound_fields, bound_lines, rounds_bound
from gradweave.schedules.file import load
from gradweave.schedules.kinds import check_schedule_file, is_implicit_file, is_placement_file
from gradweave.topology.names import name_of
from gradweave.topology.topology import Topology
from gradweave.verifier.verdict import Violation
from gradweave.verifier.verify import verify as check


@command(examples=["plan.json"])
@click.argument("file", type=FILE)
@option("--strict", "Refuse routes through other servers, which unmerged baselines use.", bool)
@option("--aggregating-switches", "Let switches reduce what they receive.", bool)
def verify(file: Path, strict: bool, aggregating_switches: bool) -> Answer:
    """Check the schedule in FILE, transfer by transfer.

    It checks routes, the capacities of links and contribution counts.

    The exit status is 1 if the schedule is invalid, and the first violation is named. For a valid
    schedule it also prints the lower bound on its rounds. A bound that the file states is no proof;
    its certificates are, once they have been recounted. For a placement that 'gradweave place'
    wrote, the cost and the certificate of the bound are recounted. An implicit schedule is checked
    without writing it out.
    """
    if is_placement_file(file):
        return _placement(file)
    check_schedule_file(file, "verify")
    if is_implicit_file(file):
        return verify_implicit(file, strict, aggregating_switches)
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
    violation, name = verdict.violation, schedule.topology.name
    found = {
        "file": file,
        "topology": name,
        "collective": schedule.name,
        "rounds": schedule.rounds,
        **fields_of(verdict, "valid", "transfers", "forwarded"),
        "violation": violation and _as_object(violation, schedule.topology),
        **bound_fields(schedule, bound),
        "certificates": [one.as_object() for one in certified],
    }
    if violation:
        return Answer(found, [f"invalid: {violation.message}"], status=ANSWER_IS_NO)
    valid = (
        f"valid: {schedule.name} on {name}, {counted(schedule.rounds, 'round')}, "
        f"{counted(verdict.transfers, 'transfer')}"
    )
    if verdict.forwarded:
        valid += f", {verdict.forwarded:,} of them through other servers"
    return Answer(found, [valid, *bound_lines(schedule, bound, certified)])


def _placement(file: Path) -> Answer:
    """Counts a placement's cost and bound again."""
    with Progress(f"counting {file} again"):
        placement = recounted(file)
    bound, (stages, data) = placement.bound, placement.servers.shape
    found = {
        "file": file,
        "valid": True,
        "bound_s": bound and bound.seconds,
        **fields_of(placement, "cost_s", "optimal"),
    }
    return Answer(
        found,
        [
            f"valid: {stages} stages × {data} pipelines on {placement.topology.name}, "
            f"{placement.cost_s:.4g} s of communication in the exchange model",
            bound_line(placement) or "without a certificate of a bound",
        ],
    )


def _as_object(violation: Violation, topology: Topology) -> dict[str, Any]:
    """A violation for JSON, with ids and names of nodes, and the rank of the server."""
    link, server = violation.link, violation.server
    return dataclasses.asdict(violation) | {
        "link_names": None if link is None else [name_of(topology, node) for node in link],
        "server_name": None if server is None else name_of(topology, server),
        "server_rank": None if server is None else int(topology.rank[server]),
    }
