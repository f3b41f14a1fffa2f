"""FSDP2's communication by schedules: all-gathers, reduce-scatters and all-reduces of replicas.

    model = fully_shard(model, mesh=mesh)
    fsdp_hooks(model, all_gather=…, reduce_scatter=…, group=mesh.get_group())

`fsdp_hooks` calls PyTorch's hooks. They also accept the classes of this file directly:

    model.set_custom_all_gather(AllGather(…, mesh.get_group()))
    model.set_custom_reduce_scatter(ReduceScatter(…, mesh.get_group()))
    model.set_all_reduce_hook(AllReduce(…, replicas.get_group()))

Each call is complete when it returns, even if FSDP asks for an asynchronous one. Errors are raised
by the model's forward or by ``backward``.

Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from gradweave.errors import OptionError
from gradweave.execute.program import check_all_reduce, check_collective
from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed.backend import Collective, Group, reduction_of
from gradweave.execute.torch_distributed.shards import (
    all_gather_into,
    reduce_scatter_into,
    sharded,
)
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule, Stage


def fsdp_hooks(
    model: torch.nn.Module,
    *,
    all_gather: ScheduleLike | None = None,
    reduce_scatter: ScheduleLike | None = None,
    group: Group | None = None,
    all_reduce: ScheduleLike | None = None,
    replicas: Group | None = None,
) -> "Registered":
    """Makes all sharded parts of a model (see `fully_shard`) communicate by schedules.

    Collectives without a schedule remain PyTorch's. If the model is sharded only over the processes
    of `group`, an all-reduce makes it a hybrid: the reduced gradients are averaged over `replicas`.

    Args:
        model: a model with sharded parts.
        all_gather: schedule for gathering parameters; each server roots 1/N.
        reduce_scatter: schedule for reducing gradients; each server roots 1/N.
        group: the processes over which the model is sharded; the default group if not given. Rank r
            is the r-th server of both schedules in order of id.
        all_reduce: schedule for reducing gradients between replicas of the model.
        replicas: the processes that hold the same shards, as many as `all_reduce` has servers.

    Returns:
        The registered collectives, which count bytes.

    Raises:
        OptionError: nothing is sharded; PyTorch has made the model a hybrid already, but
            `all_reduce` is given; or only one of `all_reduce` and `replicas` is given.
        ScheduleError: a schedule is for another number of servers or another collective, or its
            servers root unequal shares.
    """
    all_gather = None if all_gather is None else as_schedule(all_gather)
    reduce_scatter = None if reduce_scatter is None else as_schedule(reduce_scatter)
    all_reduce = None if all_reduce is None else as_schedule(all_reduce)
    parts: list[Any] = [one for one in model.modules() if hasattr(one, "set_custom_all_gather")]
    if not parts:
        raise OptionError(
            "model: no part of it has set_custom_all_gather; call fully_shard first, in a PyTorch "
            f"that has it (this is {torch.__version__})"
        )
    if (all_reduce is None) != (replicas is None):
        raise OptionError("all_reduce: expected all_reduce and replicas together")
    if all_reduce is not None and any(map(_is_hybrid, model.parameters())):
        raise OptionError(
            "model: it is sharded over a mesh of two dimensions, so FSDP itself does the "
            "all-reduce; give fully_shard only the dimension of shards"
        )
    made = Registered(
        AllGather(all_gather, group) if all_gather is not None else None,
        ReduceScatter(reduce_scatter, group) if reduce_scatter is not None else None,
        AllReduce(all_reduce, replicas) if all_reduce is not None else None,
    )
    for part in parts:
        if made.all_gather is not None:
            part.set_custom_all_gather(made.all_gather)
        if made.reduce_scatter is not None:
            part.set_custom_reduce_scatter(made.reduce_scatter)
        if made.all_reduce is not None:
            part.set_all_reduce_hook(made.all_reduce)
    return made


class _OfShards:
    """A collective of shards, in the form in which FSDP calls it.

    Args:
        schedule: a schedule in which each server roots 1/N.
        group: the processes over which the model is sharded; the default group if not given.

    Raises:
        ScheduleError: the schedule is for another number of servers or another collective, or its
            servers root unequal shares.
    """

    _kind: Stage

    def __init__(self, schedule: Schedule, group: Group | None = None) -> None:
        check_collective(schedule, self._kind)
        self.collective = Collective(sharded(schedule), group)
        """The collective, which counts the bytes sent."""

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Allocates memory for FSDP's tensors."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _is_for(self, group: Group) -> bool:
        """Whether the group has the schedule's processes; not so if FSDP gathers among a subset."""
        mine, asked = (dist.get_process_group_ranks(one) for one in (self.collective.group, group))
        if not set(asked) <= set(mine):
            raise OptionError(
                f"group: the model is sharded over ranks {asked}, the schedule was given {mine}"
            )
        return mine == asked


class AllGather(_OfShards):
    """An all-gather for `FSDPModule.set_custom_all_gather`."""

    _kind = "all_gather"

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Group,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gathers; the backend does so among a subset of processes (`reshard_after_forward=2`)."""
        if not self._is_for(group):
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
        all_gather_into(self.collective, output_tensor, input_tensor)
        return None


class ReduceScatter(_OfShards):
    """A reduce-scatter for `FSDPModule.set_custom_reduce_scatter`."""

    _kind = "reduce_scatter"

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Group,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Reduces, and overwrites the input, which FSDP no longer needs."""
        reduction = reduction_of(op)
        if reduction is None:
            raise OptionError(
                f"op: expected a sum, mean, maximum or minimum, got {op}; if a divide factor is "
                "set, call set_force_sum_reduction_for_comms(True)"
            )
        if not self._is_for(group):
            raise OptionError("group: expected all processes that the schedule was given")
        reduce_scatter_into(
            self.collective, output_tensor, input_tensor, reduction, keep_input=False
        )


class AllReduce:
    """An all-reduce for `FSDPModule.set_all_reduce_hook`, of shards that several processes hold.

    Args:
        schedule: an all-reduce.
        group: the processes that hold the same shards; the default group if not given.
        reduction: how to reduce the gradients, which FSDP has already reduced over the shards.

    Raises:
        ScheduleError: the schedule is for another number of servers or another collective.
    """

    def __init__(
        self, schedule: Schedule, group: Group | None = None, *, reduction: Reduction = "mean"
    ) -> None:
        check_all_reduce(schedule)
        self.collective = Collective(schedule, group)
        """The collective, which counts the bytes sent."""
        self._reduction: Reduction = reduction

    def __call__(self, reduce_output: torch.Tensor) -> None:
        """Reduces in place."""
        self.collective(reduce_output, reduction=self._reduction)


@dataclasses.dataclass(frozen=True)
class Registered:
    """The collectives that `fsdp_hooks` has given to a model; None for those left to PyTorch."""

    all_gather: AllGather | None
    reduce_scatter: ReduceScatter | None
    all_reduce: AllReduce | None


def _is_hybrid(parameter: torch.nn.Parameter) -> bool:
    """Whether FSDP holds the parameter as replicas of shards."""
    return isinstance(parameter, DTensor) and isinstance(parameter.placements[0], Replicate)
