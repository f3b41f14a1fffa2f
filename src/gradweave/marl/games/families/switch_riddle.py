"""The riddle of the prisoners and the switch.

``switch_riddle``: the team gets +1 or −1 for an announcement, otherwise 0; only the agent in the
room acts.
"""

from typing import Any

from gradweave.marl.games.family import TEAM, Family, each, no_time_limit
from gradweave.marl.games.reading import Reading


def _available_in_room(game: Any, state: Any) -> list[Any]:
    """JaxMARL takes an action from every agent, but uses only that of the agent in the room."""
    import jax.numpy as jnp

    nothing = jnp.arange(len(game.game_actions)) == game.game_actions["NOTHING"]
    return [nothing | (state.agent_in_room == agent) for agent in range(game.num_agents)]


FAMILIES = {
    "switch_riddle": Family(
        ("switch_riddle",),
        Reading(each, each, no_time_limit, available=_available_in_room),
        TEAM,
        ("num_agents",),
    ),
}
