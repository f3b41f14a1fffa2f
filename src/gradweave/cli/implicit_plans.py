"""Implicit schedules on the command line: when they are made, and what is printed of them."""

from pathlib import Path
from typing import Any, cast

from gradweave.bounds import Bound, block_cuts
from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress, fields_of, network_fields, network_line
from gradweave.cli.solving import SearchOptions
from gradweave.common.wording import counted
from gradweave.errors import ANSWER_IS_NO, OptionError
from gradweave.report.rounds_bound import rounds_verdict
from gradweave.schedulers import implicit
from gradweave.schedules.file import load_implicit
from gradweave.schedules.implicit import ImplicitSchedule
from gradweave.schedules.schedule import COLLECTIVES, Collective
from gradweave.simulator.by_orbits import round_seconds
from gradweave.topology.topology import Topology
from gradweave.topology.translations import translations
from gradweave.topology.units import format_seconds, format_size
from gradweave.verifier import verify

EXPLICIT_SERVERS = 1 << 14
"""Most servers of a known family for which all transfers are written out unless asked otherwise:
an all-reduce of that many takes 5 to 6 GB."""
EXPLICIT_ONLY = (
    *("--changed-at", "--fair", "--objective seconds", "--ready-at", "--runtime", "--scheduler"),
    "--start-from",
)
"""Options of searches that make explicit schedules only."""


def is_implicit(topology: Topology, asked: bool, given: SearchOptions) -> bool:
    """Whether to make an implicit schedule: if asked, or if the network is too large for others.

    Raises:
        OptionError: it was asked for, for a collective of which there are none.
    """
    if asked and given["collective"] not in COLLECTIVES:
        raise OptionError(
            f"--collective: expected {', '.join(COLLECTIVES)} with --implicit, got "
            f"{given['collective']}"
        )
    others = given["scheduler"] or given["start_from"] or given["ready_at"]
    large = topology.num_servers > EXPLICIT_SERVERS and not others
    return asked or (
        large and given["objective"] != "seconds" and translations(topology) is not None
    )


def solve_implicit(
    topology: Topology,
    gradient_bytes: float,
    output: Path | None,
    given: SearchOptions,
    progress: Progress,
) -> Answer:
    """Makes an implicit schedule and writes it."""
    progress("growing the tree that all servers share")
    collective = cast(Collective, given["collective"])
    plan = implicit(topology, collective=collective)
    if output is not None:
        progress(f"writing {output}")
        plan.save(output)
    bound = block_cuts(topology, plan.symmetry, collective)
    taken = float(round_seconds(plan, gradient_bytes).sum())
    found = {"seconds": taken, "gradient_bytes": gradient_bytes, "verified": True}
    stages = [f"{count} {stage}" for stage, count in plan.base_collective.stages.items() if count]
    lines = [
        network_line(topology),
        f"{counted(plan.rounds, 'round')} ({', '.join(stages)}), "
        f"{counted(plan.num_transfers, 'transfer')}, verified by orbits",
        _images_line(plan),
        _bound_line(plan, bound),
        f"{format_size(gradient_bytes)}: {format_seconds(taken)} with a barrier per round",
    ]
    return Answer(_fields(plan, bound) | found, lines).written_to(output)


def verify_implicit(file: Path, strict: bool, switches: bool) -> Answer:
    """Verifies the implicit schedule of a file by orbits."""
    with Progress(f"verifying {file}"):
        plan = load_implicit(file)
        verdict = verify(plan, forwarding_servers=not strict, aggregating_switches=switches)
    violation, found = verdict.violation, {"file": str(file), "valid": verdict.valid}
    if violation is not None:
        said = {"violation": fields_of(violation, "kind", "message")}
        lines = [f"invalid: {violation.message}"]
        return Answer(found | said | _fields(plan, None), lines, status=ANSWER_IS_NO)
    bound = block_cuts(plan.topology, plan.symmetry, plan.collective)
    lines = [
        f"valid: {plan.collective} on {plan.topology.name}, {counted(plan.rounds, 'round')}, "
        f"{counted(plan.num_transfers, 'transfer')}",
        _images_line(plan),
        _bound_line(plan, bound),
    ]
    return Answer(found | {"violation": None} | _fields(plan, bound), lines)


def _images_line(plan: ImplicitSchedule) -> str:
    written = counted(plan.base_collective.num_transfers, "transfer")
    return f"implicit: {counted(plan.symmetry.order, 'image')} of {written} under translations"


def _bound_line(plan: ImplicitSchedule, bound: Bound) -> str:
    verdict = rounds_verdict(plan.rounds, bound.rounds, bound.holds_for)
    return f"{verdict}: {bound.described(plan.topology.id_name)}, not certified"


def _fields(plan: ImplicitSchedule, bound: Bound | None) -> dict[str, Any]:
    return network_fields(plan.topology) | {
        "scheduler": plan.scheduler.name,
        **fields_of(plan, "collective", "rounds"),
        "transfers": plan.num_transfers,
        "images": plan.symmetry.order,
        "base_transfers": plan.base_collective.num_transfers,
        "bound": bound and fields_of(bound, "rounds", "kind"),
        "optimal": bound and plan.rounds == bound.rounds,
    }
