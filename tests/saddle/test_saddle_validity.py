"""What is measured and said of a choice before it is run, against values known by hand."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradweave import aggregate, saddle
from gradweave.saddle import validity

N = 4
RING = aggregate.MixingMatrix.ring(N)
TURN = np.array([[0.0, 3.0, 0.0], [-3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
MATRICES = TURN + np.array([1.5, 2.0, 0.5])[:, None] * np.eye(3)
"""‖M‖₂ = √(9 + 4), by the turn's second half; least eigenvalue of the symmetric part 0.5."""
OFFSETS = np.array([[1.0, 0, 0], [-1.0, 0, 0], [0, 2.0, 0], [0, -2.0, 0]])
"""Of four workers: the mean is 0, the root of the mean square √(10/4)."""


def affine(matrices: np.ndarray, offsets: np.ndarray = OFFSETS) -> saddle.Problem:
    return saddle.affine(np.broadcast_to(matrices, (N, 3, 3)), offsets)


def checked(problem: saddle.Problem, **options) -> validity.Validity:
    mixing = aggregate.MixingMatrix.ring(problem.workers)
    return saddle.check_solver(
        saddle.Solver(problem, saddle.ExtraGradient(0.01), mixing), **options
    )


def test_affine_operators():
    scales = np.array([1.0, 0.5, 2.0, 0.5])[:, None, None]
    found = checked(saddle.affine(scales * MATRICES, OFFSETS), points=1)
    largest = np.linalg.norm(2 * MATRICES, 2)
    assert found.lipschitz == pytest.approx(largest, rel=1e-9)
    assert found.rate_limit == pytest.approx(1 / (4 * largest), rel=1e-9)
    assert found.strength == pytest.approx(0.5, rel=1e-6)  # of the mean, whose scale is 1
    assert found.heterogeneity == pytest.approx(math.sqrt(10 / 4), rel=1e-12)
    assert found.noise == 0 and found.rate == 0.01 and found.workers == N
    p = 1 - RING.rho**2
    assert found.iterations == pytest.approx(math.log(1e6) / (0.01 * 0.5) + 1 / p, rel=1e-6)
    assert not found.impossible


def test_points_are_the_start_and_others_at_the_radius():
    """F = z + z³/3: the Jacobian is 1 + z², elementwise, so that L − 1 goes with the square."""
    problem = saddle.Problem(lambda mine, z, key: z + z**3 / 3, jnp.arange(2), jnp.zeros(2))
    near, far = (checked(problem, radius=radius) for radius in (1.0, 2.0))
    assert near.lipschitz > 1.1
    assert near.rate_limit == pytest.approx(1 / (4 * near.lipschitz))
    assert far.lipschitz - 1 == pytest.approx(4 * (near.lipschitz - 1), rel=1e-4)
    assert [each.strength for each in (near, far)] == pytest.approx([1] * 2, rel=1e-6)
    still = saddle.Problem(lambda mine, z, key: 0 * z + 1, jnp.arange(2), jnp.zeros(2))
    found = checked(still, points=1)
    assert (found.lipschitz, found.strength, found.rate_limit) == (0, 0, math.inf)
    falls = saddle.Problem(lambda mine, z, key: -z - z**3 / 3, jnp.arange(2), jnp.zeros(2))
    assert checked(falls).strength == pytest.approx(-near.lipschitz, rel=1e-6)
    assert checked(problem, points=1, radius=2.0).lipschitz == pytest.approx(1)


@pytest.mark.parametrize("own", [True, False])
def test_noise_is_not_taken_for_what_workers_differ_by(own: bool):
    """Each worker's own or common to all, of standard deviation 1 in each of 4 elements."""

    def operator(mine, z, key):
        shift, number = mine
        key = jax.random.fold_in(key, number) if own else key
        return z + shift + jax.random.normal(key, (4,))

    workers = 1024 if own else 2
    shifts = np.tile([1.0, -1.0], workers // 2)[:, None] * np.eye(4)[0]
    problem = saddle.Problem(operator, (shifts, np.arange(workers)), jnp.zeros(4))
    keys = jax.random.split(jax.random.key(0), 1 if own else 64)
    measured = jax.jit(lambda keys: validity._measured(problem, keys, 0.0))(keys)
    _, _, noise, between = (float(each.mean()) for each in measured)
    # The variance is estimated from 7 · 4 independent numbers for each point, and each worker.
    assert noise == pytest.approx(4, rel=0.03 if own else 0.1)
    assert between == pytest.approx(1, rel=0.05 if own else 1e-9)


@pytest.fixture(scope="module")
def sound() -> validity.Validity:
    """L 2, μ 1, D 0: nothing is doubted."""
    found = checked(affine(MATRICES, 0 * OFFSETS), points=1)
    limit = {"lipschitz": 2.0, "rate_limit": 1 / 8, "strength": 1.0}
    return dataclasses.replace(found, **limit)


def doubts(of: validity.Validity, method: saddle.Method) -> list[str]:
    """Of the measured values, with another method and its rate."""
    solver = saddle.Solver(affine(MATRICES, 0 * OFFSETS), method, RING)
    assert not callable(method.rate)
    return list(validity._doubts(dataclasses.replace(of, rate=method.rate), solver))


def test_where_doubts_begin(sound: validity.Validity):
    assert doubts(sound, saddle.ExtraGradient(1.05 / 8)) == []
    (said,) = doubts(sound, saddle.ExtraGradient(1.051 / 8))
    assert "exceeds 1/(4L) = 0.125" in said and "beyond 1/L = 0.5 " in said
    for adaptive in (saddle.ExtraAdam, saddle.TrackedAdam):
        assert doubts(sound, adaptive(10.0)) == []

    weak = dataclasses.replace(sound, strength=0.2)
    assert doubts(weak, saddle.GradientDescentAscent(0.0499)) == []
    (said,) = doubts(weak, saddle.GradientDescentAscent(0.0501))
    assert "below mu/L² = 0.05, got 0.0501" in said
    still = dataclasses.replace(sound, lipschitz=0.0, strength=0.0, rate_limit=math.inf)
    assert doubts(still, saddle.GradientDescentAscent(1e6)) == []
    not_monotone = dataclasses.replace(sound, strength=-1.0)
    (said,) = doubts(not_monotone, saddle.GradientDescentAscent(1e-6))
    assert "mu/L² = 0," in said

    for differ, much in ((1.9e-6, 0), (2.1e-6, 1)):  # a millionth of L
        of = dataclasses.replace(sound, heterogeneity=differ)
        assert len(doubts(of, saddle.ExtraGradient(0.1))) == much
        for corrected in (saddle.Tracked, saddle.TrackedAdam, saddle.ProxSkip):
            assert doubts(of, corrected(0.1)) == []


def test_what_is_promised(sound: validity.Validity):
    def iterations(**fields) -> float:
        return validity._iterations(dataclasses.replace(sound, rate=0.1, **fields))

    two = dataclasses.replace(sound.contraction, window=8, expected=0.25)
    assert iterations(contraction=two) == pytest.approx(math.log(1e6) / 0.1 + 32)
    assert iterations(strength=0.0021) < math.inf == iterations(strength=0.0019)  # 1e-3 of L
    assert iterations(contraction=dataclasses.replace(two, expected=0.0)) == math.inf
    finite = dataclasses.replace(sound, iterations=1234.5)
    assert str(finite).endswith("1,234 iterations to a millionth of the start")
    for strength, said in ((-0.0019, "monotone, not strongly"), (-0.0021, "; not monotone")):
        of = dataclasses.replace(sound, iterations=math.inf, strength=strength)
        assert said in str(of)


def test_what_cannot_work(sound: validity.Validity):
    solver = saddle.Solver(affine(MATRICES), saddle.Tracked(0.1), RING)

    def impossible(**fields) -> str:
        return "; ".join(validity._impossible(dataclasses.replace(sound, **fields), solver))

    apart = dataclasses.replace(sound.contraction, expected=0.0)
    assert impossible() == impossible(contraction=apart, workers=1) == ""
    assert "p is 0" in impossible(contraction=apart)
    assert impossible(lipschitz=math.nan) == impossible(heterogeneity=math.inf)
    assert "not finite" in impossible(lipschitz=math.inf)


def test_the_rate_of_a_schedule_is_that_of_the_first_iteration():
    method = saddle.ExtraGradient(lambda step: 0.2 / (1 + step))
    solver = saddle.Solver(affine(MATRICES), method, RING, local_steps=3)
    found = saddle.check_solver(solver, points=1)
    assert found.rate == pytest.approx(0.2)
    assert found.contraction == aggregate.best_contraction(aggregate.with_local_steps(RING, 3))
    turn = saddle.Solver(affine(TURN + 1e-7 * np.eye(3)), method, RING)
    assert saddle.check_solver(turn, points=1).strength == 0.0  # is not told from it
