"""Sweeps: each combination is the training of its own that it stands for."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("jaxmarl")

import jax

from gradweave.errors import OptionError
from gradweave.marl import Config, load, make, train
from gradweave.marl.learners.algorithms import settings
from gradweave.marl.request import read_sweep
from gradweave.marl.sweep import configs, train_sweep
from gradweave.training.log import read_log

GAME = "tests.marl.own_parts:Corridor:max_steps=4"
SWEEP = {"learning_rate": [1e-3, 1e-2], "discount": [0.5]}


def config(**given: Any) -> Config:
    small = {"environments": 2, "rollout": 4, "batch_size": 2, "epochs": 1, "hidden": [4]}
    return Config(GAME, "iql", settings("iql", "own", small | given), steps=48)


def test_a_combination_is_a_training_of_its_own_and_resumes(tmp_path):
    """One interrupted sweep, and one of its combinations alone."""
    early = train_sweep(config(), SWEEP, tmp_path / "all", stop_after=2)
    assert not (tmp_path / "all" / next(iter(early)) / "policy.safetensors").exists()
    made = train_sweep(config(), SWEEP, tmp_path / "all")
    assert list(made) == ["learning_rate=0.001,discount=0.5", "learning_rate=0.01,discount=0.5"]
    assert made["learning_rate=0.01,discount=0.5"].resumed_from == 2
    alone = train(config(learning_rate=1e-2, discount=0.5), tmp_path / "alone")
    folder = tmp_path / "all" / "learning_rate=0.01,discount=0.5"
    read = load(folder, environment=make(GAME))
    assert read.config == alone.config
    slow = made["learning_rate=0.001,discount=0.5"].parameters
    pairs = zip(*map(jax.tree.leaves, (alone.parameters, read.parameters, slow)), strict=True)
    apart = 0.0
    for expected, found, other in pairs:
        assert np.allclose(expected, found, atol=1e-5)
        apart = max(apart, float(np.abs(expected - other).max()))
    assert apart > 1e-3
    logs = [read_log(place) for place in (tmp_path / "alone", folder)]
    assert [line["return"] for line in logs[0]] == [line["return"] for line in logs[1]]
    for other in ({"learning_rate": [1e-3, 2e-2], "discount": [0.5]}, {"discount": [0.5, 0.6]}):
        with pytest.raises(OptionError, match="is of another training: sweep"):
            train_sweep(config(), other, tmp_path / "all")
    with pytest.raises(OptionError, match="is of another training: sweep"):
        train(config(), tmp_path / "all")


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
