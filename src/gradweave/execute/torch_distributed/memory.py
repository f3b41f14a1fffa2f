"""Access to a tensor's memory from any thread.

Ranks may call one collective with tensors that differ in layout, in inference mode or in how
autograd sees them. The run must not depend on these differences, since no rank knows them of the
others. So every collective works on plain tensors over the same memory, or on copies.
"""

import contextlib
from collections.abc import Iterator, Sequence

import torch


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that any thread may change in place.

    It is outside autograd, whose version counter does not change, and outside inference mode, since
    PyTorch refuses to change inference tensors elsewhere.
    """
    if not (tensor.is_inference() or torch.is_inference_mode_enabled()):
        return tensor.data  # ten times as fast
    made = _over(tensor, tensor.size(), tensor.stride())
    made = made.conj() if tensor.is_conj() else made
    return torch._neg_view(made) if tensor.is_neg() else made  # pyright: ignore[reportPrivateImportUsage]


def _over(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A tensor of another shape over the memory of `tensor`, without lazy conjugation or sign."""
    with torch.inference_mode(False):
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return made.set_(tensor.untyped_storage(), int(tensor.storage_offset()), size, stride)


def read(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements, flat and in order; a copy unless memory already has that order."""
    return plain(tensor).resolve_conj().resolve_neg().contiguous().view(-1)


@contextlib.contextmanager
def written(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor's elements, flat and in order; their final values are written to the tensor."""
    target = plain(tensor)
    flat = read(tensor)
    yield flat
    if flat.data_ptr() != target.data_ptr():
        _put(target, flat)


@contextlib.contextmanager
def as_stored(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """As many elements as a tensor has, in memory order, starting at its first element.

    Gloo accesses a tensor in this way, whatever its strides. If memory ends too early, as with an
    expanded tensor, gloo runs past its end; here the elements are the tensor's, as in `written`.
    """
    elements = tensor.numel()
    stored = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if stored >= elements:
        yield _over(tensor, (elements,), (1,))
        return
    flat = plain(tensor).contiguous().view(-1)
    yield flat
    _put(plain(tensor), flat)


def _put(target: torch.Tensor, flat: torch.Tensor) -> None:
    """Writes elements into a tensor; if several share memory, the first of them is written."""
    once = tuple(slice(1 if stride == 0 else None) for stride in target.stride())
    target[once].copy_(flat.view(target.shape)[once])
