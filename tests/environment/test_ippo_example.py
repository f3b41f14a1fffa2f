"""IPPO for any environment of JaxMARL learns to schedule; the example's own main runs it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("jaxmarl")
pytest.importorskip("optax")

import jax

import gradweave as gw

EXAMPLE = Path(__file__).parents[2] / "examples" / "ippo_on_scheduling.py"
BCUBE = "bcube:n=2,k=1"

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ippo_on_scheduling", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_it_learns_to_take_fewer_rounds(example: ModuleType, capsys: pytest.CaptureFixture):
    config = example.Config(num_envs=16, num_steps=64, updates=40)
    before, after = example.main(f"gradweave/{BCUBE}", config)
    bound = gw.bounds.free_trees(gw.topology.from_spec(BCUBE), "all_gather").rounds
    assert bound <= after["rounds"] < before["rounds"] - 0.2
    assert after["return of an agent"] > before["return of an agent"]
    assert f"rounds {before['rounds']:.3f} before" in capsys.readouterr().out


def test_it_runs_unchanged_on_an_environment_of_jaxmarl(example: ModuleType):
    """One that is continuous in its observations, and has no masks."""
    config = example.Config(num_envs=16, num_steps=64, updates=3)
    learner = example.IPPO(example.make("MPE_simple_spread_v3"), config)
    key = jax.random.key(0)
    train, history = jax.jit(learner.train)(key)
    first = jax.jit(learner.init)(jax.random.split(key, 3)[0]).params
    moved = jax.tree.map(lambda old, new: float(abs(new - old).max()), first, train.params)
    assert all(0 < change < 1 for change in jax.tree.leaves(moved))
    assert train.step == config.updates * config.epochs * config.minibatches
    said = example.summary(history, 3, slice(None))
    assert list(said) == ["return of an agent"]
    assert -100 < said["return of an agent"] < 0
    assert np.isfinite(history[0]).all()
