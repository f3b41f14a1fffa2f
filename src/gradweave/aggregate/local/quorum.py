"""DiLoCo that never waits for stragglers: it averages the workers that are in time.

    member = QuorumMember(model.parameters(), DiLoCo(quorum=6), deadline_s=30)
    optimizer.register_step_post_hook(member)

Each worker sends Δ to the first worker after its steps, and continues with the φ that it receives.
A round ends when all live workers have sent Δ, or when `deadline_s` have passed since the first Δ
and at least the method's `quorum` have sent theirs. A worker that sends later is late: its Δ is
dropped, it gets the current φ, and it is in time for the next round if it is fast enough. A lost
worker is excluded for good. A worker that sends nothing for the process group's timeout while
others wait is excluded until it does.

The first worker is also a server, with a thread that does not wait for that worker's steps; it
receives and sends N − 1 times the parameters per round. If it is lost, all others end and name it:
at once if its process has ended, otherwise after the group's timeout and `deadline_s`.
"""

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gradweave.aggregate.local.flat import FlatTensors, floating
from gradweave.aggregate.local.methods import DiLoCo
from gradweave.aggregate.torch_steps import (
    Arguments,
    GuardedSteps,
    Trained,
    all_finite,
    check_alike,
    on_each_step_of,
)
from gradweave.common.wording import counted
from gradweave.errors import OptionError, RunError
from gradweave.execute.torch_distributed.groups import Group, copy_of
from gradweave.execute.torch_distributed.store import group_timeout

_TAG = 11
_FOREVER = timedelta(days=30)
"""Timeout for threads that `_Server.close` ends, because gloo requires a number."""
_NOW = timedelta(milliseconds=1)
_LEAVES = -1
"""Sent instead of a round's number by a worker that makes no more steps."""
_HEAD = 3
"""Numbers sent before the parameters. To the first worker: the round, and whether Δ counts. From
it: the round, the number of workers in time, and whether this worker was in time."""


class Answer(NamedTuple):
    """The answer that a worker gets at the end of a round."""

    following: int
    """The next round."""
    counted: int
    """Number of workers that were in time for the last round."""
    in_time: bool
    """Whether this worker was."""
    shared: torch.Tensor
    """[size] φ and the buffers."""


class _Server:
    """The server that runs the rounds, in the first worker's process.

    Args:
        start: [size] φ, then the buffers.
        method: the outer step after each round.
        deadline_s: time for the other workers after the first Δ of a round.
        group: process group of the workers.
        silence_s: time after which a silent worker counts as lost while others wait for it.
        buffers: number of elements at the end of `start` that belong to buffers.
    """

    def __init__(
        self,
        start: torch.Tensor,
        method: DiLoCo,
        deadline_s: float,
        group: Group,
        silence_s: float,
        buffers: int = 0,
    ) -> None:
        self._shared = start.clone()
        self._size = len(start) - buffers
        self._momentum = torch.zeros_like(start[: self._size])
        self._method, self._group = method, group
        self._quorum, self._deadline_s = method.quorum, deadline_s
        self._silence_s = max(silence_s, deadline_s)
        self._alive = set(range(group.size()))
        self._lost: dict[int, str] = {}
        self._changes: dict[int, torch.Tensor] = {}
        self._idle: set[int] = set()
        """Workers that have sent a Δ that does not count."""
        self._first_at = 0.0
        self._round = 0
        self._counted = 0
        self._changed = threading.Condition()
        self._serving = [
            threading.Thread(target=self._serve, args=(rank,), daemon=True)
            for rank in range(1, group.size())
        ]
        for thread in self._serving:
            thread.start()
        threading.Thread(target=self._close_rounds, daemon=True).start()

    def exchange(
        self, rank: int, of_round: int, change: torch.Tensor, counts: bool = True
    ) -> Answer:
        """Takes a worker's Δ and its buffers, and waits for the end of the round.

        A change of an earlier round is late: it is dropped without waiting. A change that does not
        count ends the wait for its worker and is dropped.
        """
        with self._changed:
            self._lost.pop(rank, None)
            self._alive.add(rank)
            in_time = of_round == self._round
            if in_time:
                if not self._changes:
                    self._first_at = time.monotonic()
                self._changes[rank] = change
                if not counts:
                    self._idle.add(rank)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._round != of_round or self._too_few())
            if self._too_few():
                raise RunError(
                    f"{counted(len(self._alive), 'worker')} left, and the quorum is {self._quorum}"
                    + "".join(f"; lost worker {one}: {how}" for one, how in self._lost.items())
                )
            return Answer(self._round, self._counted, in_time and counts, self._shared.clone())

    def state_dict(self) -> dict[str, Any]:
        """The state between rounds, without any Δ already received for the next round."""
        with self._changed:
            kept = {"shared": self._shared.clone(), "momentum": self._momentum.clone()}
            return kept | {"round": self._round}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state, before any worker has sent its Δ."""
        with self._changed:
            self._shared = state["shared"].clone()
            self._momentum = state["momentum"].clone()
            self._round = int(state["round"])

    def close(self) -> None:
        """Leaves the rounds, waits until the others have left, and ends the remaining threads."""
        with self._changed:
            self._alive.discard(0)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._alive, self._deadline_s)
        # gloo cannot cancel a receive, but a message that times out closes all connections of its
        # group.
        for rank in range(1, self._group.size()):
            with contextlib.suppress(RuntimeError):
                self._group.recv([torch.empty(1)], rank, _TAG + 1).wait(_NOW)
        until = time.monotonic() + self._deadline_s
        for thread in self._serving:
            thread.join(max(until - time.monotonic(), 0.0))

    def _too_few(self) -> bool:
        return len(self._alive) < self._quorum

    def _serve(self, rank: int) -> None:
        """Receives a worker's changes and answers them, until it is lost."""
        buffer = self._shared.new_empty(_HEAD + len(self._shared))
        how = "its connection broke"
        try:
            while True:
                self._group.recv([buffer], rank, _TAG).wait(_FOREVER)
                if int(buffer[0]) == _LEAVES:
                    how = ""
                    break
                change, counts = buffer[_HEAD:].clone(), bool(buffer[1])
                answer = self.exchange(rank, int(buffer[0]), change, counts)
                head = buffer.new_tensor([float(number) for number in answer[:_HEAD]])
                self._group.send([torch.cat([head, answer.shared])], rank, _TAG).wait(_FOREVER)
        except RuntimeError:  # it is lost, or too few are left: then nobody is listening
            pass
        with self._changed:
            self._changes.pop(rank, None)
            self._idle.discard(rank)
            self._lost.pop(rank, None)
            self._lose(rank, how)

    def _lose(self, rank: int, how: str) -> None:
        self._alive.discard(rank)
        if how:
            self._lost[rank] = how
        self._changed.notify_all()

    def _close_rounds(self) -> None:
        """Ends each round when it is complete or due."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._changes))
                while not self._complete():
                    self._changed.wait(self._next_look_s())
                    if time.monotonic() - self._first_at >= self._silence_s:
                        self._lose_silent()
                self._average()
                self._changed.notify_all()

    def _next_look_s(self) -> float:
        """Time until the deadline, and then until workers that are still silent count as lost."""
        passed = time.monotonic() - self._first_at
        until = self._deadline_s if passed < self._deadline_s else self._silence_s
        return max(until - passed, 0.0)

    def _lose_silent(self) -> None:
        for rank in self._alive - set(self._changes):
            self._lose(rank, f"silent for {self._silence_s:g} s while others waited")

    def _complete(self) -> bool:
        late = time.monotonic() - self._first_at >= self._deadline_s
        enough = late and len(self._counting()) >= self._quorum
        return enough or len(self._changes) >= len(self._alive)

    def _counting(self) -> list[torch.Tensor]:
        return [self._changes[rank] for rank in sorted(set(self._changes) - self._idle)]

    def _average(self) -> None:
        counting = self._counting()
        shared, buffers = self._shared.tensor_split([self._size])
        if counting and len(counting) >= self._quorum:
            change = torch.stack(counting).mean(0)[: self._size]
            shared, self._momentum = self._method.outer_step(shared, self._momentum, change)
        if self._changes:
            sent = torch.stack([self._changes[rank] for rank in sorted(self._changes)])
            sent = sent[:, self._size :]
            mean = torch.where(sent.isfinite(), sent, torch.nan).nanmean(0)
            buffers = torch.where(mean.isfinite(), mean, buffers)
        self._shared = torch.cat([shared, buffers])
        self._counted = len(counting)
        self._changes, self._idle = {}, set()
        self._round += 1


class _Client:
    """The client of every worker except the first."""

    def __init__(self, group: Group, deadline_s: float, silence_s: float) -> None:
        self._group = group
        self._leave_s = timedelta(seconds=deadline_s)
        # After `silence_s` the server answers without the silent workers, or with an error.
        self._patience = timedelta(seconds=silence_s + deadline_s)

    def exchange(self, of_round: int, change: torch.Tensor, counts: bool = True) -> Answer:
        """Sends Δ and the buffers, and waits for the end of the round."""
        head = change.new_tensor([of_round, counts, 0])
        buffer = change.new_empty(_HEAD + len(change))
        try:
            self._group.send([torch.cat([head, change])], 0, _TAG).wait(self._patience)
            self._group.recv([buffer], 0, _TAG).wait(self._patience)
        except RuntimeError as error:
            raise RunError(
                "lost worker 0, which averages; it also ends if fewer workers than the quorum are "
                "left"
            ) from error
        following, counted, in_time = (int(number) for number in buffer[:_HEAD])
        return Answer(following, counted, bool(in_time), buffer[_HEAD:].clone())

    def close(self, like: torch.Tensor) -> None:
        """Tells the first worker, which may be stopped or gone, that this worker leaves.

        Args:
            like: a tensor of the size of a round's message.
        """
        head = like.new_full((_HEAD + len(like),), float(_LEAVES))
        with contextlib.suppress(RuntimeError):
            self._group.send([head], 0, _TAG).wait(self._leave_s)


class QuorumMember:
    """A worker, as a hook for `torch.optim.Optimizer.register_step_post_hook`.

    A step that is not finite is skipped as in JAX: neither the parameters nor the optimizer's state
    change. The others wait for a worker that made no finite step in a round, but it does not count.
    Create this before loading a checkpoint's parameters, then call `load_state_dict`.

    Args:
        parameters: parameters of the model, equal at all workers at the start.
        method: DiLoCo with one fragment and no delay. Its `quorum` is used, but not its `in_time`,
            since a worker that sends Δ has made all its steps.
        deadline_s: time for the other workers after the first Δ of a round.
        group: the process group, on gloo; by default the default group. Its timeout is how long
            workers may take to connect, and may be silent while others wait, before they count as
            lost.
        buffers: buffers of the model, such as BatchNorm's statistics. Floating-point buffers are
            averaged over all workers in time, without elements that are not finite; each worker
            keeps its integer buffers.

    Raises:
        OptionError: an option is out of its range, or the workers' parameters differ.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        method: DiLoCo,
        *,
        deadline_s: float,
        group: Group | None = None,
        buffers: Iterable[torch.Tensor] = (),
    ) -> None:
        if method.fragments > 1 or method.keep:
            raise OptionError(
                "quorum: expected DiLoCo with one fragment and keep=0, because a late worker takes "
                "all parameters at once"
            )
        if not 0 < deadline_s < float("inf"):
            raise OptionError(f"deadline_s: expected a number above 0, got {deadline_s}")
        self._group = copy_of(group)
        method.check_workers(self._group.size())
        if dist.get_backend(self._group) != "gloo":
            raise OptionError("quorum: expected a process group on gloo")
        self._trained = Trained(parameters)
        self._parameters = FlatTensors(self._trained.joined)
        self._buffers = floating(buffers)
        self._guard = GuardedSteps()
        self._guard.vectors = [self._parameters]
        self._method = method
        self._shared = self._parameters.read()
        start = torch.cat([self._shared, self._buffers.read().to(self._shared)])
        check_alike(self._group, "quorum", [start])
        silence_s = group_timeout(self._group).total_seconds()
        self._client = _Client(self._group, deadline_s, silence_s)
        self._server = None
        if dist.get_rank(self._group) == 0:
            self._server = _Server(
                start, method, deadline_s, self._group, silence_s, len(self._buffers)
            )
        self._round = 0
        self._steps = 0
        self._taken = 0
        """Number of steps that this worker has made since it last sent Δ."""
        self._open, self._process = True, os.getpid()
        atexit.register(self.close)  # threads waiting in gloo would abort the process
        self.in_time = 0
        """Number of rounds for which this worker was in time."""
        self.counted = 0
        """Number of workers that were in time for the last round."""
        on_each_step_of(self._trained, self, QuorumMember._before_step)

    @property
    def not_finite(self) -> int:
        """Number of steps skipped because this worker's gradients were not finite."""
        return self._guard.not_finite

    def __call__(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Called after each step of the optimizer.

        Raises:
            RunError: the first worker is lost, or fewer workers than the quorum are left.
        """
        self._steps += 1
        self._taken += self._guard.after(optimizer)
        if self._steps % self._method.local_steps:
            return
        with torch.no_grad():
            change = self._parameters.read() - self._shared
            counts, self._taken = self._taken > 0 and all_finite([change]), 0
            answer = self._exchange(torch.cat([change, self._buffers.read().to(change)]), counts)
            self._round, self.counted = answer.following, answer.counted
            self.in_time += answer.in_time
            self._shared, buffers = answer.shared.tensor_split([len(change)])
            self._parameters.write(self._shared)
            self._buffers.write(buffers)

    def state_dict(self) -> dict[str, Any]:
        """The worker's state between steps, except its parameters and its optimizer's state.

        It differs by worker; the first worker's also holds the state of the rounds.
        """
        return {
            "steps": self._steps,
            "taken": self._taken,
            "round": self._round,
            "in_time": self.in_time,
            "counted": self.counted,
            "not_finite": self.not_finite,
            "shared": self._shared.clone(),
            "server": self._server and self._server.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state. All workers call it, and wait for each other.

        A worker whose state is from another round than the first worker's is late once.

        Raises:
            OptionError: the state belongs to other parameters, or to another worker.
        """
        if len(state["shared"]) != len(self._shared):
            raise OptionError(
                f"state of quorum: expected {len(self._shared)} elements, got "
                f"{len(state['shared'])}; it belongs to other parameters"
            )
        if (self._server is None) != (state["server"] is None):
            raise OptionError("state of quorum: expected this worker's own, got another's")
        if self._server is not None:
            self._server.load_state_dict(state["server"])
        self._steps, self._taken = int(state["steps"]), int(state["taken"])
        self._round, self._shared = int(state["round"]), state["shared"].clone()
        self.in_time, self.counted = int(state["in_time"]), int(state["counted"])
        self._guard.not_finite = int(state["not_finite"])
        dist.barrier(self._group)  # no Δ may arrive before the first worker knows its round

    def close(self) -> None:
        """Leaves the rounds; the others continue without this worker.

        The first worker waits up to `deadline_s` for the others to close, and the others wait as
        long for its answer. Runs at the end of the process if it was not called before.
        """
        if not self._open or os.getpid() != self._process:  # threads do not survive a fork
            return
        self._open = False
        atexit.unregister(self.close)
        if self._server is not None:
            self._server.close()
        else:
            self._client.close(torch.cat([self._shared, self._buffers.read().to(self._shared)]))

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> Arguments | None:
        """Makes the optimizer skip steps that are not finite.

        Raises:
            OptionError: more parameters are trained than at the start.
        """
        if late := self._trained.late(optimizer):
            raise OptionError(
                f"quorum: {counted(len(late), 'parameter')} trained from now on, but rounds "
                "average only those trained at the start; close this member at all workers, and "
                "make a new QuorumMember"
            )
        return self._guard.before(args, kwargs)

    def _exchange(self, change: torch.Tensor, counts: bool) -> Answer:
        if self._server is not None:
            return self._server.exchange(0, self._round, change, counts)
        return self._client.exchange(self._round, change, counts)
