"""Random keys and what is drawn by them: of many steps and games at once.

JAX draws by a loop of some ten small operations, which on a processor takes as long for one number
as for a thousand. So a roll-out draws before its first step what all its steps need.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

_FEW = 2**14
"""Rows up to which an order takes one sort: as many as leave 18 bits to chance."""


def game_keys(shared: PRNGKeyArray, first: Int[Array, ""] | int, games: int) -> PRNGKeyArray:
    """[games] keys, each from its game's number alone."""
    return jax.vmap(lambda i: jax.random.fold_in(shared, i))(first + jnp.arange(games))


def split_each(keys: PRNGKeyArray, number: int) -> Sequence[PRNGKeyArray]:
    """`number` times [E] keys from [E] keys."""
    made = jax.vmap(lambda key: jax.random.split(key, number))(keys)
    return [made[:, i] for i in range(number)]


def keys_ahead(
    keys: PRNGKeyArray, steps: int, number: int
) -> tuple[PRNGKeyArray, Sequence[PRNGKeyArray]]:
    """The keys of a roll-out's steps, each game's from its own key.

    Args:
        keys: [E].
        steps: T.
        number: of keys that a step needs.

    Returns:
        [E] keys for what comes after, and `number` times [T, E] keys.
    """
    after, ahead = split_each(keys, 2)
    made = jax.vmap(lambda key: jax.random.split(key, (number, steps)), out_axes=2)(ahead)
    return after, [made[i] for i in range(number)]


def drawn_by(keys: PRNGKeyArray, draw: Callable[[PRNGKeyArray], Array]) -> Array:
    """[*B, …] what `draw` makes of each of [*B] keys."""
    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys)


def random_order(key: PRNGKeyArray, rows: int) -> Int[Array, " rows"]:
    """The numbers below `rows` in random order.

    `jax.random.permutation` sorts pairs twice, for ten times as long as the one sort of numbers
    here: random above, the row's own number below. Neighbours whose random bits are the same, of
    8,192 rows one pair in sixty, are in rising order.
    """
    if rows > _FEW:
        return jax.random.permutation(key, rows)
    low = max(rows - 1, 1).bit_length()
    random = jax.random.bits(key, (rows,)) << low
    order = jnp.sort(random | jnp.arange(rows, dtype=jnp.uint32))
    return (order & ((1 << low) - 1)).astype(jnp.int32)
