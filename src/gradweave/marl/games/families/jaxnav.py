"""Robots that navigate on a map.

``jaxnav``: robots on a map: +4 for the goal, −4 for a crash, and a small reward in each step; half
of each robot's reward is the mean over all robots.
"""

import contextlib
import io
from collections.abc import Mapping
from typing import Any

from gradweave.marl.games.family import MEAN, Family, Wrapper, each, if_asked
from gradweave.marl.games.reading import Measure, Reading


def _robots_under_way(game: Any, state: Any, info: Any, done: Any) -> Any:
    """Whether the time limit stopped a robot that had neither arrived nor crashed."""
    return (info["TimeO"] & ~(state.goal_reached | state.move_term)).any()


def _share(*counts: str) -> Measure:
    """Measures the share of an episode's robots to which an event happens, by the game's counts."""

    def share(game: Any, state: Any, rewards: Any, info: Mapping, done: Any) -> Any:
        return sum(info[count].sum() for count in counts) / len(game.agents)

    return share


class _WithoutPrints(Wrapper):
    """Suppresses the output of a game that prints while it is traced."""

    def step_env(self, key: Any, state: Any, actions: Mapping) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            return self._game.step_env(key, state, actions)


def _jaxnav(options: dict[str, Any]) -> dict[str, Any]:
    # Continuous by default, like simple_world_comm_v3.
    side, fill = options.pop("side", 11), options.pop("fill", 0.3)
    continuous = options.pop("continuous", False)
    return options | {
        "act_type": "Continuous" if continuous else "Discrete",
        "map_params": {"map_size": (side, side), "fill": fill},
    }


FAMILIES = {
    "jaxnav": Family(
        ("jaxnav",),
        Reading(
            *(each, each, _robots_under_way),
            measures={
                "arrived_rate": _share("GoalR"),
                "crashed_rate": _share("MapC", "AgentC"),
            },
        ),
        f"{MEAN}: 4 for a goal, −4 for a crash, little for each step",
        (
            *("continuous", "num_agents", "max_steps", "side", "fill", "lidar_num_beams"),
            *("rew_lambda", "evaporating"),
        ),
        _jaxnav,
        wrapper=_WithoutPrints,
        continuous=if_asked,
    ),
}
