"""Small numbers packed into 32-bit words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradweave.lazy import LazyModule

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
else:
    jnp = LazyModule("jax.numpy")


def pack(codes: jax.Array, bits: int) -> jax.Array:
    """Puts numbers side by side, as many into a word as fit whole.

    Args:
        codes: [size] uint32, each below 2^bits.
        bits: 1 to 32.

    Returns:
        [words] uint32.

    >>> import jax.numpy as jnp
    >>> pack(jnp.array([1, 2, 3], jnp.uint32), 8).tolist()
    [197121]
    """
    per_word = 32 // bits
    words = -(-codes.size // per_word)
    table = jnp.pad(codes, (0, words * per_word - codes.size)).reshape(words, per_word)
    shifts = jnp.arange(per_word, dtype=jnp.uint32) * jnp.uint32(bits)
    return (table << shifts).sum(1, dtype=jnp.uint32)


def unpack(words: jax.Array, bits: int, size: int) -> jax.Array:
    """The opposite of `pack`: [size] uint32.

    >>> import jax.numpy as jnp
    >>> unpack(jnp.array([197121], jnp.uint32), 8, 3).tolist()
    [1, 2, 3]
    """
    per_word = 32 // bits
    shifts = jnp.arange(per_word, dtype=jnp.uint32) * jnp.uint32(bits)
    mask = jnp.uint32((1 << bits) - 1)
    return ((words[:, None] >> shifts) & mask).reshape(-1)[:size]
