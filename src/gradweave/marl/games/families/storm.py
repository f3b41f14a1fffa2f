"""Spatial-temporal representations of matrix games (STORM).

``storm``: 2 agents; each gets its payoffs of the matrix game, which JaxMARL 0.2.0 fails to pay.
"""

import sys
import threading
from collections.abc import Mapping
from typing import Any

from gradweave.errors import OptionError
from gradweave.marl.games.family import MEAN, Family, Wrapper, always, at_time_limit, team_per_agent
from gradweave.marl.games.reading import Reading

_TRACING = threading.Lock()
"""Held while the name `jax` in JaxMARL's module is replaced."""


def _storm_observations(game: Any, seen: Mapping) -> list[Any]:
    """JaxMARL returns the view as [A, …] and the inventory as [5, A]."""
    import jax.numpy as jnp

    view, inventory = seen["observations"], seen["inventory"]
    agents = range(len(game.agents))
    return [jnp.concatenate([view[i].reshape(-1), inventory[:, i]]) for i in agents]


def _interactions(game: Any, state: Any, rewards: Any, info: Any, done: Any) -> Any:
    """Number of paid interactions; every entry of the matrix pays at least one of the agents."""
    return (rewards[0] != 0) | (rewards[1] != 0)


class _Instead:
    """A module in which some names are replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self.__dict__ |= names
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Mended(Wrapper):
    """JaxMARL's game with two corrections.

    In each step, it draws one of 735,471 placements of agents without replacement: it shuffles all
    of them to take the first, which takes a thousand times as long as the rest of the step. A draw
    with replacement has the same distribution.

    It loops over as many pairs as there are agents. Two agents form a single pair, which the loop
    visits twice, overwriting its reward the second time: the agents meet and are frozen, but
    JaxMARL 0.2.0 pays them nothing. Here they get the payoffs of the matrix.
    """

    def reset(self, key: Any) -> Any:
        return self._by_one(self._game.reset, key)

    def step_env(self, key: Any, state: Any, actions: Mapping) -> Any:
        import jax.numpy as jnp

        told = self._by_one(self._game.step_env, key, state, actions)
        seen, after, _, dones, info = told
        # Agents that meet are frozen, and keep the inventories that determine their payoff until
        # they thaw. An episode begins with no agent frozen, so, as in JaxMARL, its last step pays
        # nothing.
        met = (after.agent_freezes > state.agent_freezes).all() & (after.agent_freezes > 0).all()
        pair = self._game.get_reward(after, jnp.arange(2))
        return seen, after, jnp.where(met, pair, 0.0), dones, info

    def _by_one(self, function: Any, *arguments: Any) -> Any:
        import jax

        def choice(key: Any, a: Any, shape: Any = (), replace: bool = True, **more: Any) -> Any:
            return jax.random.choice(key, a, shape, replace or shape == (), **more)

        module: Any = sys.modules[type(self._game).__module__]
        with _TRACING:
            module.jax = _Instead(jax, random=_Instead(jax.random, choice=choice))
            try:
                return function(*arguments)
            finally:
                module.jax = jax


def _storm(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("freeze_penalty", 1) < 1:  # without freezing, meetings could not be detected
        raise OptionError(
            f"freeze_penalty: expected 1 or more steps, got {options['freeze_penalty']}"
        )
    return options


FAMILIES = {
    "storm": Family(
        ("storm",),
        Reading(
            _storm_observations,
            lambda game, rewards: list(rewards),
            at_time_limit,
            measures={"interactions": _interactions},
        ),
        MEAN,
        ("num_inner_steps", "num_outer_steps", "fixed_coin_location", "freeze_penalty"),
        _storm,
        wrapper=_Mended,
        teams=team_per_agent,
        opposed=always,
    ),
}
