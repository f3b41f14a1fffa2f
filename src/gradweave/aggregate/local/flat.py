"""A PyTorch model's parameters as one vector."""

from collections.abc import Iterable

import torch

from gradweave.errors import OptionError


class FlatParameters:
    """Those parameters that are trained.

    Args:
        parameters: of a model.
        dtype: of the vector.

    Raises:
        OptionError: none of them is trained.
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], dtype: torch.dtype = torch.float32
    ) -> None:
        self._dtype = dtype
        self._parameters = [one for one in parameters if one.requires_grad]
        if not self._parameters:
            raise OptionError("parameters: expected at least one that is trained")

    def read(self) -> torch.Tensor:
        """[size] all of them, a copy."""
        return torch.cat([one.detach().reshape(-1).to(self._dtype) for one in self._parameters])

    def write(self, flat: torch.Tensor) -> None:
        """Puts [size] numbers in their place."""
        start = 0
        for one in self._parameters:
            one.copy_(flat[start : start + one.numel()].view_as(one))
            start += one.numel()
