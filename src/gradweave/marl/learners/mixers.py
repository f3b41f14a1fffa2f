"""Mixing networks: from the agents' action values to the team's value."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from gradweave.marl.learners.networks import Dense


class SumMixer(eqx.Module):
    """The sum of the agents' values. Source: Sunehag et al. 2018 (VDN)."""

    def __call__(
        self, values: Float[Array, "*B A"], world: Float[Array, "*B W"]
    ) -> Float[Array, "*B 1"]:
        """The team's value."""
        return values.sum(-1, keepdims=True)


class MonotonicMixer(eqx.Module):
    """A network monotone in each agent's value; hypernetworks of the state give its weights.

    Source: Rashid et al. 2018 (QMIX).
    """

    first: tuple[Dense, Dense]
    second: tuple[Dense, Dense]
    bias: Dense
    value: tuple[Dense, Dense]

    def __init__(self, world: int, agents: int, width: int, key: PRNGKeyArray) -> None:
        """Initialises the parameters.

        Args:
            world: W, the length of the state vector.
            agents: A, the number of agents.
            width: width of the mixing network and of the hypernetworks.
            key: random key of the parameters.
        """
        keys = jax.random.split(key, 7)
        gain = 2**0.5
        self.first = Dense(world, width, gain, keys[0]), Dense(width, agents * width, 1.0, keys[1])
        self.second = Dense(world, width, gain, keys[2]), Dense(width, width, 1.0, keys[3])
        self.bias = Dense(world, width, 1.0, keys[4])
        self.value = Dense(world, width, gain, keys[5]), Dense(width, 1, 1.0, keys[6])

    def __call__(
        self, values: Float[Array, "*B A"], world: Float[Array, "*B W"]
    ) -> Float[Array, "*B 1"]:
        """The team's value."""
        agents, width = values.shape[-1], self.bias.bias.shape[0]
        first = jnp.abs(_two_layers(self.first, world)).reshape(*values.shape[:-1], agents, width)
        second = jnp.abs(_two_layers(self.second, world))
        hidden = (values[..., None] * first).sum(-2) + self.bias(world)
        mixed = (jax.nn.elu(hidden) * second).sum(-1, keepdims=True)
        return mixed + _two_layers(self.value, world)


class NoMixer(eqx.Module):
    """Independent agents: no mixing."""

    def __call__(self, values: Float[Array, "*B A"], world: Any) -> Float[Array, "*B A"]:
        """The same values."""
        return values


Mixer = NoMixer | SumMixer | MonotonicMixer


def _two_layers(layers: tuple[Dense, Dense], x: Array) -> Array:
    one, two = layers
    return two(jax.nn.relu(one(x)))
