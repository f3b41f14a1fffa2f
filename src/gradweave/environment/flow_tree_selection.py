"""Flow-tree selection: once a round, the trees whose workloads may be sent in it.

Source: section 4.2 of the paper.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from gradweave.environment.problem import Problem
from gradweave.environment.state import (
    FLOW_TREE_SELECTION,
    WORKLOAD_SCHEDULING,
    State,
    any_available,
    end_round,
    open_trees,
    ready,
    ready_words,
    where,
)


class TreeObservation(eqx.Module):
    """What the agent sees before it selects. Padding is 0."""

    sent: Float[Array, " Q"]
    """Share of each tree's transfers that were sent."""
    available: Float[Array, " Q"]
    """Share that could be sent now, were the links free."""
    remaining: Float[Array, " Q"]
    """Share that is not sent yet."""
    pressure: Float[Array, " L"]
    """Workloads ready on each link direction, over its capacity; its share of the largest."""
    selected_before: Float[Array, " Q"]
    """The last action."""


def observe(problem: Problem, state: State) -> TreeObservation:
    """The observation of SPEC 7: sent, available, remaining, link pressure, last action."""
    total = jnp.maximum(problem.pending.sum(0), 1)
    remaining = state.pending.sum(0) / total
    workloads = ready(problem, state, jnp.ones_like(state.selected))
    # With grown trees several hops can carry the same transfer: count it once.
    cells = jnp.zeros(state.pending.shape, bool)
    columns = jnp.arange(workloads.shape[1])
    key = jnp.where(problem.by_sender, problem.sender[:, None], problem.receiver[:, None])
    cells = cells.at[key, columns].max(workloads)
    load = (problem.crosses @ workloads.sum(1).astype(jnp.float32)) / problem.capacity.clip(1)
    exists = problem.pending.any(0)
    return TreeObservation(
        sent=jnp.where(exists, 1.0 - remaining, 0.0),
        available=cells.sum(0) / total,
        remaining=remaining,
        pressure=load / jnp.where(load.any(), load.max(), 1.0),
        selected_before=state.selected_before.astype(jnp.float32),
    )


def mask(problem: Problem, state: State) -> Bool[Array, " Q"]:
    """Trees that it makes sense to select: with a workload that is ready."""
    words = jnp.bitwise_or.reduce(ready_words(problem, state, jnp.ones_like(state.selected)))
    trees = jnp.arange(state.selected.shape[0])
    return (words[trees // 32] >> (trees % 32).astype(jnp.uint32)) & 1 == 1


def select(problem: Problem, state: State, trees: Bool[Array, " Q"]) -> State:
    """Selects trees and hands over to workload scheduling.

    Where no selected tree has a workload that is ready, the round passes without a transfer.

    Args:
        problem: the problem.
        state: at the turn of flow-tree selection.
        trees: multi-hot; padding and trees that are done or held back have no effect.
    """
    trees = trees & open_trees(problem, state)
    words = ready_words(problem, state, trees)
    count = jax.lax.population_count(words).sum(1, dtype=jnp.int32)
    chosen = dataclasses.replace(
        state,
        selected=trees,
        count=count,
        turn=jnp.full((), WORKLOAD_SCHEDULING, jnp.int32),
    )
    after = where(any_available(chosen), chosen, end_round(problem, chosen))
    # Nothing was sent: a round that passes changes none of the tables. Saying so saves copies.
    tables = ("waiting", "pending", "arriving", "sent_round", "sent_hop")
    return dataclasses.replace(after, **{name: getattr(state, name) for name in tables})


def is_turn(state: State) -> Bool[Array, ""]:
    """Whether this agent acts next."""
    return state.turn == FLOW_TREE_SELECTION
