"""Tensors of a PyTorch model as one vector."""

from collections.abc import Iterable

import torch

from gradweave.errors import OptionError


class FlatTensors:
    """Tensors that are read and written as one vector.

    Args:
        tensors: tensors of a model.
        dtype: type of the vector; by default float32 or the widest type among the tensors.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], dtype: torch.dtype | None = None) -> None:
        self.tensors = list(tensors)
        self.dtype = dtype or torch.float32
        if dtype is None:
            for one in self.tensors:
                self.dtype = torch.promote_types(self.dtype, one.dtype)

    def __len__(self) -> int:
        return sum(one.numel() for one in self.tensors)

    def read(self) -> torch.Tensor:
        """[size] a copy of all tensors."""
        parts = [one.detach().reshape(-1).to(self.dtype) for one in self.tensors]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=self.dtype)

    def write(self, flat: torch.Tensor) -> None:
        """Writes [size] numbers to the tensors."""
        start = 0
        for one in self.tensors:
            one.copy_(flat[start : start + one.numel()].view_as(one))
            start += one.numel()


def trained(parameters: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """The parameters that are trained.

    Raises:
        OptionError: no parameter is trained, or some are not floating-point numbers.
    """
    found = [one for one in parameters if one.requires_grad]
    if not found:
        raise OptionError("parameters: expected at least one that is trained")
    for place, one in enumerate(found):
        if not one.dtype.is_floating_point:
            raise OptionError(
                f"parameter {place} that is trained: expected floating-point numbers, which can "
                f"be averaged, got {str(one.dtype).removeprefix('torch.')}"
            )
    return found


def floating(buffers: Iterable[torch.Tensor]) -> FlatTensors:
    """The floating-point buffers, which are averaged; integers, such as batch counts, are not."""
    return FlatTensors(one for one in buffers if one.is_floating_point())
