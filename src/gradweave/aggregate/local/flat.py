"""A PyTorch model's parameters as one vector, and a process group of one's own."""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from gradweave.errors import OptionError
from gradweave.execute.torch_distributed.store import group_timeout

Group = dist.ProcessGroup


class FlatParameters:
    """Those parameters that are trained.

    Args:
        parameters: of a model.

    Raises:
        OptionError: none of them is trained.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._parameters = [one for one in parameters if one.requires_grad]
        if not self._parameters:
            raise OptionError("parameters: expected at least one that is trained")

    def read(self) -> torch.Tensor:
        """[size] all of them as float32, a copy."""
        return torch.cat([one.detach().reshape(-1).float() for one in self._parameters])

    def write(self, flat: torch.Tensor) -> None:
        """Puts [size] numbers in their place."""
        start = 0
        for one in self._parameters:
            one.copy_(flat[start : start + one.numel()].view_as(one))
            start += one.numel()


def copy_of(group: Group | None) -> Group:
    """A new group of the same processes, whose messages never meet those of others.

    Args:
        group: the default one if not given.

    Raises:
        OptionError: there is none, or this process is not in it.
    """
    parent = group or (dist.group.WORLD if dist.is_initialized() else None)
    if parent is None:
        raise OptionError("torch.distributed has no process group; call init_process_group first")
    ranks = dist.get_process_group_ranks(parent)
    timeout, backend = group_timeout(parent), dist.get_backend(parent)
    made = dist.new_group(ranks, timeout=timeout, backend=backend)
    if not isinstance(made, Group):
        raise OptionError("group: this process is not in it")
    return made
