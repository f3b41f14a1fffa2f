"""Learners as workers of the asynchronous server: on its simulator, and by the command on Ray."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxmarl")

import jax
import numpy as np

from gradweave.aggregate.asynchronous import Stragglers, simulate_training
from gradweave.aggregate.spec import AsynchronousSpec, parse
from gradweave.errors import OptionError
from gradweave.marl.asynchronous.training import server_task
from gradweave.marl.config import Config
from gradweave.marl.games.environments import make
from gradweave.marl.learners import algorithms
from gradweave.marl.program import Program
from gradweave.marl.request import read_request
from gradweave.training.log import read_log
from tests.marl.doors import learner, rollout
from tests.patience import PATIENCE_S


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Compiles quickly, runs slowly."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


SMALL = {"environments": 4, "rollout": 6, "hidden": (8,), "epochs": 2}
ONLY = {
    "ippo": SMALL | {"minibatches": 2},
    "qmix": SMALL | {"batch_size": 4, "replay_size": 72, "mixing_width": 8},
}


def config(algorithm: str, aggregation: str, devices: int, updates: int = 5) -> Config:
    made = algorithms.settings(algorithm, "none", ONLY[algorithm])
    return Config(
        *("switch_riddle", algorithm, made, 24 * updates),
        aggregation=aggregation,
        devices=devices,
        seed=3,
        seeds=2,
    )


def spec(text: str) -> AsynchronousSpec:
    made = parse(text)
    assert isinstance(made, AsynchronousSpec)
    return made


def simulated(of: Config, **changes: Any) -> Any:
    task = server_task(of, spec(of.aggregation))
    return simulate_training(dataclasses.replace(task, **changes))


@pytest.mark.parametrize("algorithm", ONLY)
def test_one_worker_alone_trains_as_without_a_server(algorithm):
    """The same games, keys, minibatches, learning rates and exploration, to rounding."""
    of = config(algorithm, "asynchronous:consistency=sync,correction=false", 1)
    program = Program(
        algorithms.build(of, make(of.env), lambda optimizer: optimizer), jax.devices()[:1], 3, 2
    )
    expected, _ = program.run(program.start(), of.updates)
    run = simulated(of)
    for got, want in zip(
        jax.tree.leaves(run.params), jax.tree.leaves(program.parameters(expected)), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_workers_that_do_not_wait_learn_from_games_of_their_own():
    of = config("qmix", "asynchronous:consistency=async", 2, updates=4)
    slow = Stragglers(step_s=1.0, slow=((1, 4.0),))
    run = simulated(of, stragglers=slow)
    assert run.history.gradients == 8 and run.history.finite.all()
    assert (run.history.worker == 1).sum() < 3, "the slow one"
    assert run.history.staleness.max() > 1
    again = simulated(of, stragglers=slow)
    start = server_task(of, spec(of.aggregation)).params
    for one, other, at_first in zip(
        *map(jax.tree.leaves, (run.params, again.params, start)), strict=True
    ):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)
        assert (np.asarray(one) != at_first).any() or at_first.size <= 8


def test_stale_experience_counts_as_v_trace_has_it():
    """Of the parameters that played nothing changes; of others, actions that they like less do."""
    one: Any = learner(recurrent=False)
    state = jax.jit(one.init)(jax.random.key(3), 0)
    _, fresh, _ = jax.jit(rollout(one))(state)
    played, experience, _ = jax.jit(one.play)(state)
    evaluated = jax.jit(lambda state: one._evaluated(state, experience, stale=True))
    after, samples, figures = evaluated(played)
    assert figures["weight"] == pytest.approx(1.0, abs=1e-5)
    np.testing.assert_allclose(samples.advantage, fresh.advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(samples.target, fresh.target, rtol=1e-4, atol=1e-5)

    others = jax.tree.map(lambda x: 2.0 * x + 0.1, state.parameters)
    _, samples, figures = evaluated(one.with_parameters(played, others))
    assert 0.3 < figures["weight"] < 0.999
    ratio = np.exp(samples.played.log_probability - experience.played.log_probability)
    last = experience.outcome.done[-1]
    value = one.players.value(others, played.memories, played.view)
    after = np.where(last[:, None], 0.0, value)
    error = experience.outcome.reward[-1] + one.settings.discount * after - samples.played.value[-1]
    np.testing.assert_allclose(
        samples.advantage[-1], np.minimum(1.0, ratio[-1]) * error, rtol=1e-4, atol=1e-5
    )


def test_learners_whose_update_is_not_in_two_parts_are_refused():
    pytest.importorskip("ray")
    options = {"env": "job_scheduling", "algorithm": "fen", "aggregation": "asynchronous"}
    with pytest.raises(OptionError, match="asynchronous: algorithm: expected one of ippo, mappo, "):
        read_request(None, options, []).check()


COMMAND = """
import os, signal, sys
from pathlib import Path
from gradweave.marl.asynchronous import training
from tests.marl.test_marl_asynchronous import config

once = {"worker": 3, "server": 6}

def on_update(made):
    for who, at in list(once.items()):
        if made.update == at:
            del once[who]
            os.kill((made.workers if who == "worker" else made.servers)[-1], signal.SIGKILL)

of = config("qmix", "asynchronous:consistency=sync", 2, updates=9)
folder = Path(sys.argv[1])
trained = training.train(of, folder, checkpoint_minutes=1e-6, on_update=on_update)
again = training.train(of, folder)
print(trained.run.replaced, trained.run.recovered, again.resumed_from)
"""


def test_on_ray_a_worker_and_a_server_are_killed_and_the_training_goes_on(tmp_path):
    """The log has each update once; a finished training is read, not repeated."""
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout.split()[-3:]) == (0, ["1", "1", "9"]), done.stderr
    rows = read_log(tmp_path)
    assert [row["update"] for row in rows] == list(range(1, 10))
    assert all(len(row["return"]) == len(row["staleness"]) == 2 for row in rows)
    assert np.all(np.diff([row["seconds"] for row in rows]) > 0)
    assert (tmp_path / "policy.safetensors").exists()
    assert any((tmp_path / "tensorboard").iterdir())
