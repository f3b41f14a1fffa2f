"""A policy that sends random workloads: cheap to sample from, and a baseline for others."""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from gradweave.environment.batch import apart, batched, entry, shared
from gradweave.environment.bits import nth_bit, passed
from gradweave.environment.problem import Problem
from gradweave.environment.state import State, in_groups


def draw(
    problem: Problem, state: State, bits: UInt32[Array, ""]
) -> tuple[Int[Array, ""], Int[Array, ""], Bool[Array, ""]]:
    """A workload drawn uniformly from the available workloads, for `workload_scheduling.send`.

    It first draws a hop, with a probability proportional to its available workloads, then one of
    these, so that the mask of all workloads is never computed.

    Args:
        problem: the problem.
        state: the state at the turn of workload scheduling.
        bits: random bits.

    Returns:
        Hop, tree, and whether there is an available workload; if not, the first two are
        meaningless.
    """
    return _draw(problem, state, bits)


@batched
def _draw(problem: Problem, state: State, bits: Array) -> tuple[Array, Array, Array]:
    """`draw` for many environments."""
    known, hops, trees = state.round, *problem.allowed.shape
    wide = jnp.uint16 if hops * trees < 2**16 else jnp.uint32
    sums = apart(known, lambda count: in_groups(count.astype(wide), jnp.add), state.count)
    total = apart(known, lambda sums: functools.reduce(jnp.add, list(sums)), sums)
    number = scaled(bits, total.astype(jnp.uint32)).astype(wide)
    group, number = apart(known, lambda *given: passed(list(given[0]), given[1]), sums, number)
    in_group = functools.partial(_in_group, len(sums))
    hop, number = apart(known, in_group, state.count, group.astype(jnp.int32), number)
    words = apart(known, functools.partial(_on_hop, problem), state, hop)
    tree = apart(known, nth_bit, words, number)
    return hop, jnp.minimum(tree, trees - 1), total > 0


def _in_group(groups: int, count: Array, group: Array, number: Array) -> tuple[Array, Array]:
    """The hop that has the workload of a given number in its group, and its number on that hop."""
    counts, last = [], count.shape[0] - 1
    for hop in (group + first for first in range(0, count.shape[0], groups)):
        there = entry(count, jnp.minimum(hop, last)).astype(number.dtype)
        counts.append(jnp.where(hop > last, jnp.zeros_like(there), there))
    row, number = passed(counts, number)
    return jnp.minimum(row.astype(jnp.int32) * groups + group, last), number


def _on_hop(problem: Problem, state: State, hop: Array) -> list[Array]:
    """[B] words of the trees whose workload can be sent on a hop."""
    tables, many = problem.tables, len(hop)
    number = len(tables.by_sender)
    sender, receiver = (shared(ends, hop) for ends in (problem.sender, problem.receiver))
    can_send, unsent = (x.reshape(-1, many) for x in (state.can_send, state.unsent))
    found = []
    for word in range(number):
        by_sender = tables.by_sender[word]
        left = entry(unsent, sender * number + word) & by_sender
        left |= entry(unsent, receiver * number + word) & ~by_sender
        left &= entry(can_send, sender * number + word) & state.chosen[word]
        found.append(left & shared(tables.allowed[:, word], hop))
    return found


def scaled(bits: UInt32[Array, "..."], total: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A number below a total, from random bits: ⌊bits · total / 2³²⌋, for totals up to 2¹⁶.

    >>> import jax.numpy as jnp
    >>> scaled(jnp.uint32([0, 2**31, 2**32 - 1]), jnp.uint32(10)).tolist()
    [0, 5, 9]
    """
    high, low = bits >> 16, bits & jnp.uint32(0xFFFF)
    return (high * total + (low * total >> 16)) >> 16


def hashed(number: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A number whose bits all depend on all bits of the given number: random bits from a counter.

    Source: the mixer lowbias32 of C. Wellons' hash-prospector.

    >>> import jax.numpy as jnp
    >>> int(hashed(jnp.uint32(0))), int(hashed(jnp.uint32(1)))
    (0, 1753845952)
    """
    number = (number ^ (number >> 16)) * jnp.uint32(0x7FEB352D)
    number = (number ^ (number >> 15)) * jnp.uint32(0x846CA68B)
    return number ^ (number >> 16)
