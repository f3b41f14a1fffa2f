"""``gradweave solve --job``: several collectives at once, of any servers."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradweave.bounds.classes import class_of, optimal_in
from gradweave.cli.answers import Answer
from gradweave.cli.combinations import excludes, needs
from gradweave.cli.console import fields_of, network_fields, network_line
from gradweave.cli.meshes import mesh_axes
from gradweave.cli.options import grouped, network_of, option, refuse
from gradweave.cli.solving import SearchOptions, collective_named, ended_by_ctrl_c
from gradweave.common.specification import parse_spec
from gradweave.common.wording import counted
from gradweave.errors import OptionError, SpecError
from gradweave.report.link_use import use_lines
from gradweave.schedulers.solving.solution import Solution
from gradweave.schedulers.solving.solve import solve
from gradweave.schedules.demand import NAMES, ROOTED
from gradweave.schedules.jobs import Job, mesh_jobs
from gradweave.schedules.schedule import COLLECTIVES
from gradweave.topology.names import find_node
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_seconds, format_size, parse_seconds, parse_size

TIME_LIMIT_S = 60.0
"""Time limit of the search if none is given."""
_KEYS = ("bytes", "servers", "axis", "root", "relays", "name", "ready", "weight")
_OF_ALL_SERVERS = ("workers", "ready_at", "changed_at", "fair")
"""Options of searches for the collectives of `COLLECTIVES` only."""

_JOB = (
    "Take this collective, such as all_to_all:bytes=1GB or "
    "broadcast:bytes=1GB,root=0,servers=0-7.16; with --mesh also all_reduce:bytes=1GB,axis=tp. "
    "ready=5ms delays its start; relays=all lets other servers pass its data on. Repeatable: all "
    "jobs share the network."
)
_MESH = (
    "Take the servers, in the order of their ids, as a mesh such as dp=4,tp=8; jobs may have "
    "groups along its axes."
)


def job_options(*excluded: str) -> Callable[[Any], Any]:
    """Adds ``--job``, ``--mesh``, which needs it, and a refusal of the options that it excludes."""
    return grouped(
        option("--job jobs", _JOB, multiple=True, metavar="JOB"),
        option("--mesh", _MESH, metavar="AXES"),
        needs("--job", "--mesh", more=", such as all_reduce:bytes=1GB,axis=dp"),
        excludes("--job", *excluded),
    )


def asked_jobs(
    network: str, jobs: tuple[str, ...], sizes: Sequence[float], given: SearchOptions
) -> tuple[str, ...]:
    """The jobs of ``--job``, or the job of a ``--collective`` that only demands describe.

    Args:
        network: a specification or a file.
        jobs: the values of ``--job``.
        sizes: the values of ``--size``, in bytes.
        given: the other options.

    Returns:
        The jobs; none for an all-reduce, all-gather or reduce-scatter of all servers.

    Raises:
        OptionError: an option does not fit.
    """
    name, root = given["collective"], given["root"]
    if jobs:
        return jobs
    check_root(name, root)
    if name in COLLECTIVES:
        return ()
    refuse(_OF_ALL_SERVERS, f"--collective {', '.join(COLLECTIVES)} with it")
    if len(sizes) > 1:
        raise OptionError(f"--size: expected one size with --collective {name}, got {len(sizes)}")
    return (collective_job(network_of(network, given), name, root, sizes[0]),)


def check_root(collective: str, root: str | None) -> None:
    """Refuses ``--root`` for a collective without a root.

    Raises:
        OptionError: the collective has no root.
    """
    if root is not None and collective not in ROOTED:
        raise OptionError(f"--root: expected --collective {', '.join(ROOTED)}, got {collective}")


def collective_job(topology: Topology, collective: str, root: str | None, size_bytes: float) -> str:
    """One collective of all servers in the form of ``--job``, in equal parts.

    Args:
        topology: the network.
        collective: one of `gradweave.schedules.demand.NAMES`.
        root: node of the root, if the collective has one; the first server if not given.
        size_bytes: rounded up so that parts are equal.
    """
    parts = 1 if collective in ("broadcast", "reduce") else topology.num_servers
    text = f"{collective}:bytes={-(-int(size_bytes) // parts) * parts}"
    if collective not in ROOTED:
        return text
    return f"{text},root={topology.servers[0] if root is None else root}"


def search_jobs(
    network: str,
    texts: Sequence[str],
    mesh: str | None,
    progress: Callable[[str], None],
    given: SearchOptions,
) -> Solution:
    """Plans the jobs of the command line; Ctrl-C ends with the best.

    Raises:
        OptionError: options that are for one collective among all servers; jobs that make no sense.
        SpecError: a text that is no job or mesh.
    """
    topology = network_of(network, given)
    jobs = jobs_of(topology, texts, mesh)
    objective = given["objective"] or "makespan"
    objective = "makespan" if objective == "seconds" else objective
    with ended_by_ctrl_c(progress) as interrupt:
        return solve(
            topology,
            jobs=jobs,
            objective=objective,  # pyright: ignore[reportArgumentType] — refused by name
            runtime=given["runtime"],
            schedulers=given["scheduler"],
            start_from=given["start_from"],
            seed=given["seed"],
            time_limit=given["time_limit"] or TIME_LIMIT_S,
            interrupt=interrupt,
            progress=progress,
        )


def jobs_of(topology: Topology, texts: Sequence[str], mesh: str | None) -> list[Job]:
    """The jobs that texts describe; a job along an axis stands for one per group of the axis.

    Args:
        topology: the network.
        texts: such as ``all_to_all:bytes=1GB``.
        mesh: axes such as ``dp=4,tp=8``, or None.
    """
    axes = None if mesh is None else mesh_axes(mesh)
    jobs: list[Job] = []
    for text in texts:
        name, values = parse_spec(text)
        name = collective_named(name, NAMES)
        for key in values:
            if key not in _KEYS:
                shown = "a value without a key" if not key else key
                raise SpecError(f"job {text!r:.60}: {shown}: expected one of {', '.join(_KEYS)}")
        if "bytes" not in values:
            raise SpecError(f"job {text!r:.60}: expected bytes, as in {name}:bytes=1GB")
        size = parse_size(values["bytes"])
        when: dict[str, Any] = {
            "ready_at": parse_seconds("ready", values.get("ready", "0s")),
            "weight": _weight(text, values.get("weight", "1")),
        }
        if "axis" in values:
            if axes is None:
                raise SpecError(f"job {text!r:.60}: axis: expected --mesh, such as dp=4,tp=8")
            if others := values.keys() & {"servers", "root", "name"}:
                raise SpecError(f"job {text!r:.60}: {min(others)}: expected no axis with it")
            when["relays"] = _relays(topology, text, values)
            made = mesh_jobs(topology, axes, {values["axis"]: (name, size)})
            jobs += [dataclasses.replace(job, **when) for job in made]
            continue
        root = values.get("root")
        jobs.append(
            Job(
                name,
                size,
                _servers(topology, text, values.get("servers")),
                root=None if root is None else find_node(topology, root, "root"),
                name=values.get("name", ""),
                relays=_relays(topology, text, values),
                **when,
            )
        )
    return jobs


def _relays(topology: Topology, text: str, values: Mapping[str, str]) -> Sequence[int]:
    listed = values.get("relays")
    if listed == "all":
        return topology.servers.tolist()
    return _servers(topology, text, listed) or ()


def _weight(text: str, weight: str) -> float:
    try:
        return float(weight)
    except ValueError as error:
        raise SpecError(
            f"job {text!r:.60}: weight: expected a number, got {weight!r:.20}"
        ) from error


def _servers(topology: Topology, text: str, listed: str | None) -> list[int] | None:
    """``0-7.16`` as node ids; a part may also be a node's name."""
    if listed is None:
        return None
    servers: list[int] = []
    for part in listed.split("."):
        if ends := re.fullmatch(r"(\d{1,9})-(\d{1,9})", part):
            first, last = map(int, ends.groups())
            if first > last or last >= topology.num_nodes:
                raise SpecError(f"job {text!r:.60}: {part}: expected a range of node ids")
            servers += range(first, last + 1)
        else:
            servers.append(find_node(topology, part, "server"))
    return servers


def job_answer(solution: Solution) -> Answer:
    """The plan of jobs."""
    return Answer(_summary(solution), _lines(solution))


def _lines(solution: Solution) -> Iterator[str]:
    best, demand = solution.schedule, solution.schedule.demand
    assert demand is not None
    yield network_line(best.topology)
    yield f"{demand.name}: {format_size(demand.total_bytes)} in {counted(len(demand), 'block')}"
    yield (
        f"{counted(best.num_transfers, 'transfer')} in {counted(best.rounds, 'round')}, verified; "
        f"{counted(best.pieces, 'piece')}"
    )
    yield _far(solution)
    yield f"{format_seconds(solution.seconds)} in all{_ends(solution)}"
    yield from use_lines(best, demand.total_bytes)[:1]
    yield f"found by {solution.scheduler.name} in {solution.wall_s:.2f} s"
    others = [
        f"{one.scheduler.name} {'none' if one.seconds is None else format_seconds(one.seconds)}"
        for one in solution.attempts
        if one.scheduler != solution.scheduler
    ]
    if others:
        yield f"also tried: {', '.join(others)}"


def _far(solution: Solution) -> str:
    """The gap between the plan and its bound, and the reason of the bound."""
    network, bound, judge = solution.schedule.topology, solution.makespan_bound, solution.judge
    assert bound is not None and judge is not None  # solutions for jobs have them
    if solution.of_objective is None:
        far = f"{solution.gap:.1%} above the lower bound in seconds"
        if solution.optimal:
            far = optimal_in("seconds", bound.holds_unless)
        doubt = ", not certified" * (bound.seconds > bound.seconds_of_parts)
        reason = bound.reason(network.id_name)
        least = f"at least {format_seconds(bound.seconds)}{bound.holds_for}"
        return f"{far}: {least}{doubt}, since {reason}"
    of_all = solution.of_objective
    far = f"{solution.gap:.1%} above the lower bound"
    if solution.optimal:
        far = "optimal" + " among such schedules" * bool(of_all.holds_unless)
    value, least = (
        format_seconds(one) if judge.in_seconds else f"{one:.4g}"
        for one in (solution.value, solution.least)
    )
    least += class_of(of_all.holds_unless)
    reason = of_all.reason(network.id_name)
    return f"{judge.name} {value}, {far}: at least {least}, not certified, since {reason}"


def _ends(solution: Solution) -> str:
    """When the jobs of each name end, if there are several."""
    demand = solution.schedule.demand
    assert demand is not None
    if len(demand.jobs) == 1:
        return ""
    names = np.array(demand.jobs)
    shown = []
    for name in dict.fromkeys(demand.jobs):
        ends = solution.job_seconds[names == name]
        first, last = format_seconds(ends.min()), format_seconds(ends.max())
        shown.append(f"{name} ends after {first if first == last else f'{first} to {last}'}")
    return f": {', '.join(shown)}"


def _summary(solution: Solution) -> dict[str, Any]:
    best, demand, bound = solution.schedule, solution.schedule.demand, solution.makespan_bound
    assert demand is not None and bound is not None
    return network_fields(best.topology) | {
        "scheduler": solution.scheduler.name,
        "jobs": [
            {"name": name, "seconds": seconds}
            for name, seconds in zip(demand.jobs, solution.job_seconds.tolist(), strict=True)
        ],
        "bytes": demand.total_bytes,
        "transfers": best.num_transfers,
        **fields_of(best, "rounds", "pieces"),
        "seconds_bound": {
            "seconds": bound.seconds,
            "reason": bound.reason(),
            "holds_for": bound.holds_for.removeprefix(" for ") or "every schedule",
        },
        "seconds_gap": solution.seconds / bound.seconds - 1,
        "value_bound": solution.least,
        **fields_of(solution, "seconds", "objective", "value", "gap", "optimal_in"),
        "verified": True,  # Every strategy verifies before it returns.
        "attempts": [
            {
                "scheduler": one.scheduler.name,
                "options": one.scheduler.options(),
                **fields_of(one, "seconds", "improved"),
                "reason": one.reason or None,
            }
            for one in solution.attempts
        ],
        "wall_s": round(solution.wall_s, 4),
    }
