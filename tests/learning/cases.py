"""Problems of every kind at one size, so that one compilation serves them all; episodes on them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from gradweave.environment import Size, State
from gradweave.environment import state as states
from gradweave.environment.bits import packed
from gradweave.environment.problem import Instance, Problem
from gradweave.learning.episodes.episode import OngoingEpisode
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


def padded(array: np.ndarray, like: jax.Array) -> jax.Array:
    whole = np.zeros(like.shape, like.dtype)
    whole[tuple(slice(0, length) for length in array.shape)] = array
    return jnp.asarray(whole)


def state_of(play: OngoingEpisode, its: Problem) -> State:
    """The environment's state where an episode is.

    Args:
        play: the episode.
        its: the environment's problem, padded as the state is to be.
    """
    like = its.waiting
    tables = {name: padded(np.asarray(getattr(play, name)), like) for name in TABLES}
    start = {name: getattr(play, name) for name in ("round", "stage", "stage_start")}
    return state_at(its, tables | start, padded(play.selected_before, its.by_sender))


TABLES = ("waiting", "pending", "sent_round", "sent_hop")


def state_at(its: Problem, values: dict, selected_before: jax.Array) -> State:
    """The state at a round's start, from what was sent and what is waited for."""
    waiting, pending = (jnp.asarray(values[name]) for name in ("waiting", "pending"))
    pending = pending.astype(bool)
    logged = values["sent_round"] << states.hop_bits(len(its.sender)) | values["sent_hop"]
    can_send = packed(waiting == 0)
    start = states.reset(its)
    return dataclasses.replace(
        start,
        **{name: jnp.int32(values[name]) for name in ("round", "stage", "stage_start")},
        unsent=packed(pending),
        can_send=can_send,
        complete=can_send,
        received=jnp.where(waiting == 0, 0, its.waiting - waiting).astype(start.received.dtype),
        chosen=packed(selected_before),
        left=pending.sum(dtype=jnp.int32),
        left_first=(pending & (its.stage == 0)).sum(dtype=jnp.int32),
        log=jnp.where(pending | ~its.pending, states.NO_ENTRY, logged.astype(jnp.uint32)),
    )
