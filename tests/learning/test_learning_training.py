"""Whole trainings: they learn, resume bit for bit, compile once, and follow Algorithm 1."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("tensorboardX")

import jax

from gradweave.common import pytrees
from gradweave.errors import FileError, OptionError
from gradweave.learning import checkpoint, training
from gradweave.learning.config import Config, Exercise, Group, parse_config
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.training import CHECKPOINT, WEIGHTS, train, updates_done
from gradweave.schedulers import Learned
from tests.conformance.networks import network
from tests.learning.tiny import (
    CONFIG,
    PROGRAMS,
    TEXT,
    about,
    arrays,
    compiled_once,
    rows,
    same,
    trained,
)


def quiet(_: object) -> None:
    pass


@pytest.mark.slow
def test_it_learns_to_take_fewer_rounds():
    log = rows(trained().folder)
    assert [row["update"] for row in log] == list(range(1, CONFIG.updates + 1))
    for exercise in {name for row in log for name in row["problems"]}:
        figures = [row["problems"][exercise] for row in log if exercise in row["problems"]]
        over = [figure["over_bound"] for figure in figures]
        assert len(over) > 15
        assert min(over) >= 0
        assert np.mean(over[-5:]) < 0.4 * np.mean(over[:4])


def test_what_it_learned_makes_better_schedules(tmp_path):
    untrained = tmp_path / "untrained.safetensors"
    checkpoint.save_policy(untrained, HierarchicalPolicy(jax.random.key(0)), {})
    mean = {}
    for weights in (untrained, trained().folder / WEIGHTS):
        drawn = Learned(samples=1, greedy=False, repair=False, weights=str(weights))
        mean[weights.stem] = np.mean(
            [
                drawn.schedule(network("bcube:n=2,k=1"), collective="all_gather", seed=seed).rounds
                for seed in range(20)
            ]
        )
    assert 2 <= mean["weights"] < 0.8 * mean["untrained"]


def test_killed_and_resumed_is_as_if_nothing_had_been(tmp_path):
    """Stopped after an iteration's middle, killed between checkpoints, stopped by Ctrl-C."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(CONFIG, whole, report=quiet, devices=1, stop_after=11)

    train(CONFIG, broken, report=quiet, devices=1, stop_after=4)
    assert updates_done(CONFIG, broken) == 4

    def killed(report: training.Report) -> None:
        if report.update == 6:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(CONFIG, broken, report=killed, devices=1)
    assert updates_done(CONFIG, broken) == 4
    with (broken / "log.jsonl").open("a") as log:
        log.write('{"update": 7, "agent": "wor')  # and in the middle of a line

    def interrupted(report: training.Report) -> None:
        if report.update == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, broken, report=interrupted, devices=1)
    assert updates_done(CONFIG, broken) == 8
    train(CONFIG, broken, report=quiet, devices=1, stop_after=11)

    assert rows(broken) == rows(whole)
    for name in (CHECKPOINT, WEIGHTS):
        assert same(arrays(broken / name), arrays(whole / name))
        assert about(broken / name) == about(whole / name)
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    assert not same(arrays(whole / WEIGHTS), arrays(trained().folder / WEIGHTS))


def test_a_finished_training_is_left_as_it_is(tmp_path):
    first, again, reports = trained().folder, tmp_path / "again", []
    shutil.copytree(first, again)
    (again / WEIGHTS).unlink()
    train(CONFIG, again, report=reports.append, devices=1)
    assert reports == []
    for name in (CHECKPOINT, WEIGHTS):
        assert same(arrays(again / name), arrays(first / name))
        assert about(again / name) == about(first / name)
    assert rows(again) == rows(first)


def test_of_several_learners_the_best_at_the_end_is_kept():
    reports, folder = trained().reports, trained().folder
    over = np.array([report.figures["over_bound"] for report in reports])
    assert over.shape == (CONFIG.updates, 2, 2)  # seeds, problems
    best = int(over[-training.RECENT :].mean((0, 2)).argmin())
    said = json.loads(about(folder / WEIGHTS)["training"])
    assert said == {"config": CONFIG.digest(), "seed": CONFIG.seed, "learner": best}
    learners = arrays(folder / CHECKPOINT)
    kept = arrays(folder / WEIGHTS)
    assert all(np.array_equal(kept[name], learners[f"policy.{name}"][best]) for name in kept)
    assert any(not np.array_equal(*learners[f"policy.{name}"]) for name in kept)


def test_each_agent_is_compiled_once_whatever_is_played():
    reports, log = trained().reports, rows(trained().folder)
    assert len({tuple(row["problems"]) for row in log}) == 3
    assert {report.agent for report in reports} == {"tree", "workload"}
    programs = {key[1]: run for key, run in PROGRAMS.items() if key[0].decay == CONFIG.updates}
    assert programs.keys() == {"tree", "workload"}
    assert all(run.program._cache_size() == 1 for run in programs.values())


def leaves(tree: object) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_one_agent_learns_and_the_other_is_frozen_j_times_then_k_times(tmp_path, monkeypatch):
    """Algorithm 1; optimisers too are untouched, bit for bit, while the other agent learns."""
    order = []

    def watched(trainer, agent, devices):
        run = compiled_once(trainer, agent, devices)

        def once(before, batch, keys):
            after, figures = run(before, batch, keys)
            order.append(agent)
            for name in ("tree", "workload"):
                unchanged = name != agent
                for parts in (
                    (getattr(before.policy, name), getattr(after.policy, name)),
                    (getattr(before, f"{name}_optimizer"), getattr(after, f"{name}_optimizer")),
                ):
                    assert (leaves(parts[0]) == leaves(parts[1])) == unchanged
            return after, figures

        return once

    monkeypatch.setattr(training, "CompiledUpdate", watched)
    train(CONFIG, tmp_path, report=quiet, devices=1, stop_after=8)
    assert order == ["tree"] * 2 + ["workload"] * 3 + ["tree"] * 2 + ["workload"]


def test_the_log_says_what_came_of_each_problem():
    log, folder = rows(trained().folder), trained().folder
    for row, report in zip(log, trained().reports, strict=True):
        assert (row["update"], row["agent"], row["group"]) == (report.update, report.agent, 0)
        assert report.of == CONFIG.updates
        assert row["over_bound"] == pytest.approx(report.over_bound)
        for figure in ("rounds", "at_bound", "selected"):
            said = [problem[figure] for problem in row["problems"].values()]
            assert said == pytest.approx(report.figures[figure].mean(0).tolist(), abs=1e-5)
        if report.figures["finished"].min() == 1:
            transfers = {"bcube:n=2,k=1": 12, "ring:n=5": 20, "star:n=4": 12}
            names = [name.split()[0] for name in row["problems"]]
            assert row["decisions"] == 8 * sum(transfers[name] for name in names)
    assert log[-1]["problems"].keys() < {
        "bcube:n=2,k=1 all_gather grown",
        "ring:n=5 all_gather grown",
        "star:n=4 reduce_scatter fixed",
    }
    assert trained().reports[-1].figures["finished"].min() == 1
    assert trained().reports[-1].seconds_left == 0
    assert any((folder / "tensorboard").iterdir())


def stands_still(trainer, agent, devices):
    """In the place of a compiled update: learners as they were, and made-up figures."""

    def run(learners, batch, keys):
        seeds, problems = keys.shape[1], len(batch.busiest)
        names = ("rounds", "over_bound", "at_bound", "finished", "selected", "decisions")
        figures = {name: np.ones((seeds, problems), np.float32) for name in names}
        return learners, figures | {"moved": np.zeros(seeds, np.float32)}

    return run


def test_groups_have_their_turns_by_their_shares(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CompiledUpdate", stands_still)
    rings = tuple(Exercise(f"ring:n={n}") for n in (3, 4, 5))
    stars = (Exercise("star:n=3"), Exercise("star:n=4"))
    config = Config((Group(rings, 2, 4, 3.0), Group(stars, 1, 4, 1.0)), 100, 1, 3)
    train(config, tmp_path, report=quiet, devices=1)
    log = rows(tmp_path)
    groups = [row["group"] for row in log]
    assert len(groups) == config.updates == 400
    assert 0.7 < np.mean(np.array(groups) == 0) < 0.8
    for group, subsets in ((0, 3), (1, 2)):
        played = [tuple(row["problems"]) for row in log if row["group"] == group]
        assert len(set(played)) == subsets, "each choice of exercises"
    assert [row["agent"] for row in log[:8]] == ["tree", *["workload"] * 3] * 2
    # Neither agent plays one group more than the other's.
    of_tree = [row["group"] for row in log if row["agent"] == "tree"]
    assert 0.6 < np.mean(np.array(of_tree) == 0) < 0.9


def test_checkpoints_are_written_as_often_as_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CompiledUpdate", stands_still)
    found = []
    config = dataclasses.replace(CONFIG, checkpoint_minutes=0.0)

    def look(report: training.Report) -> None:
        found.append(updates_done(config, tmp_path))

    train(config, tmp_path, report=look, devices=1, stop_after=6)
    assert found == [0, 1, 2, 3, 4, 5]
    assert updates_done(config, tmp_path) == 6


def test_another_configs_checkpoint_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CompiledUpdate", stands_still)
    train(CONFIG, tmp_path, report=quiet, devices=1, stop_after=1)
    for changed, named in (
        (dataclasses.replace(CONFIG, seed=4), f"seed {CONFIG.seed} there, 4 here"),
        (dataclasses.replace(CONFIG, seeds=1), "seeds 2 there, 1 here"),  # arrays of other shapes
        (parse_config(TEXT.replace("ring:n=5", "ring:n=4").encode(), "tiny"), "groups "),
    ):
        with pytest.raises(OptionError, match=f"to another training: {named}") as raised:
            train(changed, tmp_path, report=quiet, devices=1)
        assert str(tmp_path / CHECKPOINT) in str(raised.value)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda raw: raw[:-50], "cannot be read as safetensors"),
        (lambda raw: b"", "cannot be read as safetensors"),
        (lambda raw: raw.replace(b"gradweave-training", b"gradweave-baking00"), "expected a grad"),
        (lambda raw: raw.replace(b'"policy.tree.bias"', b'"policy.tree.bios"'), "is missing, or"),
        (lambda raw: raw.replace(b'"dtype":"F32"', b'"dtype":"I32"', 1), "expected float32"),
    ],
)
def test_a_checkpoint_that_is_none_is_refused(tmp_path, monkeypatch, spoil, reason):
    monkeypatch.setattr(training, "CompiledUpdate", stands_still)
    train(CONFIG, tmp_path, report=quiet, devices=1, stop_after=1)
    path = tmp_path / CHECKPOINT
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(FileError, match=reason) as raised:
        train(CONFIG, tmp_path, report=quiet, devices=1)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_played_is_refused_before_a_folder_is_made(tmp_path):
    folder = tmp_path / "training"
    more = len(jax.devices()) + 1
    with pytest.raises(OptionError, match=f"devices: expected at most {more - 1}, got {more}"):
        train(CONFIG, folder, report=quiet, devices=more)
    for given, reason in (("nocube:n=3", "unknown family"), ("nowhere.json", "No such file")):
        config = dataclasses.replace(CONFIG, groups=(Group((Exercise(given),), 1, 4),))
        with pytest.raises(ValueError, match=reason):
            train(config, folder, report=quiet, devices=1)
    with pytest.raises(OptionError, match="episodes: expected a multiple of the 3 devices, got 8"):
        training.Course.of(CONFIG.groups[0], 3)
    assert not folder.exists()
    folder.write_text("taken")
    with pytest.raises(FileError, match="cannot be made a directory: File exists"):
        train(CONFIG, folder, report=quiet, devices=1)


def test_a_checkpoint_of_an_earlier_version_has_a_digest_of_the_config(tmp_path):
    text = {"format": "gradweave-training", "version": "1", "updates": "5", "recent": "[]"}
    pytrees.save(tmp_path / CHECKPOINT, {}, text | {"config": CONFIG.digest()})
    assert updates_done(CONFIG, tmp_path) == 5
    with pytest.raises(OptionError, match="belongs to another training: its config; give"):
        updates_done(dataclasses.replace(CONFIG, seed=4), tmp_path)
