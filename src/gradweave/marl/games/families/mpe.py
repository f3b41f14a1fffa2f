"""JaxMARL's particles (MPE): discs in the plane that push each other.

- ``MPE_simple_spread_v3``: 3 agents; each gets half of the team's reward (minus the distances from
  each landmark to the nearest agent) and half of its individual reward (−1 per collision). The
  figures of JaxMARL and PettingZoo are often sums over agents: 3 times this return.
- ``MPE_simple_tag_v3``, ``MPE_simple_world_comm_v3``: pursuers, which all get +10 per touch, and
  prey, which get −10. The mean over both sides says little; compare the return of each agent.
- ``MPE_simple_adversary_v3``: a spy gets minus its distance from a landmark that it has to guess;
  the others get that distance, minus the distance of the nearest of them. Here too, compare the
  return of each agent.
- ``MPE_simple_push_v3``: one agent gets minus its distance from a landmark; the other gets that
  distance, minus its distance from the landmark.
- ``MPE_simple_crypto_v3``: Eve guesses what Alice tells Bob. JaxMARL's colours range to 255, so a
  step pays Eve about −65,000, and pays Alice and Bob 510 if only Bob is right, −510 if only Eve is.
- ``MPE_simple_v3``: one agent gets minus its squared distance from the landmark.
- ``MPE_simple_speaker_listener_v4``: both agents get minus the squared distance between the
  listener and the landmark that only the speaker sees.
- ``MPE_simple_reference_v3``: 2 agents get minus their distances from landmarks that only the other
  agent knows.
- ``MPE_simple_facmac_v1``, ``MPE_simple_facmac_3a_v1``, …: one team of pursuers, which all get +10
  per touch; the prey follow rules and are not agents here. Actions are continuous.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradweave.marl.games.family import MEAN, PLAIN, TEAM, Family, Wrapper, always, if_asked


def _noisy(game: Any) -> bool:
    """Whether steps are random: these numbers, usually 0, scale noise in actions and messages."""
    return bool(np.any(game.u_noise) or np.any(game.c_noise))


def _teams_by_goodness(game: Any, options: Mapping[str, Any]) -> list[int]:
    return [int(agent in game.good_agents) for agent in game.agents]


class _Pursuers(Wrapper):
    """FACMAC's game without agents for the prey, which follow rules; their actions are ignored."""

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
