"""Spatial-temporal representations of matrix games (STORM).

``storm``: 2 agents, each one's payoffs of the matrix game.
"""

from collections.abc import Mapping
from typing import Any

from gradweave.marl.games.family import MEAN, Family, always, at_time_limit, team_per_agent
from gradweave.marl.games.reading import Reading


def _storm_observations(game: Any, seen: Mapping) -> list[Any]:
    """JaxMARL gives the view as [A, …] and the inventory as [5, A]."""
    import jax.numpy as jnp

    view, inventory = seen["observations"], seen["inventory"]
    agents = range(len(game.agents))
    return [jnp.concatenate([view[i].reshape(-1), inventory[:, i]]) for i in agents]


def _interactions(game: Any, state: Any, rewards: Any, info: Any, done: Any) -> Any:
    """Meetings whose payoffs were given out; none of the matrix's rows pays nothing to both."""
    return (rewards[0] != 0) | (rewards[1] != 0)


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
        teams=team_per_agent,
        opposed=always,
    ),
}
