"""JaxMARL's particles (MPE): discs that push each other in the plane.

``MPE_simple_spread_v3``: 3 agents, each gets half of what the team gets (minus the distances from
each landmark to the nearest agent) and half of its own (−1 a collision). JaxMARL's and PettingZoo's
figures are often the sum over agents: 3 times this.
``MPE_simple_tag_v3``, ``MPE_simple_world_comm_v3``: pursuers, who all get +10 for each touch, and
prey, who get −10; the mean over both sides says little, each agent's own return does.
``MPE_simple_adversary_v3``: a spy gets minus its distance from a landmark that it has to guess; the
others get that distance, minus that of the nearest of them. See each agent's own here too.
``MPE_simple_push_v3``: one gets minus its distance from a landmark, the other that distance, minus
its own.
``MPE_simple_crypto_v3``: Eve guesses what Alice tells Bob. JaxMARL's colours are of 255: a step
pays Eve about −65,000, and Alice and Bob 510 where Bob alone is right, −510 where Eve alone is.
``MPE_simple_v3``: one agent, minus its squared distance from the landmark.
``MPE_simple_speaker_listener_v4``: minus the squared distance of the one that moves from the
landmark that the other one sees; both get it.
``MPE_simple_reference_v3``: 2 agents, minus distances from landmarks that the other one knows.
``MPE_simple_facmac_v1``, ``MPE_simple_facmac_3a_v1``, …: one team of pursuers, who all get +10 for
each touch; prey follow rules and are no agents here. Actions are continuous.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradweave.marl.games.family import MEAN, PLAIN, TEAM, Family, Wrapper, always, if_asked


def _noisy(game: Any) -> bool:
    """Steps draw noise for actions and messages and scale it by these, usually all 0."""
    return bool(np.any(game.u_noise) or np.any(game.c_noise))


def _teams_by_goodness(game: Any, options: Mapping[str, Any]) -> list[int]:
    return [int(agent in game.good_agents) for agent in game.agents]


class _Pursuers(Wrapper):
    """FACMAC's game without its prey, whose actions JaxMARL ignores: they follow rules."""

    @property
    def agents(self) -> list[str]:
        return self._game.adversaries

    def step_env(self, key: Any, state: Any, actions: Mapping) -> Any:
        ignored = {prey: np.zeros(5, np.float32) for prey in self._game.good_agents}
        return self._game.step_env(key, state, {**actions, **ignored})


def _mpe(options: dict[str, Any]) -> dict[str, Any]:
    # simple_world_comm_v3 is continuous by default, the others are discrete.
    continuous = options.pop("continuous", False)
    return options | {"action_type": "Continuous" if continuous else "Discrete"}


MPE = dataclasses.replace(PLAIN, stochastic=_noisy)
_SIDES = f"{MEAN}, of both sides, whose interests are opposed: see each agent's own"
_TOUCHES = f"{TEAM}: 10 for each touch of the prey"
_MPE_OPTIONS = ("continuous", "max_steps")
FAMILIES = {
    "spread": Family(
        ("MPE_simple_spread_v3",),
        MPE,
        f"{MEAN}; JaxMARL's sum over agents is as many times this",
        (*_MPE_OPTIONS, "num_agents", "num_landmarks", "local_ratio"),
        _mpe,
        continuous=if_asked,
    ),
    "mpe": Family(
        ("MPE_simple_tag_v3", "MPE_simple_world_comm_v3", "MPE_simple_adversary_v3"),
        MPE,
        _SIDES,
        (*_MPE_OPTIONS, "num_good_agents", "num_adversaries", "num_obs"),
        _mpe,
        _teams_by_goodness,
        opposed=always,
        continuous=if_asked,
    ),
    "push": Family(
        ("MPE_simple_push_v3",),
        MPE,
        _SIDES,
        (*_MPE_OPTIONS, "num_good_agents", "num_adversaries"),
        _mpe,
        _teams_by_goodness,
        opposed=always,
        continuous=if_asked,
    ),
    "crypto": Family(
        ("MPE_simple_crypto_v3",),
        MPE,
        _SIDES,
        _MPE_OPTIONS,
        _mpe,
        _teams_by_goodness,
        opposed=always,
        continuous=if_asked,
    ),
    "simple": Family(
        ("MPE_simple_v3",),
        MPE,
        f"{MEAN}: minus squared distances from the landmark",
        (*_MPE_OPTIONS, "num_agents", "num_landmarks"),
        _mpe,
        continuous=if_asked,
    ),
    "speaker_listener": Family(
        ("MPE_simple_speaker_listener_v4",),
        MPE,
        f"{TEAM}: minus the listener's squared distance from its landmark",
        _MPE_OPTIONS,
        _mpe,
        continuous=if_asked,
    ),
    "reference": Family(
        ("MPE_simple_reference_v3",),
        MPE,
        f"{MEAN}: minus distances from their landmarks",
        (*_MPE_OPTIONS, "local_ratio"),
        _mpe,
        continuous=if_asked,
    ),
    "facmac": Family(
        ("MPE_simple_facmac_v1",),
        MPE,
        _TOUCHES,
        (
            *("num_good_agents", "num_adversaries", "num_landmarks", "view_radius"),
            *("score_function", "max_steps"),
        ),
        wrapper=_Pursuers,
        continuous=always,
    ),
    "facmac_of_a_size": Family(
        tuple(f"MPE_simple_facmac_{number}a_v1" for number in (3, 6, 9)),
        MPE,
        _TOUCHES,
        wrapper=_Pursuers,
        continuous=always,
    ),
}
