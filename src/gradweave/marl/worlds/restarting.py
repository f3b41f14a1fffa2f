"""Games in which a step begins a new episode where one ended, as JaxMARL's do."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray


class RestartingGame:
    """A game with `step`, of `reset` and `step_env`."""

    def reset(self, key: PRNGKeyArray) -> tuple[dict[str, Array], Any]:
        """A new episode: (observations, state)."""
        raise NotImplementedError

    def step_env(self, key: PRNGKeyArray, state: Any, actions: Mapping[str, Array]) -> Any:
        """A step: (observations, state, rewards, ends, information)."""
        raise NotImplementedError

    def step(self, key: PRNGKeyArray, state: Any, actions: Mapping[str, Array]) -> Any:
        """A step, and a new episode where one ended; as `step_env` otherwise."""
        key, again = jax.random.split(key)
        seen, after, rewards, dones, info = self.step_env(key, state, actions)
        first = self.reset(again)
        seen, after = jax.tree.map(
            lambda new, old: jnp.where(dones["__all__"], new, old), first, (seen, after)
        )
        return seen, after, rewards, dones, info
