"""Workload scheduling: within a round, sends one workload per step until none is left that fits.

Source: section 4.2 of the paper.
"""

import dataclasses
import functools
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gradweave.environment.batch import apart, batched, entry, shared, with_entry
from gradweave.environment.bits import WORD, unpacked
from gradweave.environment.problem import Problem
from gradweave.environment.state import (
    State,
    any_available,
    available,
    end_round,
    hop_bits,
    room,
)


class WorkloadObservation(eqx.Module):
    """The observation of the agent before it sends. Padding is 0."""

    available: Float[Array, "H Q"]
    """Workloads that can be sent."""
    room: Float[Array, " L"]
    """Share of each link direction's capacity that is free in this round."""
    held: Float[Array, "N Q"]
    """Whether each server is ready to send, tree by tree."""
    pending: Float[Array, "N Q"]
    """Transfers that are not sent yet."""


def observe(problem: Problem, state: State) -> WorkloadObservation:
    """The available workloads, free links, and the trees that each server holds and lacks."""
    links = jnp.arange(problem.capacity.shape[0])
    exists = (problem.capacity > 0) & (links < links.shape[0] - 1)
    held = unpacked(state.holds, problem.root.shape[0])
    held &= problem.pending.any(0) & problem.pending.any(1)[:, None]
    return WorkloadObservation(
        available=available(problem, state).astype(jnp.float32),
        room=jnp.where(exists, room(problem, state) / problem.capacity.clip(1), 0.0),
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
    """Sends one workload, without ending the round.

    Args:
        problem: the problem.
        state: the state at the turn of workload scheduling.
        hop: hop of the workload.
        tree: tree of the workload.
        can: False to leave the state unchanged. An unavailable workload must not be sent with True:
            see `schedule`.
    """
    return _send(problem, state, hop, tree, can)


@batched
def _send(problem: Problem, state: State, hop: Array, tree: Array, can: Array) -> State:
    """`send` for many environments."""
    return sent(problem, state, hop, tree, can)


def schedule(problem: Problem, state: State, workload: Int[Array, ""]) -> State:
    """Sends a workload if it is available, and ends the round if no other is.

    Args:
        problem: the problem.
        state: the state at the turn of workload scheduling.
        workload: number of the workload, ``hop * Q + tree``; an unavailable workload is not sent.
    """
    return _schedule(problem, state, workload)


@batched
def _schedule(problem: Problem, state: State, workload: Array) -> State:
    """`schedule` for many environments."""
    after = sent(problem, state, *asked(problem, state, workload))
    return end_round(after, ~any_available(after))


def is_turn(state: State) -> Bool[Array, ""]:
    """Whether this agent acts next."""
    return ~state.selecting


def asked(problem: Problem, state: State, workload: Array) -> tuple[Array, Array, Array]:
    """[B] hops and trees of workloads given by number, and whether each is available.

    Args:
        problem: the problem.
        state: state of many environments.
        workload: [B].
    """

    def found(state: State, workload: Array) -> tuple[Array, Array, Array]:
        tables, (hops, trees) = problem.tables, problem.allowed.shape
        number = jnp.clip(workload, 0, hops * trees - 1)
        hop, tree = number // trees, number % trees
        words, word = state.chosen.shape[0], tree // WORD
        bits = shared(tables.allowed.reshape(-1), hop * words + word) & entry(state.chosen, word)
        bits &= entry(_flat(state.can_send), shared(problem.sender, hop) * words + word)
        bits &= entry(_flat(state.unsent), _key(problem, hop, tree) * words + word)
        there = bits >> (tree % WORD).astype(jnp.uint32) & 1 == 1
        return hop, tree, there & (entry(state.count, hop) > 0) & (number == workload)

    return apart(state.round, found, state, workload)


def _key(problem: Problem, hop: Array, tree: Array) -> Array:
    """The server that is the row of a transfer."""
    ends = shared(problem.sender, hop), shared(problem.receiver, hop)
    return jnp.where(shared(problem.by_sender, tree), *ends)


class _Change(NamedTuple):
    """A workload's changes, [B] each; rows are out of range where no workload is sent."""

    row: Array
    """Row of `State.received`."""
    number: Array
    """New value of that row."""
    place: Array
    """Row of `State.log`."""
    entry: Array
    """New value of that row."""
    unsent: Array
    """Row of `State.unsent`."""
    complete: Array
    """Row of `State.complete`, if the receiver waits for nothing more."""
    following: Array
    """Row of `State.complete` with the tree that may then follow at the root."""
    bit: Array
    """The tree's bit in the words of these rows."""
    following_bit: Array
    links: Array
    """[R, B] links of the route."""
    alike: Array
    """Number of the hops that can make the same transfer; see `Tables.alike`."""
    first: Array
    """1 if it is in the first stage."""


def _change(problem: Problem, state: State, hop: Array, tree: Array, can: Array) -> _Change:
    tables, (servers, trees) = problem.tables, problem.waiting.shape
    words, none = state.chosen.shape[0], servers * trees
    receiver, key = shared(problem.receiver, hop), _key(problem, hop, tree)
    row = receiver * trees + tree
    number = entry(_flat(state.received), row) + can.astype(state.received.dtype)
    complete = can & (number == shared(problem.waiting.reshape(-1), row))
    following = shared(tables.following.reshape(-1), row)
    links, alike = shared(tables.links, hop).T, shared(tables.alike, hop)
    return _Change(
        row=row,
        number=jnp.where(complete, 0, number),
        place=jnp.where(can, key * trees + tree, none),
        entry=(state.round << hop_bits(problem.sender.shape[0]) | hop).astype(jnp.uint32),
        unsent=jnp.where(can, key * words + tree // WORD, none),
        complete=jnp.where(complete, receiver * words + tree // WORD, none),
        following=jnp.where(
            complete & (following >= 0), receiver * words + following // WORD, none
        ),
        bit=_bit(tree),
        following_bit=_bit(following),
        links=jnp.where(can, links, jnp.iinfo(links.dtype).max),
        alike=jnp.where(can, alike, jnp.iinfo(alike.dtype).max),
        first=(can & (shared(problem.stage, tree) == 0)).astype(jnp.int32),
    )


def _flat(table: Array) -> Array:
    """[X·Y, B] of [X, Y, B]."""
    return table.reshape(-1, table.shape[-1])


def _bit(tree: Array) -> Array:
    return jnp.uint32(1) << (tree % WORD).astype(jnp.uint32)


def sent(problem: Problem, state: State, hop: Array, tree: Array, can: Array) -> State:
    """The state of many environments after those that can send a workload have sent it.

    Args:
        problem: the problem.
        state: state of many environments.
        hop: [B].
        tree: [B].
        can: [B] whether the workload is sent.
    """
    known, one = state.round, can.astype(jnp.int32)
    to = apart(known, functools.partial(_change, problem), state, hop, tree, can)
    used = state.used
    for link in to.links:
        used += _rows(used, link) == link
    full = apart(known, lambda used: used >= problem.tables.capacity[:, None], used)
    holds = apart(known, _holds, state.can_send, tree)
    received = with_entry(_flat(state.received), to.row, to.number)
    log = with_entry(_flat(state.log), to.place, to.entry)
    complete = _bits(state.complete, to.complete, to.bit)
    return dataclasses.replace(
        state,
        sent=state.sent + one,
        left=state.left - one,
        left_first=state.left_first - to.first,
        unsent=state.unsent & ~_bits(state.unsent, to.unsent, to.bit),
        complete=state.complete | complete | _bits(complete, to.following, to.following_bit),
        received=received.reshape(state.received.shape),
        log=log.reshape(state.log.shape),
        used=used,
        count=_fewer(problem, state.count, to.alike, holds, full),
    )


def _rows(table: Array, like: Array) -> Array:
    """[X, 1] the number of each row of a table."""
    return jnp.arange(table.shape[0], dtype=like.dtype)[:, None]


def _bits(like: Array, row: Array, bit: Array) -> Array:
    """[N, W, B] bits, at most one of them set in each environment."""
    flat = _flat(like)
    return jnp.where(_rows(flat, row) == row, bit, jnp.uint32(0)).reshape(like.shape)


def _holds(can_send: Array, tree: Array) -> Array:
    """[N, B] whether each server can send a tree: 1 or 0."""
    words, word = can_send[:, 0], tree // WORD
    for place in range(1, can_send.shape[1]):
        words = jnp.where(word == place, can_send[:, place], words)
    return (words >> (tree % WORD).astype(jnp.uint32) & 1).astype(jnp.uint8)


def _fewer(problem: Problem, count: Array, alike: Array, holds: Array, full: Array) -> Array:
    """[H, B] counts without workloads of the same transfer, or on hops of full links."""
    same = problem.tables.alike[:, None] == alike
    gone = jnp.where(same, shared(holds, problem.sender), 0).astype(count.dtype)
    blocked = functools.reduce(jnp.bitwise_or, [shared(full, link) for link in problem.hop_links.T])
    return jnp.where(blocked, jnp.zeros_like(count), count - gone)
