"""Local updates by hand, and what becomes of workers that are late."""

import functools

import pytest

pytest.importorskip("optax", reason="the extra train is not installed")

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradweave import aggregate
from gradweave.aggregate.local.updates import counted
from gradweave.errors import OptionError

N, SIZE, RATE = 4, 21, 0.1
AIMS = np.random.default_rng(0).standard_normal((N, SIZE)).astype(np.float32)
"""[N, SIZE] Where each worker alone would go."""


@functools.cache
def _runner(spec: str, steps: int):
    optimizer = aggregate.aggregator(spec, N)(optax.sgd(RATE))

    def run(active):
        def step(carry, active):
            x, state = carry
            update = jax.vmap(
                lambda g, s, p, on: optimizer.update(g, s, p, active=on), axis_name="server"
            )
            updates, state = update(x - AIMS, state, x, active)
            return (x + updates, state), (x + updates, aggregate.sent_bytes(state))

        begin = jnp.zeros((N, SIZE))
        return jax.lax.scan(step, (begin, jax.vmap(optimizer.init)(begin)), active)

    return jax.jit(run)


def trained(spec: str, steps: int, active=None):
    """[steps, N, SIZE] parameters and [steps, N] bytes, step by step, and the last state."""
    active = np.ones((steps, N), bool) if active is None else active
    (_, state), (x, sent) = _runner(spec, steps)(active)
    return np.asarray(x), np.asarray(sent), state


def by_hand(steps, active, local_steps, fragments=1, delay=0, keep=0.0, in_time=0.0, quorum=1):
    """DiLoCo with the default rate and momentum, [steps, N, SIZE]."""
    x, shared = np.zeros((N, SIZE)), np.zeros((N, SIZE))
    momentum, interval = np.zeros(SIZE), local_steps // fragments
    length, taken, history = -(-SIZE // fragments), np.zeros(N), []
    for step in range(1, steps + 1):
        x = x + np.where(active[step - 1][:, None], RATE * (AIMS - x), 0)
        taken += active[step - 1]
        turn = (step // interval - 1) % fragments
        part = slice(turn * length, (turn + 1) * length)
        if step % interval == 0:
            mine = (taken > 0) & (taken >= in_time * interval)
            change = (x - shared)[mine][:, part].mean(0) if mine.any() else 0
            taken[:] = 0
        if step % interval == delay and step >= interval and mine.sum() >= quorum:
            momentum[part] = 0.9 * momentum[part] + change
            shared[:, part] += 0.7 * (change + 0.9 * momentum[part])
            kept = np.where(mine, keep, 0.0)[:, None]
            x[:, part] = kept * x[:, part] + (1 - kept) * shared[:, part]
        history.append(x.copy())
    return np.array(history)


FAULTY = np.ones((24, N), bool)
FAULTY[9:, 1] = False  # lost
FAULTY[:, 2] = np.arange(24) % 3 == 0  # slow


@pytest.mark.parametrize(
    "options",
    [
        {"local_steps": 4},
        {"local_steps": 6, "fragments": 3},
        {"local_steps": 8, "fragments": 2, "delay": 2, "keep": 0.25},
        {"local_steps": 6, "in_time": 1.0},
        {"local_steps": 6, "in_time": 1.0, "quorum": 3},
        {"local_steps": 6, "in_time": 0.3, "quorum": 2},
    ],
)
@pytest.mark.parametrize("active", [np.ones((24, N), bool), FAULTY], ids=["all", "some late"])
def test_diloco_by_hand(options, active):
    words = ",".join(f"{name}={value}" for name, value in options.items())
    x, _, _ = trained(f"diloco:{words}", 24, active)
    np.testing.assert_allclose(x, by_hand(24, active, **options), atol=1e-5)


def test_bytes_of_averages():
    _, sent, _ = trained("diloco:local_steps=4", 24)
    assert sent[3].tolist() == [2 * (N - 1) / N * 4 * SIZE] * N and not sent[:3].any()
    _, streamed, _ = trained("diloco:local_steps=6,fragments=3", 24)
    assert streamed.max() == sent.max() / 3
    _, late, state = trained("diloco:local_steps=6,in_time=1", 24, FAULTY)
    assert not late[:, 2].any() and late[5, 1] and not late[11:, 1].any()
    assert counted(state).tolist() == [2] * N
    _, packed, _ = trained("diloco:local_steps=4,bits=4", 24)
    part = 4 + 4  # six elements of four bits in a word, and their largest
    assert packed[3].tolist() == [2 * (N - 1) * part] * N


@pytest.mark.parametrize(
    "spec",
    ["diloco:local_steps=4,bits=8", "streaming_diloco:local_steps=6,fragments=3,delay=1,bits=8"],
)
def test_compressed_averages_leave_all_workers_with_the_same(spec):
    x, _, state = trained(spec, 240)
    shared = np.asarray(state.shared)
    assert (shared == shared[0]).all()
    np.testing.assert_allclose(x[-1].mean(0), AIMS.mean(0), atol=0.05)


def test_noloco_draws_workers_together():
    x, _, _ = trained("noloco:local_steps=3", 240)
    np.testing.assert_allclose(x[-1].mean(0), AIMS.mean(0), atol=0.1)
    alone = np.abs(AIMS - AIMS.mean(0)).mean()
    assert np.abs(x[-1] - x[-1].mean(0)).mean() < 0.3 * alone


def test_what_is_not_finite_is_left_out():
    optimizer = aggregate.diloco(optax.sgd(RATE), N, local_steps=2)
    params = jnp.zeros((N, SIZE))
    state = jax.vmap(optimizer.init)(params)
    update = jax.vmap(optimizer.update, axis_name="server")
    bad = jnp.asarray(-AIMS).at[1, 3].set(jnp.nan)
    for _ in range(2):
        updates, state = update(bad, state, params)
        params = params + updates
    assert jnp.isfinite(params).all() and aggregate.not_finite(state).tolist() == [0, 2, 0, 0]
    assert counted(state).tolist() == [3] * N


def test_parameters_of_several_types():
    optimizer = aggregate.streaming_diloco(
        optax.sgd(RATE), N, aggregate.MaxNorm(), local_steps=4, fragments=2, delay=1
    )
    params = {"a": jnp.zeros((N, 5, 2)), "b": jnp.zeros((N, 7), jnp.bfloat16)}
    state = jax.vmap(optimizer.init)(params)
    update = jax.jit(jax.vmap(optimizer.update, axis_name="server"))
    for _ in range(6):
        updates, state = update(jax.tree.map(lambda leaf: leaf - 1, params), state, params)
        params = jax.vmap(optax.apply_updates)(params, updates)
    assert params["b"].dtype == jnp.bfloat16 and float(params["a"].mean()) > 0.3


def test_refusals():
    optimizer = aggregate.diloco(optax.sgd(RATE), N)
    with pytest.raises(OptionError, match=r"diloco exchanges parameters: call update\("):
        optimizer.update(jnp.zeros(3), optimizer.init(jnp.zeros(3)))
    with pytest.raises(OptionError, match=r"\['n'\]: expected floating-point"):
        optimizer.init({"n": jnp.zeros(3, jnp.int32)})
    with pytest.raises(OptionError, match="one method of local updates in it, found 0"):
        counted(optax.sgd(1.0).init(jnp.zeros(3)))
    with pytest.raises(OptionError, match="workers: expected at least 1, got 0"):
        aggregate.diloco(optax.sgd(RATE), 0)
