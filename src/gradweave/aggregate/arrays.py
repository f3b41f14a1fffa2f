"""The differences between JAX's arrays and PyTorch's tensors, for code that accepts either.

Operators, `abs`, indexing and `reshape` are the same in both. Random numbers are those of JAX's
keys in both, bit for bit, so a training sends the same messages with either: see
`gradweave.aggregate.threefry`. Neither framework is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gradweave.common.lazy import LazyModule

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    import torch

    from gradweave.aggregate import threefry
else:
    jax, jnp, torch = LazyModule("jax"), LazyModule("jax.numpy"), LazyModule("torch")
    threefry = LazyModule("gradweave.aggregate.threefry")

Array = Any
"""An array of JAX or a tensor of PyTorch."""
Key = Any
"""A key of `jax.random`; for tensors, its two words."""
PyTree = Any
"""Arrays in nested containers; a payload is an array, or a dictionary of arrays."""


class Arrays(Protocol):
    """Operations with different names in the two frameworks."""

    float32: Any

    def cast(self, array: Array, dtype: Any) -> Array:
        """Converts to another type."""
        ...

    def floor(self, array: Array) -> Array:
        """Rounds down."""
        ...

    def clip(self, array: Array, least: float, most: float) -> Array:
        """Limits to a range."""
        ...

    def where(self, condition: Array, chosen: Any, other: Any) -> Array:
        """Selects from one of two arrays, element by element."""
        ...

    def is_finite(self, array: Array) -> Array:
        """Whether each element is finite."""
        ...

    def row_maxima(self, rows: Array) -> Array:
        """[M, L] → [M]."""
        ...

    def padded(self, vector: Array, size: int) -> Array:
        """The vector with zeros appended."""
        ...

    def top(self, magnitudes: Array, count: int) -> Array:
        """[…, L] → […, count] indices of the largest elements; of equal elements, the first."""
        ...

    def placed(self, indices: Array, values: Array, size: int, dtype: Any) -> Array:
        """[size] zeros, with values placed at some indices."""
        ...

    def codes(self, numbers: Array) -> Array:
        """Numbers as integers that can be shifted within 32 bits."""
        ...

    def words(self, codes: Array) -> Array:
        """Integers below 2³² in the form in which they are sent, with 32 bits."""
        ...

    def indices(self, numbers: Array) -> Array:
        """Words that were sent, as indices."""
        ...

    def up_to(self, count: int, like: Array) -> Array:
        """0, 1, …, count − 1 as codes, on the device of another array."""
        ...

    def uniform(self, key: Key, like: Array) -> Array:
        """Uniform numbers in [0, 1), float32, as many as an array has elements."""
        ...

    def seed(self, key: Key, like: Array) -> Array:
        """[2] words, from which the receiver makes a key."""
        ...

    def permutation(self, seed: Array, size: int) -> Array:
        """[size] indices in random order, from words of `seed`."""
        ...


class _JaxArrays:
    """The operations of JAX."""

    float32 = property(lambda _: jnp.float32)

    def cast(self, array: Array, dtype: Any) -> Array:
        return array.astype(dtype)

    def floor(self, array: Array) -> Array:
        return jnp.floor(array)

    def clip(self, array: Array, least: float, most: float) -> Array:
        return jnp.clip(array, least, most)

    def where(self, condition: Array, chosen: Any, other: Any) -> Array:
        return jnp.where(condition, chosen, other)

    def is_finite(self, array: Array) -> Array:
        return jnp.isfinite(array)

    def row_maxima(self, rows: Array) -> Array:
        return rows.max(1)

    def padded(self, vector: Array, size: int) -> Array:
        return jnp.pad(vector, (0, size - vector.size))

    def top(self, magnitudes: Array, count: int) -> Array:
        return jax.lax.top_k(magnitudes, count)[1]

    def placed(self, indices: Array, values: Array, size: int, dtype: Any) -> Array:
        return jnp.zeros(size, dtype).at[indices].set(values.astype(dtype))

    def codes(self, numbers: Array) -> Array:
        return numbers.astype(jnp.uint32)

    def words(self, codes: Array) -> Array:
        return codes.astype(jnp.uint32)

    def indices(self, numbers: Array) -> Array:
        return numbers

    def up_to(self, count: int, like: Array) -> Array:
        return jnp.arange(count, dtype=jnp.uint32)

    def uniform(self, key: Key, like: Array) -> Array:
        return jax.random.uniform(key, like.shape, jnp.float32)

    def seed(self, key: Key, like: Array) -> Array:
        return jax.random.bits(key, (2,), jnp.uint32)

    def permutation(self, seed: Array, size: int) -> Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.permutation(key, size)


class _TorchArrays:
    """The operations of PyTorch. Codes are int64, as PyTorch hardly supports unsigned numbers."""

    float32 = property(lambda _: torch.float32)

    def cast(self, array: Array, dtype: Any) -> Array:
        return array.to(dtype)

    def floor(self, array: Array) -> Array:
        return torch.floor(array)

    def clip(self, array: Array, least: float, most: float) -> Array:
        return array.clamp(least, most)

    def where(self, condition: Array, chosen: Any, other: Any) -> Array:
        return torch.where(condition, chosen, other)

    def is_finite(self, array: Array) -> Array:
        return torch.isfinite(array)

    def row_maxima(self, rows: Array) -> Array:
        return rows.amax(1)

    def padded(self, vector: Array, size: int) -> Array:
        return torch.nn.functional.pad(vector, (0, size - len(vector)))

    def top(self, magnitudes: Array, count: int) -> Array:
        """In the order of indices; `torch.topk` would choose arbitrarily among equal elements."""
        magnitudes = magnitudes.nan_to_num(torch.inf)
        least = magnitudes.topk(count).values[..., -1:]
        kept = magnitudes > least
        left = count - kept.sum(-1, keepdim=True)
        equal = magnitudes == least
        kept |= equal & (equal.cumsum(-1) <= left)
        return kept.nonzero()[:, -1].view(*magnitudes.shape[:-1], count)

    def placed(self, indices: Array, values: Array, size: int, dtype: Any) -> Array:
        zeros = torch.zeros(size, dtype=dtype, device=values.device)
        return zeros.index_copy_(0, indices, values.to(dtype))

    def codes(self, numbers: Array) -> Array:
        return numbers.to(torch.int64) & 0xFFFFFFFF

    def words(self, codes: Array) -> Array:
        return codes.to(torch.int32)  # keeps the lower 32 bits of larger numbers

    def indices(self, numbers: Array) -> Array:
        return self.codes(numbers)

    def up_to(self, count: int, like: Array) -> Array:
        return torch.arange(count, device=like.device)

    def uniform(self, key: Key, like: Array) -> Array:
        return threefry.uniform(key, like.numel(), like.device).view(like.shape)

    def seed(self, key: Key, like: Array) -> Array:
        return threefry.bits(key, 2, like.device)

    def permutation(self, seed: Array, size: int) -> Array:
        return threefry.permutation(threefry.key_of(seed), size, seed.device)


_JAX, _TORCH = _JaxArrays(), _TorchArrays()


def arrays_of(array: Array) -> Arrays:
    """The operations of an array's framework."""
    return _TORCH if type(array).__module__.partition(".")[0] == "torch" else _JAX
