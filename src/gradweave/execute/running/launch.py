"""Starts the processes of a run on this machine and supervises them."""

import dataclasses
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gradweave.errors import OptionError
from gradweave.execute.running.machine_check import check_machine
from gradweave.execute.running.rank_process import WorkerTask
from gradweave.execute.running.supervise import Launch, supervise
from gradweave.execute.running.trial import RunReport, Trial, itemsize
from gradweave.processes.cleared import cleared_folder
from gradweave.processes.ending import termination
from gradweave.processes.mpirun import mpirun_command, mpirun_environment
from gradweave.schedules.schedule import Schedule

_MEMORY = Path("/dev/shm")
"""A folder in memory for temporary files, among them Open MPI's shared memory."""


@dataclasses.dataclass(frozen=True)
class Place:
    """How to start a run's processes."""

    processes: int = 1
    """jax: number of processes, among which the servers' devices are divided."""
    pretend_devices: bool = True
    """jax: emulate as many devices as needed on the processor, instead of using those that
    exist."""
    logs: Path | None = None
    """Directory for the processes' logs; if None, they are not kept."""
    timeout_s: float = 300.0
    """Maximum time without progress, in seconds."""

    def __post_init__(self) -> None:
        if self.processes > 1 and not self.pretend_devices:
            raise OptionError("devices that JAX finds: expected one process, which then has all")


def launch(
    schedule: Schedule,
    file: Path,
    trial: Trial,
    place: Place,
    progress: Callable[[str], None],
    calibrating: Sequence[Schedule] = (),
) -> RunReport:
    """Runs a trial on processes of this machine, and ends all of them in every case.

    Args:
        schedule: the schedule.
        file: the file from which the processes read the schedule.
        trial: the trial to run.
        place: how to start the processes.
        progress: called with the current step.
        calibrating: see `timing.measure`.

    Raises:
        LostServerError: a server's process ended; the others have ended as well, each naming it.
        RunError: a result was wrong, or the run did not finish.
        OptionError: something needed to start the processes is missing, such as memory.
    """
    servers = schedule.topology.num_servers
    if place.pretend_devices:  # real devices have separate memory
        processes = place.processes if trial.backend == "jax" else servers
        check_machine(servers, processes, trial.gradient_bytes)
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    prefix = f"gradweave-run-{os.getpid()}-"
    with termination(), cleared_folder(prefix, inside=memory) as temporary:
        logs = temporary / "logs" if place.logs is None else place.logs
        logs.mkdir(exist_ok=True)
        more = tuple(str(temporary / f"calibrating{n}.json") for n in range(len(calibrating)))
        for each, path in zip(calibrating, more, strict=True):
            each.save(Path(path))
        task = WorkerTask(
            str(file.resolve()), trial, place.timeout_s, os.getpid(), str(logs), calibrating=more
        )
        if trial.backend == "mpi":
            group = _mpi(schedule, task, temporary)
        elif trial.backend == "torch":
            group = _torch(schedule, task, temporary)
        else:
            group = _jax(schedule, task, place)
        return supervise(schedule, group, logs, place.timeout_s, progress)


def _mpi(schedule: Schedule, task: WorkerTask, temporary: Path) -> Launch:
    servers = schedule.topology.num_servers
    command = mpirun_command(servers, _worker(task), temporary)
    environment = {**os.environ, **mpirun_environment(temporary)}
    return Launch([(command, environment)], [list(range(servers))], statuses=temporary)


def _torch(schedule: Schedule, task: WorkerTask, temporary: Path) -> Launch:
    ranks = range(schedule.topology.num_servers)
    store = str(temporary / "store")
    loopback = {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}
    # Otherwise gloo resolves the machine's host name, which does not work on every machine.
    variables = {"GLOO_SOCKET_IFNAME": min(loopback)} if loopback else {}
    starts = [
        (_worker(dataclasses.replace(task, number=rank, store=store)), {**os.environ, **variables})
        for rank in ranks
    ]
    return Launch(starts, [[rank] for rank in ranks])


def _jax(schedule: Schedule, task: WorkerTask, place: Place) -> Launch:
    servers, processes = schedule.topology.num_servers, place.processes
    if not 1 <= processes <= servers:
        raise OptionError(
            f"processes: expected 1 to {servers}, one per server at most, got {processes}"
        )
    bounds = [servers * i // processes for i in range(processes + 1)]
    ranks = [list(range(bounds[i], bounds[i + 1])) for i in range(processes)]
    if processes > 1:
        # When the coordinator ends, it ends the other processes before they can report why. So it
        # is a separate process, without servers.
        ranks.insert(0, [])
        address = f"127.0.0.1:{_free_port()}"
        task = dataclasses.replace(task, address=address, processes=len(ranks))
    starts = []
    for number, some in enumerate(ranks):
        variables = _jax_variables(task.trial, len(some) if place.pretend_devices else None)
        command = _worker(dataclasses.replace(task, number=number))
        starts.append((command, {**os.environ, **variables}))
    return Launch(starts, ranks)


def _jax_variables(trial: Trial, devices: int | None) -> dict[str, str]:
    """Environment variables of a JAX process.

    Args:
        trial: the trial to run.
        devices: number of devices to emulate on the processor; None: use the devices that exist.
    """
    variables = {"JAX_ENABLE_X64": "1"} if itemsize(trial.dtype) == 8 else {}
    if devices is not None:
        flag = f"--xla_force_host_platform_device_count={max(devices, 1)}"
        variables["JAX_PLATFORMS"] = "cpu"
        variables["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    return variables


def _worker(task: WorkerTask) -> list[str]:
    text = json.dumps(dataclasses.asdict(task))
    return [sys.executable, "-m", "gradweave.execute.running.rank_process", text]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
