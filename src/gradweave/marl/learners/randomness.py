"""Random keys and numbers for many steps and games at once.

JAX draws random numbers with a loop of about ten small operations, which on a processor takes as
long for one number as for a thousand. So a roll-out draws the numbers of all steps before its first
step.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

_MOST_ROWS = 2**14
"""Maximum number of rows that one sort permutes; their numbers leave 18 random bits."""


def game_keys(shared: PRNGKeyArray, first: Int[Array, ""] | int, games: int) -> PRNGKeyArray:
    """[games] keys, each of which depends only on the game's number."""
    return jax.vmap(lambda i: jax.random.fold_in(shared, i))(first + jnp.arange(games))


def split_each(keys: PRNGKeyArray, number: int) -> Sequence[PRNGKeyArray]:
    """`number` times [E] keys, derived from [E] keys."""
    made = jax.vmap(lambda key: jax.random.split(key, number))(keys)
    return [made[:, i] for i in range(number)]


def rollout_keys(
    keys: PRNGKeyArray, steps: int, number: int
) -> tuple[PRNGKeyArray, Sequence[PRNGKeyArray]]:
    """The keys of a roll-out's steps, derived from the key of each game.

    Args:
        keys: [E] keys of the games.
        steps: T, the number of steps.
        number: number of keys per step.

    Returns:
        [E] keys for later use, and `number` times [T, E] keys.
    """
    after, ahead = split_each(keys, 2)
    made = jax.vmap(lambda key: jax.random.split(key, (number, steps)), out_axes=2)(ahead)
    return after, [made[i] for i in range(number)]


def draw_each(keys: PRNGKeyArray, draw: Callable[[PRNGKeyArray], Array]) -> Array:
    """[*B, …] samples, one for each of [*B] keys."""
    for _ in keys.shape:
        draw = jax.vmap(draw)
    return draw(keys)


def permutation(key: PRNGKeyArray, rows: int) -> Int[Array, " rows"]:
    """A random permutation of the numbers below `rows`, [rows].

    `jax.random.permutation` sorts pairs twice, which takes ten times as long as the single sort of
    integers here, with random high bits and the row's number in the low bits. Rows with equal
    random bits stay in ascending order; with 8,192 rows these are one pair of neighbours in sixty.
    """
    if rows > _MOST_ROWS:
        return jax.random.permutation(key, rows)
    low = max(rows - 1, 1).bit_length()
    random = jax.random.bits(key, (rows,)) << low
    order = jnp.sort(random | jnp.arange(rows, dtype=jnp.uint32))
    return (order & ((1 << low) - 1)).astype(jnp.int32)
