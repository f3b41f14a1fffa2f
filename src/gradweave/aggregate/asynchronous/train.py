"""A task trained on Ray: the driver's loop around the protocol."""

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gradweave.aggregate.asynchronous import checkpoint
from gradweave.aggregate.asynchronous import clocks as protocol
from gradweave.aggregate.asynchronous.actor_pool import ActorPool, ServerLost
from gradweave.aggregate.asynchronous.actors import StepResult
from gradweave.aggregate.asynchronous.calls import RetriedCall
from gradweave.aggregate.asynchronous.checkpoint import Snapshot
from gradweave.aggregate.asynchronous.clocks import Clocks, Update
from gradweave.aggregate.asynchronous.commands import Commands
from gradweave.aggregate.asynchronous.history import (
    HistoryBuilder,
    Kept,
    Run,
    RunTraffic,
    UpdateReport,
)
from gradweave.aggregate.asynchronous.shard import initial_shard
from gradweave.aggregate.asynchronous.task import Task
from gradweave.common.atomic import make_folder
from gradweave.common.checks import check_not_below_zero
from gradweave.errors import OptionError, RunError
from gradweave.processes.ray_cluster import Cluster, cluster

MAX_DEATHS = 3
"""Number of deaths of a worker, without a step in between, after which the run fails."""
MAX_RECOVERIES = 3
"""Number of losses of servers, without a checkpoint in between, that a run recovers from."""


@dataclasses.dataclass(frozen=True)
class _Options:
    folder: Path | None
    checkpoint_every: int
    checkpoint_minutes: float
    keep_every: int
    report: Callable[[UpdateReport], None] | None
    timeout_s: float
    worker_cpus: float
    min_workers: int

    def __post_init__(self) -> None:
        if self.checkpoint_every < 1:
            raise OptionError(f"checkpoint_every: expected at least 1, got {self.checkpoint_every}")
        if not self.checkpoint_minutes >= 0:
            raise OptionError(
                f"checkpoint_minutes: expected 0 or more, got {self.checkpoint_minutes}"
            )
        if self.keep_every < 0:
            raise OptionError(f"keep_every: expected 0 or more updates, got {self.keep_every}")
        if not self.timeout_s > 0:
            raise OptionError(f"timeout_s: expected more than 0 seconds, got {self.timeout_s}")
        check_not_below_zero(self, "worker_cpus")


def train_on_ray(
    task: Task,
    *,
    address: str | None = None,
    folder: str | Path | None = None,
    checkpoint_every: int = 100,
    checkpoint_minutes: float = 0.0,
    keep_every: int = 0,
    report: Callable[[UpdateReport], None] | None = None,
    timeout_s: float = 300.0,
    worker_cpus: float = 0.0,
    min_workers: int | None = None,
) -> Run:
    """Trains a task on Ray, resuming from the folder's checkpoint if there is one.

    A gradient that is not finite is skipped in the update, and its worker is named in the report
    and the history. A worker that dies is replaced, and its step is lost or repeated
    (`Task.elastic`). A server counts as lost if it died, or did not respond or was unavailable to
    Ray for `timeout_s`. Then all servers and workers resume from the last checkpoint, or start
    again if there is none yet. A call that Ray loses is retried. Under `Sync`, a run that was
    killed and resumed gives the same bits as an uninterrupted run.

    If workers have a state (`Task.computation`), checkpoints include it, as it was before the steps
    that are repeated on resuming. A replacement takes the state in the last checkpoint, and a
    checkpoint waits for workers that are not running. Ctrl-C writes a checkpoint.

    With `worker_cpus`, workers come and go with the cluster's machines: a worker whose machine is
    removed is replaced as soon as another machine has room; Ray's autoscaler, if it runs, adds
    machines for workers that wait.

    Args:
        task: the task to train.
        address: address of a Ray cluster that has Gradweave installed; by default this machine.
        folder: folder of checkpoints, shared by all machines of a cluster. Without it no
            checkpoints are written, and the loss of a server ends the run.
        checkpoint_every: updates between checkpoints; another is written at the end.
        checkpoint_minutes: minimum time between checkpoints.
        keep_every: updates between copies of the parameters kept in memory; 0 for no copies.
        report: called after each update.
        timeout_s: time without any progress after which the run fails, and time after which a
            server that does not respond, or an actor that is unavailable to Ray, counts as dead.
        worker_cpus: CPUs that each worker requests from Ray, which starts only as many workers as
            its machines have room for; with 0 all start at once, regardless of the machines.
        min_workers: number of workers with which the run starts, while the others join when they
            are ready; by default all workers. Only for tasks that are `Task.elastic`.

    Returns:
        The parameters, the history of all gradients applied, and the bytes moved since this call
        started or resumed the run.

    Raises:
        OptionError: Ray is not installed, or the folder holds another task's checkpoint.
        FileError: a checkpoint cannot be read or written.
        RunError: a server was lost and there is no folder, servers are lost or workers die
            repeatedly, the gradient function raised, there was no progress for `timeout_s`, or Ray
            itself ended; no process of the run is left then.
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    place = None if folder is None else Path(folder)
    least = task.workers if min_workers is None else min_workers
    if not 1 <= least <= task.workers or not (task.elastic or least == task.workers):
        allowed = f"1 to {task.workers}" if task.elastic else f"{task.workers} (not elastic)"
        raise OptionError(f"min_workers: expected {allowed}, got {least}")
    options = _Options(
        place,
        checkpoint_every,
        checkpoint_minutes,
        keep_every,
        report,
        timeout_s,
        worker_cpus,
        least,
    )
    snapshot = _load(task, options.folder)
    if snapshot is not None and snapshot.history.gradients >= task.gradients:
        return _finished(task, options.folder, snapshot)
    with cluster(address) as ray_cluster:
        driver, losses = _Driver(ray_cluster, task, options), 0
        while True:
            try:
                return driver.run(snapshot)
            except ServerLost as lost:
                driver.recovered += 1
                before, snapshot = snapshot, _reload(lost, task, options.folder)
                advanced = snapshot and snapshot.updates > (before.updates if before else 0)
                losses = 1 if advanced else losses + 1
                if losses > MAX_RECOVERIES:
                    raise RunError(
                        f"servers were lost {losses} times with no checkpoint in between, at last "
                        f"{lost}; the checkpoint is in {folder}"
                    ) from lost


def _reload(lost: ServerLost, task: Task, folder: Path | None) -> Snapshot | None:
    """The snapshot to resume from after the loss of a server."""
    if folder is None:
        raise RunError(
            f"{lost}, and its part of the parameters with it; give a folder, and "
            "the run resumes from its checkpoint"
        ) from lost
    return _load(task, folder)


def _load(task: Task, folder: Path | None) -> Snapshot | None:
    """The snapshot to resume from; creates the folder."""
    if folder is None:
        return None
    make_folder(folder)
    return checkpoint.load_snapshot(folder, task.digest(), task.workers)


def _finished(task: Task, folder: Path | None, snapshot: Snapshot) -> Run:
    """The result of a run that had already finished."""
    assert folder is not None
    layout, parts = task.layout(), []
    for server, (begin, end) in enumerate(task.ranges()):
        like = initial_shard(task.optimizer, np.zeros(end - begin, layout.dtype))
        path = checkpoint.shard_path(folder, server, snapshot.updates)
        parts.append(np.asarray(checkpoint.load_shard(path, like).parameters))
    nothing = np.zeros((task.workers, task.servers), np.int64)
    traffic = RunTraffic(nothing, nothing.copy())
    return Run(layout.tree(np.concatenate(parts)), snapshot.history, traffic, ())


@dataclasses.dataclass(frozen=True)
class _PendingCall:
    """A pending call of a worker."""

    call: RetriedCall
    on_done: Callable[[Any, int], None]
    """Called with the result and the worker."""
    worker: int


@dataclasses.dataclass(frozen=True)
class _Saving:
    """A checkpoint whose files are being written."""

    snapshot: Snapshot
    states: list[RetriedCall]
    """Calls of the workers that write their states."""
    absent: tuple[int, ...]
    """Workers that were not running."""


class _Driver:
    """Tells workers when to start and servers what to apply, as the protocol decides."""

    def __init__(self, cluster: Cluster, task: Task, options: _Options) -> None:
        self.cluster, self.ray, self.task, self.options = cluster, cluster.ray, task, options
        self.pulled = np.zeros((task.workers, task.servers), np.int64)
        self.pushed = np.zeros_like(self.pulled)
        self.replaced = self.recovered = 0
        self.begin_s: float | None = None
        self.kept: list[Kept] = []

    def run(self, snapshot: Snapshot | None) -> Run:
        """Runs to the end, from a snapshot or from the beginning."""
        updates = 0 if snapshot is None else snapshot.updates
        self.kept = [kept for kept in self.kept if kept.update <= updates]
        self._announce_resumption(updates)
        folder = self.options.folder
        if folder is not None:
            checkpoint.remove_others(folder, updates)
        # An absolute path, as actors may have another working directory.
        absolute = None if folder is None else str(folder.absolute())
        self.pool = ActorPool(
            self.cluster,
            self.task,
            absolute,
            updates,
            self.options.timeout_s,
            self.options.worker_cpus,
        )
        try:
            self._begin(snapshot)
            with self._saved_on_interrupt():
                while self.history.gradients < self.task.gradients:
                    self._advance()
            return self._finish()
        finally:
            self.pool.close()

    @contextlib.contextmanager
    def _saved_on_interrupt(self) -> Iterator[None]:
        """Writes a checkpoint if Ctrl-C ends the block, unless it interrupted a decision."""
        try:
            yield
        except KeyboardInterrupt:
            if self.history.updates == self.clocks.updates:
                self._save_last()
                self.commands.collect(wait=True)
                self._commit(wait=True)
            raise

    def _begin(self, snapshot: Snapshot | None) -> None:
        workers = self.task.workers
        self.clocks = (
            protocol.initial(workers)
            if snapshot is None
            else protocol.between_steps(snapshot.clock, snapshot.updates)
        )
        self.history = HistoryBuilder(None if snapshot is None else snapshot.history)
        self.saved = self.committed = self.clocks.updates
        self.saved_at_s = time.monotonic()
        self.saving: collections.deque[_Saving] = collections.deque()
        self.pending: dict[Any, _PendingCall] = {}
        self.done: collections.deque[Any] = collections.deque()
        self.commands = Commands(self.pool)
        self.applied: Callable[[], list[Any]] = list
        self.losses, self.finite = [0.0] * workers, [True] * workers
        self.aux: list[Any] = [None] * workers
        self.deaths = [0] * workers
        self.server_pids = self.pool.ready_servers()
        there, to_come = self.pool.ready_workers(self.options.min_workers, self._replacement)
        self.worker_pids = [there.get(worker, 0) for worker in range(workers)]
        self.clocks = protocol.without(self.clocks, to_come)
        for worker, call in to_come.items():
            self._await(call, self._take_replacement, worker)
        if self.begin_s is None:  # otherwise a server was lost, and the lost time counts
            before_s = 0.0 if snapshot is None else snapshot.seconds
            self.begin_s = time.perf_counter() - before_s
            self.epoch_s = time.time() - before_s

    def _advance(self) -> None:
        """Starts the steps that may start, and processes the next result."""
        for worker in protocol.may_start(self.clocks, self.task.rule):
            self._start(worker)
        done = self._next_done()
        pending = self.pending.pop(done)
        try:
            result = self.cluster.get([done])[0]
        except self.ray.exceptions.ActorUnavailableError:
            self._retry(pending)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError):
            self.pool.check_servers()
            self._replace(pending.worker)
        except self.ray.exceptions.RayError as error:
            raise self.pool.explained(error) from error
        else:
            pending.on_done(result, pending.worker)
        self.commands.collect(wait=False)
        self._commit(wait=False)

    def _next_done(self) -> Any:
        """The next finished call; handles a whole batch before calls that are made meanwhile.

        If several calls are done, `ray.wait` can return the same workers again and again, so that
        the others would never have their turn.
        """
        if not self.done:
            asked = list(self.pending)
            first = self.cluster.wait(asked, self.options.timeout_s)
            if not first:
                busy = [str(call.worker) for call in self.pending.values()]
                raise RunError(
                    f"no result from workers {', '.join(busy)} for {self.options.timeout_s:g} s; "
                    "if a step takes that long, increase timeout_s"
                )
            self.done.extend(self.cluster.wait(asked, 0, len(asked)) or first)
        return self.done.popleft()

    def _await(self, call: RetriedCall, on_done: Callable[[Any, int], None], worker: int) -> None:
        self.pending[call.reference] = _PendingCall(call, on_done, worker)

    def _retry(self, pending: _PendingCall) -> None:
        """Calls a worker again; if a step is computed twice, the second push counts."""
        # Perhaps not the step was lost, but a result that it waits for.
        self.commands.collect(wait=True)
        if pending.call.retry():
            self._await(pending.call, pending.on_done, pending.worker)
        else:
            self._replace(pending.worker)

    def _start(self, worker: int) -> None:
        self.clocks = protocol.start(self.clocks, worker)
        step = partial(self._step, worker, self.clocks.clock[worker])
        self._await(self.pool.call(step), self._take_step, worker)

    def _step(self, worker: int, clock: int) -> Any:
        # Passing these results makes Ray start the step only after the servers have applied the
        # update, which the step then pulls.
        return self.pool.workers[worker].step.remote(clock, self.epoch_s, *self.applied())

    def _take_step(self, step: StepResult | None, worker: int) -> None:
        if step is None:
            self.pool.check_servers()
            raise ServerLost(None)
        self.deaths[worker] = 0
        self.losses[worker], self.finite[worker] = step.loss, step.finite
        self.aux[worker] = step.aux
        self.pulled[worker] += step.pulled_bytes
        self.pushed[worker] += step.pushed_bytes
        self._apply(protocol.push(self.clocks, self.task.rule, worker, step.version))

    def _replace(self, worker: int) -> None:
        self.worker_pids[worker] = 0
        if self.task.elastic:
            self._apply(protocol.remove(self.clocks, self.task.rule, worker))
        self._await(self._replacement(worker), self._take_replacement, worker)

    def _replacement(self, worker: int) -> RetriedCall:
        """Starts a process that replaces one that died, unless too many have died."""
        self.replaced += 1
        self.deaths[worker] += 1
        if self.deaths[worker] >= MAX_DEATHS:
            raise RunError(
                f"worker {worker} died {MAX_DEATHS} times at step {self.clocks.clock[worker]}, "
                f"perhaps for lack of memory; its log is in {self.cluster.logs()}"
            )
        clock = protocol.resume_clocks(self.clocks)[worker]
        return self.pool.replace(worker, clock, self.committed)

    def _take_replacement(self, process: int, worker: int) -> None:
        self.worker_pids[worker] = process
        if self.task.elastic:
            self.clocks = protocol.rejoin(self.clocks, worker)
        else:
            self._start(worker)

    def _apply(self, decision: tuple[Clocks, Update | None]) -> None:
        """Requests the servers to apply the update that the protocol decided on."""
        self.clocks, update = decision
        if update is None:
            return
        steps = [(gradient.worker, gradient.clock) for gradient in update.gradients]
        scale = self.task.scale(update)
        self.applied = self.commands.send("apply", update.number, steps, scale)
        seconds = self._seconds()
        losses = [self.losses[worker] for worker, _ in steps]
        finite = [self.finite[worker] for worker, _ in steps]
        self.history.add(update, losses, finite, seconds)
        if self.options.keep_every and update.number % self.options.keep_every == 0:
            self._keep(update.number, seconds)
        if self._is_due(update.number):
            self._save()
        if self.options.report is not None:
            self.options.report(self._report(update, losses, seconds))

    def _report(self, update: Update, losses: list[float], seconds: float) -> UpdateReport:
        return UpdateReport(
            update.number,
            self.history.gradients,
            self.task.gradients,
            float(np.mean(losses)),
            max(update.staleness),
            seconds,
            tuple(self.server_pids),
            tuple(self.worker_pids),
            tuple(one.worker for one in update.gradients if not self.finite[one.worker]),
            update.staleness,
            tuple(self.aux[one.worker] for one in update.gradients),
            self.replaced,
            self.recovered,
        )

    def _seconds(self) -> float:
        """Time since the run began."""
        assert self.begin_s is not None
        return time.perf_counter() - self.begin_s

    def _is_due(self, update: int) -> bool:
        """Whether to write a checkpoint after an update."""
        options = self.options
        if options.folder is None or update % options.checkpoint_every:
            return False
        return time.monotonic() - self.saved_at_s >= 60 * options.checkpoint_minutes

    def _keep(self, update: int, seconds: float) -> None:
        gradients = self.history.gradients

        def keep(parts: list[Any]) -> None:
            self.kept.append(Kept(update, gradients, seconds, self._params(parts)))

        self.commands.send("pull", on_done=keep)

    def _save(self) -> None:
        """Requests servers to write their shards after this update, and workers their states."""
        self.saved, self.saved_at_s = self.clocks.updates, time.monotonic()
        seconds = self._seconds()
        clock = protocol.resume_clocks(self.clocks)
        snapshot = Snapshot(self.saved, clock, self.history.build(), seconds)
        # An absent worker may not return for long, so its state is copied from the preceding
        # checkpoint.
        there = self.clocks.alive if self.task.elastic else (True,) * self.task.workers
        saving = _Saving(
            snapshot,
            self.pool.save_states(self.saved, clock, there),
            tuple(worker for worker, is_there in enumerate(there) if not is_there),
        )
        self.commands.send("save", on_done=lambda _: self.saving.append(saving))

    def _save_last(self) -> None:
        """Writes a checkpoint if there were updates since the last."""
        if self.options.folder is not None and self.saved < self.clocks.updates:
            self._save()

    def _commit(self, *, wait: bool) -> None:
        """Writes the snapshots whose files have been written, in order."""
        folder = self.options.folder
        while self.saving and (wait or self.pool.all_done(self.saving[0].states)):
            assert folder is not None
            saving = self.saving.popleft()
            if not self.pool.saved_states(saving.states):
                continue
            snapshot = saving.snapshot
            checkpoint.keep_states(folder, saving.absent, self.committed, snapshot.updates)
            checkpoint.save_snapshot(folder, snapshot, self.task.digest(), self.task.about)
            self.committed = snapshot.updates
            self._announce_resumption(snapshot.updates)

    def _announce_resumption(self, updates: int) -> None:
        """Records how to resume from the checkpoint of `updates` updates if Ray ends now."""
        folder = self.options.folder
        if folder is None:
            remedy = "nothing was saved: give a folder, and a run resumes from its checkpoint"
        elif updates == 0:
            remedy = f"no checkpoint was in {folder} yet: start again"
        else:
            remedy = f"updates up to {updates} are kept: train again with folder {folder} to resume"
        self.cluster.resume(remedy)

    def _params(self, parts: list[tuple[int, Any]]) -> Any:
        return self.task.layout().tree(np.concatenate([vector for _, vector in parts]))

    def _finish(self) -> Run:
        self._save_last()
        params: list[Any] = []
        self.commands.send("pull", on_done=lambda parts: params.append(self._params(parts)))
        self.commands.collect(wait=True)
        self._commit(wait=True)
        traffic = RunTraffic(self.pulled, self.pushed)
        history, kept = self.history.build(), tuple(self.kept)
        return Run(params[0], history, traffic, kept, self.replaced, self.recovered)
