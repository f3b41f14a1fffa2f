"""Problems with known solutions, for comparisons: affine, bilinear, and one of Minty's kind.

In all of them z starts at 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.execute.jax_mesh.buffers import PyTree
from gradweave.saddle.problem import Problem


def affine(
    matrices: NDArray[np.floating],
    offsets: NDArray[np.floating],
    noise: float = 0.0,
    name: str = "affine",
) -> Problem:
    """F_m(z, ξ) = M_m z + q_m + ξ, with E‖ξ‖² = σ².

    Computes in float64 if it is enabled in JAX, as sums to 1e-25 need, otherwise in float32.

    Args:
        matrices: [N, d, d] M.
        offsets: [N, d] q.
        noise: σ.
        name: name for messages.

    Raises:
        OptionError: the mean of the matrices is singular.
    """
    try:
        solution = np.linalg.solve(matrices.mean(0), -offsets.mean(0))
    except np.linalg.LinAlgError:
        raise OptionError(f"{name}: the mean of the matrices is singular") from None
    size = offsets.shape[1]

    def operator(mine: Any, z: jax.Array, key: jax.Array) -> jax.Array:
        matrix, offset = mine
        value = jnp.dot(matrix, z, precision=jax.lax.Precision.HIGHEST) + offset
        if noise:
            value += noise / np.sqrt(size) * jax.random.normal(key, z.shape, z.dtype)
        return value

    data = jnp.asarray(matrices, float), jnp.asarray(offsets, float)
    return Problem(operator, data, jnp.zeros(size), jnp.asarray(solution), name)


def bilinear(
    workers: int,
    size: int,
    heterogeneity: float,
    *,
    strength: float = 0.0,
    distance: float = 1.0,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """Minimum over x, maximum over y of the mean of xᵀA_m y + b_mᵀx + c_mᵀy + μ/2·(‖x‖² − ‖y‖²).

    A_m is the identity plus `heterogeneity` times a Gaussian matrix per worker, of norm about 2.
    b_m and c_m are Gaussian; without heterogeneity they are the same for all workers.

    Args:
        workers: N, the number of workers.
        size: length of x, and of y.
        heterogeneity: 0 if all workers have the same loss.
        strength: μ; above 0 the problem is strongly monotone.
        distance: ‖z*‖, to which b_m and c_m are scaled.
        noise: σ of the operators' values.
        seed: seed of the random matrices and vectors.
    """
    rng = np.random.default_rng(seed)
    own = rng.standard_normal((workers, size, size)) / np.sqrt(size)
    a = np.eye(size) + heterogeneity * own
    b, c = rng.standard_normal((2, workers, size))
    if not heterogeneity:
        b[:], c[:] = b[0], c[0]
    matrices = np.zeros((workers, 2 * size, 2 * size))
    matrices[:, :size, size:] = a
    matrices[:, size:, :size] = -a.swapaxes(1, 2)
    matrices += strength * np.eye(2 * size)
    offsets = np.concatenate([b, -c], 1)
    solution = np.linalg.solve(matrices.mean(0), offsets.mean(0))
    return affine(matrices, offsets * distance / np.linalg.norm(solution), noise, "bilinear")


def minty(
    workers: int,
    size: int,
    heterogeneity: float,
    *,
    twist: float = 0.0,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """Not monotone, with a Minty solution: ⟨F(z), z − z*⟩ ≥ 0 everywhere, for the mean F.

    F_m(z) = (1/20 + sin²‖z − z*‖)·(z − z*) + (J + B_m)(z − z*) + e_m. J rotates by a right angle.
    The B_m and the e_m, of norm about `heterogeneity`, each add up to zero.

    Args:
        workers: N, the number of workers.
        size: length of z, an even number.
        heterogeneity: root mean square of ‖e_m‖.
        twist: standard deviation of an element of B_m, times √size.
        noise: σ of the operators' values.
        seed: seed of the random matrices and vectors.
    """
    rng = np.random.default_rng(seed)
    solution = rng.standard_normal(size) / np.sqrt(size)
    shifts = rng.standard_normal((workers, size))
    shifts -= shifts.mean(0)
    shifts *= heterogeneity / max(np.sqrt((shifts**2).sum(1).mean()), 1e-30)

    twists = rng.standard_normal((workers, size, size))
    twists = (twists - twists.mean(0)) * twist / np.sqrt(size)

    def operator(mine: Any, z: jax.Array, key: jax.Array) -> jax.Array:
        shift, own = mine
        away = z - solution
        outward = 0.05 + jnp.sin(jnp.sqrt((away**2).sum() + 1e-30)) ** 2
        turned = jnp.concatenate([away[size // 2 :], -away[: size // 2]])
        value = outward * away + turned + shift
        if twist:
            value += jnp.dot(own, away, precision=jax.lax.Precision.HIGHEST)
        if noise:
            value += noise / np.sqrt(size) * jax.random.normal(key, z.shape, z.dtype)
        return value

    data = jnp.asarray(shifts, float), jnp.asarray(twists, float)
    return Problem(operator, data, jnp.zeros(size), jnp.asarray(solution), "minty")


def residual(problem: Problem, z: PyTree) -> jax.Array:
    """‖mean_m F_m(z)‖²; for noisy operators, from one sample per worker."""
    leaves = jax.tree.leaves(problem.mean(z))
    return sum(((leaf**2).sum() for leaf in leaves), jnp.zeros(()))
