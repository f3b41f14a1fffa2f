"""Small numbers packed into 32-bit words."""

import jax
import jax.numpy as jnp


def packed(codes: jax.Array, bits: int) -> jax.Array:
    """Puts numbers side by side, as many into a word as have room in whole.

    Args:
        codes: [size] uint32, each below 2^bits.
        bits: 1 to 32.

    Returns:
        [words] uint32.

    >>> packed(jnp.array([1, 2, 3], jnp.uint32), 8).tolist()
    [197121]
    """
    each = 32 // bits
    words = -(-codes.size // each)
    table = jnp.pad(codes, (0, words * each - codes.size)).reshape(words, each)
    shifts = jnp.arange(each, dtype=jnp.uint32) * jnp.uint32(bits)
    return (table << shifts).sum(1, dtype=jnp.uint32)


def unpacked(words: jax.Array, bits: int, size: int) -> jax.Array:
    """The opposite of `packed`: [size] uint32.

    >>> unpacked(jnp.array([197121], jnp.uint32), 8, 3).tolist()
    [1, 2, 3]
    """
    each = 32 // bits
    shifts = jnp.arange(each, dtype=jnp.uint32) * jnp.uint32(bits)
    mask = jnp.uint32((1 << bits) - 1)
    return ((words[:, None] >> shifts) & mask).reshape(-1)[:size]
