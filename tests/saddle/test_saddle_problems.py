"""Problems whose solution is known: their operators in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradweave import saddle

N, SIZE = 3, 2
Z = np.array([0.5, -1.0, 2.0, 0.25])


def values(problem: saddle.Problem, z: np.ndarray) -> np.ndarray:
    """[N, d] each worker's operator, all with one key."""
    operator = jax.vmap(lambda mine: problem.operator(mine, jnp.asarray(z), jax.random.key(5)))
    return np.asarray(operator(problem.data))


@pytest.mark.parametrize("noise", [0.0, 0.6])
def test_affine_operators_and_their_noise(noise: float):
    rng = np.random.default_rng(0)
    matrices, offsets = rng.standard_normal((N, 4, 4)), rng.standard_normal((N, 4))
    problem = saddle.affine(matrices, offsets, *[noise] * (noise > 0))
    drawn = noise / 2 * jax.random.normal(jax.random.key(5), (4,))  # E‖ξ‖² = σ²
    expected = np.einsum("mij,j->mi", matrices, Z) + offsets + drawn
    np.testing.assert_allclose(values(problem, Z), expected, atol=1e-12)
    where = np.asarray(problem.solution)
    np.testing.assert_allclose(matrices.mean(0) @ where, -offsets.mean(0), atol=1e-12)
    assert float(problem.squared_distance(jnp.asarray(Z))) == pytest.approx(
        ((Z - where) ** 2).sum()
    )


def test_bilinear_problems():
    problem = saddle.bilinear(N, SIZE, 0.4, strength=0.3, distance=5.0, seed=2)
    matrices, offsets = (np.asarray(part) for part in problem.data)
    a, (x, y) = matrices[:, :SIZE, SIZE:], Z.reshape(2, SIZE)
    assert np.ptp(a, axis=0).min() > 0
    np.testing.assert_allclose(a, np.eye(SIZE) + 0.4 * _own(2), atol=1e-12)
    b, c = offsets[:, :SIZE], -offsets[:, SIZE:]
    down = a @ y + b + 0.3 * x
    up = x @ a + c - 0.3 * y
    np.testing.assert_allclose(values(problem, Z), np.concatenate([down, -up], 1), atol=1e-12)
    assert np.linalg.norm(np.asarray(problem.solution)) == pytest.approx(5)
    same = np.asarray(saddle.bilinear(N, SIZE, 0.0).data[1])
    assert (same == same[0]).all() and np.linalg.norm(same[0]) > 0


def _own(seed: int) -> np.ndarray:
    """Each worker's Gaussian matrix, of norm about 2 whatever its size."""
    return np.random.default_rng(seed).standard_normal((N, SIZE, SIZE)) / np.sqrt(SIZE)


@pytest.mark.parametrize(("twist", "noise"), [(0.0, 0.0), (0.7, 0.6)])
def test_problems_of_mintys_kind(twist: float, noise: float):
    options = {"twist": twist, "noise": noise} if twist else {}
    problem = saddle.minty(N, 4, 0.5, **options)
    shifts, twists = (np.asarray(part) for part in problem.data)
    away = Z - np.asarray(problem.solution)
    outward = 0.05 + np.sin(np.linalg.norm(away)) ** 2
    turned = np.array([away[2], away[3], -away[0], -away[1]])
    drawn = noise / 2 * jax.random.normal(jax.random.key(5), (4,))
    expected = outward * away + turned + shifts + twists @ away + drawn
    np.testing.assert_allclose(values(problem, Z), expected, atol=1e-12)
    np.testing.assert_allclose(shifts.sum(0), 0, atol=1e-12)
    np.testing.assert_allclose(twists.sum(0), 0, atol=1e-12)
    assert np.sqrt((shifts**2).sum(1).mean()) == pytest.approx(0.5)
    assert twists.any() == (twist > 0)
    apart = np.asarray(saddle.minty(400, 4, 0.5, twist=0.8).data[1]).std()
    assert apart == pytest.approx(0.8 / 2, rel=0.03)
    assert float(saddle.residual(problem, problem.solution)) < 1e-3 + noise
    mean = np.asarray(problem.mean(jnp.asarray(Z), jax.random.key(1)))
    if not noise:
        assert float(saddle.residual(problem, jnp.asarray(Z))) == pytest.approx((mean**2).sum())
