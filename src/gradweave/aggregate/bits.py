"""Small numbers packed into 32-bit words."""

from gradweave.aggregate.arrays import Array, arrays_of


def pack(codes: Array, bits: int) -> Array:
    """Packs numbers into words, as many per word as fit completely.

    Args:
        codes: [size] whole numbers of any type, each below 2^bits.
        bits: 1 to 32.

    Returns:
        [words] uint32, or for PyTorch int32 of the same bits.

    >>> import jax.numpy as jnp
    >>> pack(jnp.array([1, 2, 3], jnp.uint32), 8).tolist()
    [197121]
    """
    arrays, per_word = arrays_of(codes), 32 // bits
    words = -(-len(codes) // per_word)
    table = arrays.padded(arrays.codes(codes), words * per_word).reshape(words, per_word)
    return arrays.words((table << _shifts(codes, bits)).sum(1))


def unpack(words: Array, bits: int, size: int) -> Array:
    """The inverse of `pack`: [size] uint32, or int64.

    >>> import jax.numpy as jnp
    >>> unpack(jnp.array([197121], jnp.uint32), 8, 3).tolist()
    [1, 2, 3]
    """
    codes = arrays_of(words).codes(words)
    return ((codes[:, None] >> _shifts(words, bits)) & ((1 << bits) - 1)).reshape(-1)[:size]


def _shifts(like: Array, bits: int) -> Array:
    """[numbers per word] the number of bits that each is shifted by."""
    return arrays_of(like).up_to(32 // bits, like) * bits
