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

from gradweave.aggregate.local.flat import FlatParameters
from gradweave.aggregate.local.methods import DiLoCo
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
    """The mean of Δ by `gradweave.aggregate`'s compressors, which need JAX.

    As `gradweave.aggregate.local.exchange.AllReduceExchange`: parts to those who add them up, and
    the means back, compressed both times.
    """

    compressor: Any
    """A `gradweave.aggregate.Compressor`."""
    group: dist.ProcessGroup | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        from gradweave.lazy import require

        require("compressed averages", "jax")
        self.group = copy_of(self.group)
        self.sent_bytes = 0
        self._number = 0

    def mean(self, change: torch.Tensor) -> torch.Tensor:
        """The mean of all workers' Δ."""
        import jax
        import jax.numpy as jnp
        import numpy as np

        assert self.group is not None
        workers, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        part = -(-len(change) // workers)
        self._number += 1
        key = jax.random.fold_in(jax.random.key(self.seed), self._number)
        first, second = jax.random.split(jax.random.fold_in(key, rank))
        rows = torch.zeros(workers * part)
        rows[: len(change)] = change
        keys = jax.random.split(first, workers)
        payloads = jax.vmap(self.compressor.compress)(keys, jnp.asarray(rows.view(workers, part)))

        def read(payload: Any) -> Any:
            return self.compressor.decompress(payload, part, jnp.float32)

        received = _exchanged(payloads, self.group)
        mean = jax.vmap(read)(received).sum(0) / workers
        own = self.compressor.compress(second, mean)
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (workers, *leaf.shape)), own)
        every = jax.vmap(read)(_exchanged(copies, self.group))
        bytes_ = sum(leaf.nbytes for leaf in jax.tree.leaves(own))
        self.sent_bytes += 2 * (workers - 1) * bytes_
        return torch.from_numpy(np.array(every).reshape(-1)[: len(change)].copy())


def _exchanged(tree: Any, group: dist.ProcessGroup) -> Any:
    """Row r of each leaf [N, …] goes to process r; what arrives, by sender."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def leaf_exchanged(leaf: Any) -> Any:
        rows = np.ascontiguousarray(np.asarray(leaf)).view(np.uint8).reshape(len(leaf), -1)
        into = torch.empty(rows.shape, dtype=torch.uint8)
        dist.all_to_all_single(into, torch.from_numpy(rows.copy()), group=group)
        return jnp.asarray(into.numpy().view(leaf.dtype).reshape(leaf.shape))

    return jax.tree.map(leaf_exchanged, tree)
