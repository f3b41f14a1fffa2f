"""Functions of one episode that `vmap` maps over many, with environments as the last array axis.

A state's tables are short: bits, and small numbers per hop or link. If environments were stored one
after the other, the tables would be read entry by entry. With environments as the last axis, a row
of a table has the entries of all environments, and each processor instruction handles many of them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array


def batched(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one environment, made from a function of many.

    Under `vmap` over states, but not over problems, it calls the function of many directly. If
    problems are batched too, environments share no row of a table, and each is processed
    separately.

    Args:
        function: a function of a problem, and of trees of arrays whose last axis is the
            environments'; so is the last axis of its result.
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
    """[..., B] entries of a table [X, B], from a different row in each environment.

    Args:
        table: [X, B].
        row: [..., B], existing rows.
    """
    return shared(table.reshape(-1), _flat_index(table, row))


def with_entry(table: Array, row: Array, value: Array) -> Array:
    """The table [X, B] with one entry changed in each environment.

    Args:
        table: [X, B].
        row: [B]; X for no change.
        value: [B].
    """
    changed = (
        table.reshape(-1).at[_flat_index(table, row)].set(value, mode="drop", unique_indices=True)
    )
    return changed.reshape(table.shape)


def shared(table: Array, index: Array) -> Array:
    """Rows of a table that all environments use; all rows must exist."""
    return table.at[index].get(mode="promise_in_bounds")


def _flat_index(table: Array, row: Array) -> Array:
    many = table.shape[-1]
    return row.astype(jnp.uint32) * many + jnp.arange(many, dtype=jnp.uint32)


def apart(known: Array, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function, computed before anything that uses it.

    XLA's compiler for processors would otherwise recompute it for every row of a table that it is
    used in. A branch prevents this; the branch is always taken, which the compiler cannot know. On
    other devices a branch would cost more than it saves.

    Args:
        known: [B] numbers that are never negative, without the compiler knowing it.
        function: a function of arrays.
        arguments: the arrays.
    """
    if jax.default_backend() != "cpu":
        return jax.lax.optimization_barrier(function(*arguments))
    shapes = jax.eval_shape(function, *arguments)

    def nothing(*_: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    return jax.lax.cond(known[0] >= 0, function, nothing, *arguments)
