"""The state of an episode, and the effects of both agents' steps on it.

Sets of trees are bits: see `bits`. Functions that say so accept states of one environment or of
many, with the environments as the last axis of each array: see `batch`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt, UInt32

from gradweave.environment.batch import shared
from gradweave.environment.bits import narrow, unpacked
from gradweave.environment.instance import NEVER
from gradweave.environment.problem import Problem

FLOW_TREE_SELECTION = 0
"""Turn of the agent that selects trees, once per round."""
WORKLOAD_SCHEDULING = 1
"""Turn of the agent that sends workloads, one per step."""
NO_ENTRY = np.uint32(2**32 - 1)
"""Entry of `State.log` for a transfer that was not sent in any episode."""


class State(eqx.Module):
    """The state of an episode.

    A selection starts a round. Until then, the tables that it writes, the *round's tables*, are
    those of the preceding round: see `holds`, `room` and `selected`.
    """

    round: Int[Array, ""]
    stage: Int[Array, ""]
    """The first stage with transfers left; stages behind a barrier are closed."""
    stage_start: Int[Array, ""]
    """Round in which the stage began."""
    turn: Int[Array, ""]
    """The agent that acts: `FLOW_TREE_SELECTION` or `WORKLOAD_SCHEDULING`."""
    sent: Int[Array, ""]
    """Number of transfers in this round so far."""
    left: Int[Array, ""]
    """Number of transfers not sent yet."""
    left_first: Int[Array, ""]
    """Number of transfers of the first stage not sent yet."""
    unsent: UInt32[Array, "N W"]
    """Transfers not sent yet, as bits; a transfer's row is a server: see `Problem.by_sender`."""
    complete: UInt32[Array, "N W"]
    """Trees in which each server will wait for nothing after this round, as bits."""
    received: UInt[Array, "N Q"]
    """Number of transfers into each server so far; reset to 0 when it waits for none: see
    `awaited`."""
    log: UInt32[Array, "N Q"]
    """Round and hop of each transfer as one number; meaningless while the transfer waits."""
    can_send: UInt32[Array, "N W"]
    """One of the round's tables: trees in which each server waits for nothing, as bits."""
    used: UInt[Array, " L"]
    """One of the round's tables: number of transfers on each link direction."""
    chosen: UInt32[Array, " W"]
    """One of the round's tables: the selected trees, as bits."""
    chosen_before: UInt32[Array, " W"]
    """One of the round's tables: the trees selected in the preceding round, as bits."""
    count: UInt[Array, " H"]
    """Number of workloads that can be sent on each hop; 0 if a link of its route is full."""

    @property
    def selecting(self) -> Bool[Array, ""]:
        """Whether it is the turn of flow-tree selection."""
        return self.turn == FLOW_TREE_SELECTION

    @property
    def holds(self) -> UInt32[Array, "N W"]:
        """Trees in which each server waits for nothing now, as bits; one environment or many."""
        return jnp.where(self.selecting, self.complete, self.can_send)

    @property
    def pending(self) -> Bool[Array, "N Q"]:
        """Transfers not sent yet; see `Problem.by_sender`."""
        return unpacked(self.unsent, self.log.shape[-1])

    @property
    def selected(self) -> Bool[Array, " Q"]:
        """Trees selected in this round."""
        return unpacked(self.chosen, self.log.shape[-1]) & ~self.selecting

    @property
    def selected_before(self) -> Bool[Array, " Q"]:
        """Trees selected in the preceding round: the agent's last action."""
        before = jnp.where(self.selecting, self.chosen, self.chosen_before)
        return unpacked(before, self.log.shape[-1])

    @property
    def sent_round(self) -> Int[Array, "N Q"]:
        """Round of each transfer; `NEVER` while it waits."""
        at = (self.log >> hop_bits(self.count.shape[-1])).astype(jnp.int32)
        return jnp.where(self._waits, NEVER, at)

    @property
    def sent_hop(self) -> Int[Array, "N Q"]:
        """Hop of each transfer; `NEVER` while it waits."""
        bits = hop_bits(self.count.shape[-1])
        hop = (self.log & jnp.uint32(2**bits - 1)).astype(jnp.int32)
        return jnp.where(self._waits, NEVER, hop)

    @property
    def _waits(self) -> Bool[Array, "N Q"]:
        return self.pending | (self.log == NO_ENTRY)

    @property
    def done(self) -> Bool[Array, ""]:
        """Whether every transfer is sent, and the round of the last one has ended."""
        return (self.left == 0) & self.selecting


def hop_bits(hops: int) -> int:
    """Number of low bits in `State.log` that encode the hop; the others are the round."""
    return max(hops - 1, 1).bit_length()


def reset(problem: Problem) -> State:
    """The state before the first round, at the turn of flow-tree selection."""
    tables, (servers, trees) = problem.tables, problem.waiting.shape
    zero, none = jnp.zeros((), jnp.int32), jnp.zeros_like(tables.by_sender)
    return State(
        round=zero,
        stage=zero,
        stage_start=zero,
        turn=jnp.full((), FLOW_TREE_SELECTION, jnp.int32),
        sent=zero,
        left=tables.transfers.sum(dtype=jnp.int32),
        left_first=tables.transfers[0],
        unsent=tables.unsent,
        complete=tables.complete,
        received=jnp.zeros((servers, trees), narrow(servers)),
        log=jnp.full((servers, trees), NO_ENTRY, jnp.uint32),
        can_send=tables.complete,
        used=jnp.zeros_like(tables.capacity),
        chosen=none,
        chosen_before=none,
        count=jnp.zeros(problem.sender.shape, narrow(trees)),
    )


def restarted(problem: Problem, state: State, over: Bool[Array, ""]) -> State:
    """Replaces the states of episodes that are over by the first state, for many environments.

    Tables that the first selection writes, and log entries of transfers that wait, are not reset.
    """
    first = reset(problem)
    again = {
        name: jnp.where(over, getattr(first, name)[..., None], getattr(state, name))
        for name in RESTARTED
    }
    # An episode that ended normally leaves only zeros in `received`.
    cut_off = over & (state.left > 0)
    _, received = jax.lax.while_loop(
        lambda carry: carry[0],
        lambda carry: (jnp.array(False), jnp.where(cut_off, 0, carry[1])),
        (cut_off.any(), state.received),
    )
    return dataclasses.replace(state, received=received, **again)


RESTARTED = ("round", "stage", "stage_start", "left", "left_first", "unsent", "complete", "chosen")


def open_trees(problem: Problem, state: State) -> UInt32[Array, " W"]:
    """Trees with transfers left that no barrier blocks, as bits; for one environment or many."""
    first, second = (_along(words, state) for words in problem.tables.reached)
    reached = jnp.where(state.stage == 0, first, second)
    return reached & jnp.bitwise_or.reduce(state.unsent)


def ready(problem: Problem, state: State, trees: UInt32[Array, " W"]) -> UInt32[Array, "H W"]:
    """Workloads of some trees that are not sent and wait for nothing; links may lack room.

    Args:
        problem: the problem.
        state: state of one environment or of many.
        trees: the trees, as bits.
    """
    tables = problem.tables
    by_sender, allowed = (_along(words, state) for words in (tables.by_sender, tables.allowed))
    unsent = shared(state.unsent, problem.sender) & by_sender
    unsent |= shared(state.unsent, problem.receiver) & ~by_sender
    asked = trees & open_trees(problem, state)
    return shared(state.holds, problem.sender) & unsent & allowed & asked


def _along(table: Array, state: State) -> Array:
    """A table that all environments share, broadcast to the state's tables."""
    return table[(...,) + (None,) * state.round.ndim]


def awaited(problem: Problem, state: State) -> Int[Array, "N Q"]:
    """Number of transfers into each server not sent yet; for a root's copies see `waiting`."""
    complete = unpacked(state.complete, problem.root.shape[0])
    return jnp.where(complete, 0, problem.waiting - state.received)


def waiting(problem: Problem, state: State) -> Int[Array, "N Q"]:
    """Number of unsent transfers that each server must receive before it can send, by tree."""
    table, trees = awaited(problem, state), jnp.arange(problem.root.shape[0])
    # A root's copies wait for the reduces into it, which are in the column of another tree.
    then = jnp.where(problem.then >= 0, problem.then, trees.shape[0])
    return table.at[problem.root, then].set(table[problem.root, trees], mode="drop")


def room(problem: Problem, state: State) -> Int[Array, " L"]:
    """Number of transfers that each link direction can still carry in this round."""
    return problem.capacity - jnp.where(state.selecting, 0, state.used)


def available(problem: Problem, state: State) -> Bool[Array, "H Q"]:
    """The workloads that can be sent now: selected, ready, and with room on their links."""
    words = ready(problem, state, state.chosen)
    return unpacked(words, problem.root.shape[0]) & (state.count > 0)[:, None]


def any_available(state: State) -> Bool[Array, ""]:
    """Whether a workload can be sent now, for one environment or many."""
    return functools.reduce(jnp.bitwise_or, list(in_groups(state.count, jnp.bitwise_or))) > 0


def in_groups(count: Array, combine: Callable[[Array, Array], Array]) -> Array:
    """[G, ...] the combination of [H, ...] in each group; a hop is in group ``hop % G``.

    Written out, because XLA on CPUs is slow at reductions.
    """
    hops = count.shape[0]
    groups = groups_of(hops)
    parts = [count[first : first + groups] for first in range(0, hops, groups)]
    spare = [(0, groups - len(parts[-1]))] + [(0, 0)] * (count.ndim - 1)
    return functools.reduce(combine, [*parts[:-1], jnp.pad(parts[-1], spare)])


def groups_of(hops: int) -> int:
    """Number of groups of hops: slightly more than the number of hops in each."""
    return -(-hops // max(1, round(math.sqrt(hops / 3))))


def end_round(state: State, over: Bool[Array, ""] | bool = True) -> State:
    """Completes the transfers in progress and passes the turn to flow-tree selection.

    Args:
        state: state of one environment or of many, in which no workload can be sent.
        over: False to leave the state unchanged.
    """
    following = state.round + 1
    moved = (state.left_first == 0) & (state.left > 0) & (state.stage == 0)
    after = dict(
        round=following,
        stage=jnp.where(moved, 1, state.stage),
        stage_start=jnp.where(moved, following, state.stage_start),
        turn=jnp.full_like(state.turn, FLOW_TREE_SELECTION),
        sent=jnp.zeros_like(state.sent),
    )
    changed = {name: jnp.where(over, new, getattr(state, name)) for name, new in after.items()}
    return dataclasses.replace(state, **changed)


def where(condition: Bool[Array, ""], one: State, other: State) -> State:
    """One of two states."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)
