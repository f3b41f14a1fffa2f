"""Collectives that plans can run: what a caller gave, and both ways to carry it out."""

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args

import torch
import torch.distributed as dist

from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed import Collective as Plan
from gradweave.execute.torch_distributed.backend import OPERATIONS, reduction_of
from gradweave.execute.torch_distributed.demands import exchange_by
from gradweave.execute.torch_distributed.shards import all_gather_into, reduce_scatter_into
from gradweave.schedule.schedule import Collective

Demanded = Literal["all_to_all", "broadcast", "reduce"]
DEMANDED: tuple[Demanded, ...] = get_args(Demanded)
"""Collectives whose plans are of demands, which any size of their blocks is given to."""
Planned = Collective | Demanded
"""Collectives that plans can run."""
NO_ROOT = -1


class SizeClass(NamedTuple):
    """Calls for which one plan is made."""

    collective: Planned
    size: int
    """Bytes of the whole, all ranks' parts together, of an all-to-all those of one rank: up to so
    many, and more than half of it."""
    root: int = NO_ROOT
    """Rank in the group, of a broadcast and a reduce."""

    @classmethod
    def of_bytes(cls, collective: Planned, whole_bytes: int, root: int = NO_ROOT) -> "SizeClass":
        """That of a size: the next power of two."""
        return cls(collective, 1 << (whole_bytes - 1).bit_length(), root)

    @classmethod
    def of(cls, call: "Call") -> "SizeClass":
        """That of a call."""
        return cls.of_bytes(call.collective, call.whole.nbytes, call.root)


class Call(Protocol):
    """One call of a collective."""

    collective: ClassVar[Planned]

    @property
    def root(self) -> int:
        """Rank in the group, where the collective has one; else `NO_ROOT`."""
        ...

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

    def prepare(self, plan: Plan) -> None:
        """Does what a plan's first call of that size needs, on other memory; collective."""
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

    collective: ClassVar[Planned] = "all_reduce"
    whole: torch.Tensor
    reduction: Reduction
    root: int = NO_ROOT

    @property
    def result(self) -> torch.Tensor:
        """The tensor itself."""
        return self.whole

    def by_plan(self, plan: Plan) -> None:
        """See `Call`."""
        plan(self.whole, reduction=self.reduction)

    def prepare(self, plan: Plan) -> None:
        """See `Call`."""
        plan(torch.zeros_like(self.whole))

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        group.allreduce([self.whole], all_reduce_options(OPERATIONS[self.reduction])).wait()
        if self.reduction == "mean":
            self.whole.div_(group.size())


@dataclasses.dataclass(frozen=True, eq=False)
class AllGather:
    """All ranks' parts, in the order of ranks."""

    collective: ClassVar[Planned] = "all_gather"
    whole: torch.Tensor
    part: torch.Tensor
    root: int = NO_ROOT

    @property
    def result(self) -> torch.Tensor:
        """All parts."""
        return self.whole

    def by_plan(self, plan: Plan) -> None:
        """See `Call`."""
        all_gather_into(plan, self.whole, self.part)

    def prepare(self, plan: Plan) -> None:
        """See `Call`."""
        plan(torch.zeros_like(self.whole))

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        group._allgather_base(self.whole, self.part).wait()


@dataclasses.dataclass(frozen=True, eq=False)
class ReduceScatter:
    """The reduction of all ranks' tensors, of which each rank gets its part."""

    collective: ClassVar[Planned] = "reduce_scatter"
    whole: torch.Tensor
    part: torch.Tensor
    reduction: Reduction
    root: int = NO_ROOT

    @property
    def result(self) -> torch.Tensor:
        """This rank's part."""
        return self.part

    def by_plan(self, plan: Plan) -> None:
        """See `Call`."""
        reduce_scatter_into(plan, self.part, self.whole, self.reduction)

    def prepare(self, plan: Plan) -> None:
        """See `Call`."""
        plan(torch.zeros_like(self.whole))

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        options: Any = dist.ReduceScatterOptions()
        options.reduceOp = OPERATIONS[self.reduction]
        group._reduce_scatter_base(self.part, self.whole, options).wait()
        if self.reduction == "mean":
            self.part.div_(group.size())


@dataclasses.dataclass(frozen=True, eq=False)
class AllToAll:
    """Equal parts from every rank to every rank."""

    collective: ClassVar[Planned] = "all_to_all"
    result: torch.Tensor
    """This rank's parts of all ranks."""
    whole: torch.Tensor
    """This rank's parts for all ranks."""
    root: int = NO_ROOT

    def by_plan(self, plan: Plan) -> None:
        """See `Call`."""
        # As bytes, since nothing is added.
        send, receive = (_flat_bytes(each) for each in (self.whole, self.result))
        size = send.numel() // plan.size
        begin, end = plan.rank * size, (plan.rank + 1) * size
        given, wanted = ([each[:begin], each[end:]] for each in (send, receive))
        exchange_by(plan, given, wanted, block_elements=size)
        receive[begin:end].copy_(send[begin:end])

    def prepare(self, plan: Plan) -> None:
        """See `Call`."""
        AllToAll(torch.empty_like(self.result), self.whole).by_plan(plan)

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        group.alltoall_base(self.result, self.whole, [], [], dist.AllToAllOptions()).wait()


@dataclasses.dataclass(frozen=True, eq=False)
class Broadcast:
    """The root's tensor at all ranks."""

    collective: ClassVar[Planned] = "broadcast"
    whole: torch.Tensor
    root: int

    @property
    def result(self) -> torch.Tensor:
        """The tensor itself."""
        return self.whole

    def by_plan(self, plan: Plan) -> None:
        """See `Call`."""
        _broadcast(plan, _flat_bytes(self.whole))

    def prepare(self, plan: Plan) -> None:
        """See `Call`."""
        _broadcast(plan, _flat_bytes(torch.zeros_like(self.whole)))

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        options: Any = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = self.root, 0
        group.broadcast([self.whole], options).wait()


def _broadcast(plan: Plan, flat: torch.Tensor) -> None:
    # In place: every rank has all pieces, in their order.
    plan(flat, layout=plan.layout(1, flat.numel()))


@dataclasses.dataclass(frozen=True, eq=False)
class Reduce:
    """The reduction of all ranks' tensors, in the root's."""

    collective: ClassVar[Planned] = "reduce"
    whole: torch.Tensor
    root: int
    reduction: Reduction

    @property
    def result(self) -> torch.Tensor:
        """The tensor itself."""
        return self.whole

    def by_plan(self, plan: Plan) -> None:
        """See `Call`."""
        self._to(self.whole, plan)

    def prepare(self, plan: Plan) -> None:
        """See `Call`."""
        self._to(torch.empty_like(self.whole), plan)

    def _to(self, result: torch.Tensor, plan: Plan) -> None:
        wanted = [result] if plan.rank == self.root else []
        size = self.whole.numel()
        exchange_by(plan, self.whole, wanted, self.reduction, block_elements=size)

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        options: Any = dist.ReduceOptions()
        options.reduceOp, options.rootRank = OPERATIONS[self.reduction], self.root
        group.reduce([self.whole], options).wait()
        if self.reduction == "mean" and group.rank() == self.root:
            self.whole.div_(group.size())


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


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


def all_to_all(
    servers: int, output: Any, input: Any, output_sizes: Any, input_sizes: Any
) -> AllToAll | None:
    """An all-to-all of equal parts that a plan can run; else None.

    Sizes that are given may be unequal at other ranks, even where they are equal at this one.

    Args:
        servers: ranks of the group.
        output: what `torch.distributed.ProcessGroup.all_to_all_single` is given.
        input: likewise.
        output_sizes: likewise.
        input_sizes: likewise.
    """
    if output_sizes or input_sizes or not (_usable(output) and _usable(input)):
        return None
    if output.dtype != input.dtype or output.numel() != input.numel() or not input.dim():
        return None
    return None if len(input) % servers or len(output) % servers else AllToAll(output, input)


def broadcast(tensors: Any, options: Any) -> Broadcast | None:
    """A broadcast that a plan can run; else None.

    Args:
        tensors: what `torch.distributed.ProcessGroup.broadcast` is given.
        options: likewise.
    """
    if not isinstance(options, dist.BroadcastOptions) or not _only(tensors):
        return None
    return Broadcast(tensors[0], options.rootRank)


def reduce(tensors: Any, options: Any) -> Reduce | None:
    """A reduction to one rank that a plan can run; else None.

    Args:
        tensors: what `torch.distributed.ProcessGroup.reduce` is given.
        options: likewise.
    """
    if not isinstance(options, dist.ReduceOptions) or not _only(tensors):
        return None
    summed = tensors[0].dtype in _SUMMED
    reduction = _reduction(options.reduceOp, tensors[0]) if summed else None
    return reduction and Reduce(tensors[0], options.rootRank, reduction)


def _only(tensors: Any) -> bool:
    return isinstance(tensors, list) and len(tensors) == 1 and _usable(tensors[0])


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
