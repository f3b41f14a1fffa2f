"""``gradweave run``: the collective on real processes, checked and timed."""

import os
from pathlib import Path
from typing import Any, cast

import click

from gradweave.cli.console import (
    Progress,
    complain,
    print_json,
    print_lines,
    print_table,
    rank_lines,
    rank_map,
    table,
)
from gradweave.cli.options import SizeType, json_option, positive, writable_folder
from gradweave.errors import OptionError
from gradweave.execute.reduction import REDUCTIONS, Reduction
from gradweave.execute.running.joined import ended_at_once
from gradweave.execute.running.launch import Place
from gradweave.execute.running.run import run as run_file
from gradweave.execute.running.trial import DTYPES, RunReport, RunTimes, Trial, itemsize
from gradweave.lazy import require
from gradweave.processes.launchers import rank_given
from gradweave.schedule import Schedule
from gradweave.topology.units import format_size

_PACKAGES = {"mpi": "mpi4py", "torch": "torch", "jax": "jax"}
_NATIVE = {"mpi": "MPI_Allreduce", "torch": "dist.all_reduce", "jax": "jax.lax.psum"}


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--backend", type=click.Choice(sorted(DTYPES)), default="torch", show_default=True)
@click.option(
    "--gradient-bytes",
    type=SizeType(least=0),
    default="8MB",
    show_default=True,
    help="Size of the gradient, such as 400MB or 1GiB.",
)
@click.option("--elements", type=click.IntRange(0, 10**15), help="Its length, instead of its size.")
@click.option(
    "--dtype",
    type=click.Choice(sorted({name for names in DTYPES.values() for name in names})),
    default="float32",
    show_default=True,
)
@click.option("--reduction", type=click.Choice(REDUCTIONS), default="sum", show_default=True)
@click.option(
    "--repetitions",
    type=click.IntRange(1, 10**6),
    default=20,
    show_default=True,
    help="Timed runs.",
)
@click.option(
    "--warm-up",
    type=click.IntRange(0, 10**6),
    default=3,
    show_default=True,
    help="Runs before the timed ones.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    help="jax: processes to divide the servers among.  [1]",
)
@click.option(
    "--devices",
    type=click.Choice(["cpu", "found"]),
    help="jax: split the processor into devices, or take those that JAX finds.  [cpu]",
)
@click.option(
    "--timeout",
    type=float,
    default=300.0,
    show_default=True,
    callback=positive(float),
    metavar="SECONDS",
    help="Time without progress after which the run is given up.",
)
@click.option(
    "--logs",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Folder for the processes' logs.",
)
@json_option
def run(
    file: Path,
    backend: str,
    gradient_bytes: int,
    elements: int | None,
    dtype: str,
    reduction: str,
    repetitions: int,
    warm_up: int,
    processes: int | None,
    devices: str | None,
    timeout: float,
    logs: Path | None,
    as_json: bool,
) -> None:
    """Run the schedule in FILE on real processes: check the result, and time it.

    The backend's native all-reduce is timed in turns with it. Under mpirun or torchrun the
    processes are the launcher's; otherwise one per server is started on this machine, or, with
    JAX, one process whose devices are the servers.
    """
    with ended_at_once(complain):
        trial = Trial(
            backend,
            -(-gradient_bytes // itemsize(dtype)) if elements is None else elements,
            dtype,
            cast(Reduction, reduction),
            repetitions,
            warm_up,
        )
        place = Place(processes or 1, devices != "found", logs, timeout)
        _check_options(trial, place, processes, devices)
        first = not rank_given(backend)
        with Progress(f"reading {file}") as progress:
            if not first:
                progress.hide()
            schedule, report = run_file(file, trial, place, progress, complain)
    if first and as_json:
        print_json(_summary(schedule, report, trial, file))
    elif first:
        _print(schedule, report, trial, file)


def _check_options(trial: Trial, place: Place, processes: int | None, devices: str | None) -> None:
    """Refuses options that do not go together, before anything is started."""
    backend = trial.backend
    if backend != "jax":
        for name, given in (("--processes", processes), ("--devices", devices)):
            if given is not None:
                raise OptionError(
                    f"{name} is for the backend jax; {backend} has one process per server"
                )
    elif not place.pretend_devices and place.processes > 1:
        raise OptionError("--devices found: expected one process; leave --processes out")
    require(f"the backend {backend}", _PACKAGES[backend])
    for other in _PACKAGES:
        if other != backend and rank_given(other) is not None:
            raise OptionError(
                f"--backend {backend} does not run under the launcher of {other}; use "
                f"--backend {other}, or start gradweave without it"
            )
    if place.logs is not None and not place.logs.parent.is_dir():
        raise OptionError(f"--logs: there is no directory {place.logs.parent}; make it first")
    writable_folder(place.logs, "--logs")


def _summary(schedule: Schedule, report: RunReport, trial: Trial, file: Path) -> dict[str, Any]:
    sent = report.schedule.sent_bytes or ()
    return {
        "file": str(file),
        "topology": schedule.topology.name,
        "scheduler": schedule.scheduler.name,
        "collective": schedule.collective,
        "servers": schedule.topology.num_servers,
        "backend": trial.backend,
        "library": report.library,
        "processes": report.processes,
        "ranks": rank_map(schedule.topology),
        "cores": os.cpu_count(),
        "gradient_bytes": trial.gradient_bytes,
        "elements": trial.elements,
        "dtype": trial.dtype,
        "reduction": trial.reduction,
        "warm_up": trial.warm_up,
        "repetitions": trial.repetitions,
        "correct": True,  # A wrong result is an error.
        "oracle_elements": report.oracle_elements,
        "pattern_elements": report.pattern_elements,
        "schedule": _numbers(report.schedule, trial)
        | {"sent_bytes": list(sent), "total_sent_bytes": sum(sent)},
        "own": report.native and {"name": _NATIVE[trial.backend]} | _numbers(report.native, trial),
    }


def _numbers(timing: RunTimes, trial: Trial) -> dict[str, Any]:
    first, third = timing.quartiles
    return {
        "median_s": timing.median,
        "min_s": min(timing.seconds),
        "first_quartile_s": first,
        "third_quartile_s": third,
        "seconds": list(timing.seconds),
        "bandwidth_bytes_per_s": trial.gradient_bytes / timing.median,
    }


def _print(schedule: Schedule, report: RunReport, trial: Trial, file: Path) -> None:
    servers, name = schedule.topology.num_servers, schedule.topology.name
    processes = "1 process" if report.processes == 1 else f"{report.processes} processes"
    checked = f"bit for bit as the oracle's, length {report.oracle_elements:,}"
    if report.pattern_elements > report.oracle_elements:
        checked += f"; exact, length {report.pattern_elements:,}"
    print_lines(
        f"{schedule.collective} on {name} by {schedule.scheduler.name}: {servers} servers in "
        f"{processes} on {os.cpu_count()} cores, {report.library}",
        f"{format_size(trial.gradient_bytes)} of {trial.dtype}, {trial.reduction}: {checked}",
        *rank_lines(schedule.topology),
    )
    rows = [[file.name, *_cells(report.schedule, trial)]]
    if report.native is not None:
        rows.append([_NATIVE[trial.backend], *_cells(report.native, trial)])
    print_table(table(["", "median", "fastest", "quartiles", "bandwidth"], rows))
    print_lines(_sent(report.schedule.sent_bytes or ()))


def _cells(timing: RunTimes, trial: Trial) -> list[str]:
    first, third = timing.quartiles
    return [
        f"{1e3 * timing.median:.4g} ms",
        f"{1e3 * min(timing.seconds):.4g} ms",
        f"{1e3 * first:.4g} to {1e3 * third:.4g} ms",
        f"{format_size(trial.gradient_bytes / timing.median)}/s",
    ]


def _sent(sent_bytes: tuple[int, ...]) -> str:
    least, most = format_size(min(sent_bytes)), format_size(max(sent_bytes))
    each = most if least == most else f"{least} to {most}"
    return f"sent by each server, counted: {each}; by all: {format_size(sum(sent_bytes))}"
