"""``gradweave bound``: the least that a network allows, why, and the certificate that proves it."""

import dataclasses
from pathlib import Path
from typing import Any, Unpack

import click
import msgspec

from gradweave.atomic import atomic_write
from gradweave.bounds import (
    Certified,
    certify_demand,
    certify_rounds,
    certify_seconds,
    demand_bound,
    free_trees,
    with_certificates,
)
from gradweave.bounds.certificates import MOST_NODES
from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.options import (
    FaultOptions,
    SizeType,
    fault_options,
    json_option,
    network_of,
    writable,
)
from gradweave.cli.planned_jobs import job_option, jobs_of, mesh_option
from gradweave.cli.schedule_files import is_schedule_file
from gradweave.errors import NoScheduleError, OptionError
from gradweave.report.certified import checked_bounds
from gradweave.report.rounds_bound import bound_fields, bound_lines, rounds_bound
from gradweave.schedule.demand import Demand
from gradweave.schedule.file import demand_to_object, load
from gradweave.schedule.jobs import demand_of
from gradweave.schedule.planned_for import planned_for
from gradweave.schedule.schedule import COLLECTIVES, DEMAND, Collective
from gradweave.schedulers.demands.joint import Joint
from gradweave.schedulers.solve.seconds_bound import seconds_bound
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING, format_seconds
from gradweave.verify.verify import verify
from gradweave.wording import counted


@dataclasses.dataclass(frozen=True)
class Uncertified:
    """A bound that is larger than what a certificate proves."""

    unit: str
    least: float
    reason: str


@click.command()
@click.argument("what", metavar="NETWORK|FILE")
@click.option(
    "--collective",
    type=click.Choice(COLLECTIVES),
    default="all_reduce",
    show_default=True,
    help="Bound this collective among all servers of NETWORK.",
)
@click.option("--overlap", is_flag=True, help="Let both stages of an all-reduce run at once.")
@click.option(
    "--gradient-bytes",
    type=SizeType(),
    metavar="SIZE",
    help="Bound the seconds for a gradient of this size, such as 100MB, too.",
)
@job_option
@mesh_option
@fault_options
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write network and certificates to this file, .json, for gradweave-check.",
)
@json_option
def bound(
    what: str,
    collective: Collective,
    overlap: bool,
    gradient_bytes: int | None,
    jobs: tuple[str, ...],
    mesh: str | None,
    output: Path | None,
    as_json: bool,
    **given: Unpack[FaultOptions],
) -> None:
    """Say how little NETWORK allows, why, and write the certificate that proves it.

    Rounds whatever the trees, and with --gradient-bytes seconds; with --job those of several
    collectives at once. What has no certificate is said to be not certified. Of a schedule's FILE
    the certificates are recounted, and it is written with those that it lacks.
    """
    writable(output, ".json", ".json.gz")
    with Progress(f"bounding {what}") as progress:
        if is_schedule_file(what):
            schedule = load(what)
            progress("verifying it")
            switches = bool(schedule.scheduler.options.get("aggregating_switches"))
            verify(schedule, aggregating_switches=switches).raise_if_invalid()
            size = gradient_bytes or planned_for(schedule).gradient_bytes
            progress("finding its bounds")
            schedule = with_certificates(schedule, size)
            topology, demand, found = schedule.topology, schedule.demand, []
        else:
            schedule, demand = None, None
            if jobs:
                topology = network_of(what, given)
                demand = demand_of(topology, jobs_of(topology, jobs, mesh))
                progress("solving the linear program of trees and paths")
                found = _of_demand(topology, demand)
            else:
                topology = network_of(what, given)
                found = _of_network(topology, collective, overlap, gradient_bytes)
        if not found and schedule is None:
            raise OptionError(
                f"{what}: {topology.num_nodes} nodes; bounds are certified on at most {MOST_NODES}"
            )
        if output is not None:
            progress(f"writing {output}")
            if schedule is not None:
                schedule.save(output)
            else:
                name = DEMAND if demand is not None else collective
                proved = [one for one in found if isinstance(one, Certified)]
                content = _as_object(topology, name, demand, proved)
                atomic_write(output, msgspec.json.encode(content))
    answer: dict[str, Any] = {"what": what, "output": output and str(output)}
    if schedule is None:
        answer["bounds"] = [_of(one) for one in found]
        lines = [f"at least {_least(one)}" for one in found]
    else:
        checked = checked_bounds(schedule)
        least = rounds_bound(schedule, checked)
        answer |= {"bounds": [one.as_object() for one in checked], **bound_fields(schedule, least)}
        lines = bound_lines(schedule, least, checked) or ["no bound on it is known"]
    if as_json:
        print_json(answer)
    else:
        print_lines(*lines)


def _least(one: Certified | Uncertified) -> str:
    """A bound of a network, and why."""
    in_rounds = one.unit == "rounds"
    least = counted(int(one.least), "round") if in_rounds else format_seconds(float(one.least))
    if isinstance(one, Uncertified):
        return f"{least}, not certified: {one.reason}"
    return f"{least}: {one.reason.rpartition(': ')[0]}"


def _of(one: Certified | Uncertified) -> dict[str, Any]:
    """The same for JSON."""
    least = {"unit": one.unit, "least": str(one.least), "reason": one.reason}
    if isinstance(one, Uncertified):
        return {**least, "holds_unless": [], "certificate": None}
    return {**least, "holds_unless": sorted(one.forbids), "certificate": one.certificate}


def _as_object(
    topology: Topology, collective: str, demand: Demand | None, found: list[Certified]
) -> dict[str, Any]:
    """What gradweave-check needs to recount certificates: network, collective, demand and they."""
    asked = {} if demand is None else {"demand": demand_to_object(demand)}
    return {
        "format": "gradweave-bounds",
        "version": 1,
        "collective": collective,
        "topology": topology_to_object(topology),
        **asked,
        "certificates": [one.certificate for one in found],
    }


def _of_demand(topology: Topology, demand: Demand) -> list[Certified | Uncertified]:
    """By the duals of the linear program of trees and paths, where it can be solved."""
    bound = demand_bound(topology, demand)
    try:
        bound = max(bound, Joint().plan(topology, demand).bound, key=lambda one: one.seconds)
    except NoScheduleError:
        pass
    proved = certify_demand(topology, demand, bound)
    return [proved, *_beyond(proved, bound.seconds, bound.reason(topology.id_name))]


def _of_network(
    topology: Topology, collective: Collective, overlap: bool, gradient_bytes: int | None
) -> list[Certified | Uncertified]:
    if topology.num_nodes > MOST_NODES:
        return []
    bound = free_trees(topology, collective, overlap=overlap)
    rounds = certify_rounds(topology, bound, collective)
    found: list[Certified | Uncertified] = [
        rounds or Uncertified("rounds", bound.rounds, bound.described(topology.id_name))
    ]
    if gradient_bytes is not None:
        proved = certify_seconds(topology, gradient_bytes, collective)
        known = seconds_bound(topology, collective, gradient_bytes)
        found += [proved, *_beyond(proved, known.seconds, str(known))]
    return found


def _beyond(proved: Certified, seconds: float, reason: str) -> list[Uncertified]:
    """A larger bound on seconds than is proved, if there is one."""
    more = seconds > float(proved.least) * (1 + ROUNDING)
    return [Uncertified("seconds", seconds, reason)] if more else []
