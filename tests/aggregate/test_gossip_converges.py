"""Gossip on a quadratic: to the optimum in any type, and with a compressor that fits the method."""

import pytest

pytest.importorskip("optax", reason="the extra train is not installed")

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradweave import aggregate
from gradweave.aggregate.compressors import Exact, MaxNorm, RandomK, RandomKUnscaled

N, SIZE = 8, 64
AIMS = np.random.default_rng(0).standard_normal((N, SIZE)).astype(np.float32)
"""[N, SIZE] Where each worker alone would go; together they go to their mean."""
RING = aggregate.MixingMatrix.ring(N)
SGD = optax.sgd(0.02)
METHODS = {
    "d_psgd": aggregate.d_psgd(SGD, RING, strictness="ignore"),
    "dcd_psgd": aggregate.dcd_psgd(SGD, RING, Exact(), strictness="ignore"),
    "dcd_psgd, 8 bits": aggregate.dcd_psgd(SGD, RING, MaxNorm(8, 32), strictness="ignore"),
    "ecd_psgd": aggregate.ecd_psgd(SGD, RING, Exact(), strictness="ignore"),
    "choco_sgd": aggregate.choco_sgd(SGD, RING, Exact(), strictness="ignore"),
}


def trained(optimizer: optax.GradientTransformation, dtype: str, steps: int = 800):
    """The parameters [N, SIZE] and the state after some steps."""
    aims = jnp.asarray(AIMS, dtype)

    def step(carry, _):
        params, state = carry
        update = jax.vmap(optimizer.update, axis_name="server")
        updates, state = update(params - aims, state, params)
        return (jax.vmap(optax.apply_updates)(params, updates), state), None

    params = jnp.zeros((N, SIZE), dtype)
    state = jax.vmap(optimizer.init)(params)
    (params, state), _ = jax.jit(lambda *x: jax.lax.scan(step, x, length=steps))(params, state)
    return params, state


def from_the_optimum(params: jax.Array) -> float:
    """Root mean square."""
    mean = np.asarray(params, np.float32).mean(0)
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


def test_choco_takes_few_elements_as_they_are():
    """Scaled up, they are more than was meant, again and again."""

    def ended(compressor: aggregate.Compressor) -> float:
        method = aggregate.choco_sgd(SGD, RING, compressor, consensus=0.05, strictness="ignore")
        return from_the_optimum(trained(method, "float32")[0])

    assert ended(RandomKUnscaled(share=0.05)) < 0.01
    assert not ended(RandomK(share=0.05)) < 1e3


def test_the_wrapped_optimizer_is_given_extra_arguments():
    plateau = optax.chain(SGD, optax.contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=0.1))
    optimizer = optax.chain(aggregate.d_psgd(plateau, RING), optax.identity())
    params = jnp.zeros((N, SIZE))
    state = jax.vmap(optimizer.init)(params)
    update = jax.vmap(
        lambda g, s, x, value: optimizer.update(g, s, x, value=value), axis_name="server"
    )
    sizes = []
    for _ in range(5):  # the same loss each time: a plateau
        updates, state = update(jnp.ones((N, SIZE)), state, params, jnp.ones(N))
        sizes.append(float(jnp.abs(updates).max()))
    assert sizes[-1] < sizes[0]
