"""Counterfactual experience: what agents did, as if their reward machines had been elsewhere.

Source: Toro Icarte et al. 2022.
"""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from gradweave.marl.games.guide import Guide

Rows = TypeVar("Rows")
"""As `q_learning.Rows`."""


def doubled(guide: Guide, rows: Rows, key: PRNGKeyArray) -> Rows:
    """Rows as they were played, and each once more with its machines begun in a random state.

    Memory of a recurrent network stays that of what was played.

    Args:
        guide: the machines.
        rows: of the replay buffer, with the events of each step.
        key: draws the states.
    """
    played = ended(guide, rows)
    observation, reward, after = guide.imagined(rows.observation, rows.events, rows.start, key)  # pyright: ignore[reportAttributeAccessIssue]
    changed = dataclasses.replace(
        played,  # pyright: ignore[reportArgumentType]
        observation=observation,
        reward=reward,
        ended=guide.ended(after) | played.done[..., None],  # pyright: ignore[reportAttributeAccessIssue]
        done=guide.over(after) | played.done,  # pyright: ignore[reportAttributeAccessIssue]
        world=None if played.world is None else observation.reshape(*observation.shape[:2], -1),  # pyright: ignore[reportAttributeAccessIssue]
    )
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), played, changed)


def ended(guide: Guide, rows: Rows) -> Rows:
    """Rows that say whose part was done or lost after each step."""
    after = guide.ended(guide.read(rows.observation[:, 1:]))  # pyright: ignore[reportAttributeAccessIssue]
    done = rows.done[..., None]  # pyright: ignore[reportAttributeAccessIssue]
    over = (after & ~rows.start[:, 1:, None]) | done  # pyright: ignore[reportAttributeAccessIssue]
    return dataclasses.replace(rows, ended=over)  # pyright: ignore[reportArgumentType]
