"""Workload scheduling: within a round, one workload a step until none is left that fits.

Source: section 4.2 of the paper.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gradweave.environment.problem import Problem
from gradweave.environment.state import (
    WORKLOAD_SCHEDULING,
    State,
    any_available,
    available,
    end_round,
    where,
)


class WorkloadObservation(eqx.Module):
    """What the agent sees before it sends. Padding is 0."""

    available: Float[Array, "H Q"]
    """Workloads that can be sent."""
    room: Float[Array, " L"]
    """Share of each link direction's capacity that is free in this round."""
    held: Float[Array, "N Q"]
    """Whether each server is ready to send, tree by tree."""
    pending: Float[Array, "N Q"]
    """Transfers not sent yet."""


def observe(problem: Problem, state: State) -> WorkloadObservation:
    """Availability, free links, and who holds and lacks what."""
    links = jnp.arange(problem.capacity.shape[0])
    exists = (problem.capacity > 0) & (links < links.shape[0] - 1)
    held = (state.waiting == 0) & problem.pending.any(0) & problem.pending.any(1)[:, None]
    return WorkloadObservation(
        available=available(problem, state).astype(jnp.float32),
        room=jnp.where(exists, state.room / problem.capacity.clip(1), 0.0),
        held=held.astype(jnp.float32),
        pending=state.pending.astype(jnp.float32),
    )


def mask(problem: Problem, state: State) -> Bool[Array, " HQ"]:
    """Workloads that can be sent, numbered ``hop * Q + tree``."""
    return available(problem, state).reshape(-1)


def send(
    problem: Problem,
    state: State,
    hop: Int[Array, ""],
    tree: Int[Array, ""],
    can: Bool[Array, ""] | bool = True,
) -> State:
    """Sends one workload; the round goes on.

    Args:
        problem: the problem.
        state: at the turn of workload scheduling.
        hop: the workload's hop.
        tree: its tree.
        can: False to leave the state as it is. A workload that is not available must not be sent
            with True: see `schedule`.
    """
    can = jnp.asarray(can)
    sender, receiver = problem.sender[hop], problem.receiver[hop]
    by_sender = problem.by_sender[tree]
    key = jnp.where(by_sender, sender, receiver)
    # The same transfer is no workload any more on any hop.
    keys = jnp.where(by_sender, problem.sender, problem.receiver)
    can_send = (jnp.take(state.waiting, tree, axis=1) == 0)[problem.sender]
    gone = can & (keys == key) & can_send & problem.allowed.T[tree]
    room, blocked = state.room.at[problem.hop_links[hop]].add(-can.astype(jnp.int32)), state.blocked
    for position in range(problem.hop_links.shape[-1]):
        link = problem.hop_links[hop, position]
        blocked |= problem.crosses[link] & (room[link] == 0)
    # A row that does not exist leaves the table as it is.
    row = jnp.where(can, key, state.pending.shape[0])
    return dataclasses.replace(
        state,
        pending=state.pending.at[row, tree].set(False, mode="drop"),
        arriving=state.arriving.at[receiver, tree].add(can.astype(jnp.int16)),
        room=room,
        blocked=blocked,
        count=state.count - gone.astype(state.count.dtype),
        sent=state.sent + can.astype(state.sent.dtype),
        sent_round=state.sent_round.at[row, tree].set(
            state.round.astype(state.sent_round.dtype), mode="drop"
        ),
        sent_hop=state.sent_hop.at[row, tree].set(hop.astype(state.sent_hop.dtype), mode="drop"),
    )


def schedule(problem: Problem, state: State, workload: Int[Array, ""]) -> State:
    """Sends a workload if it is available, and ends the round when no other one is.

    Args:
        problem: the problem.
        state: at the turn of workload scheduling.
        workload: its number, ``hop * Q + tree``; one that is not available is not sent.
    """
    trees = problem.root.shape[0]
    hop, tree = workload // trees, workload % trees
    key = jnp.where(problem.by_sender[tree], problem.sender[hop], problem.receiver[hop])
    can = (
        (workload >= 0)
        & (workload < problem.allowed.size)
        & problem.allowed[hop, tree]
        & (state.waiting[problem.sender[hop], tree] == 0)
        & state.pending[key, tree]
        & state.selected[tree]
        & ~state.blocked[hop]
    )
    sent = send(problem, state, hop, tree, can)
    return where(any_available(sent), sent, end_round(problem, sent))


def is_turn(state: State) -> Bool[Array, ""]:
    """Whether this agent acts next."""
    return state.turn == WORKLOAD_SCHEDULING
