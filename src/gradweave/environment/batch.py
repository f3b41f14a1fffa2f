"""Functions of one episode which, under `vmap`, work on many at once, environments innermost.

A state's tables are short: bits, and small numbers by hop or link. Laid out one environment after
the other they would be read entry by entry; with the environments last, each row of a table is one
for all of them, and each instruction of the processor works on many.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array


def batched(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one environment, from one of many.

    Under `vmap`, of states and not of problems, it is the function of many itself. Where problems
    are batched too, no two environments have a row of a table in common, and each is alone.

    Args:
        function: of a problem, and of trees of arrays whose last axis is the environments'; so is
            that of what it returns.
    """

    def alone(problem: Any, *arrays: Any) -> Any:
        out = function(problem, *jax.tree.map(lambda x: x[..., None], arrays))
        return jax.tree.map(lambda x: x[..., 0], out)

    one = custom_vmap(alone)

    @one.def_vmap
    def _(size: int, batched: list, problem: Any, *arrays: Any) -> tuple[Any, Any]:
        def last(along: bool, x: Array) -> Array:
            x = x if along else jnp.broadcast_to(x, (size, *x.shape))
            return jnp.moveaxis(x, 0, -1)

        if any(jax.tree.leaves(batched[0])):
            axes = jax.tree.map(lambda along: 0 if along else None, tuple(batched))
            out = jax.vmap(alone, axes)(problem, *arrays)
        else:
            out = function(problem, *jax.tree.map(last, batched[1:], list(arrays)))
            out = jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), out)
        return out, jax.tree.map(lambda _: True, out)

    return lambda problem, *arrays: one(*jax.tree.map(jnp.asarray, (problem, *arrays)))


def entry(table: Array, row: Array) -> Array:
    """[..., B] of [X, B], from each environment the entry in a row of its own.

    Args:
        table: [X, B].
        row: [..., B], each one that there is.
    """
    return shared(table.reshape(-1), _flat_index(table, row))


def with_entry(table: Array, row: Array, value: Array) -> Array:
    """The table [X, B] with one entry changed in each environment.

    Args:
        table: [X, B].
        row: [B]; X for none.
        value: [B].
    """
    changed = (
        table.reshape(-1).at[_flat_index(table, row)].set(value, mode="drop", unique_indices=True)
    )
    return changed.reshape(table.shape)


def shared(table: Array, index: Array) -> Array:
    """Rows of a table that all environments look at, or that they share; all exist."""
    return table.at[index].get(mode="promise_in_bounds")


def _flat_index(table: Array, row: Array) -> Array:
    many = table.shape[-1]
    return row.astype(jnp.uint32) * many + jnp.arange(many, dtype=jnp.uint32)


def apart(known: Array, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function says, made before anything that uses it is.

    XLA's compiler for processors would work it out again for every row of a table that it is used
    in, were it not behind a branch; a branch that is always taken, which the compiler cannot know.
    Elsewhere a branch would cost more than it saves.

    Args:
        known: [B] numbers from 0 up, though the compiler does not know that they are.
        function: of arrays.
        arguments: the arrays.
    """
    if jax.default_backend() != "cpu":
        return jax.lax.optimization_barrier(function(*arguments))
    shapes = jax.eval_shape(function, *arguments)

    def nothing(*_: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return jax.lax.cond(known[0] >= 0, function, nothing, *arguments)
