"""``gradweave job trace``: the last collectives of a job's ranks, for Perfetto."""

from pathlib import Path

import click

from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress, warn
from gradweave.cli.groups import command
from gradweave.cli.jobs import address_of, is_address, quiet_torch
from gradweave.cli.options import written_option
from gradweave.common.lazy import require
from gradweave.common.wording import counted, listed
from gradweave.errors import OptionError, RunError
from gradweave.execute.recorded import RecordedRank, read_recorded
from gradweave.export.collectives import save_recorded


@command(examples=["node1:29500 --output job.pftrace"])
@click.argument("jobs", metavar="JOB...", nargs=-1)
@written_option(
    "--output",
    "Write this file, which ui.perfetto.dev opens.",
    (".pftrace",),
    required=True,
    metavar="FILE.pftrace",
)
def trace(jobs: tuple[str, ...], output: Path) -> Answer:
    """Write a job's last collectives as a trace for Perfetto.

    The trace has the last thousand collectives of each rank.

    JOB is HOST:PORT of a running job, whose ranks send their records, or files and folders that
    ranks wrote with GRADWEAVE_TRACE. The default is the job at MASTER_ADDR and MASTER_PORT.
    """
    running = [job for job in jobs if is_address(job)]
    if running and len(jobs) > 1:
        raise OptionError(f"JOB: give {running[0]} alone, or files and folders of one job")
    if jobs and not running:
        ranks = read_recorded(jobs)
        silent = sorted(set(range(ranks[0].ranks)) - {rank.rank for rank in ranks})
    else:
        ranks, silent = _asked(running[0] if running else None)
    if silent:
        verb = "is" if len(silent) == 1 else "are"
        warn(f"{_ranks(silent)} {verb} missing; the trace has the others")
    save_recorded(ranks, output)
    calls = sum(len(rank.calls) for rank in ranks)
    what = f"{counted(calls, 'call')} of {counted(len(ranks), 'rank')}"
    return Answer(
        {
            "ranks": [rank.rank for rank in ranks],
            "missing": silent,
            "calls": calls,
            "output": str(output),
        },
        [f"{output}: {what}; open it in ui.perfetto.dev"],
    )


def _asked(address: str | None) -> tuple[list[RecordedRank], list[int]]:
    require("asking a running job", "torch", extra="torch")
    quiet_torch()
    from gradweave.torch.job import Job

    host, port = address_of(address)
    with Progress(f"asking the job at {host}:{port}"):
        ranks, silent = Job(host, port).kept()
    if not ranks:
        raise RunError(f"{host}:{port}: no rank has answered")
    return ranks, silent


def _ranks(some: list[int]) -> str:
    return f"{'rank' if len(some) == 1 else 'ranks'} {listed([str(rank) for rank in some])}"
