"""Flow-tree selection: once per round, selects the trees whose workloads may be sent in it.

Source: section 4.2 of the paper.
"""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from gradweave.environment.batch import apart, batched
from gradweave.environment.bits import WORD, nth_bit, packed, unpacked
from gradweave.environment.problem import Problem
from gradweave.environment.state import (
    WORKLOAD_SCHEDULING,
    State,
    any_available,
    end_round,
    open_trees,
    ready,
)


class TreeObservation(eqx.Module):
    """The observation of the agent before it selects. Padding is 0."""

    sent: Float[Array, " Q"]
    """Share of each tree's transfers that have been sent."""
    available: Float[Array, " Q"]
    """Share that could be sent now if the links were free."""
    remaining: Float[Array, " Q"]
    """Share that has not been sent yet."""
    pressure: Float[Array, " L"]
    """Number of ready workloads on each link direction, divided by its capacity; relative to the
    largest."""
    selected_before: Float[Array, " Q"]
    """The last action."""


def observe(problem: Problem, state: State) -> TreeObservation:
    """The observation of SPEC 7: sent, available, remaining, link pressure, last action."""
    total = jnp.maximum(problem.pending.sum(0), 1)
    remaining = state.pending.sum(0) / total
    workloads = unpacked(_ready(problem, state), problem.root.shape[0])
    # With grown trees several hops can carry the same transfer, which is counted once.
    cells = jnp.zeros(problem.pending.shape, bool)
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
    """Trees worth selecting: those with a ready workload."""
    return unpacked(jnp.bitwise_or.reduce(_ready(problem, state)), problem.root.shape[0])


def _ready(problem: Problem, state: State) -> UInt32[Array, "H W"]:
    """Ready workloads of any tree."""
    return ready(problem, state, ~jnp.zeros_like(state.chosen))


def select(problem: Problem, state: State, trees: Bool[Array, " Q"]) -> State:
    """Selects trees and hands over to workload scheduling.

    If no selected tree has a ready workload, the round passes without a transfer.

    Args:
        problem: the problem.
        state: the state at the turn of flow-tree selection.
        trees: multi-hot; padding and trees that are done or blocked by others have no effect.
    """
    return _select(problem, state, trees)


@batched
def _select(problem: Problem, state: State, trees: Array) -> State:
    """`select` for many environments."""
    after = dataclasses.replace(
        state,
        turn=jnp.full_like(state.turn, WORKLOAD_SCHEDULING),
        **apart(state.round, functools.partial(_begun, problem), state, trees),
    )
    return end_round(after, ~any_available(after))


def _begun(problem: Problem, state: State, trees: Array) -> dict[str, Array]:
    """The round's tables after a selection, for many environments."""
    words = ready(problem, dataclasses.replace(state, can_send=state.complete), packed(trees, 0))
    counts = [jax.lax.population_count(words[:, word]) for word in range(words.shape[1])]
    kinds = {name: getattr(state, name).dtype for name in ("used", "count")}
    return {
        "can_send": state.complete,
        "used": jnp.zeros((problem.capacity.shape[0], trees.shape[1]), kinds["used"]),
        "chosen": packed(trees, 0) & open_trees(problem, state),
        "chosen_before": state.chosen,
        "count": functools.reduce(jnp.add, [each.astype(kinds["count"]) for each in counts]),
    }


def selected_some(problem: Problem, state: State, trees: Array) -> dict[str, Array]:
    """The round's tables after a selection in those environments whose turn it is.

    The inputs of a selection are read only for these environments, in small groups, since most
    environments are in the middle of a round.

    Args:
        problem: the problem.
        state: state of many environments.
        trees: [Q, B].
    """
    many, few = len(state.round), at_once(problem, len(state.round))

    def of_few(carry: tuple[Array, dict[str, Array]]) -> tuple[Array, dict[str, Array]]:
        begin, tables = carry
        nth = begin + jnp.arange(few)
        which = jnp.where(nth < number, _nth(state.selecting, nth), many + nth)
        there = jnp.minimum(which, many - 1)
        part = dataclasses.replace(state, **{n: _of(getattr(state, n), there) for n in SEEN})
        begun = apart(nth, functools.partial(_begun, problem), part, _of(trees, there))
        how: Any = {"mode": "drop", "unique_indices": True}
        return begin + few, {
            name: table.at[..., which].set(begun[name], **how) for name, table in tables.items()
        }

    number, begin = state.selecting.sum(), jnp.zeros((), jnp.int32)
    begun = begin, {name: getattr(state, name) for name in OF_ROUND}
    return jax.lax.while_loop(lambda carry: carry[0] < number, of_few, begun)[1]


SEEN = ("stage", "turn", "unsent", "complete", "chosen")
"""The parts of a state that a selection reads."""
OF_ROUND = ("can_send", "used", "chosen", "chosen_before", "count")
"""The tables of a round, which a selection writes."""


def at_once(problem: Problem, many: int) -> int:
    """Number of environments that select together.

    A round has about L/R transfers (L links, routes of R links), and each takes one step, so of the
    environments of a batch, R/L select in a step on average. This is twice that number.
    """
    links, route = problem.capacity.shape[0], problem.hop_links.shape[1]
    return min(many, -(-2 * many * route // links))


def _of(array: Array, which: Array) -> Array:
    """[..., F] entries of some environments."""
    return array.at[..., which].get(mode="promise_in_bounds")


def _nth(can: Array, nth: Array) -> Array:
    """[F] the n-th environments among those that can."""
    words = packed(can)
    # Sums over a triangle, because XLA on CPUs is slow at cumulative sums.
    triangle = jnp.triu(jnp.ones((len(words),) * 2, jnp.uint32))
    upto = (jax.lax.population_count(words)[:, None] * triangle).sum(0)
    word = jnp.minimum((upto[:, None] <= nth).sum(0), len(words) - 1)
    rest = nth.astype(jnp.uint32) - jnp.where(word > 0, upto[word - 1], 0)
    return word * WORD + nth_bit([words[word]], rest)


def is_turn(state: State) -> Bool[Array, ""]:
    """Whether this agent acts next."""
    return state.selecting
