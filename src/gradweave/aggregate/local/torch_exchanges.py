"""Exchanges between processes of local updates in PyTorch."""

import dataclasses
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from gradweave.aggregate import threefry
from gradweave.aggregate.arrays import PyTree
from gradweave.aggregate.compressors import Compressor
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.payloads import as_bytes, from_bytes
from gradweave.aggregate.torch_gossip import Meeting, mixed_where_finite
from gradweave.execute.torch_distributed.backend import Collective
from gradweave.execute.torch_distributed.groups import Group, copy_of
from gradweave.schedules.given import ScheduleLike


@runtime_checkable
class Exchange(Protocol):
    """Computes the average of messages, such as the mean of Δ."""

    @property
    def group(self) -> Group:
        """The process group of the workers, used for no other messages."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process has sent so far."""
        ...

    def mean(self, change: torch.Tensor) -> torch.Tensor:
        """[size] a message, which may be overwritten → [size] the average."""
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


class _Counted:
    """Bytes and communications so far, which are the state of an exchange."""

    sent_bytes = 0
    _number = 0

    def state_dict(self) -> dict[str, Any]:
        """The bytes sent so far, and the number of communications."""
        return {"sent_bytes": self.sent_bytes, "number": self._number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state."""
        self.sent_bytes, self._number = state["sent_bytes"], state["number"]


@dataclasses.dataclass
class ByMixing(_Counted):
    """The average over neighbours, by a mixing matrix; worker i is rank i of the group."""

    mixing: MixingMatrix
    group: Group = None  # pyright: ignore[reportAssignmentType]

    def __post_init__(self) -> None:
        self.group = copy_of(self.group)
        self.mixing.check_workers(dist.get_world_size(self.group))

    def mean(self, change: torch.Tensor) -> torch.Tensor:
        """Σ_j W_ij of the messages."""
        self._number += 1
        meeting = Meeting(self._number, self.mixing, change.dtype, self.group)
        self.sent_bytes += meeting.sent_to * change.numel() * change.element_size()
        total = change * meeting.own
        for weight, one in meeting.exchanged(change):
            total.add_(one, alpha=weight)
        return total

    def mixed(self, buffers: torch.Tensor) -> torch.Tensor:
        """The buffers after a communication: averages of the finite values."""
        meeting = Meeting(self._number, self.mixing, buffers.dtype, self.group)
        self.sent_bytes += meeting.sent_to * buffers.numel() * buffers.element_size()
        return mixed_where_finite(meeting, buffers)


@dataclasses.dataclass
class Gathered(_Counted):
    """The mean of messages that each worker sends to each other, compressed once.

    It works like `gradweave.aggregate.local.exchange.AllReduceExchange` with ``whole``.
    """

    compressor: Compressor
    group: Group = None  # pyright: ignore[reportAssignmentType]
    seed: int = 0

    def __post_init__(self) -> None:
        self.group = copy_of(self.group)
        self.own = torch.zeros(0)
        """[size] this worker's last message as all received it."""

    def mean(self, change: torch.Tensor) -> torch.Tensor:
        """The mean of all workers' messages, the same bits at every worker."""
        rank, workers = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._number += 1
        key = threefry.fold_in(threefry.key_of(self.seed), self._number)
        payload = self.compressor.compress(threefry.fold_in(threefry.fold_in(key, 0), rank), change)
        sent = as_bytes(payload)
        every = [torch.empty_like(sent) for _ in range(workers)]
        dist.all_gather(every, sent, group=self.group)
        self.sent_bytes += (workers - 1) * sent.numel()
        mean = torch.zeros_like(change)
        for number, one in enumerate(every):
            came = from_bytes(one, payload)
            arrived = self.compressor.decompress(came, len(change), change.dtype)
            mean += arrived
            if number == rank:
                self.own = arrived
        return mean.div_(workers)


@dataclasses.dataclass
class Compressed(_Counted):
    """The mean of Δ, compressed by one of `gradweave.aggregate`'s compressors.

    It works like `gradweave.aggregate.local.exchange.AllReduceExchange`: each worker sums a part
    and returns the mean, with compression both times and the same random numbers.
    """

    compressor: Compressor
    group: Group = None  # pyright: ignore[reportAssignmentType]
    seed: int = 0

    def __post_init__(self) -> None:
        self.group = copy_of(self.group)

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
