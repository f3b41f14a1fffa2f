"""Implicit schedules on the command line: when they are made, and what is printed of them."""

from pathlib import Path
from typing import Any, cast

from gradweave.bounds import Bound, block_cuts
from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.options import refuse
from gradweave.cli.solving import SearchOptions
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.report.rounds_bound import rounds_verdict
from gradweave.schedulers import implicit
from gradweave.schedules.implicit import ImplicitSchedule
from gradweave.schedules.schedule import COLLECTIVES, Collective
from gradweave.simulator.by_orbits import round_seconds
from gradweave.topology.topology import Topology
from gradweave.topology.translations import translations
from gradweave.topology.units import format_seconds, format_size
from gradweave.verifier import verify
from gradweave.verifier.verdict import Verdict

EXPLICIT_SERVERS = 1 << 14
"""Most servers of a known family for which all transfers are written out unless asked otherwise:
an all-reduce of that many takes 5 to 6 GB."""
_OTHERS = ("changed_at", "fair", "jobs", "mesh", "ready_at", "runtime", "scheduler", "start_from")
"""Options of searches that make explicit schedules only."""


def is_implicit(topology: Topology, asked: bool, given: SearchOptions) -> bool:
    """Whether to make an implicit schedule: if asked, or if the network is too large for others.

    Raises:
        OptionError: it was asked for together with an option of other schedules.
    """
    if asked:
        refuse(_OTHERS, "no --implicit with it")
        if given["objective"] == "seconds":
            raise OptionError("--objective: expected rounds with --implicit, got seconds")
        if given["collective"] not in COLLECTIVES:
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
    as_json: bool,
    given: SearchOptions,
    progress: Progress,
) -> None:
    """Makes an implicit schedule, writes it and prints the result."""
    progress("growing the tree that all servers share")
    collective = cast(Collective, given["collective"])
    plan = implicit(topology, collective=collective)
    if output is not None:
        progress(f"writing {output}")
        plan.save(output)
    bound = block_cuts(topology, plan.symmetry, collective)
    taken = float(round_seconds(plan, gradient_bytes).sum())
    if as_json:
        found = {"seconds": taken, "gradient_bytes": gradient_bytes, "verified": True}
        print_json(_fields(plan, bound) | found | {"output": output and str(output)})
        return
    stages = [f"{count} {stage}" for stage, count in plan.base_collective.stages.items() if count]
    print_lines(
        f"{topology.name}: {counted(topology.num_servers, 'server')}, "
        f"{counted(len(topology.switches), 'switch', 'switches')}, "
        f"{counted(topology.num_links, 'link')}",
        f"{counted(plan.rounds, 'round')} ({', '.join(stages)}), "
        f"{counted(plan.num_transfers, 'transfer')}, verified by orbits",
        _images_line(plan),
        _bound_line(plan, bound),
        f"{format_size(gradient_bytes)}: {format_seconds(taken)} with a barrier per round",
        *([] if output is None else [f"written to {output}"]),
    )


def verify_implicit(
    file: Path, plan: ImplicitSchedule, strict: bool, switches: bool, as_json: bool
) -> Verdict:
    """Verifies an implicit schedule by orbits, and prints the verdict."""
    verdict = verify(plan, forwarding_servers=not strict, aggregating_switches=switches)
    bound = block_cuts(plan.topology, plan.symmetry, plan.collective) if verdict.valid else None
    if as_json:
        violation = verdict.violation and {
            "kind": verdict.violation.kind, "message": verdict.violation.message
        }  # fmt: skip
        found = {"file": str(file), "valid": verdict.valid, "violation": violation}
        print_json(found | _fields(plan, bound))
    elif verdict.violation is not None:
        print_lines(f"invalid: {verdict.violation.message}")
    else:
        assert bound is not None
        print_lines(
            f"valid: {plan.collective} on {plan.topology.name}, {counted(plan.rounds, 'round')}, "
            f"{counted(plan.num_transfers, 'transfer')}",
            _images_line(plan),
            _bound_line(plan, bound),
        )
    return verdict


def _images_line(plan: ImplicitSchedule) -> str:
    written = counted(plan.base_collective.num_transfers, "transfer")
    return f"implicit: {counted(plan.symmetry.order, 'image')} of {written} under translations"


def _bound_line(plan: ImplicitSchedule, bound: Bound) -> str:
    verdict = rounds_verdict(plan.rounds, bound.rounds, bound.holds_for)
    return f"{verdict}: {bound.described(plan.topology.id_name)}, not certified"


def _fields(plan: ImplicitSchedule, bound: Bound | None) -> dict[str, Any]:
    least = bound and {"rounds": bound.rounds, "kind": bound.kind}
    return {
        "topology": plan.topology.name,
        "scheduler": plan.scheduler.name,
        "collective": plan.collective,
        "servers": plan.topology.num_servers,
        "links": plan.topology.num_links,
        "rounds": plan.rounds,
        "transfers": plan.num_transfers,
        "images": plan.symmetry.order,
        "base_transfers": plan.base_collective.num_transfers,
        "bound": least,
        "optimal": bound and plan.rounds == bound.rounds,
    }
