"""DiLoCo that waits for nobody: an average is made of those that are in time.

    member = QuorumMember(model.parameters(), DiLoCo(quorum=6), deadline_s=30)
    optimizer.register_step_post_hook(member)

Each worker sends Δ to the first one after its steps and goes on with the φ that comes back. A round
is over when all that are alive have sent theirs, or when `deadline_s` have passed since its first
and at least the method's `quorum` have. Who comes later is late: its Δ is left out, it gets the φ
of now, and is in time for the next round if it is quick enough. Who is lost is left out for good;
who sends nothing for the process group's timeout while others wait is left out until it does.

The first worker is a server too, by a thread of its own that does not wait for that worker's steps;
it receives and sends N − 1 times the parameters in a round. If it is lost, all others end and name
it: at once where its process has ended, else after the group's timeout and `deadline_s`.
"""

import atexit
import contextlib
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gradweave.aggregate.local.flat import FlatParameters
from gradweave.aggregate.local.methods import DiLoCo
from gradweave.errors import OptionError, RunError
from gradweave.execute.torch_distributed.groups import Group, copy_of
from gradweave.execute.torch_distributed.store import group_timeout
from gradweave.wording import counted

_TAG = 11
_FOREVER = timedelta(days=30)
"""For what only a thread waits for, which `_Server.close` ends: gloo wants a number."""
_NOW = timedelta(milliseconds=1)
_LEAVES = -1
"""In place of a round: the worker has no more steps to make."""
_HEAD = 3
"""Numbers before the parameters: the round, how many were in time, and whether this worker was."""


class Answer(NamedTuple):
    """What a worker hears at the end of a round."""

    following: int
    """The round that is next."""
    counted: int
    """Workers that were in time for the last one."""
    in_time: bool
    """Whether this worker was."""
    shared: torch.Tensor
    """[size] φ."""


class _Server:
    """The rounds, in the first worker's process."""

    def __init__(
        self,
        start: torch.Tensor,
        method: DiLoCo,
        deadline_s: float,
        group: Group,
        silence_s: float,
    ) -> None:
        self._shared = start.clone()
        self._momentum = torch.zeros_like(start)
        self._method, self._group = method, group
        self._quorum, self._deadline_s = method.quorum, deadline_s
        self._silence_s = max(silence_s, deadline_s)
        self._alive = set(range(group.size()))
        self._lost: dict[int, str] = {}
        self._changes: dict[int, torch.Tensor] = {}
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

    def exchange(self, rank: int, of_round: int, change: torch.Tensor) -> Answer:
        """Takes a worker's Δ, and waits for the end of the round.

        A change of an earlier round is late: it is left out, and nothing is waited for.
        """
        with self._changed:
            self._lost.pop(rank, None)
            self._alive.add(rank)
            in_time = of_round == self._round
            if in_time:
                if not self._changes:
                    self._first_at = time.monotonic()
                self._changes[rank] = change
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._round != of_round or self._too_few())
            if self._too_few():
                raise RunError(
                    f"{counted(len(self._alive), 'worker')} left, and the quorum is {self._quorum}"
                    + "".join(f"; lost worker {one}: {how}" for one, how in self._lost.items())
                )
            return Answer(self._round, self._counted, in_time, self._shared.clone())

    def close(self) -> None:
        """Leaves the rounds, waits for the others to do so, and ends what is left of them."""
        with self._changed:
            self._alive.discard(0)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._alive, self._deadline_s)
        # gloo cannot cancel, but a message that times out closes all connections of its group.
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
        buffer = torch.empty(_HEAD + len(self._shared))
        how = "its connection broke"
        try:
            while True:
                self._group.recv([buffer], rank, _TAG).wait(_FOREVER)
                if int(buffer[0]) == _LEAVES:
                    how = ""
                    break
                answer = self.exchange(rank, int(buffer[0]), buffer[_HEAD:].clone())
                head = torch.tensor([float(number) for number in answer[:_HEAD]])
                self._group.send([torch.cat([head, answer.shared])], rank, _TAG).wait(_FOREVER)
        except RuntimeError:  # it is lost, or too few are left: then nobody hears any more
            pass
        with self._changed:
            self._changes.pop(rank, None)
            self._lost.pop(rank, None)
            self._lose(rank, how)

    def _lose(self, rank: int, how: str) -> None:
        self._alive.discard(rank)
        if how:
            self._lost[rank] = how
        self._changed.notify_all()

    def _close_rounds(self) -> None:
        """Ends each round when its time has come."""
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
        """Until the deadline, and then until those that are still silent are lost."""
        passed = time.monotonic() - self._first_at
        until = self._deadline_s if passed < self._deadline_s else self._silence_s
        return max(until - passed, 0.0)

    def _lose_silent(self) -> None:
        for rank in self._alive - set(self._changes):
            self._lose(rank, f"silent for {self._silence_s:g} s while others waited")

    def _complete(self) -> bool:
        arrived = len(self._changes)
        late = time.monotonic() - self._first_at >= self._deadline_s
        return arrived >= len(self._alive) or (late and arrived >= self._quorum)

    def _average(self) -> None:
        if self._changes and len(self._changes) >= self._quorum:
            change = torch.stack(list(self._changes.values())).mean(0)
            after = self._method.outer_step(self._shared, self._momentum, change)
            self._shared, self._momentum = after
        self._counted = len(self._changes)
        self._changes = {}
        self._round += 1


class _Client:
    """The side of another worker than the first."""

    def __init__(self, group: Group, deadline_s: float, silence_s: float) -> None:
        self._group = group
        self._leave_s = timedelta(seconds=deadline_s)
        # After `silence_s` the server answers, without those that are silent or with an error.
        self._patience = timedelta(seconds=silence_s + deadline_s)

    def exchange(self, of_round: int, change: torch.Tensor) -> Answer:
        """Sends Δ, and waits for the end of the round."""
        head = torch.tensor([float(of_round), 0.0, 0.0])
        buffer = torch.empty(_HEAD + len(change))
        try:
            self._group.send([torch.cat([head, change])], 0, _TAG).wait(self._patience)
            self._group.recv([buffer], 0, _TAG).wait(self._patience)
        except RuntimeError as error:
            raise RunError(
                "lost worker 0, which averages; it ends too where fewer are left than the quorum"
            ) from error
        following, counted, in_time = (int(number) for number in buffer[:_HEAD])
        return Answer(following, counted, bool(in_time), buffer[_HEAD:].clone())

    def close(self, size: int) -> None:
        """Tells the first worker, which may be stopped or gone.

        Args:
            size: elements of Δ.
        """
        head = torch.full((_HEAD + size,), float(_LEAVES))
        with contextlib.suppress(RuntimeError):
            self._group.send([head], 0, _TAG).wait(self._leave_s)


class QuorumMember:
    """A worker, as a hook for `torch.optim.Optimizer.register_step_post_hook`.

    Args:
        parameters: of the model, the same at all workers at the start.
        method: DiLoCo in one fragment, without a delay; its `quorum` counts, its `in_time` does
            not, as whoever sends Δ has made all its steps.
        deadline_s: from the first Δ of a round, for the others.
        group: the process group, on gloo; the default one if not given. Its timeout is how long
            workers may take to connect, and be silent while others wait, before they count as lost.

    Raises:
        OptionError: an option is out of its range.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        method: DiLoCo,
        *,
        deadline_s: float,
        group: Group | None = None,
    ) -> None:
        if method.fragments > 1 or method.keep:
            raise OptionError(
                "quorum: expected DiLoCo in one fragment that keeps nothing of its own; who is "
                "late takes all parameters at once"
            )
        if not 0 < deadline_s < float("inf"):
            raise OptionError(f"deadline_s: expected a number above 0, got {deadline_s}")
        self._group = copy_of(group)
        method.check_workers(self._group.size())
        if dist.get_backend(self._group) != "gloo":
            raise OptionError("quorum: expected a process group on gloo")
        self._parameters = FlatParameters(parameters)
        self._method = method
        self._shared = self._parameters.read()
        silence_s = group_timeout(self._group).total_seconds()
        self._client = _Client(self._group, deadline_s, silence_s)
        self._server = None
        if dist.get_rank(self._group) == 0:
            self._server = _Server(self._shared, method, deadline_s, self._group, silence_s)
        self._round = 0
        self._steps = 0
        self._open = True
        atexit.register(self.close)  # threads that wait in gloo would abort the process
        self.in_time = 0
        """Rounds for which this worker was in time."""
        self.counted = 0
        """Workers that were in time for the last round."""

    def __call__(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Called after each step of the optimizer.

        Raises:
            RunError: the first worker is lost, or fewer are left than the quorum.
        """
        self._steps += 1
        if self._steps % self._method.local_steps:
            return
        with torch.no_grad():
            answer = self._exchange(self._parameters.read() - self._shared)
            self._round, self.counted, self._shared = answer[0], answer.counted, answer.shared
            self.in_time += answer.in_time
            self._parameters.write(self._shared)

    def close(self) -> None:
        """To be called when there are no more steps; the others go on without this worker.

        The first worker waits for the others to close too, for `deadline_s`, and the others for as
        long until it has heard them. Called at the end of the process where it was not before.
        """
        if not self._open:
            return
        self._open = False
        atexit.unregister(self.close)
        if self._server is not None:
            self._server.close()
        else:
            self._client.close(len(self._shared))

    def _exchange(self, change: torch.Tensor) -> Answer:
        if self._server is not None:
            return self._server.exchange(0, self._round, change)
        return self._client.exchange(self._round, change)
