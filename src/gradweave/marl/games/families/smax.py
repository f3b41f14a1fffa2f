"""SMAX: battles between the units of two sides, modelled on StarCraft.

``SMAX``: both teams learn, 5 against 5; rewards for damage, and 1 for a victory.
``HeuristicEnemySMAX``: one team learns, the other follows rules; the maximum return is 2.
"""

from collections.abc import Mapping
from typing import Any

from gradweave.marl.games.family import MEAN, Family, each, looked_up
from gradweave.marl.games.reading import Reading


def _both_sides_alive(game: Any, state: Any, info: Any, done: Any) -> Any:
    alive = getattr(state, "state", state).unit_alive
    return alive[: game.num_allies].any() & alive[game.num_allies :].any()


def _teams_by_side(game: Any, options: Mapping[str, Any]) -> list[int]:
    return [int(agent.startswith("enemy")) for agent in game.agents]


def _won(game: Any, state: Any, rewards: Mapping, info: Any, done: Any) -> Any:
    """Counts victories like JaxMARL's `SMAXLogWrapper`: the last reward includes the bonus."""
    return done & (rewards["ally_0"] >= 1.0)


def _lost(game: Any, state: Any, rewards: Mapping, info: Any, done: Any) -> Any:
    """Counts episodes that end with only enemies alive; the rest are wins, draws or time limits."""
    alive = getattr(state, "state", state).unit_alive
    return done & ~alive[: game.num_allies].any() & alive[game.num_allies :].any()


FAMILIES = {
    "smax": Family(
        ("SMAX", "HeuristicEnemySMAX"),
        Reading(
            each,
            each,
            _both_sides_alive,
            available=lambda game, state: each(game, game.get_avail_actions(state)),
            world=lambda game, seen: seen["world_state"],
            measures={"win_rate": _won, "loss_rate": _lost},
        ),
        f"{MEAN}: damage dealt and victories",
        ("scenario", "num_allies", "num_enemies", "max_steps", "see_enemy_actions"),
        looked_up("scenario", "smax.smax_env", "MAP_NAME_TO_SCENARIO"),
        _teams_by_side,
        opposed=lambda id, options: id == "SMAX",
    ),
}
