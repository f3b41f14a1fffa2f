"""Configurations from TOML: unknown fields, and fields by the names that they once had."""

import dataclasses
from typing import Any

import pytest

from gradweave.errors import OptionError
from gradweave.learning.settings import PPO as LearningPPO
from gradweave.marl.config import PPO, Config, current, settings_of
from gradweave.marl.learners.q_settings import QLearning
from gradweave.training.config import (
    MOST_PARTS,
    OLD_NAMES,
    convert,
    first_names,
    new_names,
    parse_toml,
)


def test_every_old_name_is_of_a_field_and_is_itself_no_longer_one():
    fields = {
        field.name for kind in (PPO, QLearning, LearningPPO) for field in dataclasses.fields(kind)
    }
    assert set(OLD_NAMES.values()) <= fields
    assert not set(OLD_NAMES) & fields


def test_settings_are_understood_by_their_old_names():
    old = {"smoothing": 0.9, "clip": 0.3, "value": 0.7, "entropy": 0.02, "gradient_norm": 1.0}
    new: dict[str, Any] = {OLD_NAMES[name]: value for name, value in old.items()}
    assert convert(old, PPO) == PPO(**new)
    assert convert(old, LearningPPO) == LearningPPO(**new)
    old = {"remembered": 400, "batch": 8, "trace": 0.5, "explore": 0.5, "parameters": "team"}
    new: dict[str, Any] = {OLD_NAMES[name]: value for name, value in old.items()}
    assert settings_of(QLearning, {"td_lambda": 0.1, "rollout": 9}, old) == QLearning(
        **new, rollout=9
    )


def test_a_field_by_both_its_names_is_refused():
    with pytest.raises(OptionError, match="clip_ratio: given twice: clip is its old name"):
        convert({"clip_ratio": 0.1, "clip": 0.2}, PPO)


def test_an_unknown_field_is_refused_with_what_is_most_like_it():
    with pytest.raises(OptionError, match=r"at\.clip_ration: unknown; did you mean clip_ratio"):
        new_names({"clip_ration": 1}, ["clip_ratio", "epochs"], "at.")


def test_first_names_are_those_of_the_first_digests():
    assert first_names({"tree": {"gae_lambda": 1, "epochs": 2}, "groups": [{"at_once": 1}]}) == {
        "tree": {"smoothing": 1, "epochs": 2},
        "groups": [{"at_once": 1}],
    }


def test_what_a_checkpoint_said_by_old_names_is_the_same_training():
    config = Config("doors", "ippo", PPO(), steps=10)
    flat = config.flat()
    before = {
        f"settings.{first}": flat[f"settings.{name}"]
        for first, name in OLD_NAMES.items()
        if f"settings.{name}" in flat
    }
    kept = {
        name: value
        for name, value in flat.items()
        if name.removeprefix("settings.") not in OLD_NAMES.values()
    }
    assert len(before) == 9
    assert current(kept | before) == flat


def test_a_key_has_at_most_so_many_parts():
    parts = [b"a"] * MOST_PARTS
    table = parse_toml(b".".join(parts) + b" = 1", "file")
    for _ in parts[1:]:
        table = table["a"]
    assert table == {"a": 1}
    with pytest.raises(OptionError, match="file: line 2: a key of more than 50 parts"):
        parse_toml(b"\n" + b".".join([*parts, b"a"]) + b" = 1", "file")
