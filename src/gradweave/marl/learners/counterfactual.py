"""Counterfactual experience: the agents' steps, as if their machines had been in other states.

Source: Toro Icarte et al. 2022.
"""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from gradweave.marl.games.guide import Guide

Rows = TypeVar("Rows")
"""See `q_learning.Rows`."""


def doubled(guide: Guide, rows: Rows, key: PRNGKeyArray) -> Rows:
    """Rows as they were played, and each again with its machines started in random states.

    The memory of a recurrent network is not recomputed for the second copy.

    Args:
        guide: the machines.
        rows: rows of the replay buffer, with the events of each step.
        key: random key from which the machines' states are drawn.
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
    """Rows that record after each step whose part was done or had failed."""
    after = guide.ended(guide.read(rows.observation[:, 1:]))  # pyright: ignore[reportAttributeAccessIssue]
    done = rows.done[..., None]  # pyright: ignore[reportAttributeAccessIssue]
    over = (after & ~rows.start[:, 1:, None]) | done  # pyright: ignore[reportAttributeAccessIssue]
    return dataclasses.replace(rows, ended=over)  # pyright: ignore[reportArgumentType]
