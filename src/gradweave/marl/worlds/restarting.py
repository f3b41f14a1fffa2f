"""Games whose `step` starts a new episode when one has ended, like JaxMARL's."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray


class RestartingGame:
    """Adds `step` to a game with `reset` and `step_env`."""

    def reset(self, key: PRNGKeyArray) -> tuple[dict[str, Array], Any]:
        """Starts an episode: (observations, state)."""
        raise NotImplementedError

    def step_env(self, key: PRNGKeyArray, state: Any, actions: Mapping[str, Array]) -> Any:
        """A step: (observations, state, rewards, ends, information)."""
        raise NotImplementedError

    def step(self, key: PRNGKeyArray, state: Any, actions: Mapping[str, Array]) -> Any:
        """Like `step_env`, but starts a new episode if one has ended."""
        key, again = jax.random.split(key)
        seen, after, rewards, dones, info = self.step_env(key, state, actions)
        first = self.reset(again)
        seen, after = jax.tree.map(
            lambda new, old: jnp.where(dones["__all__"], new, old), first, (seen, after)
        )
        return seen, after, rewards, dones, info
