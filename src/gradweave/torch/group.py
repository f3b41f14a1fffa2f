"""The process group that torch.distributed makes for the backend ``gradweave``."""

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.execute.reduction import Reduction
from gradweave.torch.agreement import agreement
from gradweave.torch.choice import Choices
from gradweave.torch.offers import Offers
from gradweave.torch.planner import Planner
from gradweave.torch.progress import Progress

Group = dist.ProcessGroup
_GLOO = Group.BackendType.GLOO  # pyright: ignore[reportAttributeAccessIssue]
_NCCL = Group.BackendType.NCCL  # pyright: ignore[reportAttributeAccessIssue]


def create(options: Any) -> Group:
    """Makes a process group; collective.

    Args:
        options: PyTorch's `DistributedBackendOptions`: store, rank, size, timeout and ranks.
    """
    own, agreed = own_group(options), agreement(options)
    return PlannedGroup(own, agreed.planner) if agreed.plans else own


class PlannedGroup(Group):
    """A process group of which plans run all-reduces, where they are faster.

    Everything else is that of a group of PyTorch's own. Methods that its C++ looks for in Python
    are handed on to that one by Python too: else C++ would keep the interpreter's lock while it
    queues them.

    Args:
        own: the group without plans.
        planner: in rank 0's process, who makes them.
    """

    def __init__(self, own: Group, planner: Planner | None) -> None:
        made: Any = super()  # PyTorch's stubs lack this; one with a store has no methods in Python
        made.__init__(own.rank(), own.size())
        self._own, self._store = own, own.get_group_store()
        self._set_default_backend(_GLOO)
        for device in own._device_types:
            kind = _GLOO if device.type == "cpu" else _NCCL
            self._register_backend(device, kind, own._get_backend(device))
        self._offers = Offers(self, planner)
        self.choices = Choices(own, self._offers)
        """What its all-reduces run by."""
        self._progress = Progress()

    def get_group_store(self) -> distributed_c10d.Store:
        """By which the processes found each other."""
        return self._store

    def allreduce(self, tensors: Any, *args: Any, **kwargs: Any) -> dist.Work:
        """As PyTorch has it."""
        asked = planned_reduction(tensors, *args, **kwargs)
        by = self.choices.of(tensors[0].nbytes) if asked else None
        if asked is None or by is None:
            return self._own.allreduce(tensors, *args, **kwargs)
        return self._progress.start(tensors[0], functools.partial(by, tensors[0], asked))

    def shutdown(self) -> None:
        """Ends its threads and connections."""
        self._progress.close()
        self._offers.close()
        super().shutdown()


_HANDED_ON = (
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_into_tensor_coalesced",
    "allreduce_coalesced",
    "alltoall_base",
    "barrier",
    "broadcast",
    "recv",
    "reduce_scatter",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "send",
)
"""What C++ looks for in Python, besides allreduce; some are the older names of others."""


def _handed_on(name: str) -> Any:
    def method(self: PlannedGroup, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._own, name)(*args, **kwargs)

    return functools.update_wrapper(method, getattr(Group, name))


for _name in _HANDED_ON:
    if hasattr(Group, _name):
        setattr(PlannedGroup, _name, _handed_on(_name))


def planned_reduction(tensors: Any, *args: Any, **kwargs: Any) -> Reduction | None:
    """How an all-reduce is to be combined, if a plan can run it; else None.

    All ranks must come to the same, so that only what they have in common counts: type, size and
    operation.

    Args:
        tensors: what `torch.distributed.ProcessGroup.allreduce` is given.
        args: likewise.
        kwargs: likewise.
    """
    options = kwargs.get("opts", args[0] if args else None)
    if not isinstance(options, dist.AllreduceOptions) or not isinstance(tensors, list):
        return None
    if len(tensors) != 1 or tensors[0].dtype not in _DTYPES or not tensors[0].numel():
        return None
    tensor, operation = tensors[0], options.reduceOp
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    if not tensor.is_contiguous() or tensor.is_inference():  # which other threads may not change
        return None
    found: Reduction | None = next((name for kind, name in _REDUCTIONS if operation == kind), None)
    return None if found == "mean" and not tensor.is_floating_point() else found


_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64}
_REDUCTIONS: tuple[tuple[Any, Reduction], ...] = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "mean"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.MIN, "min"),
)


def own_group(options: Any) -> Group:
    """A process group whose collectives are all the backends' own: gloo's, on GPUs NCCL's.

    It is one of PyTorch's C++ groups, so that calls never come by Python.

    Args:
        options: PyTorch's `DistributedBackendOptions`.
    """
    store, rank, size = options.store, options.group_rank, options.group_size
    group = Group(store, rank, size)
    group._set_default_backend(_GLOO)
    gloo = dist.ProcessGroupGloo(store, rank, size, options.timeout)
    _named(gloo.options, options)
    group._register_backend(torch.device("cpu"), _GLOO, _checked(gloo, options))
    gloo._set_sequence_number_for_group()
    if torch.cuda.is_available() and dist.is_nccl_available():
        group._register_backend(torch.device("cuda"), _NCCL, _nccl(options))
    return group


def _nccl(options: Any) -> Any:
    """NCCL for tensors on GPUs; it connects when one is there."""
    kind: Any = getattr(dist, "ProcessGroupNCCL")  # noqa: B009  # not in every build
    given = kind.Options()
    given._timeout = options.timeout
    _named(given, options)
    store = distributed_c10d.PrefixStore("cuda", options.store)
    made = kind(store, options.group_rank, options.group_size, given)
    made._set_sequence_number_for_group()
    return _checked(made, options)


def _named(given: Any, options: Any) -> None:
    given.global_ranks_in_group = options.global_ranks_in_group
    given.group_name = options.group_id


def _checked(backend: Any, options: Any) -> Any:
    """The backend in PyTorch's wrapper that compares calls, where TORCH_DISTRIBUTED_DEBUG asks."""
    if distributed_c10d.get_debug_level() != distributed_c10d.DebugLevel.DETAIL:
        return backend
    return distributed_c10d._create_process_group_wrapper(
        wrapped_pg=backend,
        store_prefix=options.group_id,
        store=options.store,
        rank=options.group_rank,
        world_size=options.group_size,
        timeout=options.timeout,
    )
