"""Parameters of all workers in one pytree: a leading axis of length N on each array."""

import jax
import jax.numpy as jnp

from gradweave.execute.jax_mesh.buffers import PyTree


def replicate(params: PyTree, workers: int) -> PyTree:
    """The same parameters for each worker: [...] → [N, ...]."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (workers, *jnp.shape(leaf))), params)


def consensus(params: PyTree) -> PyTree:
    """The mean of all workers' parameters: [N, ...] → [...]."""
    return jax.tree.map(lambda leaf: leaf.mean(0), params)


def disagreement(params: PyTree) -> jax.Array:
    """Root mean square distance from the mean: √(Σ_i ‖x_i − x̄‖² / N), of parameters [N, ...]."""
    squares = [((leaf - leaf.mean(0)) ** 2).sum() / len(leaf) for leaf in jax.tree.leaves(params)]
    return jnp.sqrt(sum(squares, jnp.zeros(())))
