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
from torch.autograd import Variable
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._pytree import tree_map

from gradweave.errors import OptionError
from gradweave.execute.program import check_all_reduce, check_collective
from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed.backend import Collective, Group, reduction_of
from gradweave.execute.torch_distributed.groups import member_of
from gradweave.execute.torch_distributed.shards import (
    all_gather_into,
    reduce_scatter_into,
    sharded,
)
from gradweave.execute.torch_distributed.shrinking import OnLoss, Planner, Returning, Shrinking
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule, Stage


def fsdp_hooks(
    model: torch.nn.Module,
    *,
    all_gather: ScheduleLike | None = None,
    reduce_scatter: ScheduleLike | None = None,
    group: Group | None = None,
    all_reduce: ScheduleLike | Planner | None = None,
    replicas: Group | Returning | None = None,
    on_loss: OnLoss = "raise",
    optimizer: torch.optim.Optimizer | None = None,
) -> "Registered":
    """Makes all sharded parts of a model (see `fully_shard`) communicate by schedules.

    Collectives without a schedule remain PyTorch's. If the model is sharded only over the processes
    of `group`, an all-reduce makes it a hybrid: the reduced gradients are averaged over `replicas`.

    With ``on_loss="shrink"``, that average is taken at the end of each backward pass. If a server
    is lost, its replica is lost: its other servers end with an error, and the other replicas
    complete the step without it, and continue. See `ddp_hook`, also for servers that return; a
    replica returns as a whole, in a job of its own.

    Args:
        model: a model with sharded parts.
        all_gather: schedule for gathering parameters; each server roots 1/N.
        reduce_scatter: schedule for reducing gradients; each server roots 1/N.
        group: the processes over which the model is sharded; the default group if not given. Rank r
            is the r-th server of both schedules in order of id.
        all_reduce: schedule for reducing gradients between replicas of the model.
        replicas: the processes that hold the same shards, as many as `all_reduce` has servers. With
            ``on_loss="shrink"``, the ranks of each replica must follow each other. A server that
            returns gives its place among all ranks instead.
        on_loss: what happens if a server is lost.
        optimizer: see `ddp_hook`.

    Returns:
        The registered collectives, which count bytes.

    Raises:
        OptionError: nothing is sharded; PyTorch has made the model a hybrid already, but
            `all_reduce` is given; only one of `all_reduce` and `replicas` is given; or the ranks of
            a replica do not follow each other.
        ScheduleError: a schedule is for another number of servers or another collective, or its
            servers root unequal shares.
    """
    all_gather = None if all_gather is None else as_schedule(all_gather)
    reduce_scatter = None if reduce_scatter is None else as_schedule(reduce_scatter)
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
    between = None
    if all_reduce is not None and on_loss == "shrink":
        between = ShrinkingAllReduce(model, all_reduce, member_of(group), replicas, optimizer)
    elif callable(all_reduce) or isinstance(replicas, Returning) or on_loss != "raise":
        raise OptionError("on_loss: expected raise, or shrink with all_reduce and replicas")
    elif all_reduce is not None:
        between = AllReduce(as_schedule(all_reduce), replicas)
    made = Registered(
        AllGather(all_gather, group) if all_gather is not None else None,
        ReduceScatter(reduce_scatter, group) if reduce_scatter is not None else None,
        between,
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


class ShrinkingAllReduce:
    """An average over replicas for `FSDPModule.set_all_reduce_hook`, without those that are lost.

    Args:
        model: the model.
        schedule: an all-reduce, or a `Planner`, which gets the numbers of the replicas.
        shards: the processes over which the model is sharded.
        replicas: see `fsdp_hooks`.
        optimizer: see `fsdp_hooks`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        schedule: ScheduleLike | Planner,
        shards: Group,
        replicas: Group | Returning | None,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self._parameters, size = list(model.parameters()), shards.size()
        ranks = dist.get_process_group_ranks(shards)
        if ranks != list(range(ranks[0], ranks[0] + size)) or ranks[0] % size:
            raise OptionError(
                f"group: on_loss='shrink' needs replicas of consecutive ranks, got {ranks}; make "
                "the mesh with the dimension of replicas first"
            )
        state = [] if optimizer is None else [_ShardedState(model, optimizer)]
        group = replicas if isinstance(replicas, Returning) else None
        self.means = Shrinking(schedule, group, block=size, state=state)
        """The averages, and the servers that take part in them."""
        self._queued = False
        if optimizer is not None:
            optimizer.register_step_post_hook(lambda *_: self.means.boundary() and None)

    def __call__(self, reduce_output: torch.Tensor) -> None:
        """Averages all gradients at the end of the backward pass.

        A server that is completing a step with the other replicas must not hold up the shards of
        its replica, which may be in the backward pass of the next layer.
        """
        if not self._queued:
            self._queued = True
            Variable._execution_engine.queue_callback(self._average)

    @torch.no_grad()
    def _average(self) -> None:
        self._queued = False
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in self._parameters:
            if parameter.grad is not None:
                gradient = _local(parameter.grad)
                by_type.setdefault(gradient.dtype, []).append(gradient)
        for gradients in by_type.values():
            self.means.mean(torch.cat([one.reshape(-1) for one in gradients]))
        for gradients, mean in zip(by_type.values(), self.means.commit(), strict=True):
            for one, part in zip(
                gradients, mean.split([g.numel() for g in gradients]), strict=True
            ):
                one.copy_(part.view(one.shape))


class _ShardedState:
    """This server's shards of a model and its optimizer, for a server of another replica."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def _tensors(self) -> list[torch.Tensor]:
        return [_local(one) for one in (*self._model.parameters(), *self._model.buffers())]

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Copies of the shards."""
        optimizer = tree_map(_copied, self._optimizer.state_dict())
        return {"tensors": [one.clone() for one in self._tensors()], "optimizer": optimizer}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the shards of the server of another replica."""
        for own, other in zip(self._tensors(), state["tensors"], strict=True):
            own.copy_(other)
        groups, optimizer = self._optimizer.param_groups, state["optimizer"]
        parameters = [parameter for group in groups for parameter in group["params"]]
        for number, kept in optimizer["state"].items():
            optimizer["state"][number] = {
                k: _sharded(v, parameters[number]) for k, v in kept.items()
            }
        self._optimizer.load_state_dict(optimizer)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _copied(value: Any) -> Any:
    return _local(value).clone() if isinstance(value, torch.Tensor) else value


def _sharded(value: Any, like: torch.Tensor) -> Any:
    """A parameter's shard of an optimizer's state, as the parameter itself is sharded."""
    if not isinstance(like, DTensor) or not isinstance(value, torch.Tensor) or not value.dim():
        return value
    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(value, mesh, placements, shape=like.shape, stride=like.stride())


@dataclasses.dataclass(frozen=True)
class Registered:
    """The collectives that `fsdp_hooks` has given to a model; None for those left to PyTorch."""

    all_gather: AllGather | None
    reduce_scatter: ReduceScatter | None
    all_reduce: AllReduce | ShrinkingAllReduce | None


def _is_hybrid(parameter: torch.nn.Parameter) -> bool:
    """Whether FSDP holds the parameter as replicas of shards."""
    return isinstance(parameter, DTensor) and isinstance(parameter.placements[0], Replicate)
