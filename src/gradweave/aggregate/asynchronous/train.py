"""A task trained on Ray: the driver's loop around the protocol."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradweave.aggregate.asynchronous import checkpoint
from gradweave.aggregate.asynchronous import clocks as protocol
from gradweave.aggregate.asynchronous.actors import Pushed, folder_of
from gradweave.aggregate.asynchronous.calls import Call
from gradweave.aggregate.asynchronous.checkpoint import Cut
from gradweave.aggregate.asynchronous.clocks import Clocks, Update
from gradweave.aggregate.asynchronous.crew import Crew, ServerLost
from gradweave.aggregate.asynchronous.history import Kept, Log, Run, Traffic
from gradweave.aggregate.asynchronous.orders import Orders
from gradweave.aggregate.asynchronous.shard import fresh
from gradweave.aggregate.asynchronous.task import Task
from gradweave.errors import FileError, OptionError, RunError
from gradweave.processes.ray_cluster import Cluster, cluster

MOST_DEATHS = 3
"""Deaths of a worker, with no step made in between, after which the run is given up."""
MOST_RECOVERIES = 3
"""Times that a server is lost, with no checkpoint written in between, that a run goes on."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What is told of each update."""

    update: int
    gradients: int
    """Applied so far."""
    of: int
    loss: float
    """Mean of the gradients' losses."""
    staleness: int
    """Of the stalest."""
    seconds: float
    servers: tuple[int, ...]
    """Process ids, each on its machine."""
    workers: tuple[int, ...]
    not_finite: tuple[int, ...] = ()
    """Workers whose gradients held a NaN or an infinity, and were left out of this update."""


@dataclasses.dataclass(frozen=True)
class _How:
    folder: Path | None
    checkpoint_every: int
    keep_every: int
    report: Callable[[Report], None] | None
    timeout_s: float

    def __post_init__(self) -> None:
        if self.checkpoint_every < 1:
            raise OptionError(f"checkpoint_every: expected at least 1, got {self.checkpoint_every}")
        if self.keep_every < 0:
            raise OptionError(f"keep_every: expected 0 or more updates, got {self.keep_every}")
        if not self.timeout_s > 0:
            raise OptionError(f"timeout_s: expected more than 0 seconds, got {self.timeout_s}")


def train(
    task: Task,
    *,
    address: str | None = None,
    folder: str | Path | None = None,
    checkpoint_every: int = 100,
    keep_every: int = 0,
    report: Callable[[Report], None] | None = None,
    timeout_s: float = 300.0,
) -> Run:
    """Trains a task on Ray, and goes on from the folder's checkpoint where there is one.

    A gradient that holds a NaN or an infinity is left out of the update, and its worker named in
    the report and the history. A worker that dies is replaced, and its step is lost or repeated
    (`Task.elastic`). When a server is lost, all go on from the last checkpoint, or from the
    beginning where none was written yet: a server is lost that died, or was silent or unavailable
    to Ray for `timeout_s`. A call that Ray loses is made again. Under `Sync` a run that was killed
    and goes on ends with the bits of one that was not.

    Args:
        task: what to train.
        address: of a Ray cluster that has Gradweave installed; this machine if not given.
        folder: of checkpoints; on a cluster, one that all machines share. Without it nothing is
            written, and the loss of a server ends the run.
        checkpoint_every: updates between checkpoints; one more is written at the end.
        keep_every: updates after which the parameters are kept each time, in memory; 0 keeps none.
        report: told of each update.
        timeout_s: how long nothing may happen before the run is given up, and how long a server
            may be silent, or an actor unavailable to Ray, before it counts as dead.

    Returns:
        The parameters, the history of all gradients applied, and the bytes of this command.

    Raises:
        OptionError: Ray is not installed, or the folder holds another task's checkpoint.
        FileError: a checkpoint cannot be read or written.
        RunError: a server was lost and there is no folder, servers are lost or workers die again
            and again, the gradient function raised, nothing happened for `timeout_s`, or Ray itself
            ended; then no process of the run is left.
    """
    how = _How(
        None if folder is None else Path(folder), checkpoint_every, keep_every, report, timeout_s
    )
    cut = _found(task, how.folder)
    if cut is not None and cut.history.gradients >= task.gradients:
        return _finished(task, how.folder, cut)
    with cluster(address) as found:
        driver, tried = _Driver(found, task, how), 0
        while True:
            try:
                return driver.run(cut)
            except ServerLost as lost:
                driver.recovered += 1
                before, cut = cut, _after(lost, task, how.folder)
                went_on = cut is not None and cut.updates > (before.updates if before else 0)
                tried = 1 if went_on else tried + 1
                if tried > MOST_RECOVERIES:
                    raise RunError(
                        f"servers were lost {tried} times with no checkpoint in between, at last "
                        f"{lost}; the checkpoint is in {folder}"
                    ) from lost


def _after(lost: ServerLost, task: Task, folder: Path | None) -> Cut | None:
    """The cut to go on from now that a server is lost."""
    if folder is None:
        raise RunError(
            f"{lost}, and its part of the parameters with it; give a folder, and "
            "the run goes on from its checkpoint"
        ) from lost
    return _found(task, folder)


def _found(task: Task, folder: Path | None) -> Cut | None:
    """The cut to go on from; makes the folder."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be made a directory: {error.strerror}") from error
    return checkpoint.load_cut(folder, task.digest(), task.workers)


def _finished(task: Task, folder: Path | None, cut: Cut) -> Run:
    """The outcome of a run that had ended already."""
    assert folder is not None
    made, parts = task.layout(), []
    for server, (begin, end) in enumerate(task.ranges()):
        like = fresh(task.optimizer, np.zeros(end - begin, made.dtype))
        path = checkpoint.shard_path(folder, server, cut.updates)
        parts.append(np.asarray(checkpoint.load_shard(path, like).parameters))
    nothing = np.zeros((task.workers, task.servers), np.int64)
    traffic = Traffic(nothing, nothing.copy())
    return Run(made.tree(np.concatenate(parts)), cut.history, traffic, ())


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What a worker was asked for."""

    call: Call
    take: Callable[[Any, int], None]
    worker: int


class _Driver:
    """Tells workers when to begin and servers what to apply, as the protocol decides."""

    def __init__(self, found: Cluster, task: Task, how: _How) -> None:
        self.cluster, self.ray, self.task, self.how = found, found.ray, task, how
        self.pulled = np.zeros((task.workers, task.servers), np.int64)
        self.pushed = np.zeros_like(self.pulled)
        self.replaced = self.recovered = 0
        self.kept: list[Kept] = []

    def run(self, cut: Cut | None) -> Run:
        """Runs to the end, from a cut or from the beginning."""
        updates = 0 if cut is None else cut.updates
        self.kept = [kept for kept in self.kept if kept.update <= updates]
        self._can_resume(updates)
        if self.how.folder is not None:
            checkpoint.remove_others(self.how.folder, updates)
        self.crew = Crew(
            self.cluster, self.task, folder_of(self.how.folder), updates, self.how.timeout_s
        )
        try:
            self._begin(cut)
            while self.log.gradients < self.task.gradients:
                self._turn()
            return self._end()
        finally:
            self.crew.dismiss()

    def _begin(self, cut: Cut | None) -> None:
        workers = self.task.workers
        self.clocks = (
            protocol.fresh(workers) if cut is None else protocol.at_rest(cut.clock, cut.updates)
        )
        self.log = Log(None if cut is None else cut.history)
        self.saved = self.clocks.updates
        self.pending: dict[Any, _Asked] = {}
        self.orders = Orders(self.crew)
        self.applied: Callable[[], list[Any]] = list
        self.losses, self.finite = [0.0] * workers, [True] * workers
        self.deaths = [0] * workers
        self.server_pids, self.worker_pids = self.crew.processes()
        before_s = 0.0 if cut is None else cut.seconds
        self.begin_s = time.perf_counter() - before_s
        self.epoch_s = time.time() - before_s

    def _turn(self) -> None:
        """Has everybody begin who may, and takes what comes in next."""
        for worker in protocol.may_start(self.clocks, self.task.rule):
            self._start(worker)
        done = self.cluster.wait(list(self.pending), self.how.timeout_s)
        if not done:
            busy = [str(asked.worker) for asked in self.pending.values()]
            raise RunError(
                f"nothing came from workers {', '.join(busy)} for {self.how.timeout_s:g} s; "
                "where a step takes that long give a larger timeout_s"
            )
        asked = self.pending.pop(done[0])
        try:
            answer = self.cluster.get(done)[0]
        except self.ray.exceptions.ActorUnavailableError:
            self._ask_again(asked)
        except self.ray.exceptions.RayActorError:
            self.crew.check_servers()
            self._replace(asked.worker)
        except self.ray.exceptions.RayError as error:
            raise self.crew.explained(error) from error
        else:
            asked.take(answer, asked.worker)
        self.orders.settle(wait=False)

    def _ask(self, call: Call, take: Callable[[Any, int], None], worker: int) -> None:
        self.pending[call.reference] = _Asked(call, take, worker)

    def _ask_again(self, asked: _Asked) -> None:
        """Asks a worker once more; of a step that is made twice the second push counts."""
        # Perhaps it was not the step that was lost, but an answer that it comes after.
        self.orders.settle(wait=True)
        if asked.call.again():
            self._ask(asked.call, asked.take, asked.worker)
        else:
            self._replace(asked.worker)

    def _start(self, worker: int) -> None:
        self.clocks = protocol.started(self.clocks, worker)
        step = partial(self._step, worker, self.clocks.clock[worker])
        self._ask(self.crew.call(step), self._take_step, worker)

    def _step(self, worker: int, clock: int) -> Any:
        # Ray begins the step when the servers' answers are there: it pulls what they then have.
        return self.crew.workers[worker].step.remote(clock, self.epoch_s, *self.applied())

    def _take_step(self, answer: Pushed | None, worker: int) -> None:
        if answer is None:
            self.crew.check_servers()
            raise ServerLost(None)
        self.deaths[worker] = 0
        self.losses[worker], self.finite[worker] = answer.loss, answer.finite
        self.pulled[worker] += answer.pulled_bytes
        self.pushed[worker] += answer.pushed_bytes
        self._then(protocol.pushed(self.clocks, self.task.rule, worker, answer.version))

    def _replace(self, worker: int) -> None:
        self.replaced += 1
        self.deaths[worker] += 1
        if self.deaths[worker] >= MOST_DEATHS:
            raise RunError(
                f"worker {worker} died {MOST_DEATHS} times at step {self.clocks.clock[worker]}, "
                f"perhaps for want of memory; what it said is in {self.cluster.logs()}"
            )
        if self.task.elastic:
            self._then(protocol.left(self.clocks, self.task.rule, worker))
        self._ask(self.crew.replace(worker), self._take_replacement, worker)

    def _take_replacement(self, process: int, worker: int) -> None:
        self.worker_pids[worker] = process
        if self.task.elastic:
            self.clocks = protocol.joined(self.clocks, worker)
        else:
            self._start(worker)

    def _then(self, decided: tuple[Clocks, Update | None]) -> None:
        """Has the servers apply what the protocol says is due."""
        self.clocks, update = decided
        if update is None:
            return
        turns = [(gradient.worker, gradient.clock) for gradient in update.gradients]
        scale = self.task.scale(update)
        self.applied = self.orders.give("apply", update.number, turns, scale)
        seconds = time.perf_counter() - self.begin_s
        losses = [self.losses[worker] for worker, _ in turns]
        finite = [self.finite[worker] for worker, _ in turns]
        self.log.add(update, losses, finite, seconds)
        if self.how.keep_every and update.number % self.how.keep_every == 0:
            self._keep(update.number, seconds)
        if self.how.folder is not None and update.number % self.how.checkpoint_every == 0:
            self._save()
        if self.how.report is not None:
            self.how.report(self._report(update, losses, seconds))

    def _report(self, update: Update, losses: list[float], seconds: float) -> Report:
        return Report(
            update.number,
            self.log.gradients,
            self.task.gradients,
            float(np.mean(losses)),
            max(update.staleness),
            seconds,
            tuple(self.server_pids),
            tuple(self.worker_pids),
            tuple(one.worker for one in update.gradients if not self.finite[one.worker]),
        )

    def _keep(self, update: int, seconds: float) -> None:
        gradients = self.log.gradients

        def take(parts: list[Any]) -> None:
            self.kept.append(Kept(update, gradients, seconds, self._params(parts)))

        self.orders.give("pull", take=take)

    def _save(self) -> None:
        """Has all servers write their shards after this update, and names them when all have."""
        folder = self.how.folder
        assert folder is not None
        self.saved = self.clocks.updates
        seconds = time.perf_counter() - self.begin_s
        cut = Cut(self.saved, protocol.cut(self.clocks), self.log.history(), seconds)

        def take(_: list[Any]) -> None:
            checkpoint.save_cut(folder, cut, self.task.digest())
            self._can_resume(cut.updates)

        self.orders.give("save", take=take)

    def _can_resume(self, updates: int) -> None:
        """Says how to go on should Ray end now, with a checkpoint of so many updates."""
        folder = self.how.folder
        if folder is None:
            how = "nothing was kept: give a folder, and a run goes on from its checkpoint"
        elif updates == 0:
            how = f"no checkpoint was in {folder} yet: begin again"
        else:
            how = f"updates up to {updates} are kept: train again with folder {folder} to go on"
        self.cluster.resume(how)

    def _params(self, parts: list[tuple[int, Any]]) -> Any:
        return self.task.layout().tree(np.concatenate([vector for _, vector in parts]))

    def _end(self) -> Run:
        if self.how.folder is not None and self.saved < self.clocks.updates:
            self._save()
        params: list[Any] = []
        self.orders.give("pull", take=lambda parts: params.append(self._params(parts)))
        self.orders.settle(wait=True)
        traffic = Traffic(self.pulled, self.pushed)
        history, kept = self.log.history(), tuple(self.kept)
        return Run(params[0], history, traffic, kept, self.replaced, self.recovered)
