"""Local updates in PyTorch: a hook on an optimizer's step, as there is one for DDP's gradients.

    hook = LocalUpdates(model.parameters(), DiLoCo(local_steps=50), schedule)
    optimizer.register_step_post_hook(hook)

The model is not wrapped in DDP: between averages nothing is sent. The notation is that of
`gradweave.aggregate.local.methods`.
"""

import dataclasses
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from gradweave.aggregate import threefry
from gradweave.aggregate.arrays import PyTree
from gradweave.aggregate.compressors import Compressor
from gradweave.aggregate.local.flat import FlatTensors, floating, trained
from gradweave.aggregate.local.methods import DiLoCo
from gradweave.aggregate.payloads import as_bytes, from_bytes
from gradweave.aggregate.torch_steps import (
    Arguments,
    GuardedSteps,
    Trained,
    all_finite,
    check_alike,
    on_each_step_of,
)
from gradweave.errors import OptionError
from gradweave.execute.torch_distributed.backend import Collective
from gradweave.execute.torch_distributed.groups import Group, copy_of
from gradweave.schedules.given import ScheduleLike


@runtime_checkable
class Exchange(Protocol):
    """Computes the mean of Δ."""

    @property
    def group(self) -> Group:
        """The process group of the workers, used for no other messages."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process has sent so far."""
        ...

    def mean(self, change: torch.Tensor) -> torch.Tensor:
        """[size] Δ → [size] the mean over all workers."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The state needed to continue with the same bits."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state."""
        ...


class BySchedule:
    """The exact mean by a schedule, or by the backend's all-reduce without one.

    Args:
        schedule: an all-reduce for as many servers as the group has processes.
        group: the process group; by default the default group. Messages use a copy of it.

    Raises:
        ScheduleError: the schedule is for another number of servers.
    """

    def __init__(
        self, schedule: ScheduleLike | None = None, group: dist.ProcessGroup | None = None
    ) -> None:
        self.group = copy_of(group)
        self._collective = None if schedule is None else Collective(schedule, self.group)
        self._other_bytes = 0
        """Bytes sent by the backend's all-reduce, and before a checkpoint."""

    @property
    def sent_bytes(self) -> int:
        """Bytes counted per message; for the backend's all-reduce, 2(N−1)/N of the vector."""
        planned = 0 if self._collective is None else int(self._collective.sent_bytes.sum())
        return self._other_bytes + planned

    def mean(self, change: torch.Tensor) -> torch.Tensor:
        """The mean of all workers' Δ, computed in place."""
        if self._collective is not None:
            self._collective(change, reduction="mean")
            return change
        size = dist.get_world_size(self.group)
        dist.all_reduce(change, group=self.group)
        self._other_bytes += 2 * (size - 1) * change.numel() * change.element_size() // size
        return change.div_(size)

    def state_dict(self) -> dict[str, Any]:
        """The bytes sent so far."""
        return {"sent_bytes": self.sent_bytes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state."""
        self._other_bytes += state["sent_bytes"] - self.sent_bytes


class Averages(NamedTuple):
    """The result of a communication, for one fragment."""

    part: slice
    change: torch.Tensor
    """Mean of Δ over the workers that count."""
    counted: int
    """Number of workers that made a step since the last communication."""
    mine: bool
    """Whether this worker made a step."""
    buffers: torch.Tensor
    """Mean of each buffer element over the workers that have a finite value, or NaN."""


class LocalUpdates:
    """A hook for `torch.optim.Optimizer.register_step_post_hook`, with plain or streaming DiLoCo.

    With a delay, a thread averages a fragment while the next steps are made.

    A step that is not finite is skipped as in JAX: neither the parameters nor the optimizer's state
    change. A worker that made no finite step since the last communication does not count in the
    average, and takes φ. Parameters that are unfrozen, or added to the optimizer, join before their
    first step, which must be the same step at all workers. Create this before loading a
    checkpoint's parameters, then call `load_state_dict`.

    Args:
        parameters: parameters of the model, equal at all workers at the start.
        method: which parts are averaged, and when.
        exchange: how they are averaged; by default with the backend's all-reduce.
        buffers: buffers of the model, such as BatchNorm's statistics. Floating-point buffers are
            averaged with each fragment, without elements that are not finite; each worker keeps its
            integer buffers.

    Raises:
        OptionError: there are no parameters, the workers' parameters differ, or the method has to
            exclude workers, which needs `gradweave.aggregate.local.quorum`.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        method: DiLoCo,
        exchange: Exchange | ScheduleLike | None = None,
        *,
        buffers: Iterable[torch.Tensor] = (),
    ) -> None:
        self._trained = Trained(parameters)
        if method.quorum > 1 or method.in_time > 0:
            raise OptionError(
                "quorum: a collective waits for all its workers; use "
                "gradweave.aggregate.local.quorum.QuorumMember"
            )
        self._method = method
        self.exchange: Exchange = (
            exchange if isinstance(exchange, Exchange) else BySchedule(exchange)
        )
        self._buffers = floating(buffers)
        self._guard = GuardedSteps()
        self._hold(self._trained.joined)
        self._shared = self._parameters.read()
        self._momentum = torch.zeros_like(self._shared)
        check_alike(self.exchange.group, method.name, [self._buffers.read(), self._shared])
        self._queue = ThreadPoolExecutor(1, "gradweave-local")
        self._arriving: Future[Averages] | None = None
        self._taken = 0
        """Number of steps that this worker has made since the last communication."""
        self.steps = 0
        """Number of optimizer steps so far."""
        self.counted = 0
        """Number of workers that made a step before the last communication."""
        on_each_step_of(self._trained, self, LocalUpdates._before_step)

    @property
    def not_finite(self) -> int:
        """Number of steps skipped because this worker's gradients were not finite."""
        return self._guard.not_finite

    def __call__(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Called after each step of the optimizer."""
        self.steps += 1
        phase, number = self.steps % self._method.interval, self.steps // self._method.interval
        self._taken += self._guard.after(optimizer)
        with torch.no_grad():
            if phase == 0:
                part = self._part(number)
                change = (self._parameters.read() - self._shared)[part]
                mine, self._taken = self._taken > 0 and all_finite([change]), 0
                self._arriving = self._queue.submit(
                    self._averages, part, change, mine, self._buffers.read()
                )
            if phase == self._method.delay and self._arriving is not None:
                self._take(self._arriving.result())
                self._arriving = None

    def state_dict(self) -> dict[str, Any]:
        """The worker's state between steps, except its parameters and its optimizer's state.

        The state differs by worker. This call waits for a pending average, so all processes must
        call it after the same step.
        """
        arrived = None if self._arriving is None else self._arriving.result()
        return {
            "steps": self.steps,
            "taken": self._taken,
            "counted": self.counted,
            "not_finite": self.not_finite,
            "parameters": self._trained.places,
            "shared": self._shared.clone(),
            "momentum": self._momentum.clone(),
            "arriving": arrived and (arrived.part.start, arrived.part.stop, *arrived[1:]),
            "exchange": self.exchange.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state.

        Raises:
            OptionError: the state belongs to other parameters.
        """
        self._trained.restore(state["parameters"])
        self._hold(self._trained.joined)
        if len(state["shared"]) != len(self._parameters):
            raise OptionError(
                f"state of {self._method.name}: expected {len(self._parameters)} elements, got "
                f"{len(state['shared'])}; it belongs to other parameters"
            )
        self._shared = state["shared"].to(self._shared)
        self._momentum = state["momentum"].to(self._shared)
        self._arriving = None
        if state["arriving"] is not None:
            start, stop, change, *others = state["arriving"]
            arrived = Averages(slice(start, stop), change.to(self._shared), *others)
            self._arriving = self._queue.submit(lambda: arrived)
        self.steps, self._taken = int(state["steps"]), int(state["taken"])
        self.counted, self._guard.not_finite = int(state["counted"]), int(state["not_finite"])
        self.exchange.load_state_dict(state["exchange"])

    def _hold(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = FlatTensors(parameters)
        self._guard.vectors = [self._parameters]

    @torch.no_grad()
    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> Arguments | None:
        """Lets late parameters join, and makes the optimizer skip steps that are not finite."""
        if late := self._trained.late(optimizer):
            new = FlatTensors(trained(late), self._shared.dtype).read()
            if self._arriving is not None:
                self._arriving.result()  # keeps the order of messages the same at all workers
            check_alike(self.exchange.group, self._method.name, [new])
            self._trained.joined += late
            self._hold(self._trained.joined)
            self._shared = torch.cat([self._shared, new])
            self._momentum = torch.cat([self._momentum, torch.zeros_like(new)])
        return self._guard.before(args, kwargs)

    def _averages(
        self, part: slice, change: torch.Tensor, mine: bool, buffers: torch.Tensor
    ) -> Averages:
        """The means over the workers that count. Runs in a thread."""
        group = self.exchange.group
        buffers = buffers.to(change)
        finite = buffers.isfinite()
        sums = torch.cat([change.new_tensor([mine]), finite, torch.where(finite, buffers, 0)])
        dist.all_reduce(sums, group=group)
        counted, workers = int(sums[0]), dist.get_world_size(group)
        mean = self.exchange.mean(change if mine else torch.zeros_like(change))
        if 0 < counted < workers:
            mean *= workers / counted
        counts, totals = sums[1:].split(len(buffers)) if len(buffers) else (buffers, buffers)
        return Averages(part, mean, counted, mine, totals / counts)

    def _take(self, arrived: Averages) -> None:
        """Moves φ by an average, and θ towards it."""
        self.counted = arrived.counted
        keep = self._method.keep if arrived.mine else 0.0
        own = self._buffers.read()
        mean = arrived.buffers.to(own)
        mean = torch.where(own.isfinite(), keep * own + (1 - keep) * mean, mean)
        self._buffers.write(torch.where(mean.isfinite(), mean, own))
        if not arrived.counted:
            return
        part = arrived.part
        moved = self._method.outer_step(self._shared[part], self._momentum[part], arrived.change)
        self._shared[part], self._momentum[part] = moved
        x = self._parameters.read()
        x[part] = keep * x[part] + (1 - keep) * self._shared[part]
        self._parameters.write(x)

    def _part(self, number: int) -> slice:
        """The fragment of communication `number`, from 1."""
        size = -(-len(self._shared) // self._method.fragments)
        turn = (number - 1) % self._method.fragments
        return slice(turn * size, (turn + 1) * size)


@dataclasses.dataclass
class Compressed:
    """The mean of Δ, compressed by one of `gradweave.aggregate`'s compressors.

    It works like `gradweave.aggregate.local.exchange.AllReduceExchange`: each worker sums a part
    and returns the mean, with compression both times and the same random numbers.
    """

    compressor: Compressor
    group: Group = None  # pyright: ignore[reportAssignmentType]
    seed: int = 0

    def __post_init__(self) -> None:
        self.group = copy_of(self.group)
        self.sent_bytes = 0
        self._number = 0

    def mean(self, change: torch.Tensor) -> torch.Tensor:
        """The mean of all workers' Δ."""
        compress, workers = self.compressor.compress, dist.get_world_size(self.group)
        part = -(-len(change) // workers)
        self._number += 1
        key = threefry.fold_in(threefry.key_of(self.seed), self._number)
        first, second = threefry.split(threefry.fold_in(key, dist.get_rank(self.group)))
        rows = change.new_zeros(workers * part)
        rows[: len(change)] = change
        payloads = [
            compress(each, row)
            for each, row in zip(threefry.split(first, workers), rows.split(part), strict=True)
        ]

        def exchanged(messages: list[PyTree]) -> torch.Tensor:
            """[workers, part] the received messages, if message r goes to process r."""
            sent = torch.stack([as_bytes(each) for each in messages])
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent, group=self.group)
            return torch.stack(
                [
                    self.compressor.decompress(from_bytes(row, messages[0]), part, change.dtype)
                    for row in received
                ]
            )

        mean = compress(second, exchanged(payloads).sum(0) / workers)
        self.sent_bytes += 2 * (workers - 1) * as_bytes(mean).numel()
        return exchanged([mean] * workers).reshape(-1)[: len(change)]

    def state_dict(self) -> dict[str, Any]:
        """The bytes sent so far, and the position in the random numbers."""
        return {"sent_bytes": self.sent_bytes, "number": self._number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state."""
        self.sent_bytes, self._number = state["sent_bytes"], state["number"]
