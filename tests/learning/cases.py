"""Problems of every kind at one size, so that one compilation serves them all; episodes on them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from gradweave.environment import Instance, Problem, Size, State
from gradweave.environment import state as states
from gradweave.schedulers.learned.policy import OngoingEpisode
from tests.conformance.networks import network

CASES = {
    "grown all_gather": ("jellyfish:switches=6,degree=3,servers_per_switch=1,seed=2", False),
    "grown all_gather, capacities": ("dgx1v", False),
    "grown all_gather, switches": ("leaf_spine:leaves=3,spines=2,servers_per_leaf=2", False),
    "grown reduce_scatter": ("lopsided", False),
    "grown all_reduce": ("irregular", False),
    "fixed reduce_scatter": ("irregular", False),
    "fixed reduce_scatter, capacities": ("dgx1v", False),
    "fixed all_gather": ("lopsided", False),
    "fixed all_gather, switches": ("leaf_spine:leaves=3,spines=2,servers_per_leaf=2", False),
    "fixed all_reduce": ("jellyfish:switches=6,degree=3,servers_per_switch=1,seed=2", False),
    "fixed all_reduce, overlap": ("irregular", True),
}
"""Trees and collective; network, and whether the stages overlap."""


@functools.cache
def instance(case: str) -> Instance:
    name, overlap = CASES[case]
    trees, collective = case.partition(",")[0].split()
    return Instance(network(name), collective, trees, overlap=overlap)


@functools.cache
def size() -> Size:
    """One that holds all of them."""
    return Size.covering([instance(case).size for case in CASES])


@functools.cache
def problem(case: str) -> Problem:
    return Problem.of(instance(case), size())


@functools.cache
def blank(case: str) -> State:
    """The state at the start."""
    return states.reset(problem(case))


def padded(array: np.ndarray, like: jax.Array) -> jax.Array:
    whole = np.zeros(like.shape, like.dtype)
    whole[tuple(slice(0, length) for length in array.shape)] = array
    return jnp.asarray(whole)


def state_of(play: OngoingEpisode, start: State) -> State:
    """The environment's state where an episode is.

    Args:
        play: the episode.
        start: the environment's first state, padded as it is to be.
    """
    return dataclasses.replace(
        start,
        **{
            name: padded(np.asarray(getattr(play, name)), getattr(start, name))
            for name in (
                *("round", "stage", "stage_start", "waiting", "pending"),
                *("selected_before", "sent_round", "sent_hop"),
            )
        },
    )
