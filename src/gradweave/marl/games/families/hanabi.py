"""Hanabi, a card game.

``hanabi``: 2 agents; the return is the team's score.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradweave.marl.games.family import TEAM, Family, each, no_time_limit
from gradweave.marl.games.reading import Reading


def _hanabi(options: dict[str, Any]) -> dict[str, Any]:
    # JaxMARL defines the number of cards per rank for 5 ranks only, from many of the first to one
    # of the last.
    if "num_ranks" in options:
        ranks = options["num_ranks"]
        options["num_cards_of_rank"] = np.array([3] + [2] * (ranks - 2) + [1])[:ranks]
    return options


def _score(game: Any, state: Any, rewards: Mapping, info: Any, done: Any) -> Any:
    """Number of cards played, or 0 after the last life is lost, as in the rewards."""
    return rewards[game.agents[0]]


def _perfect(game: Any, state: Any, rewards: Mapping, info: Any, done: Any) -> Any:
    return done & (state.score == game.num_colors * game.num_ranks)


def _lives_lost(game: Any, state: Any, rewards: Mapping, info: Any, done: Any) -> Any:
    return done & state.out_of_lives


FAMILIES = {
    "hanabi": Family(
        ("hanabi",),
        Reading(
            each,
            each,
            no_time_limit,
            available=lambda game, state: each(game, game.get_legal_moves(state)),
            measures={"score": _score, "perfect_rate": _perfect, "lives_lost_rate": _lives_lost},
        ),
        f"{TEAM}: the score",
        (
            *("num_agents", "num_colors", "num_ranks", "hand_size", "max_info_tokens"),
            "max_life_tokens",
        ),
        _hanabi,
    ),
}
