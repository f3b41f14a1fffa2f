"""Two agents collect coins, at each other's expense.

``coin_game``: 2 agents, +1 for taking a coin, −2 if the other agent takes a coin of one's colour,
so random agents both get 0 or less; with ``shared_rewards`` each gets the sum of both.
"""

from collections.abc import Mapping
from typing import Any

from gradweave.marl.games.family import MEAN, PLAIN, Family, one_team, team_per_agent


def _teams_by_reward(game: Any, options: Mapping[str, Any]) -> list[int]:
    return (one_team if options.get("shared_rewards") else team_per_agent)(game, options)


FAMILIES = {
    "coin_game": Family(
        ("coin_game",),
        PLAIN,
        f"{MEAN}; with shared_rewards each gets the sum of both",
        ("num_inner_steps", "num_outer_steps", "egocentric", "shared_rewards"),
        teams=_teams_by_reward,
        opposed=lambda id, options: not options.get("shared_rewards"),
    ),
}
