"""A Python process group that wraps another one."""

import functools
import types
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

Group = dist.ProcessGroup
GLOO = Group.BackendType.GLOO  # pyright: ignore[reportAttributeAccessIssue]
NCCL = Group.BackendType.NCCL  # pyright: ignore[reportAttributeAccessIssue]


def untraced(made: type) -> None:
    """Keeps torch.compile out of a class's public methods.

    DDP's reducer calls them from C++ while compiled code runs, and Dynamo would compile each method
    separately; but it refuses attributes of process groups that PyTorch's groups do not have.
    """
    for name, method in list(vars(made).items()):
        public = name in METHODS or not name.startswith("_")
        if public and isinstance(method, types.FunctionType):
            setattr(made, name, torch.compiler.disable(method))


class GroupWrapper(Group):
    """A process group that forwards its calls to another one and shares its store and backends.

    C++ looks up some methods in Python. These are forwarded in Python as well, since C++ would hold
    the interpreter's lock while it queues a call.

    Args:
        inner: the wrapped group.
    """

    def __init__(self, inner: Group) -> None:
        # PyTorch's stubs lack this constructor; a group made with a store has no Python methods.
        made: Any = super()
        made.__init__(inner.rank(), inner.size())
        self._inner, self._store = inner, inner.get_group_store()
        self._set_default_backend(GLOO)
        for device in inner._device_types:
            kind = GLOO if device.type == "cpu" else NCCL
            self._register_backend(device, kind, inner._get_backend(device))

    def get_group_store(self) -> distributed_c10d.Store:
        """The store through which the processes found each other."""
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
"""Methods that start collectives or messages; some are older names of others."""


def _handed_on(name: str) -> Any:
    def method(self: GroupWrapper, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._inner, name)(*args, **kwargs)

    return functools.update_wrapper(method, getattr(Group, name))


for _name in METHODS:
    if hasattr(Group, _name):
        setattr(GroupWrapper, _name, _handed_on(_name))
untraced(GroupWrapper)
