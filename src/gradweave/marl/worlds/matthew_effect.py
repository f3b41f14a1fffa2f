"""The Matthew effect: a pac-man that eats becomes larger and faster, and so eats more.

Source: Jiang and Lu 2019 (1910.14472), section 5.2. The rules are those of the authors' program,
except that an agent observes the nearest ghost's offset from itself rather than its position.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gradweave.marl.worlds.resources import MOVES

LEAST_SIZE, FIRST_SIZES, MOST_SIZE = 0.01, 0.04, 0.15
"""Smallest initial size, increment between initial sizes, and maximum size."""
GROWTH = 0.005
"""Increase of a pac-man's size per ghost eaten."""
OWN_SPEED = 0.01
"""Speed of a pac-man of size 0; the size is added to it."""


class MatthewState(eqx.Module):
    """Pac-men and ghosts on the unit square."""

    place: Float[Array, "A 2"]
    size: Float[Array, " A"]
    ghost: Float[Array, "G 2"]


@dataclasses.dataclass(frozen=True)
class MatthewEffect:
    """Ten pac-men and three ghosts; a ghost that is eaten is replaced by another elsewhere.

    A pac-man that is nearer to a ghost than its own size eats it and gets 1; if several are, the
    first of them. It observes its position, size and speed, and the offset of the nearest ghost
    along each axis.
    """

    agents: int = 10
    ghosts: int = 3

    def begin(self, key: PRNGKeyArray) -> MatthewState:
        """See `ResourceWorld.begin`."""
        place, size, ghost = jax.random.split(key, 3)
        return MatthewState(
            jax.random.uniform(place, (self.agents, 2)),
            LEAST_SIZE + FIRST_SIZES * jax.random.uniform(size, (self.agents,)),
            jax.random.uniform(ghost, (self.ghosts, 2)),
        )

    def advance(
        self, key: PRNGKeyArray, state: MatthewState, action: Int[Array, " A"]
    ) -> tuple[MatthewState, Float[Array, " A"]]:
        """See `ResourceWorld.advance`."""
        step = jnp.asarray(MOVES)[action] * speed(state.size)[:, None]
        place, size = jnp.clip(state.place + step, 0.0, 1.0), state.size
        reward, ghosts = jnp.zeros(self.agents), []
        others = jax.random.uniform(key, state.ghost.shape)
        for ghost, other in zip(state.ghost, others, strict=True):
            near = jnp.square(place - ghost).sum(-1) < jnp.square(size)
            eats = near & (jnp.cumsum(near) == 1)
            reward = jnp.where(eats, 1.0, reward)
            size = jnp.where(eats, jnp.minimum(size + GROWTH, MOST_SIZE), size)
            ghosts.append(jnp.where(eats.any(), other, ghost))
        return MatthewState(place, size, jnp.stack(ghosts)), reward

    def observe(self, state: MatthewState) -> Float[Array, "A 6"]:
        """See `ResourceWorld.observe`; all but positions are relative to the maximum size."""
        near = to_nearest_ghost(state) / MOST_SIZE
        body = jnp.stack([state.size, speed(state.size)], -1) / MOST_SIZE
        return jnp.concatenate([state.place, body, near], -1)


def to_nearest_ghost(state: MatthewState) -> Float[Array, "A 2"]:
    """The offset of the nearest ghost from each pac-man, along each axis."""
    far = state.ghost - state.place[:, None]
    nearest = jnp.square(far).sum(-1).argmin(-1)
    return jnp.take_along_axis(far, nearest[:, None, None], 1)[:, 0]


def speed(size: Float[Array, " A"]) -> Float[Array, " A"]:
    """The distance that a pac-man of each size moves per step."""
    return OWN_SPEED + size
