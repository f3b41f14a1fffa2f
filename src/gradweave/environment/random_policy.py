"""A policy that sends workloads at random: cheap to draw from, and one to measure others by."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from gradweave.environment.problem import Problem
from gradweave.environment.state import State


def draw(
    problem: Problem, state: State, bits: UInt32[Array, ""]
) -> tuple[Int[Array, ""], Int[Array, ""], Bool[Array, ""]]:
    """A workload drawn uniformly from the available ones, for `workload_scheduling.send`.

    First a hop that is not blocked, with a chance proportional to its ready workloads, then one of
    these: the mask of all workloads is never computed.

    Args:
        problem: the problem.
        state: at the turn of workload scheduling.
        bits: random.

    Returns:
        Hop, tree, and whether there is one; where not, the first two mean nothing.
    """
    counts = jnp.where(state.blocked, 0, state.count)
    total = counts.sum()
    number = scaled(bits, total.astype(jnp.uint32)).astype(jnp.int32)
    hop, number = _bin(counts, number)
    sender, receiver = problem.sender[hop], problem.receiver[hop]
    pending = jnp.where(problem.by_sender, state.pending[sender], state.pending[receiver])
    ready = problem.allowed[hop] & (state.waiting[sender] == 0) & pending & state.selected
    tree, _ = _bin(ready.astype(jnp.int32), number)
    return hop, tree, total > 0


def _bin(counts: Int[Array, " n"], number: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The bin that a number falls into where things are numbered bin by bin; its place in there.

    Bins are laid out in a square: two short running sums in place of a long one.
    """
    side = math.isqrt(counts.shape[0] - 1) + 1
    square = jnp.pad(counts, (0, side * side - counts.shape[0])).reshape(side, side)
    row, number = _passed(square.sum(1), number)
    column, number = _passed(square[row], number)
    return jnp.minimum(row * side + column, counts.shape[0] - 1), number


def _passed(
    counts: Int[Array, " n"], number: Int[Array, ""]
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """How many of the running sums do not exceed a number; what is left of it."""
    # Sums over a triangle: XLA on CPUs is slow at a running sum as such.
    upto = (counts[:, None] * jnp.triu(jnp.ones((len(counts),) * 2, counts.dtype))).sum(0)
    below = upto <= number
    before = jnp.where(below, upto, 0).max()
    return jnp.minimum(below.sum(dtype=jnp.int32), len(counts) - 1), number - before


def scaled(bits: UInt32[Array, "..."], total: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A number below a total, from random bits: ⌊bits · total / 2³²⌋, for totals up to 2¹⁶.

    >>> import jax.numpy as jnp
    >>> scaled(jnp.uint32([0, 2**31, 2**32 - 1]), jnp.uint32(10)).tolist()
    [0, 5, 9]
    """
    high, low = bits >> 16, bits & jnp.uint32(0xFFFF)
    return (high * total + (low * total >> 16)) >> 16


def hashed(number: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A number whose bits all depend on all bits of the given one: random bits from a counter.

    Source: the mixer lowbias32 of C. Wellons' hash-prospector.

    >>> import jax.numpy as jnp
    >>> int(hashed(jnp.uint32(0))), int(hashed(jnp.uint32(1)))
    (0, 1753845952)
    """
    number = (number ^ (number >> 16)) * jnp.uint32(0x7FEB352D)
    number = (number ^ (number >> 15)) * jnp.uint32(0x846CA68B)
    return number ^ (number >> 16)
