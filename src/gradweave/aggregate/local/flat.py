"""A PyTorch model's parameters as one vector."""

from collections.abc import Iterable

import torch

from gradweave.errors import OptionError


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
