"""The simulator: `sync` is the plain loop, and the other rules do what they say to parameters."""

import dataclasses

import pytest

pytest.importorskip("optax", reason="the extra learn is not installed")

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradweave.aggregate.asynchronous import (
    Death,
    Stragglers,
    Task,
    simulate_training,
    staleness_bound,
    train_on_ray,
)
from gradweave.errors import OptionError
from tests.aggregate.asynchronous.cases import (
    SIZE,
    broken_at,
    close,
    params,
    plain_loop,
    same,
    task,
)

SLOW = Stragglers(step_s=1.0, slow=((3, 5.0),))


@pytest.mark.parametrize(
    ("servers", "optimizer"),
    [(1, optax.adamw(1e-2)), (2, optax.sgd(0.1, momentum=0.9)), (5, optax.adamw(1e-2))],
)
def test_sync_is_the_plain_loop(servers, optimizer):
    given = task(servers=servers, optimizer=optimizer, stragglers=SLOW)
    run = simulate_training(given)
    expected, losses = plain_loop(given)
    assert close(run.params, expected)
    assert np.allclose(run.history.loss, losses, rtol=1e-5)
    assert run.history.updates == given.steps
    assert run.history.staleness.max() == 0
    assert run.history.worker.tolist() == [0, 1, 2, 3] * given.steps
    assert run.history.seconds[-1] == 5.0 * given.steps


def test_a_gradient_that_is_not_finite_is_left_out():
    given = task(gradient=broken_at(worker=2, steps=3))
    run = simulate_training(given)
    expected, _ = plain_loop(given)
    assert close(run.params, expected)
    left_out = ~run.history.finite
    assert run.history.worker[left_out].tolist() == [2, 2, 2]
    assert run.history.clock[left_out].tolist() == [0, 1, 2]
    alone = task(gradient=broken_at(worker=0, steps=1), workers=1, steps=1)
    assert same(simulate_training(alone).params, alone.params), "nothing is left to apply"


def test_one_worker_alone_is_the_plain_loop_under_every_rule():
    alone = task(workers=1)
    expected, _ = plain_loop(alone)
    for rule in ("sync", "async", "ssp:0"):
        assert close(
            simulate_training(dataclasses.replace(alone, consistency=rule)).params, expected
        )


def test_shards_do_not_matter_and_neither_does_repeating():
    for rule in ("sync", "async"):
        given = task(consistency=rule, stragglers=SLOW, steps=6)
        one = simulate_training(given)
        assert same(one.params, simulate_training(given).params)
        assert close(one.params, simulate_training(dataclasses.replace(given, servers=3)).params)


def counting(**changes) -> Task:
    """Parameters that count: each gradient is 1, and each step takes it off."""

    def gradient(x, draw):
        return x.sum(), jnp.ones_like(x)

    given = {"params": np.zeros(3, np.float32), "workers": 4, "steps": 8}
    return Task(gradient=gradient, optimizer=optax.sgd(1.0), **(given | changes))


def test_an_update_for_each_gradient_and_staleness_by_hand():
    """Steps of 1, 1, 1 and 5 seconds: worker 3 pulls version 0 and is applied after 12 others."""
    run = simulate_training(counting(consistency="async", stragglers=SLOW))
    history = run.history
    assert run.params.tolist() == [-32.0] * 3
    assert history.updates == history.gradients == 32
    assert history.worker[:3].tolist() == [0, 1, 2]
    assert history.staleness[:3].tolist() == [0, 1, 2]
    assert set(history.staleness[3:12].tolist()) == {2}
    slow = np.flatnonzero(history.worker == 3)
    assert slow[0] == 15, "at 5 s, after those of workers 0, 1 and 2"
    assert history.staleness[15] == 15
    # What a gradient was computed from says its version: the loss is −3 times the updates.
    version = history.update - 1 - history.staleness
    assert np.array_equal(-history.loss / 3, version)


def test_a_stale_gradient_moves_the_parameters_less_if_asked_for():
    given = counting(consistency="async", stragglers=SLOW, scale_by_staleness=True)
    run = simulate_training(given)
    expected = (1 / np.maximum(run.history.staleness, 1)).sum()
    assert np.allclose(run.params, -expected, rtol=1e-5)
    together = simulate_training(dataclasses.replace(given, consistency="sync"))
    assert together.params.tolist() == [-8.0] * 3


def test_bounds_on_staleness_are_kept():
    for rule in ("ssp:0", "ssp:2", "ssp:bound=2,catch_up=true"):
        pauses = Stragglers(step_s=1.0, pause_rate=0.3, pause_s=4.5, seed=5)
        given = counting(consistency=rule, stragglers=pauses, steps=40)
        bound = staleness_bound(given.rule, 4)
        assert 3 <= simulate_training(given).history.staleness.max() <= bound


def test_a_death_costs_a_step_and_stops_nobody():
    for rule in ("sync", "async", "ssp:2"):
        given = counting(consistency=rule, stragglers=Stragglers(step_s=1.0))
        run = simulate_training(given, deaths=[Death(1, 2, away_s=20.0)])
        assert run.replaced == 1
        history = run.history
        assert history.gradients == 32
        away = (history.seconds > 2) & (history.seconds <= history.seconds[-1])
        assert set(history.worker[away].tolist()) == {0, 2, 3}
        assert history.seconds[-1] < 20, "the others go on"
    waiting = counting(elastic=False, stragglers=Stragglers(step_s=1.0))
    whole, broken = (
        simulate_training(waiting),
        simulate_training(waiting, deaths=[Death(1, 2, away_s=20.0)]),
    )
    assert same(whole.params, broken.params)
    assert broken.history.seconds[-1] == whole.history.seconds[-1] + 21


def test_a_replaced_worker_goes_on_where_the_slowest_is():
    given = counting(consistency="ssp:1", stragglers=Stragglers(step_s=1.0), steps=30)
    history = simulate_training(given, deaths=[Death(1, 2, away_s=5.5)]).history
    clocks = history.clock[history.worker == 1]
    assert clocks[:2].tolist() == [0, 1]
    assert 7 <= clocks[2] <= 9
    assert np.all(np.diff(clocks[2:]) == 1)


def test_bytes_are_counted():
    run = simulate_training(task(consistency="sync", servers=2))
    lengths = np.array([SIZE - SIZE // 2, SIZE // 2])
    expected = np.tile(12 * 4 * lengths, (4, 1))
    assert np.array_equal(run.traffic.pulled_bytes, expected)
    assert np.array_equal(run.traffic.pushed_bytes, expected)


def test_parameters_are_kept_as_often_as_asked():
    given = counting(consistency="async", stragglers=SLOW)
    run = simulate_training(given, keep_every=10)
    assert [kept.update for kept in run.kept] == [10, 20, 30]
    assert [kept.params[0] for kept in run.kept] == [-10, -20, -30]
    assert all(kept.seconds == run.history.seconds[kept.gradients - 1] for kept in run.kept)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
        optax.lamb(1e-2),
        optax.adafactor(1e-2),
        optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1)),
        optax.chain(optax.add_noise(0.1, 0.5, 0), optax.sgd(0.1)),
    ],
)
def test_what_is_not_elementwise_is_refused(optimizer):
    with pytest.raises(OptionError, match="optimizer: it is not elementwise"):
        task(optimizer=optimizer)


def test_what_needs_the_pytree_is_refused():
    mask = {"inner": {"w": True, "b": False}, "outer": True}
    with pytest.raises(OptionError, match="does not work on a flat range"):
        task(optimizer=optax.adamw(1e-2, mask=mask))


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(0.1),
        optax.sgd(0.1, momentum=0.9, nesterov=True),
        optax.rmsprop(1e-2),
        optax.adamw(1e-2, weight_decay=0.1),
        optax.lion(1e-3),
        optax.chain(optax.clip(0.5), optax.adagrad(0.1)),
        optax.sgd(optax.cosine_decay_schedule(0.1, 100)),
    ],
)
def test_what_is_elementwise_is_taken(optimizer):
    assert task(optimizer=optimizer).servers == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"workers": 0}, "workers: expected at least 1, got 0"),
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"servers": SIZE + 1}, f"servers: expected 1 to {SIZE}, the number of parameters"),
        ({"seed": -1}, "seed: expected 0 to"),
        ({"params": {}}, "params: expected at least one array"),
        ({"params": {"n": np.arange(3)}}, "of one type among float16, float32, got int64"),
        ({"params": {"a": np.zeros(2, "f4"), "b": np.zeros(2, "f2")}}, "got float16, float32"),
        ({"params": np.zeros((0, 3), "f4")}, "expected at least one element"),
        ({"stragglers": Stragglers(1.0, ((4, 2.0),))}, "slow: expected workers 0 to 3, got 4"),
    ],
)
def test_bad_tasks_are_refused(changes, reason):
    with pytest.raises(OptionError, match=reason):
        task(**changes)


def test_bad_arguments_are_refused():
    with pytest.raises(OptionError, match="overhead_s: expected 0 or more"):
        simulate_training(task(), overhead_s=-1.0)
    with pytest.raises(OptionError, match="keep_every: expected 0 or more"):
        simulate_training(task(), keep_every=-1)
    for given, tolerant, reason in ((0, True, "1 to 4, got 0"), (3, False, "4 .not elastic")):
        with pytest.raises(OptionError, match=f"min_workers: expected {reason}"):
            train_on_ray(task(elastic=tolerant), min_workers=given)
    with pytest.raises(OptionError, match="worker_cpus: expected a finite number of at least 0"):
        train_on_ray(task(), worker_cpus=-1)
    with pytest.raises(OptionError, match=r"gradient: expected \(loss, a pytree like params"):
        simulate_training(task(gradient=lambda p, draw: (jnp.zeros(()), p["outer"])))


def test_the_draw_says_worker_and_clock():
    def gradient(x, draw):
        return draw.worker * 100 + draw.clock, jnp.zeros_like(x)

    run = simulate_training(
        Task(np.zeros(3, np.float32), gradient, optax.sgd(1.0), workers=2, steps=3)
    )
    assert run.history.loss.tolist() == [0, 100, 1, 101, 2, 102]
    assert jax.tree.structure(simulate_training(task(steps=1)).params) == jax.tree.structure(
        params()
    )
