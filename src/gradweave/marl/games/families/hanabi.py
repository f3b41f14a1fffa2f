"""Hanabi, a game of cards.

``hanabi``: 2 agents, the team's score.
"""

from typing import Any

import numpy as np

from gradweave.marl.games.family import TEAM, Family, each, no_time_limit
from gradweave.marl.games.reading import Reading


def _hanabi(options: dict[str, Any]) -> dict[str, Any]:
    # JaxMARL has the numbers of cards for 5 ranks only: many of the first, one of the last.
    if "num_ranks" in options:
        ranks = options["num_ranks"]
        options["num_cards_of_rank"] = np.array([3] + [2] * (ranks - 2) + [1])[:ranks]
    return options


FAMILIES = {
    "hanabi": Family(
        ("hanabi",),
        Reading(
            each,
            each,
            no_time_limit,
            available=lambda game, state: each(game, game.get_legal_moves(state)),
        ),
        f"{TEAM}: the score",
        ("num_agents", "num_colors", "num_ranks", "hand_size", "max_info_tokens"),
        _hanabi,
    ),
}
