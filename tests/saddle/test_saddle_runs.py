"""Whole runs: killed and resumed, spoilt by one worker, checked before they begin."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradweave import aggregate, saddle
from gradweave.aggregate import ValidityWarning
from gradweave.errors import FileError, OptionError
from gradweave.training.held import held, lock_of

N = 6
RING = aggregate.MixingMatrix.ring(N)


def noisy() -> saddle.Problem:
    return saddle.bilinear(N, 3, 0.3, strength=0.2, noise=0.1)


def solver(method: saddle.Method) -> saddle.Solver:
    few = aggregate.MaxNorm(bits=4)
    return saddle.Solver(noisy(), method, RING, aggregate.ChocoSGD(0.5), few, local_steps=2)


def test_killed_and_resumed_it_has_the_same_bits(tmp_path):
    parts = solver(saddle.Tracked(0.1))
    options = {"every": 10, "seed": 5, "strictness": "ignore"}
    whole = saddle.find_saddle_point(parts, 60, **options)
    path = tmp_path / "run.safetensors"

    def killed(iterations: int, error: float) -> None:
        if iterations == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        saddle.find_saddle_point(parts, 60, **options, checkpoint=path, report=killed)
    reported = []
    with held(lock_of(path)), pytest.raises(FileError, match="another training writes there"):
        saddle.find_saddle_point(parts, 60, **options, checkpoint=path)
    again = saddle.find_saddle_point(
        parts, 60, **options, checkpoint=path, report=lambda *x: reported.append(x)
    )
    assert [iterations for iterations, _ in reported] == [40, 50, 60]
    for one, other in zip(jax.tree.leaves(whole.state), jax.tree.leaves(again.state), strict=True):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(whole.curve, again.curve)
    assert np.isfinite(whole.curve).all() and whole.curve[-1] < whole.curve[0]
    with pytest.raises(OptionError, match=r"training: method .Tracked\(rate=0.1\). there"):
        saddle.find_saddle_point(solver(saddle.Tracked(0.05)), 60, **options, checkpoint=path)


@pytest.mark.parametrize(
    "method", [saddle.ExtraGradient, saddle.Optimistic, saddle.Tracked, saddle.ProxSkip]
)
def test_what_one_worker_makes_that_is_not_finite_reaches_nobody(method):
    sound = saddle.bilinear(N, 3, 0.0, strength=0.5)

    def operator(mine, z, key):
        spoilt = (mine[2] == 4) & (jax.random.uniform(key) < 0.2)
        return sound.operator(mine[:2], z, key) * jnp.where(spoilt, jnp.nan, 1)

    data = (*sound.data, jnp.arange(N))
    problem = dataclasses.replace(sound, operator=operator, data=data)
    parts = saddle.Solver(problem, method(0.2), RING)
    with pytest.warns(ValidityWarning, match="worker 4: its operator was not finite in .* of 400"):
        found = saddle.find_saddle_point(parts, 400, strictness="ignore")
    assert (found.not_finite > 0).tolist() == [False] * 4 + [True, False]
    assert found.curve[-1] < 1e-20


def test_what_theory_promises_is_kept():
    problem = saddle.bilinear(N, 3, 0.0, strength=0.1)
    parts = saddle.Solver(problem, saddle.ExtraGradient(0.2), RING)
    promised = round(saddle.check_solver(parts).iterations)
    assert saddle.find_saddle_point(parts, promised, every=promised).curve[0] < 1e-6


def test_what_cannot_work_or_is_doubted_is_refused():
    parts = aggregate.MixingMatrix.of(np.kron(np.eye(2), np.full((3, 3), 1 / 3)))
    with pytest.raises(OptionError, match="p is 0: information of some workers never reaches"):
        saddle.find_saddle_point(saddle.Solver(noisy(), saddle.Tracked(0.1), parts), 10)
    with warnings.catch_warnings(), pytest.raises(OptionError, match="exceeds"):
        saddle.find_saddle_point(
            saddle.Solver(noisy(), saddle.Tracked(2.0), RING), 10, strictness="refuse"
        )
    wrong = saddle.Problem(lambda data, z, key: z[:2], jnp.arange(N), jnp.ones(3))
    with pytest.raises(OptionError, match="values of z's shape"):
        saddle.check_solver(saddle.Solver(wrong, saddle.Tracked(0.1), RING))


def test_a_problem_of_mintys_kind_is_not_monotone_and_is_solved():
    problem = saddle.minty(N, 4, 0.5)
    z, key = jnp.asarray(problem.solution), jax.random.key(0)
    points = z + jax.random.normal(key, (200, 4))
    values = jax.vmap(problem.mean)(points)
    assert (((points - z) * values).sum(1) > 0).all()
    parts = saddle.Solver(problem, saddle.Tracked(0.1), RING)
    assert saddle.check_solver(parts).strength < 0
    assert saddle.find_saddle_point(parts, 3000, every=3000, strictness="ignore").curve[0] < 1e-10
