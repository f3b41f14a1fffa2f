"""Collectives that plans can run: the caller's tensors, and two ways to carry the call out."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args

import torch
import torch.distributed as dist

from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed.backend import OPERATIONS, reduction_of
from gradweave.execute.torch_distributed.backend import Collective as Plan
from gradweave.execute.torch_distributed.demands import exchange_by
from gradweave.execute.torch_distributed.memory import as_stored, plain, read, written
from gradweave.execute.torch_distributed.shards import all_gather_into, reduce_scatter_into
from gradweave.schedules.schedule import Collective

Demanded = Literal["all_to_all", "broadcast", "reduce"]
DEMANDED: tuple[Demanded, ...] = get_args(Demanded)
"""Collectives whose plans are for demands; their blocks may have any size."""
Planned = Collective | Demanded
"""Collectives that plans can run."""
NO_ROOT = -1


class SizeClass(NamedTuple):
    """A class of calls that share one plan."""

    collective: Planned
    size: int
    """Upper limit on the bytes of the whole (all ranks' parts together; for an all-to-all, the
    parts of one rank). The whole has more than half of this."""
    root: int = NO_ROOT
    """Rank of the root in the group, for a broadcast or a reduce."""
    change: int = 0
    """The network that the plan is for: 0 as given, k after its k-th change, see `Changes`."""

    @classmethod
    def of_bytes(cls, collective: Planned, whole_bytes: int, root: int = NO_ROOT) -> "SizeClass":
        """The class of a size, which is rounded up to a power of two."""
        return cls(collective, 1 << (whole_bytes - 1).bit_length(), root)

    @classmethod
    def of(cls, call: "Call") -> "SizeClass":
        """The class of a call."""
        return cls.of_bytes(call.collective, call.whole.nbytes, call.root)


class Call(Protocol):
    """One call of a collective."""

    collective: ClassVar[Planned]

    @property
    def root(self) -> int:
        """Rank of the root in the group, or `NO_ROOT` if the collective has no root."""
        ...

    @property
    def whole(self) -> torch.Tensor:
        """The tensor with all ranks' parts."""
        ...

    @property
    def result(self) -> torch.Tensor:
        """The tensor that holds the result at the end."""
        ...

    def by_plan(self, plan: Plan, group: Any) -> None:
        """Runs the call by a plan.

        Args:
            plan: the plan.
            group: as for `by_own`; ranks use it for anything that they must agree on first.
        """
        ...

    def prepare(self, plan: Plan, group: Any) -> None:
        """Does the setup for a plan's first call of that size, on other memory; collective."""
        ...

    def by_own(self, group: Any) -> None:
        """Carries the call out by gloo's algorithm.

        Args:
            group: a gloo group.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class AllReduce:
    """A reduction of all ranks' tensors, in place."""

    collective: ClassVar[Planned] = "all_reduce"
    whole: torch.Tensor
    reduction: Reduction
    root: int = NO_ROOT

    @property
    def result(self) -> torch.Tensor:
        """The tensor itself."""
        return self.whole

    def by_plan(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        with as_stored(self.whole) as flat:
            plan(flat, reduction=self.reduction)

    def prepare(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        plan(_zeros(self.whole))

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        with as_stored(self.whole) as flat:
            group.allreduce([flat], all_reduce_options(OPERATIONS[self.reduction])).wait()
            if self.reduction == "mean":
                flat.div_(group.size())


@dataclasses.dataclass(frozen=True, eq=False)
class AllGather:
    """The parts of all ranks, gathered in rank order."""

    collective: ClassVar[Planned] = "all_gather"
    whole: torch.Tensor
    part: torch.Tensor
    root: int = NO_ROOT

    @property
    def result(self) -> torch.Tensor:
        """All parts."""
        return self.whole

    def by_plan(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        with written(self.whole) as whole:
            all_gather_into(plan, whole, read(self.part))

    def prepare(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        plan(_zeros(self.whole))

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        with written(self.whole) as whole:
            group._allgather_base(whole, read(self.part)).wait()


@dataclasses.dataclass(frozen=True, eq=False)
class ReduceScatter:
    """A reduction of all ranks' tensors; each rank gets its part of the result."""

    collective: ClassVar[Planned] = "reduce_scatter"
    whole: torch.Tensor
    part: torch.Tensor
    reduction: Reduction
    root: int = NO_ROOT

    @property
    def result(self) -> torch.Tensor:
        """This rank's part."""
        return self.part

    def by_plan(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        with written(self.part) as part:
            reduce_scatter_into(plan, part, read(self.whole), self.reduction)

    def prepare(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        plan(_zeros(self.whole))

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        options: Any = dist.ReduceScatterOptions()
        options.reduceOp = OPERATIONS[self.reduction]
        with written(self.part) as part:
            group._reduce_scatter_base(part, read(self.whole), options).wait()
            if self.reduction == "mean":
                part.div_(group.size())


@dataclasses.dataclass(eq=False)
class AllToAll:
    """Parts from every rank to every rank; a plan can run it if all parts have the same size."""

    collective: ClassVar[Planned] = "all_to_all"
    result: torch.Tensor
    """The parts that this rank receives, one from each rank."""
    whole: torch.Tensor
    """The parts that this rank sends, one to each rank."""
    sizes: tuple[Sequence[int], Sequence[int]]
    """Sizes of the parts of `result` and of `whole` in the first dimension; empty if all equal."""
    equal: bool
    """Whether all parts of this rank have the same size."""
    root: int = NO_ROOT
    fits: bool = False
    """Whether this rank's parts have the size that the plan is for."""

    def by_plan(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        if not self._confirmed(plan, group):
            self.by_own(group)
            return
        with as_stored(self.result) as result:
            self._run(plan, result)

    def prepare(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        if self._confirmed(plan, group):
            self._run(plan, _zeros(self.result))

    def _confirmed(self, plan: Plan, group: Any) -> bool:
        """Whether the parts of all ranks have the same size."""
        size = self.whole.nbytes if self.fits else -1
        ballot = torch.tensor([size, -size])
        options = all_reduce_options(dist.ReduceOp.MIN)
        plan.guarded(lambda: group.allreduce([ballot], options).wait())
        least, most = ballot.tolist()
        return least == -most > 0

    def _run(self, plan: Plan, result: torch.Tensor) -> None:
        # Exchanged as bytes, since nothing is reduced.
        send, receive = read(self.whole).view(torch.uint8), result.view(torch.uint8)
        size = send.numel() // plan.size
        begin, end = plan.rank * size, (plan.rank + 1) * size
        given, wanted = ([each[:begin], each[end:]] for each in (send, receive))
        exchange_by(plan, given, wanted, block_elements=size)
        receive[begin:end].copy_(send[begin:end])

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        whole = read(self.whole).view(self.whole.shape)
        options = dist.AllToAllOptions()
        group.alltoall_base(plain(self.result), whole, *self.sizes, options).wait()


@dataclasses.dataclass(frozen=True, eq=False)
class Broadcast:
    """A copy of the root's tensor at every rank."""

    collective: ClassVar[Planned] = "broadcast"
    whole: torch.Tensor
    root: int

    @property
    def result(self) -> torch.Tensor:
        """The tensor itself."""
        return self.whole

    def by_plan(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        with as_stored(self.whole) as flat:
            _broadcast(plan, flat.view(torch.uint8))

    def prepare(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        _broadcast(plan, _zeros(self.whole).view(torch.uint8))

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        options: Any = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = self.root, 0
        with as_stored(self.whole) as flat:
            group.broadcast([flat], options).wait()


def _broadcast(plan: Plan, flat: torch.Tensor) -> None:
    # In place: every rank stores all pieces in order.
    plan(flat, layout=plan.layout(1, flat.numel()))


@dataclasses.dataclass(frozen=True, eq=False)
class Reduce:
    """A reduction of all ranks' tensors into the root's tensor."""

    collective: ClassVar[Planned] = "reduce"
    whole: torch.Tensor
    root: int
    reduction: Reduction

    @property
    def result(self) -> torch.Tensor:
        """The tensor itself."""
        return self.whole

    def by_plan(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        with as_stored(self.whole) as flat:
            self._to(flat, plan)

    def prepare(self, plan: Plan, group: Any) -> None:
        """See `Call`."""
        self._to(_zeros(self.whole), plan)

    def _to(self, flat: torch.Tensor, plan: Plan) -> None:
        wanted = [flat] if plan.rank == self.root else []
        exchange_by(plan, flat, wanted, self.reduction, block_elements=flat.numel())

    def by_own(self, group: Any) -> None:
        """See `Call`."""
        options: Any = dist.ReduceOptions()
        options.reduceOp, options.rootRank = OPERATIONS[self.reduction], self.root
        with as_stored(self.whole) as flat:
            group.reduce([flat], options).wait()
            if self.reduction == "mean" and group.rank() == self.root:
                flat.div_(group.size())


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(like.numel(), dtype=like.dtype)


def all_reduce_options(operation: Any) -> Any:
    """PyTorch's options for an all-reduce."""
    options: Any = dist.AllreduceOptions()
    options.reduceOp = operation
    return options


# All ranks must reach the same decision below, so it depends only on properties that they share:
# types, sizes and operations. Layout, inference mode and the like may differ among ranks.


def all_reduce(tensors: Any, *args: Any, **kwargs: Any) -> AllReduce | None:
    """Parses an all-reduce that a plan can run; returns None for any other call.

    Args:
        tensors: the argument of `torch.distributed.ProcessGroup.allreduce`.
        args: its further positional arguments.
        kwargs: its keyword arguments.
    """
    tensor, operation = _only(tensors), _operation(args, kwargs)
    reduction = None if tensor is None else _reduction(operation, tensor)
    return None if tensor is None or reduction is None else AllReduce(tensor, reduction)


def all_gather(servers: int, output: Any, part: Any) -> AllGather | None:
    """Parses an all-gather into one tensor that a plan can run; returns None for any other call.

    Args:
        servers: number of ranks in the group.
        output: the output of `torch.distributed.ProcessGroup.all_gather_single`.
        part: its input.
    """
    both = _fitting(servers, output, part)
    return both and AllGather(*both)


def reduce_scatter(
    servers: int, part: Any, whole: Any, *args: Any, **kwargs: Any
) -> ReduceScatter | None:
    """Parses a reduce-scatter of one tensor that a plan can run; returns None for any other call.

    Args:
        servers: number of ranks in the group.
        part: the output of `torch.distributed.ProcessGroup.reduce_scatter_single`.
        whole: its input.
        args: its further positional arguments.
        kwargs: its keyword arguments.
    """
    both = _fitting(servers, whole, part)
    reduction = both and _reduction(_operation(args, kwargs), both[0])
    return None if both is None or reduction is None else ReduceScatter(*both, reduction)


def all_to_all(
    servers: int, output: Any, input: Any, output_sizes: Any = (), input_sizes: Any = ()
) -> AllToAll | None:
    """Parses an all-to-all with parts of any size; returns None for any other call.

    Args:
        servers: number of ranks in the group.
        output: the output of `torch.distributed.ProcessGroup.all_to_all_single`.
        input: its input.
        output_sizes: sizes of the received parts; empty if equal.
        input_sizes: sizes of the sent parts; empty if equal.
    """
    output, input = _in_memory(output), _in_memory(input)
    if output is None or input is None:
        return None
    sizes = list(output_sizes or ()), list(input_sizes or ())
    equal = output.dtype == input.dtype and 0 < input.numel() == output.numel()
    equal &= _equal(servers, output, sizes[0]) and _equal(servers, input, sizes[1])
    return AllToAll(output, input, sizes, equal)


def _equal(servers: int, tensor: torch.Tensor, sizes: Sequence[int]) -> bool:
    """Whether all parts of a tensor have the same size."""
    length = len(tensor) if tensor.dim() else 0
    return list(sizes) == [length // servers] * servers if sizes else length % servers == 0


def broadcast(tensors: Any, *args: Any, **kwargs: Any) -> Broadcast | None:
    """Parses a broadcast that a plan can run; returns None for any other call.

    Args:
        tensors: the argument of `torch.distributed.ProcessGroup.broadcast`.
        args: its further positional arguments.
        kwargs: its keyword arguments.
    """
    tensor = _only(tensors)
    return None if tensor is None else Broadcast(tensor, _root(args, kwargs))


def reduce(tensors: Any, *args: Any, **kwargs: Any) -> Reduce | None:
    """Parses a reduction to one rank that a plan can run; returns None for any other call.

    Args:
        tensors: the argument of `torch.distributed.ProcessGroup.reduce`.
        args: its further positional arguments.
        kwargs: its keyword arguments.
    """
    tensor = _only(tensors)
    options = args[:1] if args and isinstance(args[0], dist.ReduceOptions) else args[1:]
    reduction = None if tensor is None else _reduction(_operation(options, kwargs), tensor)
    if tensor is None or reduction is None:
        return None
    return Reduce(tensor, _root(args, kwargs), reduction)


def _operation(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The reduction, from options or given directly; PyTorch's methods accept both."""
    given = args[0] if args else kwargs.get("opts", kwargs.get("op", dist.ReduceOp.SUM))
    return getattr(given, "reduceOp", given)


def _root(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The root, from options or given directly."""
    given = args[0] if args else kwargs.get("opts", kwargs.get("root", 0))
    return int(getattr(given, "rootRank", given))


def _only(tensors: Any) -> torch.Tensor | None:
    """The tensor, if there is exactly one and a plan can run with it."""
    if isinstance(tensors, list | tuple):
        return _usable(tensors[0]) if len(tensors) == 1 else None
    return _usable(tensors)


def _fitting(servers: int, whole: Any, part: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Both tensors, if the whole is exactly as large as the parts of all ranks together."""
    whole, part = _usable(whole), _usable(part)
    if whole is None or part is None or whole.dtype != part.dtype:
        return None
    return (whole, part) if whole.numel() == servers * part.numel() else None


def _usable(tensor: Any) -> torch.Tensor | None:
    """The tensor, if a plan can run with it; otherwise None."""
    tensor = _in_memory(tensor)
    return None if tensor is None or not tensor.numel() else tensor


def _in_memory(tensor: Any) -> torch.Tensor | None:
    """The tensor, if it is a dense tensor of numbers in host memory; otherwise None."""
    if not isinstance(tensor, torch.Tensor) or tensor.is_quantized:
        return None
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    kind: Any = type(tensor)
    if kind.__torch_dispatch__ is _PLAIN.__torch_dispatch__:
        return tensor
    # The tensor wraps another tensor, as the result of an earlier collective does.
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return _in_memory(tensor.trigger_wait()) if isinstance(tensor, AsyncCollectiveTensor) else None


def _reduction(operation: Any, tensor: torch.Tensor) -> Reduction | None:
    if tensor.dtype not in _SUMMED:
        return None
    found = reduction_of(operation)
    return None if found == "mean" and not tensor.is_floating_point() else found


_PLAIN: Any = torch.Tensor
_SUMMED = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64}
