"""Sweeps: each combination is the training of its own that it stands for."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("jaxmarl")

import jax

from gradweave.errors import OptionError
from gradweave.marl import Config, load_trained, make, train
from gradweave.marl.learners.algorithms import settings
from gradweave.marl.request import read_sweep
from gradweave.marl.sweep import configs, swept_learner
from gradweave.marl.training import train_sweep
from gradweave.training.log import read_log

GAME = "tests.marl.own_parts:Corridor:max_steps=4"
SWEEP = {"learning_rate": [1e-3, 1e-2], "discount": [0.5]}


def config(**given: Any) -> Config:
    small = {"environments": 2, "rollout": 4, "batch_size": 2, "epochs": 1, "hidden": [4]}
    return Config(GAME, "iql", settings("iql", "own", small | given), steps=48, seeds=2)


def test_a_combination_is_a_training_of_its_own_and_resumes(tmp_path):
    """One interrupted sweep, and one of its combinations alone, each of its seeds."""
    early = train_sweep(config(), SWEEP, tmp_path / "all", stop_after=2)
    assert not (tmp_path / "all" / next(iter(early)) / "policy.safetensors").exists()
    made = train_sweep(config(), SWEEP, tmp_path / "all")
    assert list(made) == ["learning_rate=0.001,discount=0.5", "learning_rate=0.01,discount=0.5"]
    assert made["learning_rate=0.01,discount=0.5"].resumed_from == 2
    alone = train(config(learning_rate=1e-2, discount=0.5), tmp_path / "alone")
    folder = tmp_path / "all" / "learning_rate=0.01,discount=0.5"
    read = load_trained(folder, environment=make(GAME))
    assert read.config == alone.config
    slow = made["learning_rate=0.001,discount=0.5"].parameters
    pairs = zip(*map(jax.tree.leaves, (alone.parameters, read.parameters, slow)), strict=True)
    apart = np.zeros(2)
    for expected, found, other in pairs:
        assert np.allclose(expected, found, atol=1e-5)
        far = np.abs(np.asarray(expected) - np.asarray(other)).reshape(2, -1).max(1)
        apart = np.maximum(apart, far)
    assert (apart > 1e-3).all()
    logs = [read_log(place) for place in (tmp_path / "alone", folder)]
    assert [line["return"] for line in logs[0]] == [line["return"] for line in logs[1]]
    for other in ({"learning_rate": [1e-3, 2e-2], "discount": [0.5]}, {"discount": [0.5, 0.6]}):
        with pytest.raises(OptionError, match="belongs to another training: sweep"):
            train_sweep(config(), other, tmp_path / "all")
    with pytest.raises(OptionError, match="belongs to another training: sweep"):
        train(config(), tmp_path / "all")
    longer = dataclasses.replace(config(), steps=96)
    with pytest.raises(OptionError, match="belongs to another training: steps 48 there"):
        train_sweep(longer, SWEEP, tmp_path / "all")
    with pytest.raises(OptionError, match="belongs to another training: sweep"):
        train(longer, tmp_path / "all", extend=True)


def test_all_seeds_of_a_combination_have_its_settings_and_lie_side_by_side():
    asked = config()
    several = configs(asked, SWEEP | {"discount": [0.5, 0.6]})
    learner = swept_learner(asked, several, list(SWEEP), make(GAME), lambda optimizer: optimizer)
    made = np.stack([learner.values[name] for name in SWEEP], 1)
    pairs = itertools.product([1e-3, 1e-2], [0.5, 0.6])
    np.testing.assert_allclose(made, np.repeat(list(pairs), 2, axis=0), rtol=1e-6)
    assert [one.settings.learning_rate for one in several.values()] == [1e-3, 1e-3, 1e-2, 1e-2]


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ({"hidden": [8.0]}, "expected learning_rate|learning_rate"),
        ({"clip_ratio": [0.1]}, "learning_rate"),
        ({"learning_rate": [-1.0]}, "learning_rate: expected a number above 0"),
        ({}, "expected NAME=VALUE,VALUE"),
    ],
)
def test_what_cannot_be_swept_is_refused(sweep, said: str):
    with pytest.raises(OptionError, match=said):
        configs(config(), sweep)


@pytest.mark.parametrize("given", ["learning_rate", "discount=a", "discount=0.9,0.9"])
def test_a_sweep_that_is_written_otherwise_is_refused(given: str):
    with pytest.raises(OptionError, match="--sweep: expected NAME=NUMBER"):
        read_sweep([given])
