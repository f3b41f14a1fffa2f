"""Scripted agents of the worlds that agents share: what the measures of `fen.py` can reach there.

`random` draws actions evenly. `greedy`: each goes for the nearest ghost, or for the nearest gem
that its part still lacks, and around gems that it does not need. `sharing`: the same, but whoever
has earned more than the mean leaves the rest to others: pac-men wait in a corner, makers of parts
go around all gems. Scripts see the whole state. `turns` in job scheduling needs what FEN's
controller knows: an agent that has earned more than the mean by a margin makes way, the others go
to the resource.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradweave.marl.fairness.measures import summary
from gradweave.marl.games.environments import make
from gradweave.marl.worlds.manufacturing_plant import BEGUN, GONE, NEEDS, SIDE
from gradweave.marl.worlds.matthew_effect import speed, to_nearest_ghost
from gradweave.marl.worlds.resources import MOVES

EPISODES = 16
FAR = 1e3
"""Beyond all distances."""
WANDERING = 0.1
"""Share of steps at random, so that makers of parts who are in each other's way get by."""

Script = Callable[[Any, Any], Any]
"""Of a key and the game's state: each agent's action."""


def towards(offset: Any, stride: Any) -> Any:
    """The action along the longer axis of each offset; to stay, where a stride brings no nearer.

    Args:
        offset: [A, 2] to each agent's goal.
        stride: [A] lengths of a step.
    """
    along = jnp.abs(offset[:, 0]) >= jnp.abs(offset[:, 1])
    first = jnp.where(offset[:, 0] < 0, 1, 2)
    second = jnp.where(offset[:, 1] < 0, 3, 4)
    near = jnp.abs(offset).max(-1) <= stride / 2
    return jnp.where(near, 0, jnp.where(along, first, second))


def drawn(key: Any, state: Any) -> Any:
    return jax.random.randint(key, state.earned.shape, 0, len(MOVES))


def chasing(shares: bool) -> Script:
    """Pac-men."""

    def act(key: Any, state: Any) -> Any:
        world = state.world
        goal = to_nearest_ghost(world)
        waits = shares & (state.earned > state.earned.mean())
        goal = jnp.where(waits[:, None], -world.place, goal)
        return towards(goal, speed(world.size))

    return act


def making(shares: bool) -> Script:
    """Makers of parts, who step on no gem that they do not need while there is another way."""

    def act(key: Any, state: Any) -> Any:
        world = state.world
        cell = world.place[:, None] + jnp.asarray(MOVES)
        side = jnp.clip(cell, 0, SIDE - 1)
        there = (world.gem[:, 0] != GONE)[None, :]
        lacks = (world.has < NEEDS)[:, world.kind] & there
        lacks &= ~(shares & (state.earned > state.earned.mean() + BEGUN))[:, None]
        far = jnp.abs(side[:, :, None] - world.gem).sum(-1)
        goal = jnp.where(lacks[:, None], far, FAR).min(-1)
        wasted = ((far == 0) & (there & ~lacks)[:, None]).any(-1)
        blind = jax.random.uniform(key, goal.shape)
        wanders = blind[:, :1] < WANDERING
        return jnp.where(wanders, blind, goal + FAR * wasted + blind).argmin(-1)

    return act


def turns(margin: float) -> Script:
    """Agents of job scheduling, one after the other on the resource."""

    def act(key: Any, state: Any) -> Any:
        offset = state.world.resource - state.world.place
        makes_way = state.earned > (1 + margin) * state.earned.mean()
        away = jnp.where(offset == 0, 1, -offset)  # from the resource's own cell, down and right
        goes = towards(jnp.where(makes_way[:, None], away, offset), 1)
        wanders = jax.random.uniform(key, goes.shape) < WANDERING
        return jnp.where(wanders & (offset != 0).any(-1), drawn(key, state), goes)

    return act


SCRIPTS: dict[str, dict[str, Script]] = {
    "job_scheduling": {
        "random": drawn,
        **{f"turns, margin {share:.0%}": turns(share) for share in (0.04, 0.1, 0.25)},
    },
    "matthew_effect": {"random": drawn, "greedy": chasing(False), "sharing": chasing(True)},
    "manufacturing_plant": {"random": drawn, "greedy": making(False), "sharing": making(True)},
}


def played(world: str, script: Script) -> dict[str, float]:
    """The measures of a script's episodes, with their product."""
    game = make(world).game

    def episode(key: Any) -> Any:
        beginning, playing = jax.random.split(key)
        _, state = game.reset(beginning)

        def step(state: Any, key: Any) -> Any:
            acting, moving = jax.random.split(key)
            action = script(acting, state)
            named = {agent: action[i] for i, agent in enumerate(game.agents)}
            return game.step_env(moving, state, named)[1], None

        return jax.lax.scan(step, state, jax.random.split(playing, game.max_steps))[0].earned

    earned = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), EPISODES))
    lengths = np.full(EPISODES, game.max_steps)
    about = summary(np.asarray(earned), lengths)
    return about | {"product": about["utilisation"] * about["jain"]}


def scripted() -> list[dict[str, Any]]:
    """All scripts."""
    return [
        {"world": world, "script": name, "episodes": EPISODES} | played(world, script)
        for world, scripts in SCRIPTS.items()
        for name, script in scripts.items()
    ]
