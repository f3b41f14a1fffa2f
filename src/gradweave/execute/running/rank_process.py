"""One process of a run, started by `gradweave.execute.running.launch`.

    python -m gradweave.execute.running.rank_process TASK

It sends its parent these messages: ``doing``, the current step; ``error``; ``done``; and, from the
process with the first server, ``report``. It receives at most one message, which names a lost
server. Standard error goes to the process's log.
"""

import dataclasses
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from gradweave.common.wording import first_line, listed, noun_of
from gradweave.errors import GradweaveError, LostServerError, Negative
from gradweave.execute.running.timing import Runner, measure
from gradweave.execute.running.trial import RunReport, Trial
from gradweave.processes.ending import end_at_once
from gradweave.processes.launchers import rank_given
from gradweave.processes.parent import Parent
from gradweave.processes.watch import Watch
from gradweave.schedules.file import load
from gradweave.schedules.schedule import Schedule

WORD_S = 3.0
"""How long a process with a failure waits to hear that a server was lost."""
_SEND_EVERY_S = 0.2
"""Minimum time between two progress messages to the parent, which shows the latest."""


@dataclasses.dataclass(frozen=True)
class WorkerTask:
    """The task of one process."""

    file: str
    """Path of the schedule."""
    trial: Trial
    timeout_s: float
    """Maximum time without progress, in seconds."""
    launcher: int | None = None
    """Id of the process that launched this one."""
    logs: str = ""
    """Directory for its log."""
    number: int | None = None
    """Number of the process; not given under MPI, which assigns it."""
    store: str | None = None
    """torch: path of the file through which processes find each other."""
    address: str | None = None
    """jax: address of process 0, which has no servers, or None for a single process."""
    processes: int = 1
    """jax: number of processes, including process 0."""
    calibrating: tuple[str, ...] = ()
    """Paths of further schedules, see `timing.measure`."""

    @staticmethod
    def read(text: str) -> "WorkerTask":
        """Parses the task from the JSON of its fields."""
        fields = json.loads(text)
        return WorkerTask(**{**fields, "trial": Trial(**fields["trial"])})


def agree_s(backend: str) -> float:
    """How long after the timeout the processes may take to agree on which rank is silent."""
    return 12.0 if backend == "torch" else 0.0


def open_runner(task: WorkerTask, schedule: Schedule) -> Runner | None:
    """Connects to the other processes; returns None in the process without servers."""
    if task.trial.backend == "mpi":
        from gradweave.execute.running.mpi_runner import MpiRunner

        return MpiRunner(schedule, task.trial)
    if task.trial.backend == "torch":
        from gradweave.execute.running.torch_runner import TorchRunner

        store = None if task.store is None else (task.store, task.number or 0)
        return TorchRunner(schedule, task.trial, store, task.timeout_s)
    from gradweave.execute.running.jax_runner import JaxRunner, connect

    if task.address is not None:
        connect(task.address, task.processes, task.number or 0, task.timeout_s)
        if task.number == 0:
            return None
    return JaxRunner(schedule, task.trial, spare=task.address is not None)


class RunWorker:
    """The state of this process: its task, its parent and its watch."""

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._under_mpi = task.trial.backend == "mpi"
        number = (rank_given("mpi") or 0) if task.number is None else task.number
        self.name = f"process {number}"
        self._parent = Parent(Path(task.logs, f"process-{number}.log"))
        self._speaks = False
        self._sent_at = 0.0
        self._stage = ""
        after_s = agree_s(task.trial.backend)
        self._watch = Watch(task.timeout_s, self._end, of=task.launcher, after_s=after_s)
        print(f"pid {os.getpid()}", file=sys.stderr, flush=True)
        if not self._under_mpi:
            self._parent.listen(self._lost)

    def work(self) -> RunReport | None:
        """Carries out the task. Returns the report in the process that makes it, None in others."""
        schedule = load(self._task.file)
        runner = open_runner(self._task, schedule)
        if runner is None:
            while True:
                self._watch.moved()  # every other process has a watch
                time.sleep(1)
        topology = schedule.topology
        servers = [topology.id_name(int(topology.servers[rank])) for rank in runner.ranks]
        self.name = f"{noun_of(len(servers), 'server')} {listed(servers)}"
        self._speaks = runner.ranks[0] == 0
        more = [load(file) for file in self._task.calibrating]
        report = measure(runner, schedule, self._task.trial, self._tell, more)
        return report if self._speaks else None

    def finish(self, report: RunReport | None) -> None:
        """Reports completion, and waits until the parent ends the process."""
        if report is not None:
            self._parent.send(report=dataclasses.asdict(report))
        if not self._under_mpi:
            self._parent.send(done=True)
            time.sleep(self._task.timeout_s)
            os._exit(1)

    def fail(self, error: BaseException) -> NoReturn:
        """Reports an error and ends; before that, the parent may report that a server was lost."""
        traceback.print_exception(error, file=sys.stderr)
        bad_input = isinstance(error, GradweaveError) and not isinstance(error, Negative)
        if not self._under_mpi and not bad_input:
            time.sleep(WORD_S)
        kind, text = type(error).__name__, str(error)
        if not isinstance(error, GradweaveError):
            kind, text = "RunError", f"{kind}: {first_line(error)}"
        self._end(text, kind, getattr(error, "rank", None))

    def _end(self, text: str, kind: str = "RunError", lost: int | None = None) -> NoReturn:
        """Ends the process immediately: other threads may wait for messages that never arrive."""

        def say() -> None:
            print(f"{self.name}: {text}", file=sys.stderr, flush=True)
            self._parent.send(error=text, kind=kind, lost=lost)
            if self._under_mpi and kind != "LostServerError":
                os.kill(os.getpid(), signal.SIGKILL)  # any other end MPI keeps from the other ranks

        # mpirun may end all other ranks as soon as one fails, before they have reported their
        # errors.
        end_at_once(0 if self._under_mpi else 1, say)

    def _tell(self, doing: str) -> None:
        self._watch.moved()
        stage = doing.split()[0]
        if stage != self._stage:
            self._stage = stage
            print(doing, file=sys.stderr, flush=True)
        if self._speaks and time.monotonic() - self._sent_at > _SEND_EVERY_S:
            self._sent_at = time.monotonic()
            self._parent.send(doing=doing)

    def _lost(self, message: dict[str, Any]) -> NoReturn:
        error = LostServerError(
            message["server"], message["rank"], message["how"], message["label"]
        )
        self._end(str(error), "LostServerError", error.rank)


def main(text: str) -> None:
    """Carries out one task."""
    worker = RunWorker(WorkerTask.read(text))
    try:
        report = worker.work()
    except BaseException as error:  # whatever it is, the parent must hear of it
        worker.fail(error)
    worker.finish(report)


if __name__ == "__main__":
    main(sys.argv[1])
