"""Payloads of PyTorch's tensors as bytes, and back."""

import torch

from gradweave.aggregate.arrays import PyTree


def as_bytes(payload: PyTree) -> torch.Tensor:
    """A payload as one message: [bytes] uint8."""
    return torch.cat([leaf.contiguous().view(torch.uint8) for leaf in _leaves(payload)])


def from_bytes(message: torch.Tensor, like: PyTree) -> PyTree:
    """The inverse of `as_bytes`, for a payload of the same shapes."""
    if isinstance(like, torch.Tensor):
        return message.view(like.dtype)
    parts, start = {}, 0
    for name, leaf in zip(sorted(like), _leaves(like), strict=True):
        size = leaf.numel() * leaf.element_size()
        # A copy, because a part of a message may not be aligned for its type.
        parts[name] = message[start : start + size].clone().view(leaf.dtype)
        start += size
    return parts


def _leaves(payload: PyTree) -> list[torch.Tensor]:
    """The arrays of a payload, in a fixed order."""
    return [payload] if isinstance(payload, torch.Tensor) else [payload[k] for k in sorted(payload)]
