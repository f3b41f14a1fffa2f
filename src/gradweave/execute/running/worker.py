"""One process of a run, started by `gradweave.execute.running.launch`.

    python -m gradweave.execute.running.worker TASK

Standard output has JSON objects, one a line, for the process that launched it: ``doing``, what is
being done; ``error``; or ``report``, from the one with the first server. On standard input comes at
most one: ``lost``, a server that went away. Standard error goes to the process's log.
"""

import dataclasses
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

from gradweave.errors import GradweaveError, LostServerError, Negative
from gradweave.execute.running.measure import Runner, measure
from gradweave.execute.running.trial import Report, Trial
from gradweave.processes.watch import Watch
from gradweave.schedule import load
from gradweave.schedule.schedule import Schedule

WORD_S = 3.0
"""How long a process in which something broke waits to be told that a server was lost."""
_SAY_EVERY_S = 0.2


@dataclasses.dataclass(frozen=True)
class Task:
    """What one process is to do."""

    file: str
    """Path of the schedule."""
    trial: Trial
    timeout_s: float
    """How long nothing may move."""
    launcher: int | None = None
    """Id of the process that launched this one."""
    logs: str = ""
    """Directory for its log."""
    number: int | None = None
    """Of the process; None under MPI, which knows it."""
    store: str | None = None
    """torch: path of the file by which processes find each other."""
    address: str | None = None
    """jax: where process 0, which has no servers, listens for the others; None: one process."""
    processes: int = 1
    """jax: how many there are, process 0 included."""

    @staticmethod
    def read(text: str) -> "Task":
        """The task from what `json.dumps` made of `dataclasses.asdict`."""
        held = json.loads(text)
        return Task(**{**held, "trial": Trial(**held["trial"])})


def open_runner(task: Task, schedule: Schedule) -> Runner | None:
    """Joins the other processes; None for the one that has no servers."""
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


class Worker:
    """A launched process, and its line to the one that launched it."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._under_mpi = task.trial.backend == "mpi"
        number = _rank_in_environment() if task.number is None else task.number
        self.name = f"process {number}"
        log = os.open(f"{task.logs}/process-{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 2)
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print must not be taken for ours
        self._speaks = False
        self._said = 0.0
        self._stage = ""
        self._lock = threading.Lock()
        self._watch = Watch(task.timeout_s, self._end, of=task.launcher)
        print(f"pid {os.getpid()}", file=sys.stderr, flush=True)
        if not self._under_mpi:
            threading.Thread(target=self._listen, name="gradweave-listen", daemon=True).start()

    def work(self) -> Report | None:
        """Does the task; returns the report where there is one."""
        schedule = load(self._task.file)
        runner = open_runner(self._task, schedule)
        if runner is None:
            while True:
                self._watch.moved()  # the others have watches of their own
                time.sleep(1)
        servers = [str(schedule.topology.servers[rank]) for rank in runner.ranks]
        self.name = f"server{'s' * (len(servers) > 1)} {', '.join(servers)}"
        self._speaks = runner.ranks[0] == 0
        report = measure(runner, schedule, self._task.trial, self._tell)
        return report if self._speaks else None

    def finish(self, report: Report | None) -> None:
        """Says that it is done, and waits for the others where there is a word to wait for."""
        if report is not None:
            self._say(report=dataclasses.asdict(report))
        if not self._under_mpi:
            self._say(done=True)
            time.sleep(self._task.timeout_s)
            os._exit(1)

    def fail(self, error: BaseException) -> NoReturn:
        """Says what was wrong and ends; one who knows better has a while to say it first."""
        traceback.print_exception(error, file=sys.stderr)
        bad_input = isinstance(error, GradweaveError) and not isinstance(error, Negative)
        if not self._under_mpi and not bad_input:
            time.sleep(WORD_S)
        kind = type(error).__name__ if isinstance(error, GradweaveError) else "RunError"
        text = str(error) if isinstance(error, GradweaveError) else _first_line(error)
        self._end(text, kind, getattr(error, "rank", None))

    def _end(self, text: str, kind: str = "RunError", lost: int | None = None) -> NoReturn:
        """Ends the process at once: other threads may wait for messages that never come."""
        with self._lock:
            print(f"{self.name}: {text}", file=sys.stderr, flush=True)
            self._say(error=text, kind=kind, lost=lost)
            if self._under_mpi and kind != "LostServerError":
                os.kill(os.getpid(), signal.SIGKILL)  # which alone is told to those who wait for us
            # mpirun may end all others as soon as one fails, before they have said what they know.
            os._exit(0 if self._under_mpi else 1)

    def _tell(self, doing: str) -> None:
        self._watch.moved()
        stage = doing.split()[0]
        if stage != self._stage:
            self._stage = stage
            print(doing, file=sys.stderr, flush=True)
        if self._speaks and time.monotonic() - self._said > _SAY_EVERY_S:
            self._said = time.monotonic()
            self._say(doing=doing)

    def _say(self, **what: Any) -> None:
        try:
            self._out.write(json.dumps(what) + "\n")
            self._out.flush()
        except OSError:
            os._exit(1)  # nobody listens any more

    def _listen(self) -> None:
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        word = json.loads(line)
        error = LostServerError(word["server"], word["rank"], word["how"], word["label"])
        self._end(str(error), "LostServerError", error.rank)


def _rank_in_environment() -> int:
    found = (os.environ.get(name) for name in RANK_VARIABLES["mpi"])
    return int(next((text for text in found if text), "0"))


RANK_VARIABLES = {
    "mpi": ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"),
    "torch": ("RANK",),
}
"""Where a backend's own launcher says which process this is."""


def _first_line(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0] if said else 'no message'}"


def main(text: str) -> None:
    """Does a task."""
    worker = Worker(Task.read(text))
    try:
        report = worker.work()
    except BaseException as error:  # whatever it is, the one that launched this must hear of it
        worker.fail(error)
    worker.finish(report)


if __name__ == "__main__":
    main(sys.argv[1])
