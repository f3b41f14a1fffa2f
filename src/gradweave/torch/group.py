"""The process group that torch.distributed makes for the backend ``gradweave``."""

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.torch import calls
from gradweave.torch.agreement import Agreement, agreement
from gradweave.torch.choice import Choice, Choices
from gradweave.torch.offers import Offers
from gradweave.torch.progress import Progress
from gradweave.torch.recorded import RecordedGroup, group_record
from gradweave.torch.wrapper import GLOO, NCCL, Group, GroupWrapper, untraced


class NoChoices:
    """The `choices` of a group without plans, so that every program may ask for them."""

    def listed(self) -> list[Choice]:
        """An empty list."""
        return []


# A group without plans is a PyTorch group, whose objects take no attributes; its class does.
Group.choices = NoChoices()  # pyright: ignore[reportAttributeAccessIssue]


def create(options: Any) -> Group:
    """Makes a process group; collective.

    Args:
        options: PyTorch's `DistributedBackendOptions`: store, rank, size, timeout and ranks.
    """
    own, agreed, record = own_group(options), agreement(options), group_record(options)
    if not agreed.plans:
        return own if record is None else RecordedGroup(record, own)
    if record is None:
        return PlannedGroup(own, agreed)
    return RecordedPlannedGroup(record, own, agreed)


class PlannedGroup(GroupWrapper):
    """A process group that runs the collectives in `calls` by plans whenever these are faster.

    In everything else it behaves like PyTorch's own group.

    Args:
        own: the group without plans.
        agreed: what its ranks agreed on.
    """

    def __init__(self, own: Group, agreed: Agreement) -> None:
        super().__init__(own)
        self._offers = Offers(self, agreed.planner, follows=agreed.follows)
        self.choices = Choices(own, self._offers)
        """How each collective and size runs."""
        self._progress = Progress()

    def allreduce(self, tensors: Any, *args: Any, **kwargs: Any) -> dist.Work:
        """See `torch.distributed.ProcessGroup`."""
        call = calls.all_reduce(tensors, *args, **kwargs)
        return self._planned(call) or self._inner.allreduce(tensors, *args, **kwargs)

    def all_gather_single(self, output: Any, input: Any, *args: Any, **kwargs: Any) -> dist.Work:
        """See `torch.distributed.ProcessGroup`."""
        call = calls.all_gather(self.size(), output, input)
        return self._planned(call) or self._inner._allgather_base(output, input, *args, **kwargs)

    def reduce_scatter_single(
        self, output: Any, input: Any, *args: Any, **kwargs: Any
    ) -> dist.Work:
        """See `torch.distributed.ProcessGroup`."""
        call = calls.reduce_scatter(self.size(), output, input, *args, **kwargs)
        own: Any = self._inner._reduce_scatter_base
        return self._planned(call) or own(output, input, *args, **kwargs)

    def all_to_all_single(
        self, output: Any, input: Any, output_sizes: Any, input_sizes: Any, *more: Any, **kw: Any
    ) -> dist.Work:
        """See `torch.distributed.ProcessGroup`."""
        sizes = output_sizes, input_sizes
        call = calls.all_to_all(self.size(), output, input, *sizes)
        return self._planned(call) or self._inner.alltoall_base(output, input, *sizes, *more, **kw)

    def broadcast(self, tensors: Any, *args: Any, **kwargs: Any) -> dist.Work:
        """See `torch.distributed.ProcessGroup`."""
        call = calls.broadcast(tensors, *args, **kwargs)
        return self._planned(call) or self._inner.broadcast(tensors, *args, **kwargs)

    def reduce(self, tensors: Any, *args: Any, **kwargs: Any) -> dist.Work:
        """See `torch.distributed.ProcessGroup`."""
        call = calls.reduce(tensors, *args, **kwargs)
        return self._planned(call) or self._inner.reduce(tensors, *args, **kwargs)

    def _planned(self, call: calls.Call | None) -> dist.Work | None:
        """Starts the call if it runs by a plan; otherwise returns None."""
        by = None if call is None else self.choices.of(call)
        if call is None or by is None:
            return None
        return self._progress.start(call.result, functools.partial(by, call))

    def shutdown(self) -> None:
        """Ends its threads and connections."""
        self._progress.close()
        self._offers.close()
        super().shutdown()


# The names before PyTorch 2.12; some callers within PyTorch still use them.
setattr(PlannedGroup, "_allgather_base", PlannedGroup.all_gather_single)  # noqa: B010
setattr(PlannedGroup, "_reduce_scatter_base", PlannedGroup.reduce_scatter_single)  # noqa: B010
setattr(PlannedGroup, "alltoall_base", PlannedGroup.all_to_all_single)  # noqa: B010
untraced(PlannedGroup)


class RecordedPlannedGroup(RecordedGroup, PlannedGroup):
    """A process group with plans that records its calls."""


def own_group(options: Any) -> Group:
    """A process group that runs everything by PyTorch's backends: gloo, and NCCL on GPUs.

    It is one of PyTorch's C++ groups, so calls bypass Python.

    Args:
        options: PyTorch's `DistributedBackendOptions`.
    """
    store, rank, size = options.store, options.group_rank, options.group_size
    group = Group(store, rank, size)
    group._set_default_backend(GLOO)
    gloo = dist.ProcessGroupGloo(store, rank, size, options.timeout)
    _named(gloo.options, options)
    group._register_backend(torch.device("cpu"), GLOO, _checked(gloo, options))
    gloo._set_sequence_number_for_group()
    if torch.cuda.is_available() and dist.is_nccl_available():
        group._register_backend(torch.device("cuda"), NCCL, _nccl(options))
    return group


def _nccl(options: Any) -> Any:
    """NCCL for tensors on GPUs; it connects when the first such tensor is used."""
    kind: Any = getattr(dist, "ProcessGroupNCCL")  # noqa: B009  # absent from some builds
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
    """The backend, in PyTorch's wrapper that compares calls if TORCH_DISTRIBUTED_DEBUG is set."""
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
