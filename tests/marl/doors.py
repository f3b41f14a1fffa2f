"""A game whose best play is known: each of two agents is told which door to take, and is paid 1.

Agents see vectors of different lengths and have different numbers of doors; some doors are locked,
others at every step. After five steps time is up; whoever takes the last door of all ends it early.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from gradweave.marl.config import PPO
from gradweave.marl.games.environment import Environment, Reading, wrap
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.learner import Learner

DOORS = {"left": 3, "right": 4}
STEPS = 5


class DoorsState(eqx.Module):
    step: Int[Array, ""]
    wanted: Int[Array, " 2"]
    locked: Int[Array, " 2"]
    """The door after the wanted one, or 0 for none."""


class Doors:
    """As far as `environment.Game` asks."""

    def __init__(self) -> None:
        self.agents = list(DOORS)

    def action_space(self, agent: str) -> Any:
        return SimpleNamespace(n=DOORS[agent])

    def reset(self, key: Array) -> tuple[Any, DoorsState]:
        state = self._next(key, jnp.zeros((), jnp.int32))
        return self.observations(state), state

    def step_env(self, key: Array, state: DoorsState, actions: Any) -> tuple:
        after = self._next(key, state.step + 1)
        reward = {
            agent: (actions[agent] == state.wanted[i]).astype(jnp.float32)
            for i, agent in enumerate(DOORS)
        }
        out = actions["right"] == DOORS["right"] - 1
        info = {"left": out, "time": after.step >= STEPS}
        done = out | info["time"]
        return self.observations(after), after, reward, {"__all__": done}, info

    def observations(self, state: DoorsState) -> dict[str, Array]:
        return {
            agent: jax.nn.one_hot(state.wanted[i], number) for i, (agent, number) in _numbered()
        }

    def available(self, state: DoorsState) -> list[Bool[Array, "..."]]:
        return [
            (jnp.arange(number) != (state.wanted[i] + state.locked[i]) % number)
            | (jnp.arange(number) == state.wanted[i])
            for i, (_, number) in _numbered()
        ]

    def _next(self, key: Array, step: Array) -> DoorsState:
        one, two = jax.random.split(key)
        most = jnp.array([3, 3])  # so that the last door of the right is never wanted
        wanted = jax.random.randint(one, (2,), 0, most)
        return DoorsState(step, wanted, jax.random.randint(two, (2,), 0, 2))


def _numbered() -> Any:
    return enumerate(DOORS.items())


@functools.cache
def doors(masked: bool = True) -> Environment:
    reading = Reading(
        observations=lambda game, seen: [seen[agent] for agent in game.agents],
        rewards=lambda game, rewards: [rewards[agent] for agent in game.agents],
        truncated=lambda game, state, info, done: info["time"] & ~info["left"],
        available=(lambda game, state: game.available(state)) if masked else None,
    )
    return wrap(Doors(), reading, id="doors", family="doors", meaning="doors found")


def learner(
    algorithm: str = "ippo",
    *,
    environment: Environment | None = None,
    updates: int = 20,
    devices: int = 1,
    **settings: Any,
) -> Learner:
    """A small one."""
    usual = {"environments": 4, "rollout": 8, "hidden": (8,), "minibatches": 2, "epochs": 2}
    return algorithms.ALGORITHMS[algorithm].build(
        environment or doors(), PPO(**(usual | settings)), devices, updates, lambda o: o
    )


def rollout(one: Any) -> Callable[[Any], tuple[Any, Any, Any]]:
    """A roll-out of PPO with its advantages: state -> state, samples, metrics; to be compiled."""

    def played(state: Any) -> tuple[Any, Any, Any]:
        state, experience, metrics = one.play(state)
        state, samples, _ = one._evaluated(state, experience)
        return state, samples, metrics

    return played
