"""``gradweave bound``: lower bounds for a network, their reasons, and certificates."""

from pathlib import Path
from typing import Any, Unpack, cast

import click
import msgspec

from gradweave.bounds import Certified, with_certificates
from gradweave.bounds.certificates import MOST_NODES
from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress, fields_of
from gradweave.cli.groups import command
from gradweave.cli.options import (
    FaultOptions,
    fault_options,
    network_of,
    option,
    size_option,
    written_option,
)
from gradweave.cli.planned_jobs import check_root, collective_job, job_options, jobs_of
from gradweave.cli.solving import collective_option, root_option
from gradweave.common.atomic import atomic_write
from gradweave.errors import OptionError
from gradweave.report.bound import Uncertified, bounds_of_demand, bounds_of_network, one_line
from gradweave.report.certified import checked_bounds
from gradweave.report.rounds_bound import bound_fields, bound_lines, rounds_bound
from gradweave.schedules.demand import Demand
from gradweave.schedules.file import demand_to_object, load
from gradweave.schedules.jobs import demand_of
from gradweave.schedules.kinds import is_schedule_file
from gradweave.schedules.planned_for import planned_for
from gradweave.schedules.schedule import COLLECTIVES, DEMAND, Collective
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.topology import Topology
from gradweave.verifier.verify import check_valid


@command(
    examples=["bcube:n=3,k=1 --size 100MB --output bound.json", "star:8 --slow 0-8=0.25 --size 1GB"]
)
@click.argument("what", metavar="NETWORK|FILE")
@collective_option
@root_option
@option("--overlap", "Let both stages of an all-reduce run at once.", bool)
@size_option("Also bound the time for a gradient of this size, such as 100MB.")
@job_options("--collective", "--root", "--overlap", "--size")
@fault_options
@written_option(
    "--output",
    "Write network and certificates to this file, .json, for gradweave-check.",
    (".json", ".json.gz"),
)
def bound(
    what: str,
    collective: str,
    root: str | None,
    overlap: bool,
    gradient_bytes: int | None,
    jobs: tuple[str, ...],
    mesh: str | None,
    output: Path | None,
    **given: Unpack[FaultOptions],
) -> Answer:
    """Compute and certify lower bounds for NETWORK or FILE.

    The first bound on rounds, and with --size the first bound on time, holds for every schedule.
    Each further line has a larger bound and names the schedules that it holds for. --job bounds
    several collectives at once. Bounds without a certificate are marked as not certified. If FILE
    is a schedule, its certificates are recounted, and --output adds the missing ones.
    """
    check_root(collective, root)
    with Progress(f"bounding {what}") as progress:
        if is_schedule_file(what):
            return _of_schedule(what, gradient_bytes, progress, output)
        topology, demand = network_of(what, given), None
        if not jobs and collective not in COLLECTIVES:
            if gradient_bytes is None:
                raise OptionError(
                    f"--size: expected a size with --collective {collective}, as in 100MB"
                )
            jobs = (collective_job(topology, collective, root, gradient_bytes),)
        if jobs:
            demand = demand_of(topology, jobs_of(topology, jobs, mesh))
            progress("solving the linear program of trees and paths")
            found = bounds_of_demand(topology, demand)
        else:
            kind = cast(Collective, collective)
            found = bounds_of_network(topology, kind, overlap, gradient_bytes)
        if not found:
            raise OptionError(
                f"{what}: {topology.num_nodes} nodes; bounds are certified on at most {MOST_NODES}"
            )
        if output is not None:
            progress(f"writing {output}")
            name = DEMAND if demand is not None else collective
            proved = [one for one in found if isinstance(one, Certified)]
            content = _as_object(topology, name, demand, proved)
            atomic_write(output, msgspec.json.encode(content))
    answer = Answer({"what": what, "bounds": list(map(_of, found))}, map(one_line, found))
    return answer.written_to(output)


def _of_schedule(
    what: str, gradient_bytes: int | None, progress: Progress, output: Path | None
) -> Answer:
    """The bounds of the schedule in a file."""
    schedule = load(what)
    progress("verifying it")
    check_valid(schedule)
    progress("finding its bounds")
    size = gradient_bytes or planned_for(schedule).gradient_bytes
    schedule = with_certificates(schedule, size)
    if output is not None:
        progress(f"writing {output}")
        schedule.save(output)
    checked = checked_bounds(schedule)
    least = rounds_bound(schedule, checked)
    bounds = [one.as_object() for one in checked]
    found = {"what": what, "bounds": bounds, **bound_fields(schedule, least)}
    lines = bound_lines(schedule, least, checked) or ["no bound on it is known"]
    return Answer(found, lines).written_to(output)


def _of(one: Certified | Uncertified) -> dict[str, Any]:
    """The same for JSON."""
    certificate = None if isinstance(one, Uncertified) else one.certificate
    least, unless = str(one.least), sorted(one.forbids)
    fields = fields_of(one, "unit", "reason", "holds_for")
    return fields | {"least": least, "holds_unless": unless, "certificate": certificate}


def _as_object(
    topology: Topology, collective: str, demand: Demand | None, found: list[Certified]
) -> dict[str, Any]:
    """The input of gradweave-check: network, collective, demand and certificates."""
    asked = {} if demand is None else {"demand": demand_to_object(demand)}
    return {
        "format": "gradweave-bounds",
        "version": 1,
        "collective": collective,
        "topology": topology_to_object(topology),
        **asked,
        "certificates": [one.certificate for one in found],
    }
