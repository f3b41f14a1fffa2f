"""A process group in Python around another one."""

from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

Group = dist.ProcessGroup
GLOO = Group.BackendType.GLOO  # pyright: ignore[reportAttributeAccessIssue]
NCCL = Group.BackendType.NCCL  # pyright: ignore[reportAttributeAccessIssue]


class GroupWrapper(Group):
    """A process group with the store and the backends of another one.

    What it does not override goes to the backends, without a word of Python.

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
