"""Random keys and numbers of many steps and games at once.

JAX draws by a loop of some ten small operations, which on a processor takes as long for one number
as for a thousand. So a roll-out draws before its first step what all its steps need.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

_MOST_ROWS = 2**14
"""That one sort permutes: their numbers leave 18 random bits."""


def game_keys(shared: PRNGKeyArray, first: Int[Array, ""] | int, games: int) -> PRNGKeyArray:
    """[games] keys, each from its game's number alone."""
    return jax.vmap(lambda i: jax.random.fold_in(shared, i))(first + jnp.arange(games))


def split_each(keys: PRNGKeyArray, number: int) -> Sequence[PRNGKeyArray]:
    """`number` times [E] keys from [E] keys."""
    made = jax.vmap(lambda key: jax.random.split(key, number))(keys)
    return [made[:, i] for i in range(number)]


def rollout_keys(
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


def draw_each(keys: PRNGKeyArray, draw: Callable[[PRNGKeyArray], Array]) -> Array:
    """[*B, …] samples, one by each of [*B] keys."""
    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys)


def permutation(key: PRNGKeyArray, rows: int) -> Int[Array, " rows"]:
    """A random permutation of the numbers below `rows`, [rows].

    `jax.random.permutation` sorts pairs twice, which takes ten times as long as the one sort
    of integers here: random high bits, and the row's number in the low ones. Neighbours whose
    random bits are the same, of 8,192 rows one pair in sixty, stay in ascending order.
    """
    if rows > _MOST_ROWS:
        return jax.random.permutation(key, rows)
    low = max(rows - 1, 1).bit_length()
    random = jax.random.bits(key, (rows,)) << low
    order = jnp.sort(random | jnp.arange(rows, dtype=jnp.uint32))
    return (order & ((1 << low) - 1)).astype(jnp.int32)
