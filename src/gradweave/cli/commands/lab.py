"""``gradweave lab``: measured and predicted times of collectives on an emulated network."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click
import numpy as np

from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress, Table, fields_of, link_fields, print_lines
from gradweave.cli.groups import command
from gradweave.cli.labs import emulated
from gradweave.cli.options import (
    FILE,
    FaultOptions,
    fault_options,
    is_given,
    network_of,
    option,
    scheduler_option,
    seed_option,
    sizes_option,
    written_option,
)
from gradweave.cli.planned_jobs import job_options, jobs_of
from gradweave.cli.solving import chosen_objective_option
from gradweave.common.atomic import atomic_write
from gradweave.common.wording import counted
from gradweave.errors import OptionError, ScheduleError
from gradweave.execute.program import is_own
from gradweave.schedulers.solving.solve import Objective, default_objective, solve
from gradweave.schedulers.spec import PORTFOLIO, is_portfolio, split_specs
from gradweave.schedulers.spec import from_spec as scheduler_from_spec
from gradweave.schedules.file import load
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.bandwidths import algorithm_bandwidth, bus_bandwidth
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_rate

if TYPE_CHECKING:
    from gradweave.lab.emulation import Emulation
    from gradweave.lab.measure import Experiment, ForSizes, Measurement

BACKEND = "gloo"
"""Name of the backend's native collectives among the schedulers."""
_PLAN_S = 60.0
"""Longest search for a plan of jobs."""
_MEASURES = ("scheduler", "jobs", "mesh", "files", "gradient_bytes", "repetitions")
_MEASURES += ("objective", "runtime", "seed", "output", "as_json")
"""Parameters that do not apply to a COMMAND."""


class _Options(FaultOptions):
    """Values of the options of a measurement."""

    scheduler: str
    jobs: tuple[str, ...]
    mesh: str | None
    files: tuple[Path, ...]
    gradient_bytes: tuple[int, ...]
    repetitions: int
    objective: Objective | None
    runtime: str | None
    seed: int


@command(
    examples=[
        "bcube:n=2,k=1 --scheduler portfolio,gloo --output lab.png",
        "ring:4 --bandwidth 50Mbit/s -- python train.py",
    ]
)
@click.argument("network")
@click.argument("command", nargs=-1, metavar="[-- COMMAND…]")
@scheduler_option(
    f"Measure these strategies; {BACKEND} is the backend's native all-reduce. With --job the "
    f"default is {PORTFOLIO},{BACKEND}.",
    default=f"{PORTFOLIO},ring,parameter_server,{BACKEND}",
)
@job_options("--size", "--objective")
@option(
    "--schedule files",
    "Also measure the schedule in this file, made for NETWORK. Repeatable.",
    FILE,
    multiple=True,
    metavar="FILE",
)
@sizes_option("1MB,8MB", "Measure gradients of this size.", least=4)
@option(
    "--bandwidth",
    "Give the slowest link this bandwidth; the others keep their proportion to it.",
    default="100Mbit/s",
)
@option("--latency", "Give every link this latency, such as 20ms.  [default: each link's own]")
@option(
    "--repetitions", "Measure each schedule this many times.", click.IntRange(1, 10_000), default=5
)
@chosen_objective_option
@option(
    "--runtime",
    "Plan with the message costs of this runtime, as in gradweave solve, if seconds are "
    f"minimised.  [default: {BACKEND}, which runs them; with --job on this machine's cores]",
    metavar="NAME|FILE",
)
@fault_options
@seed_option
@written_option(
    "--output",
    "Write the figures (.json) and the chart (.png) to files of this name.",
    (".json", ".png"),
)
def lab(
    network: str,
    command: tuple[str, ...],
    bandwidth: str,
    latency: str | None,
    output: Path | None,
    **given: Unpack[_Options],
) -> Answer | None:
    """Measure collectives on NETWORK, emulated on this machine.

    It measures all-reduces, or the collectives of --job, and needs root.

    Every server and switch becomes a network namespace, every link a pair of interfaces that send
    no faster than the link, and latencies are added. Round trips and throughput of the links are
    measured first. Then one process per server runs each schedule over torch.distributed; bytes are
    counted by the kernel.

    A COMMAND after -- runs instead, once per server, with the environment of torchrun and with the
    emulated network as GRADWEAVE_TOPOLOGY.
    """
    if command and is_given(*_MEASURES):
        raise OptionError(
            "COMMAND: expected only --bandwidth, --latency and options for faults with it, since "
            "it runs instead of the measurement"
        )
    topology = emulated(network_of(network, given), bandwidth, latency)
    if command:
        _run(topology, command)
        return None
    jobs = given["jobs"]
    with Progress(f"scheduling {network}") as progress:
        plans = [(path, _on(load(path), topology, path)) for path in given["files"]]
        measure = _jobs if jobs else _all_reduces
        experiment = measure(topology, plans, given, progress)
    result = _as_object(experiment, topology, jobs)
    written = [] if output is None else _write(result, experiment.measurements, output)
    return Answer(result, _text(experiment, topology, jobs, written))


def _text(
    experiment: "Experiment", topology: Topology, jobs: Sequence[str], written: Sequence[Path]
) -> Iterator[str | Table]:
    yield _head(topology)
    yield _emulated(experiment.emulation)
    heads = (
        *("schedule", "MB", "rounds", "predicted ms", "measured ms", "spread", "ratio"),
        *("busbw", "MB sent", "MB on links", "of that not data"),
    )
    servers = None if jobs else topology.num_servers
    yield Table(heads, [_cells(one, servers) for one in experiment.measurements])
    if written:
        yield f"written to {' and '.join(map(str, written))}"


def _run(topology: Topology, command: Sequence[str]) -> None:
    """A user's program, each line after the name of the server that printed it."""
    from gradweave.lab.program import run_program

    names = [topology.id_name(server) for server in topology.servers.tolist()]
    width = max(map(len, names))
    with contextlib.ExitStack() as until_it_runs:
        progress = until_it_runs.enter_context(Progress(f"emulating {topology.name}"))

        def begin(emulation: "Emulation") -> None:
            until_it_runs.close()
            print_lines(_head(topology), _emulated(emulation))

        def write(rank: int, line: str) -> None:
            print_lines(f"[{names[rank]:>{width}}] {line}")

        run_program(topology, command, write, progress, begin)


def _head(topology: Topology) -> str:
    return (
        f"{topology.name}: {topology.num_servers} processes, "
        f"{counted(topology.num_links, 'link')}, "
        f"the slowest {format_bandwidth(float(topology.bandwidth_bytes_per_s.min()))}"
    )


def _jobs(
    topology: Topology,
    files: Sequence[tuple[Path, Schedule]],
    given: _Options,
    progress: Callable[[str], None],
) -> "Experiment":
    """Several collectives at once, planned by each strategy, and the plans of files."""
    from gradweave.lab.jobs import measure_jobs, shared_runtime

    jobs = jobs_of(topology, given["jobs"], given["mesh"])
    names = split_specs(given["scheduler"])
    if not is_given("scheduler"):
        names = [PORTFOLIO, BACKEND]
    plans = []
    for path, plan in files:
        if plan.demand is None:
            raise OptionError(f"{path}: is a schedule of {plan.collective}; expected one of jobs")
        plans.append((path.name, plan))
    found = []
    for name in names:
        if name != BACKEND:
            progress(f"planning by {name}")
            best = solve(
                topology,
                jobs=jobs,
                runtime=given["runtime"] or shared_runtime(),
                schedulers=name,
                seed=given["seed"],
                time_limit=_PLAN_S,
            )
            found.append((name, best.schedule))
    return measure_jobs(
        topology,
        jobs,
        [*found, *plans],
        own=BACKEND in names,
        repetitions=given["repetitions"],
        seed=given["seed"],
        progress=progress,
    )


def _all_reduces(
    topology: Topology,
    files: Sequence[tuple[Path, Schedule]],
    given: _Options,
    progress: Callable[[str], None],
) -> "Experiment":
    """All-reduces of each size by each strategy and file."""
    from gradweave.lab import measure as laboratory

    sizes = given["gradient_bytes"]
    wanted = _Wanted(topology, given["objective"], given["runtime"], sizes, given["seed"])
    contenders: list[tuple[str, ForSizes]] = [
        (name, None if name == BACKEND else wanted.schedules(name))
        for name in split_specs(given["scheduler"])
    ]
    contenders += [(path.name, plan) for path, plan in files]
    if not contenders:
        raise OptionError("schedulers: expected at least one, got none")
    return laboratory.measure(
        topology,
        contenders,
        gradient_bytes=sizes,
        repetitions=given["repetitions"],
        progress=progress,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Wanted:
    """Objective, sizes and runtime for which schedules are searched."""

    topology: Topology
    objective: Objective | None
    runtime: str | None
    gradient_bytes: tuple[int, ...]
    seed: int

    def schedules(self, name: str) -> "ForSizes":
        """One of a strategy; of the portfolio for seconds one for each size.

        Where a runtime's own all-reduce is the answer, it is what runs.
        """
        if not is_portfolio(name):
            return scheduler_from_spec(name).schedule(self.topology, seed=self.seed)
        default = default_objective(self.topology, self.runtime or "ideal")
        if (self.objective or default) == "rounds":
            return solve(self.topology, objective="rounds", seed=self.seed).schedule
        found = {
            size: solve(
                self.topology,
                objective="seconds",
                runtime=self.runtime or BACKEND,
                gradient_bytes=size,
                seed=self.seed,
            ).schedule
            for size in self.gradient_bytes
        }
        return {size: None if is_own(one, BACKEND) else one for size, one in found.items()}


def _on(schedule: Schedule, topology: Topology, path: Path) -> Schedule:
    """A file's schedule on the emulated network; refuses one for another network."""
    theirs = schedule.topology
    same = all(
        np.array_equal(getattr(theirs, field), getattr(topology, field))
        for field in ("is_server", "source", "target", "capacity")
    )
    if not same:
        raise ScheduleError(
            f"{path}: is a schedule for {theirs.name}; expected one for {topology.name}"
        )
    return schedule.replace(topology=topology)


def _emulated(emulation: "Emulation") -> str:
    """The emulated and the requested links in one line."""
    late = emulation.round_trip_s - emulation.asked_round_trip_s
    sample = "" if len(emulation.links) == emulation.of_links else f" of {emulation.of_links}"
    added = "no delays" if emulation.delays == "none" else f"delays by {emulation.delays}"
    return (
        f"emulated with {added}: round trips {1e3 * late.min():+.2f} to {1e3 * late.max():+.2f} ms "
        f"of what was asked for, {emulation.together:.0%} of the throughput with all links loaded "
        f"({len(emulation.links)}{sample} link directions measured)"
    )


def _as_object(experiment: "Experiment", topology: Topology, jobs: Sequence[str]) -> dict[str, Any]:
    from gradweave.lab.network import HEADER_BYTES

    servers = None if jobs else topology.num_servers
    return {
        "topology": topology.name,
        "servers": topology.num_servers,
        "header_bytes_a_packet": HEADER_BYTES,
        "links": link_fields(topology),
        "emulation": _emulation(experiment.emulation),
        "jobs": list(jobs),
        "measurements": [_one(one, servers) for one in experiment.measurements],
    }


def _emulation(emulation: "Emulation") -> dict[str, Any]:
    fields = fields_of(emulation, *(field.name for field in dataclasses.fields(emulation)))
    fields["alone_bytes_per_s"] = [
        None if x != x else x for x in emulation.alone_bytes_per_s.tolist()
    ]
    return {
        name: column.tolist() if isinstance(column, np.ndarray) else column
        for name, column in fields.items()
    }


def _one(one: "Measurement", servers: int | None) -> dict[str, Any]:
    data, size = one.predicted_link_bytes, one.gradient_bytes
    names = ("name", "gradient_bytes", "measured_s", "runs_s", "predicted_s", "fair_s", "barrier_s")
    names += ("message_cost_s", "ratio", "overhead", "sent_bytes", "correct")
    return fields_of(one, *names) | {
        "rounds": one.schedule and one.schedule.rounds,
        "algbw_bytes_per_s": algorithm_bandwidth(size, one.measured_s),
        "busbw_bytes_per_s": servers and bus_bandwidth(size, one.measured_s, servers),
        "link_bytes": one.link_bytes.tolist(),
        "predicted_link_bytes": None if data is None else data.tolist(),
    }


def _write(
    result: dict[str, Any], measurements: Sequence["Measurement"], output: Path
) -> list[Path]:
    from gradweave.report.lab_chart import lab_chart

    figures, chart = output.with_suffix(".json"), output.with_suffix(".png")
    atomic_write(figures, json.dumps(result, indent=1).encode())
    lab_chart(measurements, result["topology"], chart)
    return [figures, chart]


def _cells(one: "Measurement", servers: int | None) -> list[str]:
    bus = servers and format_rate(bus_bandwidth(one.gradient_bytes, one.measured_s, servers))
    spread = (max(one.runs_s) - min(one.runs_s)) / one.measured_s
    return [
        one.name,
        f"{one.gradient_bytes / 1e6:g}",
        "–" if one.schedule is None else str(one.schedule.rounds),
        "–" if one.predicted_s is None else f"{1e3 * one.predicted_s:.1f}",
        f"{1e3 * one.measured_s:.1f}",
        f"{spread:.0%}",
        "–" if one.ratio is None else f"{one.ratio:.2f}",
        bus or "–",
        f"{sum(one.sent_bytes) / 1e6:.2f}" if one.schedule else "–",
        f"{one.link_bytes.sum() / 1e6:.2f}",
        "–" if one.overhead is None else f"{one.overhead / (1 + one.overhead):.1%}",
    ]
