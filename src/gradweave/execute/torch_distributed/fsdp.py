"""FSDP2's communication by schedules: all-gathers, reduce-scatters, all-reduces between replicas.

    model = fully_shard(model, mesh=mesh)
    register(model, all_gather=…, reduce_scatter=…, group=mesh.get_group())

`register` calls PyTorch's own hooks, which take the classes of this file, too:

    model.set_custom_all_gather(AllGather(…, mesh.get_group()))
    model.set_custom_reduce_scatter(ReduceScatter(…, mesh.get_group()))
    model.set_all_reduce_hook(AllReduce(…, replicas.get_group()))

Each call is complete when it returns, also where FSDP asks for one that is not; errors are raised
by the model's forward or by ``backward``.

Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

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
from gradweave.schedule.schedule import Schedule


def register(
    model: torch.nn.Module,
    *,
    all_gather: Schedule | None = None,
    reduce_scatter: Schedule | None = None,
    group: Group | None = None,
    all_reduce: Schedule | None = None,
    replicas: Group | None = None,
) -> "Registered":
    """Has all of a model that `fully_shard` was applied to communicate by schedules.

    What is not given, PyTorch does as before. An all-reduce makes a hybrid of a model that is
    sharded over the processes of `group` alone: the mean of its reduced gradients over `replicas`.

    Args:
        model: a model, parts of which are sharded.
        all_gather: of parameters; each server roots 1/N.
        reduce_scatter: of gradients; each server roots 1/N.
        group: over which the model is sharded; the default one if not given. Rank r is the r-th
            server of both schedules in order of id.
        all_reduce: of gradients between replicas of the model.
        replicas: the processes that hold the same shards, as many as `all_reduce` has servers.

    Returns:
        What was registered, which counts bytes.

    Raises:
        OptionError: nothing is sharded; the model is a hybrid of PyTorch's own, and `all_reduce` is
            given; or `all_reduce` or `replicas` is given alone.
        ScheduleError: a schedule is for another number of servers or another collective, or its
            servers root unequal shares.
    """
    parts: list[Any] = [one for one in model.modules() if hasattr(one, "set_custom_all_gather")]
    if not parts:
        raise OptionError(
            "model: no part of it has set_custom_all_gather; call fully_shard first, in a PyTorch "
            f"that has it (this is {torch.__version__})"
        )
    if (all_reduce is None) != (replicas is None):
        raise OptionError("all_reduce: expected together with replicas, and not one alone")
    if all_reduce is not None and any(map(_is_hybrid, model.parameters())):
        raise OptionError(
            "model: it is sharded over a mesh of two dimensions, so that FSDP all-reduces by "
            "itself; give fully_shard the dimension of shards alone"
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
    """A collective of shards, as FSDP calls it.

    Args:
        schedule: in which each server roots 1/N.
        group: over which the model is sharded; the default one if not given.

    Raises:
        ScheduleError: the schedule is for another number of servers or another collective, or its
            servers root unequal shares.
    """

    _kind: Literal["reduce_scatter", "all_gather"]

    def __init__(self, schedule: Schedule, group: Group | None = None) -> None:
        check_collective(schedule, self._kind)
        self.collective = Collective(sharded(schedule), group)
        """Counts the bytes sent."""

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Memory for its tensors."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _is_for(self, group: Group) -> bool:
        """Whether these are its processes; not where FSDP gathers among some of them."""
        mine, asked = (dist.get_process_group_ranks(one) for one in (self.collective.group, group))
        if not set(asked) <= set(mine):
            raise OptionError(
                f"group: the model is sharded over ranks {asked}, the schedule was given {mine}"
            )
        return mine == asked


class AllGather(_OfShards):
    """What `FSDPModule.set_custom_all_gather` takes."""

    _kind = "all_gather"

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Group,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gathers; by the backend's own among some of the processes (`reshard_after_forward=2`)."""
        if not self._is_for(group):
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
        all_gather_into(self.collective, output_tensor, input_tensor)
        return None


class ReduceScatter(_OfShards):
    """What `FSDPModule.set_custom_reduce_scatter` takes."""

    _kind = "reduce_scatter"

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Group,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Reduces; the input, which FSDP has no more use for, is overwritten."""
        reduction = reduction_of(op)
        if reduction is None:
            raise OptionError(
                f"op: expected a sum, mean, maximum or minimum, got {op}; where a divide factor is "
                "set, call set_force_sum_reduction_for_comms(True)"
            )
        if not self._is_for(group):
            raise OptionError("group: expected all processes that the schedule was given")
        reduce_scatter_into(
            self.collective, output_tensor, input_tensor, reduction, keep_input=False
        )


class AllReduce:
    """What `FSDPModule.set_all_reduce_hook` takes, for shards that several processes hold.

    Args:
        schedule: an all-reduce.
        group: the processes that hold the same shards; the default group if not given.
        reduction: of the gradients, which FSDP has reduced over the shards before.

    Raises:
        ScheduleError: the schedule is for another number of servers or another collective.
    """

    def __init__(
        self, schedule: Schedule, group: Group | None = None, *, reduction: Reduction = "mean"
    ) -> None:
        check_all_reduce(schedule)
        self.collective = Collective(schedule, group)
        """Counts the bytes sent."""
        self._reduction: Reduction = reduction

    def __call__(self, reduce_output: torch.Tensor) -> None:
        """Reduces in place."""
        self.collective(reduce_output, reduction=self._reduction)


@dataclasses.dataclass(frozen=True)
class Registered:
    """What `register` has given to a model; None where PyTorch does it."""

    all_gather: AllGather | None
    reduce_scatter: ReduceScatter | None
    all_reduce: AllReduce | None


def _is_hybrid(parameter: torch.nn.Parameter) -> bool:
    """Whether FSDP holds it in replicas of shards."""
    return isinstance(parameter, DTensor) and isinstance(parameter.placements[0], Replicate)
