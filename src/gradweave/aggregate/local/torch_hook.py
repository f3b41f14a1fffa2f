"""Local updates in PyTorch: a hook on an optimizer's step, beside the hook for DDP's gradients.

    hook = LocalUpdates(model.parameters(), DiLoCo(local_steps=50), schedule)
    optimizer.register_step_post_hook(hook)

The model is not wrapped in DDP: between averages nothing is sent. The notation is that of
`gradweave.aggregate.local.methods`.
"""

import dataclasses
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
import torch.distributed as dist

from gradweave.aggregate import threefry
from gradweave.aggregate.arrays import PyTree
from gradweave.aggregate.compressors import Compressor
from gradweave.aggregate.local.flat import FlatParameters
from gradweave.aggregate.local.methods import DiLoCo
from gradweave.aggregate.payloads import as_bytes, from_bytes
from gradweave.errors import OptionError
from gradweave.execute.torch_distributed.backend import Collective
from gradweave.execute.torch_distributed.groups import copy_of
from gradweave.schedule.schedule import Schedule


class Exchange(Protocol):
    """How the mean of Δ is found."""

    @property
    def sent_bytes(self) -> int:
        """By this process so far."""
        ...

    def mean(self, change: torch.Tensor) -> torch.Tensor:
        """[size] Δ → [size] the mean of all workers'."""
        ...


class BySchedule:
    """The exact mean, by a schedule; without one, the backend's own all-reduce.

    Args:
        schedule: an all-reduce for as many servers as the group has processes.
        group: the process group; the default one if not given. Messages go by a copy of it.

    Raises:
        ScheduleError: the schedule is for another number of servers.
    """

    def __init__(
        self, schedule: Schedule | None = None, group: dist.ProcessGroup | None = None
    ) -> None:
        self._group = copy_of(group)
        self._collective = None if schedule is None else Collective(schedule, self._group)
        self._native_bytes = 0

    @property
    def sent_bytes(self) -> int:
        """Counted message by message; of the backend's own, 2(N−1)/N of what is averaged."""
        if self._collective is not None:
            return int(self._collective.sent_bytes.sum())
        return self._native_bytes

    def mean(self, change: torch.Tensor) -> torch.Tensor:
        """The mean of all workers' Δ, in place."""
        if self._collective is not None:
            self._collective(change, reduction="mean")
            return change
        size = dist.get_world_size(self._group)
        dist.all_reduce(change, group=self._group)
        self._native_bytes += 2 * (size - 1) * change.numel() * change.element_size() // size
        return change.div_(size)


class LocalUpdates:
    """A hook for `torch.optim.Optimizer.register_step_post_hook`, with DiLoCo and its streaming.

    With a delay the average of a fragment is under way in a thread while the next steps are made.

    Args:
        parameters: of the model, the same at all workers at the start.
        method: when what is averaged.
        exchange: how; by the backend's own all-reduce if not given.

    Raises:
        OptionError: there are no parameters, or the method needs workers to be left out, for which
            `gradweave.aggregate.local.quorum` is.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        method: DiLoCo,
        exchange: Exchange | Schedule | None = None,
    ) -> None:
        self._parameters = FlatParameters(parameters)
        if method.quorum > 1 or method.in_time > 0:
            raise OptionError(
                "quorum: a collective waits for all its workers; take "
                "gradweave.aggregate.local.quorum.QuorumMember"
            )
        self._method = method
        self.exchange: Exchange = (
            BySchedule(exchange) if exchange is None or isinstance(exchange, Schedule) else exchange
        )
        self._shared = self._parameters.read()
        self._momentum = torch.zeros_like(self._shared)
        self._queue = ThreadPoolExecutor(1, "gradweave-local")
        self._arriving: Future[torch.Tensor] | None = None
        self.steps = 0
        """Steps of the optimizer so far."""

    def __call__(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Called after each step of the optimizer."""
        self.steps += 1
        phase, number = self.steps % self._method.interval, self.steps // self._method.interval
        with torch.no_grad():
            if phase == 0:
                part = self._part(number)
                change = (self._parameters.read() - self._shared)[part].clone()
                self._arriving = self._queue.submit(self.exchange.mean, change)
            if phase == self._method.delay and self._arriving is not None:
                self._take(self._part(number), self._arriving.result())
                self._arriving = None

    def _take(self, part: slice, change: torch.Tensor) -> None:
        """Moves φ by an average, and θ to it."""
        method = self._method
        moved = method.outer_step(self._shared[part], self._momentum[part], change)
        self._shared[part], self._momentum[part] = moved
        x = self._parameters.read()
        x[part] = method.keep * x[part] + (1 - method.keep) * self._shared[part]
        self._parameters.write(x)

    def _part(self, number: int) -> slice:
        """The fragment of communication `number`, from 1."""
        size = -(-len(self._shared) // self._method.fragments)
        turn = (number - 1) % self._method.fragments
        return slice(turn * size, (turn + 1) * size)


@dataclasses.dataclass
class Compressed:
    """The mean of Δ by `gradweave.aggregate`'s compressors.

    As `gradweave.aggregate.local.exchange.AllReduceExchange`: parts to those who add them up, and
    the means back, compressed both times, by the same random numbers.
    """

    compressor: Compressor
    group: dist.ProcessGroup | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self.group = copy_of(self.group)
        self.sent_bytes = 0
        self._number = 0

    def mean(self, change: torch.Tensor) -> torch.Tensor:
        """The mean of all workers' Δ."""
        assert self.group is not None
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
            """[workers, part] what arrives, where message r goes to process r."""
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
