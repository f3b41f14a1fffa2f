"""Methods: where they end, what they send, and each worker's formulas by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gradweave import aggregate, saddle
from gradweave.errors import OptionError

N, SIZE = 8, 3
RING = aggregate.MixingMatrix.ring(N)
RATE = 0.15


def unequal() -> saddle.Problem:
    return saddle.bilinear(N, SIZE, 0.3, strength=0.2)


def ended(solver: saddle.Solver, iterations: int = 1500) -> float:
    """‖z̄ − z*‖²."""
    state = solver.run(solver.init(jax.random.key(0)), iterations)
    return float(solver.problem.squared_distance(aggregate.consensus(state.z)))


@pytest.mark.parametrize(
    ("method", "floor"),
    [
        (saddle.GradientDescentAscent, True),
        (saddle.ExtraGradient, True),
        (saddle.PastGradient, True),
        (saddle.Optimistic, True),
        (saddle.Tracked, False),
        (saddle.ProxSkip, False),
    ],
)
def test_corrected_methods_have_no_floor(method, floor):
    for mixing in (RING, aggregate.changing_clusters(N, 2, steps=20)):
        error = ended(saddle.Solver(unequal(), method(RATE), mixing))
        assert 1e-5 < error < 0.1 if floor else error < 1e-20


def test_equal_workers_come_to_the_solution_and_descent_ascent_flies_away():
    problem = saddle.bilinear(N, SIZE, 0.0)
    assert ended(saddle.Solver(problem, saddle.ExtraGradient(0.3), RING)) < 1e-25
    assert ended(saddle.Solver(problem, saddle.GradientDescentAscent(0.3), RING)) > 1e20


def by_hand(method: str, steps: int, local_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """[N, 2·SIZE] z after some steps, written as the papers have it, and the half points' mean."""
    m, q = (np.asarray(part) for part in unequal().data)
    w, z = RING.weights[0], np.zeros((N, 2 * SIZE))
    y, last, h = np.zeros_like(z), np.zeros_like(z), np.zeros_like(z)
    points = []

    def f(z):
        return np.einsum("mij,mj->mi", m, z) + q

    for step in range(1, steps + 1):
        mix = w if step % local_steps == 0 else np.eye(N)
        if method == "extra_gradient":
            half = z - RATE * f(z)
            z = mix @ (z - RATE * f(half))
        elif method == "tracked":
            y, last = y + f(z) - last, f(z)
            half = z - RATE * y
            z = mix @ (z - RATE * (f(half) + y - f(z)))
            y = mix @ y
        else:
            half = z - RATE * (f(z) - h)
            ahead = z - RATE * (f(half) - h)
            z = (ahead + mix @ ahead) / 2
            h = h + (z - ahead) / (RATE * local_steps)
        points.append(half)
    return z, np.mean(points, 0)


@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("method", [saddle.ExtraGradient, saddle.Tracked, saddle.ProxSkip])
def test_by_hand(method, local_steps):
    solver = saddle.Solver(unequal(), method(RATE), RING, local_steps=local_steps)
    state = solver.run(solver.init(jax.random.key(0)), 7)
    z, average = by_hand(method.name, 7, local_steps)
    np.testing.assert_allclose(state.z, z, rtol=0, atol=1e-13)
    np.testing.assert_allclose(state.average, average, rtol=0, atol=1e-13)
    assert solver.sent_bytes(7).tolist() == [7 // local_steps * 2 * method.vectors * 6 * 8] * N


def test_a_loss_is_the_operator_of_its_parts():
    m, q = unequal().data
    data = {"a": m[:, :SIZE, SIZE:], "b": q[:, :SIZE], "c": q[:, SIZE:]}

    def loss(mine, x, y, key):
        square = 0.1 * ((x**2).sum() - (y["deep"] ** 2).sum())
        return x @ mine["a"] @ y["deep"] + mine["b"] @ x - mine["c"] @ y["deep"] + square

    zero = jnp.zeros(SIZE)
    problem = saddle.Problem.of_loss(loss, data, zero, {"deep": zero})
    solver = saddle.Solver(problem, saddle.ExtraGradient(RATE), RING)
    z = solver.step(solver.init(jax.random.key(0))).z
    found = np.concatenate([z["min"], z["max"]["deep"]], 1)
    np.testing.assert_allclose(found, by_hand("extra_gradient", 1, 1)[0], atol=1e-14)


def test_four_bits_cost_nothing():
    size = 64
    problem = saddle.bilinear(N, size, 0.3, strength=0.2)
    exact = saddle.Solver(problem, saddle.ExtraGradient(RATE), RING)
    few = aggregate.MaxNorm(bits=4, block=None)
    rule = aggregate.ChocoSGD(consensus=0.8)
    lossy = saddle.Solver(problem, saddle.ExtraGradient(RATE), RING, rule, few)
    assert lossy.message_bytes == 2 * size // 2 + 4
    assert ended(lossy, 300) < 2 * ended(exact, 300)
    corrected = saddle.Solver(problem, saddle.ProxSkip(RATE), RING, rule, few)
    assert ended(corrected) < 1e-12


def test_noise_goes_down_with_the_number_of_workers():
    """Each worker has random numbers of its own, and each sample others."""

    def error(workers: int) -> float:
        problem = saddle.bilinear(workers, SIZE, 0.0, strength=0.2, noise=1.0)
        mixing = aggregate.MixingMatrix.complete(workers)
        solver = saddle.Solver(problem, saddle.ExtraGradient(0.05), mixing)
        runs = jax.vmap(lambda key: solver.run(solver.init(key), 300))
        states = runs(jax.random.split(jax.random.key(0), 32))
        distances = jax.vmap(problem.squared_distance)(states.z[:, 0])
        return float(distances.mean())

    assert error(4) / error(32) == pytest.approx(8, rel=0.35)


def test_hundreds_of_workers_are_one_batch():
    problem = saddle.bilinear(256, SIZE, 0.3, strength=0.2)
    mixing = aggregate.MixingMatrix.ring(256)
    solver = saddle.Solver(problem, saddle.Tracked(RATE), mixing)
    program = jax.jit(solver.step)
    state = solver.init(jax.random.key(0))
    for _ in range(3):
        state = program(state)
    assert program._cache_size() == 1  # pyright: ignore
    assert state.z.shape == (256, 2 * SIZE) and jnp.isfinite(state.z).all()


def test_adam_takes_steps_of_the_rate():
    solver = saddle.Solver(unequal(), saddle.ExtraAdam(1e-3), RING)
    z = solver.step(solver.init(jax.random.key(0))).z
    assert 1e-4 < float(jnp.abs(z).max()) < 1.5e-3


def test_adam_of_the_mean_ends_nearer_than_adam_of_a_worker():
    rate = optax.cosine_decay_schedule(3e-2, 1500, 1e-3)
    own, tracked = (
        ended(saddle.Solver(unequal(), method(rate), RING))
        for method in (saddle.ExtraAdam, saddle.TrackedAdam)
    )
    assert tracked < 1e-3 * own


def test_of_minty_kind_workers_differ_and_the_mean_does_not():
    plain, own = (saddle.minty(N, 4, 0.5, twist=twist) for twist in (0.0, 0.4))
    z = own.start + 0.3
    np.testing.assert_allclose(plain.mean(z), own.mean(z), atol=1e-12)
    np.testing.assert_allclose(own.mean(own.solution), 0, atol=1e-12)
    apart = [np.ptp(np.asarray(each.data[1]), axis=0).max() for each in (plain, own)]
    assert apart[0] == 0 < apart[1]
    method = saddle.ExtraGradient(0.05)
    errors = [ended(saddle.Solver(each, method, RING), 3000) for each in (plain, own)]
    assert errors[1] > 1e3 * errors[0], "the floor is where Jacobians differ"


def test_what_does_not_fit_is_refused():
    problem, method = unequal(), saddle.ExtraGradient(RATE)
    few = aggregate.MaxNorm(4)
    with pytest.raises(OptionError, match="has 8 workers, the mixing matrix ring:6 has 6"):
        saddle.Solver(problem, method, aggregate.MixingMatrix.ring(6))
    with pytest.raises(OptionError, match=r"d_psgd sends everything .* use ChocoSGD\(\)"):
        saddle.Solver(problem, method, RING, compressor=few)
    with pytest.raises(OptionError, match="expected a mixing matrix that is the same in all"):
        changing = aggregate.changing_clusters(N, 2, steps=3)
        saddle.Solver(problem, method, changing, aggregate.ChocoSGD(), few)
    with pytest.raises(OptionError, match="rate: expected a number above 0, got -1"):
        saddle.ExtraGradient(-1)
    with pytest.raises(OptionError, match=r"expected float32 or float64, .* got int"):
        saddle.Problem(lambda data, z, key: z, jnp.arange(3), jnp.arange(2))
    with pytest.raises(OptionError, match="one leading axis, of the workers"):
        saddle.Problem(lambda data, z, key: z, [jnp.ones(3), jnp.ones(4)], jnp.ones(2))
