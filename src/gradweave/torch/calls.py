"""Collectives that plans can run: what a caller gave, and both ways to carry it out."""

import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
import torch.distributed as dist

from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed import Collective as Plan
from gradweave.execute.torch_distributed.backend import OPERATIONS, reduction_of
from gradweave.execute.torch_distributed.shards import all_gather_into, reduce_scatter_into
from gradweave.schedule.schedule import Collective


class SizeClass(NamedTuple):
    """Calls for which one plan is made."""

    collective: Collective
    size: int
    """Bytes of the whole, all ranks' parts together: up to so many, and more than half of it."""

    @classmethod
    def of_bytes(cls, collective: Collective, whole_bytes: int) -> "SizeClass":
        """That of a size: the next power of two."""
        return cls(collective, 1 << (whole_bytes - 1).bit_length())

    @classmethod
    def of(cls, call: "Call") -> "SizeClass":
        """That of a call."""
        return cls.of_bytes(call.collective, call.whole.nbytes)


class Call(Protocol):
    """One call of a collective."""

    collective: ClassVar[Collective]

    @property
    def whole(self) -> torch.Tensor:
        """The tensor with all ranks' parts."""
        ...

    @property
    def result(self) -> torch.Tensor:
        """What is complete at the end."""
        ...

    def by_plan(self, plan: Plan) -> None:
        """Carries it out by a plan."""
        ...

    def by_own(self, group: Any) -> None:
        """Carries it out by gloo's own algorithm.

        Args:
            group: one of gloo.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class AllReduce:
    """The reduction of all ranks' tensors, in place."""

    collective: ClassVar[Collective] = "all_reduce"
    whole: torch.Tensor
    reduction: Reduction

    @property
    def result(self) -> torch.Tensor:
        """The tensor itself."""
        return self.whole

    def by_plan(self, plan: Plan) -> None:
        """See `Call`."""
        plan(self.whole, reduction=self.reduction)

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        group.allreduce([self.whole], all_reduce_options(OPERATIONS[self.reduction])).wait()
        if self.reduction == "mean":
            self.whole.div_(group.size())


@dataclasses.dataclass(frozen=True, eq=False)
class AllGather:
    """All ranks' parts, in the order of ranks."""

    collective: ClassVar[Collective] = "all_gather"
    whole: torch.Tensor
    part: torch.Tensor

    @property
    def result(self) -> torch.Tensor:
        """All parts."""
        return self.whole

    def by_plan(self, plan: Plan) -> None:
        """See `Call`."""
        all_gather_into(plan, self.whole, self.part)

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        group._allgather_base(self.whole, self.part).wait()


@dataclasses.dataclass(frozen=True, eq=False)
class ReduceScatter:
    """The reduction of all ranks' tensors, of which each rank gets its part."""

    collective: ClassVar[Collective] = "reduce_scatter"
    whole: torch.Tensor
    part: torch.Tensor
    reduction: Reduction

    @property
    def result(self) -> torch.Tensor:
        """This rank's part."""
        return self.part

    def by_plan(self, plan: Plan) -> None:
        """See `Call`."""
        reduce_scatter_into(plan, self.part, self.whole, self.reduction)

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        options: Any = dist.ReduceScatterOptions()
        options.reduceOp = OPERATIONS[self.reduction]
        group._reduce_scatter_base(self.part, self.whole, options).wait()
        if self.reduction == "mean":
            self.part.div_(group.size())


def all_reduce_options(operation: Any) -> Any:
    """PyTorch's."""
    options: Any = dist.AllreduceOptions()
    options.reduceOp = operation
    return options


# All ranks must come to the same below, so that only what they have in common counts: types, sizes
# and operations.


def all_reduce(tensors: Any, *args: Any, **kwargs: Any) -> AllReduce | None:
    """An all-reduce that a plan can run; else None.

    Args:
        tensors: what `torch.distributed.ProcessGroup.allreduce` is given.
        args: likewise.
        kwargs: likewise.
    """
    options = kwargs.get("opts", args[0] if args else None)
    if not isinstance(options, dist.AllreduceOptions) or not isinstance(tensors, list):
        return None
    if len(tensors) != 1 or not _usable(tensors[0]) or tensors[0].dtype not in _SUMMED:
        return None
    reduction = _reduction(options.reduceOp, tensors[0])
    return reduction and AllReduce(tensors[0], reduction)


def all_gather(servers: int, output: Any, part: Any) -> AllGather | None:
    """An all-gather into one tensor that a plan can run; else None.

    Args:
        servers: ranks of the group.
        output: what `torch.distributed.ProcessGroup.all_gather_single` is given.
        part: likewise.
    """
    return AllGather(output, part) if _fit(servers, output, part) else None


def reduce_scatter(servers: int, part: Any, whole: Any, options: Any) -> ReduceScatter | None:
    """A reduce-scatter of one tensor that a plan can run; else None.

    Args:
        servers: ranks of the group.
        part: what `torch.distributed.ProcessGroup.reduce_scatter_single` is given.
        whole: likewise.
        options: likewise.
    """
    if not isinstance(options, dist.ReduceScatterOptions) or not _fit(servers, whole, part):
        return None
    reduction = _reduction(options.reduceOp, whole) if whole.dtype in _SUMMED else None
    return reduction and ReduceScatter(whole, part, reduction)


def _fit(servers: int, whole: Any, part: Any) -> bool:
    return (
        _usable(whole)
        and _usable(part)
        and whole.dtype == part.dtype
        and whole.numel() == servers * part.numel()
    )


def _usable(tensor: Any) -> bool:
    if not isinstance(tensor, torch.Tensor) or not tensor.numel():
        return False
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    return tensor.is_contiguous() and not tensor.is_inference()  # no other thread may change these


def _reduction(operation: Any, tensor: torch.Tensor) -> Reduction | None:
    found = reduction_of(operation)
    return None if found == "mean" and not tensor.is_floating_point() else found


_SUMMED = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64}
