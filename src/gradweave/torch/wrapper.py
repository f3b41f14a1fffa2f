"""A process group in Python around another one."""

import functools
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

Group = dist.ProcessGroup
GLOO = Group.BackendType.GLOO  # pyright: ignore[reportAttributeAccessIssue]
NCCL = Group.BackendType.NCCL  # pyright: ignore[reportAttributeAccessIssue]


class GroupWrapper(Group):
    """A process group that hands its calls on to another one, and has its store and backends.

    C++ looks for some methods in Python; those are handed on by Python too, since it would keep the
    interpreter's lock while it queues them.

    Args:
        inner: the other one.
    """

    def __init__(self, inner: Group) -> None:
        made: Any = super()  # PyTorch's stubs lack this; one with a store has no methods in Python
        made.__init__(inner.rank(), inner.size())
        self._inner, self._store = inner, inner.get_group_store()
        self._set_default_backend(GLOO)
        for device in inner._device_types:
            kind = GLOO if device.type == "cpu" else NCCL
            self._register_backend(device, kind, inner._get_backend(device))

    def get_group_store(self) -> distributed_c10d.Store:
        """By which the processes found each other."""
        return self._store


METHODS = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)
"""That start collectives or messages; some are the older names of others."""


def _handed_on(name: str) -> Any:
    def method(self: GroupWrapper, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    return functools.update_wrapper(method, getattr(Group, name))


for _name in METHODS:
    if hasattr(Group, _name):
        setattr(GroupWrapper, _name, _handed_on(_name))
