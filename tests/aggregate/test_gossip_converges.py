"""Gossip on a quadratic: to the optimum in any type, and with a compressor that fits the method."""

import functools

import pytest

pytest.importorskip("optax", reason="the extra train is not installed")

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradweave import aggregate
from gradweave.aggregate.compressors import MaxNorm, RandomK, RandomKUnscaled, Uncompressed
from gradweave.errors import OptionError

N, SIZE = 8, 64
AIMS = np.random.default_rng(0).standard_normal((N, SIZE)).astype(np.float32)
"""[N, SIZE] Where each worker alone would go; together they go to their mean."""
ZERO = np.zeros(SIZE, np.float32)
RING = aggregate.MixingMatrix.ring(N)
SGD = optax.sgd(0.02)
METHODS = {
    "d_psgd": aggregate.d_psgd(SGD, RING, strictness="ignore"),
    "dcd_psgd": aggregate.dcd_psgd(SGD, RING, Uncompressed(), strictness="ignore"),
    "dcd_psgd, 8 bits": aggregate.dcd_psgd(SGD, RING, MaxNorm(8, 32), strictness="ignore"),
    "ecd_psgd": aggregate.ecd_psgd(SGD, RING, Uncompressed(), strictness="ignore"),
    "choco_sgd": aggregate.choco_sgd(SGD, RING, Uncompressed(), strictness="ignore"),
}


@functools.cache
def training(optimizer: optax.GradientTransformation, dtype: str):
    """(steps, spoilt, gradient) -> the parameters [N, SIZE] and the state, compiled once.

    In as many first steps as are to be spoilt worker 2 has the given gradient [SIZE].
    """
    aims = jnp.asarray(AIMS, dtype)

    def step(number, carry, spoilt, gradient):
        params, state = carry
        gradients = params - aims
        gradients = gradients.at[2].set(jnp.where(number < spoilt, gradient, gradients[2]))
        update = jax.vmap(optimizer.update, axis_name="server")
        updates, state = update(gradients, state, params)
        return jax.vmap(optax.apply_updates)(params, updates), state

    @jax.jit
    def run(steps, spoilt, gradient):
        params = jnp.zeros((N, SIZE), dtype)
        start = params, jax.vmap(optimizer.init)(params)
        return jax.lax.fori_loop(0, steps, lambda *x: step(*x, spoilt, gradient), start)

    return run


def trained(
    optimizer: optax.GradientTransformation, dtype: str, steps: int = 800, spoilt: int = 0, bad=ZERO
):
    """The parameters [N, SIZE] and the state after some steps."""
    return training(optimizer, dtype)(steps, spoilt, jnp.asarray(bad, dtype))


def from_the_optimum(params: jax.Array) -> float:
    """Root mean square."""
    mean = np.asarray(params, np.float64).mean(0)
    return float(np.sqrt(((mean - AIMS.mean(0)) ** 2).mean()))


@pytest.mark.parametrize("method", METHODS)
def test_in_bfloat16_the_mean_is_the_optimum(method):
    params, state = trained(METHODS[method], "bfloat16")
    assert params.dtype == jnp.bfloat16
    error = from_the_optimum(params)
    # Those that remember the parameters in float32 lose nothing to the roundings of single steps.
    assert error < (0.01 if "cd_" in method else 0.06)
    assert all(memory.dtype == jnp.float32 for memory in jax.tree.leaves((state.own, state.mixed)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_sent_is_of_the_parameters_type(dtype):
    _, state = trained(METHODS["dcd_psgd"], dtype, steps=1)
    assert state.sent_bytes.tolist() == [2 * SIZE * jnp.dtype(dtype).itemsize] * N


EXACT = {
    "mean": optax.chain(aggregate.mean(), SGD),
    "ring": optax.chain(aggregate.ring_mean(), SGD),
}


@pytest.mark.parametrize("method", [*METHODS, *EXACT])
def test_what_is_not_finite_is_left_out_and_counted(method):
    optimizer = (METHODS | EXACT)[method]
    for value in (np.nan, np.inf):
        bad = np.where(np.arange(SIZE) == 3, value, 1.0)
        params, state = trained(optimizer, "float32", spoilt=6, bad=bad)
        assert aggregate.not_finite(state).tolist() == [0, 0, 6, 0, 0, 0, 0, 0]
        assert from_the_optimum(params) < 1e-2
        after, _ = trained(optimizer, "float32", steps=3, spoilt=3, bad=bad)
        if method in EXACT:
            mean, rate = np.delete(AIMS, 2, 0).mean(0), 0.02
            expected = np.broadcast_to((1 - (1 - rate) ** 3) * mean, after.shape)
            np.testing.assert_allclose(after, expected, atol=1e-6)
        else:  # the bits of a worker that stood still
            still, _ = trained(optimizer, "float32", steps=3, spoilt=3)
            np.testing.assert_array_equal(after, still)


def test_where_all_gradients_are_nan_so_is_their_mean():
    method = aggregate.ring_mean()
    state = jax.vmap(method.init)(jnp.zeros((N, 3)))
    update = jax.jit(jax.vmap(method.update, axis_name="server"))
    mean, state = update(jnp.full((N, 3), jnp.nan), state)
    assert jnp.isnan(mean).all() and aggregate.not_finite(state).tolist() == [1] * N


@pytest.mark.parametrize("method", ["mean", "ring"])
def test_where_all_gradients_are_nan_an_aggregation_s_optimizer_sits_out(method: str):
    optimizer = aggregate.aggregator(method, N)(optax.adam(0.1))
    state = jax.vmap(optimizer.init)(jnp.zeros((N, 3)))
    update = jax.jit(jax.vmap(optimizer.update, axis_name="server"))
    good = jnp.arange(3.0 * N).reshape(N, 3)
    change, state = update(good, state)
    expected, alone = optax.adam(0.1).update(good.mean(0), optax.adam(0.1).init(jnp.zeros(3)))
    np.testing.assert_allclose(change, jnp.broadcast_to(expected, (N, 3)), rtol=1e-6)
    bad = jnp.full((N, 3), jnp.nan)
    still, after = update(bad, state)
    assert not still.any() and aggregate.not_finite(after).tolist() == [1] * N
    for one, other in zip(jax.tree.leaves(after[1]), jax.tree.leaves(state[1]), strict=True):
        np.testing.assert_array_equal(one, other)
    again, _ = update(good, after)
    expected, _ = optax.adam(0.1).update(good.mean(0), alone)
    np.testing.assert_allclose(again, jnp.broadcast_to(expected, (N, 3)), rtol=1e-5)


def test_nobody_may_skip_the_messages_that_others_wait_for():
    def updated(optimizer: optax.GradientTransformation) -> jax.Array:
        params = jnp.zeros((N, SIZE))
        state = jax.vmap(optimizer.init)(params)
        update = jax.jit(jax.vmap(optimizer.update, axis_name="server"))
        return update(params + 1, state, params)[0]

    for method in (METHODS["d_psgd"], EXACT["mean"]):
        with pytest.raises(OptionError, match="or put it around the inner optimizer"):
            updated(optax.apply_if_finite(method, 3))
    inside = aggregate.d_psgd(optax.apply_if_finite(SGD, 3), RING)
    np.testing.assert_allclose(updated(inside), -0.02, rtol=1e-6)


def test_adam_inside_gossip_ends_elsewhere_and_is_doubted():
    """It makes steps of one size, so that workers pull alike however far they have to go."""

    def ended(optimizer: optax.GradientTransformation) -> float:
        return from_the_optimum(trained(optimizer, "float32", steps=2000)[0])

    method = aggregate.choco_sgd(optax.adam(0.01), RING, Uncompressed(), strictness="ignore")
    assert ended(method) > 0.1
    assert ended(optax.chain(aggregate.mean(), optax.adam(0.01))) < 1e-3
    assert ended(METHODS["choco_sgd"]) < 1e-3
    with pytest.warns(aggregate.ValidityWarning, match="such as Adam. is not linear in the gr"):
        aggregate.choco_sgd(optax.adam(0.01), RING, Uncompressed()).init(jnp.zeros(SIZE))


def test_the_limit_of_consensus_is_where_errors_stop_dying_out():
    """Workers that only mix: below the limit they agree, four times above it they fly apart."""
    compressor = RandomKUnscaled(share=0.1)
    limit = aggregate.check_validity("choco_sgd", RING, compressor, SIZE).consensus_limit

    def apart(consensus: float) -> float:
        method = aggregate.choco_sgd(
            optax.sgd(0.0), RING, compressor, consensus=consensus, strictness="ignore"
        )

        def step(_, carry):
            params, state = carry
            updates, state = jax.vmap(method.update, axis_name="server")(params, state, params)
            return params + updates, state

        @jax.jit
        def run():
            start = jnp.asarray(AIMS), jax.vmap(method.init)(jnp.zeros((N, SIZE)))
            return jax.lax.fori_loop(0, 150, step, start)

        params, _ = run()
        return float(aggregate.disagreement(params) / aggregate.disagreement(AIMS))

    assert apart(limit) < 0.1
    assert not apart(4 * limit) < 2.0


def test_choco_takes_few_elements_as_they_are():
    """Scaled up, they are more than was meant, again and again."""

    def ended(compressor: aggregate.Compressor) -> float:
        method = aggregate.choco_sgd(
            optax.sgd(0.1), RING, compressor, consensus=0.05, strictness="ignore"
        )
        return from_the_optimum(trained(method, "float32", steps=100)[0])

    assert ended(RandomKUnscaled(share=0.05)) < 0.01
    assert not ended(RandomK(share=0.05)) < 1e3


def test_the_wrapped_optimizer_is_given_extra_arguments():
    plateau = optax.chain(SGD, optax.contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=0.1))
    optimizer = optax.chain(aggregate.d_psgd(plateau, RING), optax.identity())
    params = jnp.zeros((N, SIZE))
    state = jax.vmap(optimizer.init)(params)
    update = jax.jit(
        jax.vmap(lambda g, s, x, value: optimizer.update(g, s, x, value=value), axis_name="server")
    )
    sizes = []
    for _ in range(5):  # the same loss each time: a plateau
        updates, state = update(jnp.ones((N, SIZE)), state, params, jnp.ones(N))
        sizes.append(float(jnp.abs(updates).max()))
    assert sizes[-1] < sizes[0]
