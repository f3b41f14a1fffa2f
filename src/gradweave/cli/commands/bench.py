"""``gradweave bench``: the collective on real processes, checked and timed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import click

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import needs
from gradweave.cli.console import Progress, Table, complain, rank_lines, rank_map, warn
from gradweave.cli.groups import command
from gradweave.cli.options import (
    FILE,
    SECONDS,
    option,
    sizes_option,
    writable_folder,
    written_option,
)
from gradweave.common.wording import counted, listed
from gradweave.errors import OptionError
from gradweave.execute.reduction import REDUCTIONS, Reduction
from gradweave.execute.running.joined import ended_at_once
from gradweave.execute.running.launch import Place
from gradweave.execute.running.run import run as run_file
from gradweave.execute.running.trial import DTYPES, Trial, description, itemsize
from gradweave.probe.calibration import BUSY_CORES, calibrated, calibrating, cores_in_use
from gradweave.probe.calibration import write as write_profile
from gradweave.processes.launchers import rank_given
from gradweave.schedules.kinds import check_schedule_file
from gradweave.schedules.planned_for import planned_for
from gradweave.schedules.ready import planned_ready_times
from gradweave.schedules.schedule import Schedule
from gradweave.topology.units import format_rate, format_seconds, format_size


@command(examples=["plan.json --backend torch --size 1MB..64MB"])
@click.argument("file", type=FILE)
@option("--backend", "Run on this backend.", click.Choice(sorted(DTYPES)), default="torch")
@sizes_option(
    "8MB", "Run on a gradient of this size, such as 400MB or 1GiB; the largest is checked.", least=0
)
@option(
    "--elements",
    "Run on a gradient with this number of elements, instead of --size.",
    click.IntRange(0, 10**15),
)
@option(
    "--dtype",
    "Use numbers of this type.",
    click.Choice(sorted({name for names in DTYPES.values() for name in names})),
    default="float32",
)
@option(
    "--reduction", "Combine gradients by this reduction.", click.Choice(REDUCTIONS), default="sum"
)
@option("--repetitions", "Time this many runs.", click.IntRange(1, 10**6), default=20)
@option(
    "--warm-up", "Make this many runs before the timed ones.", click.IntRange(0, 10**6), default=3
)
@option(
    "--processes",
    "Divide the servers among this many processes (jax).  [default: 1]",
    click.IntRange(1),
)
@option(
    "--devices",
    "Split the processor into devices, or take those that JAX finds (jax).  [default: cpu]",
    click.Choice(["cpu", "found"]),
)
@needs("--backend jax", "--processes", "--devices")
@option("--timeout", "End the run after this time without progress.", SECONDS, default=300.0)
@option("--logs", "Keep the processes' logs in this folder.", FILE, metavar="DIRECTORY")
@written_option(
    "--write-runtime",
    "Also measure the message costs of this machine, and write them as a profile for "
    "gradweave solve --runtime.",
    (".toml",),
    metavar="FILE.toml",
)
def bench(
    file: Path,
    backend: str,
    gradient_bytes: tuple[int, ...],
    elements: int | None,
    dtype: str,
    reduction: str,
    repetitions: int,
    warm_up: int,
    processes: int | None,
    devices: str | None,
    timeout: float,
    logs: Path | None,
    write_runtime: Path | None,
) -> Answer | None:
    """Run the schedule in FILE on real processes, and time it.

    The schedule's network is not emulated, so times say nothing about it; 'gradweave lab' emulates.

    The backend's native all-reduce is timed alternately with it. Under mpirun or torchrun the
    processes are the launcher's; otherwise one per server is started on this machine, or, with
    JAX, one process whose devices are the servers.
    """
    with ended_at_once(complain):
        lengths = [-(-size // itemsize(dtype)) for size in gradient_bytes]
        trial = Trial(
            backend,
            max(lengths) if elements is None else elements,
            dtype,
            cast(Reduction, reduction),
            repetitions,
            warm_up,
            tuple(lengths) if len(lengths) > 1 else (),
        )
        if logs is not None and not logs.parent.is_dir():
            raise OptionError(f"--logs: there is no directory {logs.parent}; make it first")
        writable_folder(logs, "--logs")
        check_schedule_file(file, "bench")
        place = Place(processes or 1, devices != "found", logs, timeout)
        first = not rank_given(backend)
        if write_runtime is not None and first:
            _warn_if_busy()
        with Progress(f"reading {file}") as progress:
            if not first:
                progress.hide()
            more = calibrating if write_runtime is not None else lambda _: ()
            schedule, report = run_file(file, trial, place, progress, complain, more)
    if not first:
        return None
    result = {"file": str(file)} | description(schedule, report, trial)
    ran = lengths if elements is None else [elements]
    launched = rank_given(backend) is not None
    result["conditions"] = _conditions(schedule, ran, trial, launched)
    if write_runtime is not None:
        found = calibrated(backend, schedule.topology, report, one_machine=not launched)
        write_profile(found, write_runtime)
        result["runtime"] = str(write_runtime)
    result["ranks"] = rank_map(schedule.topology)
    return Answer(result, _text(result, rank_lines(schedule.topology)))


def _warn_if_busy() -> None:
    """Warns if other processes would slow messages down."""
    used = cores_in_use()
    if used is not None and used > BUSY_CORES:
        warn(
            f"other processes keep {used:.1f} cores of this machine busy, so that messages will "
            "seem to cost more than they do; measure on an idle machine"
        )


_LONG_S = 10.0
"""Times from here on are shown in seconds, not milliseconds."""


def _conditions(
    schedule: Schedule, lengths: Sequence[int], trial: Trial, launched: bool
) -> list[str]:
    """The hardware of the measured times, and the network that the schedule was planned for."""
    network, planned = schedule.topology.name, planned_for(schedule)
    own = "the launcher's hosts" if launched else "this machine's loopback"
    if trial.backend == "jax" and not launched:
        own = "this machine's devices"
    lines = [
        f"measured on {own}: {network} is not emulated, and these times are not its times; "
        "'gradweave lab' runs a plan on its network, emulated"
    ]
    sizes = [length * itemsize(trial.dtype) for length in lengths]
    if planned.gradient_bytes is not None and planned.gradient_bytes not in sizes:
        ran = listed([format_size(size) for size in sizes])
        lines.append(f"planned for {format_size(planned.gradient_bytes)}, run with {ran}")
    if planned_ready_times(schedule) is not None:
        lines.append("planned for servers that are ready late; here all start at once")
    return lines


def _text(result: dict[str, Any], ranks: list[str]) -> Iterator[str | Table]:
    schedule, native, number = result["schedule"], result["own"], result["processes"]
    checked = f"bit for bit as the oracle's, length {result['oracle_elements']:,}"
    if result["runs_own"]:
        checked = "the runtime's own, in whatever order it adds"
    if result["pattern_elements"] > result["oracle_elements"]:
        checked += f"; exact, length {result['pattern_elements']:,}"
    yield (
        f"{result['collective']} on {result['topology']} by {result['scheduler']}: "
        f"{result['servers']} servers in {counted(number, 'process', 'processes')} on "
        f"{counted(result['cores'], 'core')}, {result['library']}"
    )
    size = format_size(result["gradient_bytes"])
    yield f"{size} of {result['dtype']}, {result['reduction']}: {checked}"
    yield from (*ranks, *result["conditions"])
    name = Path(result["file"]).name
    rows = [[name, *_cells(schedule)]]
    if native is not None:
        rows.append([native["name"], *_cells(native)])
    yield Table(["", "median", "fastest", "quartiles", "bandwidth"], rows)
    if result["sizes"]:
        yield _sweep_table(name, native and native["name"], result["sizes"])
    if not result["runs_own"]:  # which counts no bytes
        least, most = (format_size(end(schedule["sent_bytes"])) for end in (min, max))
        each = most if least == most else f"{least} to {most}"
        total = format_size(schedule["total_sent_bytes"])
        yield f"sent by each server, counted: {each}; by all: {total}"
    if "runtime" in result:
        yield f"message costs written to {result['runtime']}"


def _sweep_table(name: str, native: str | None, sizes: list[dict[str, Any]]) -> Table:
    """The columns of nccl-tests for the schedule and for the backend's native all-reduce."""
    heads = ["size", f"{name}: median", "algbw", "busbw"]
    if native is not None:
        heads += [f"{native}: median", "algbw", "busbw", "times as fast"]
    shown = Table(heads)
    for each in sizes:
        schedule, own = each["schedule"], each["own"]
        cells = _swept_cells(schedule)
        if own is not None:
            cells += [*_swept_cells(own), f"{own['median_s'] / schedule['median_s']:.2f}"]
        shown.add_row(format_size(each["gradient_bytes"]), *cells)
    return shown


def _swept_cells(times: dict[str, Any]) -> list[str]:
    bandwidths = (times["bandwidth_bytes_per_s"], times["busbw_bytes_per_s"])
    return [format_seconds(times["median_s"]), *map(format_rate, bandwidths)]


def _cells(times: dict[str, Any]) -> list[str]:
    first, third = times["first_quartile_s"], times["third_quartile_s"]
    scale, unit = (1.0, "s") if times["median_s"] >= _LONG_S else (1e3, "ms")
    return [
        f"{scale * times['median_s']:.4g} {unit}",
        f"{scale * times['min_s']:.4g} {unit}",
        f"{scale * first:.4g} to {scale * third:.4g} {unit}",
        f"{format_size(times['bandwidth_bytes_per_s'])}/s",
    ]
