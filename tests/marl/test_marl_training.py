"""Whole trainings: resumed bit for bit, kept apart from others, logged once an update."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxtyping")
pytest.importorskip("jaxmarl")
pytest.importorskip("tensorboardX")

import jax
from safetensors import safe_open

from gradweave.errors import FileError, NotFiniteError, OptionError
from gradweave.marl import checkpoint, folder, training
from gradweave.marl.config import PPO, Config
from gradweave.marl.folder import CHECKPOINT, POLICY, updates_done
from gradweave.marl.request import reporting
from gradweave.marl.results import Report
from gradweave.marl.training import train
from gradweave.training.log import LOG, read_log
from tests.marl.doors import doors

SETTINGS = PPO(
    environments=4,
    rollout=6,
    hidden=(4,),
    minibatches=2,
    epochs=1,
    recurrent=True,
    normalise_values=True,
)
CONFIG = Config("doors", "ippo", SETTINGS, steps=24 * 9 - 5, seed=3, seeds=2)


@pytest.fixture(autouse=True)
def small_game(monkeypatch):
    monkeypatch.setattr(training, "make", lambda spec, **options: doors())
    monkeypatch.setattr(training, "Program", once)


@functools.cache
def compiled() -> Any:
    from gradweave.marl.learners import algorithms
    from gradweave.marl.program import Program

    learner = algorithms.build(CONFIG, doors(), alone)
    return Program(learner, jax.devices()[:1], CONFIG.seed, CONFIG.seeds)


def once(learner, devices, seed, seeds, groups):
    """All trainings of these tests are of one program."""
    assert (seed, seeds) == (CONFIG.seed, CONFIG.seeds)
    return compiled()


def alone(optimizer):
    return optimizer


def arrays(path: Path) -> dict[str, np.ndarray]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def same(one: Path, other: Path) -> bool:
    first, second = arrays(one), arrays(other)
    return first.keys() == second.keys() and all(
        first[name].tobytes() == second[name].tobytes() for name in first
    )


@functools.cache
def unbroken() -> Path:
    import atexit
    import tempfile

    place = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    train(CONFIG, place, aggregate=alone)
    return place


def test_killed_and_resumed_is_as_if_nothing_had_been(tmp_path):
    """Stopped, killed between checkpoints, its log cut off in a line, stopped by Ctrl-C."""
    train(CONFIG, tmp_path, aggregate=alone, stop_after=2)
    assert updates_done(CONFIG, tmp_path) == 2
    assert not (tmp_path / POLICY).exists()

    def killed(made: Report) -> None:
        if made.update >= 4:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(CONFIG, tmp_path, aggregate=alone, report=killed)
    assert updates_done(CONFIG, tmp_path) == 2
    with (tmp_path / LOG).open("a") as log:
        log.write('{"update": 9, "steps": 21')

    def interrupted(made: Report) -> None:
        if made.update >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, aggregate=alone, report=interrupted)
    between = updates_done(CONFIG, tmp_path)
    assert 2 < between < CONFIG.updates
    trained = train(CONFIG, tmp_path, aggregate=alone)
    assert trained.resumed_from == between
    for name in (CHECKPOINT, POLICY):
        assert same(tmp_path / name, unbroken() / name)
        assert checkpoint.about(tmp_path / name) == checkpoint.about(unbroken() / name)
    assert read_log(tmp_path) == read_log(unbroken())


def test_a_finished_training_is_left_as_it_is(tmp_path):
    shutil.copytree(unbroken(), tmp_path, dirs_exist_ok=True)
    (tmp_path / POLICY).unlink()
    reports: list[Report] = []
    trained = train(CONFIG, tmp_path, aggregate=alone, report=reports.append)
    assert reports == [] and trained.steps_per_s is None
    assert same(tmp_path / POLICY, unbroken() / POLICY)
    assert read_log(tmp_path) == read_log(unbroken())


def test_the_log_has_every_update_of_every_seed():
    rows = read_log(unbroken())
    assert CONFIG.updates == 9
    assert [row["update"] for row in rows] == list(range(1, 10))
    assert [row["steps"] for row in rows] == [24 * n for n in range(1, 10)]
    for row in rows:
        assert len(row["return"]) == len(row["entropy"]) == len(row["episodes"]) == 2
        for seed in range(2):
            each = [row["returns"][agent][seed] for agent in ("left", "right")]
            if row["episodes"][seed]:
                assert row["return"][seed] == pytest.approx(np.mean(each), abs=1e-5)
                assert 1 <= row["length"][seed] <= 5
    assert any((unbroken() / "tensorboard").iterdir())


def test_a_policy_is_read_as_it_was_written():
    program = compiled()
    got = folder.load_policy(unbroken(), program.learner, CONFIG)
    expected = arrays(unbroken() / POLICY)
    assert {x.tobytes() for x in jax.tree.leaves(got)} == {x.tobytes() for x in expected.values()}
    held = arrays(unbroken() / CHECKPOINT)
    for name, array in expected.items():
        np.testing.assert_array_equal(held[f"parameters.{name}"][0], array)


def test_another_trainings_folder_is_refused_and_what_differs_is_named(tmp_path):
    shutil.copytree(unbroken(), tmp_path, dirs_exist_ok=True)
    changed = dataclasses.replace(CONFIG, seed=4)
    with pytest.raises(OptionError, match="to another training: seed 3 there, 4 here; give an"):
        train(changed, tmp_path, aggregate=alone)
    changed = dataclasses.replace(
        CONFIG, settings=dataclasses.replace(SETTINGS, clip_ratio=0.3), aggregation="ring", steps=7
    )
    with pytest.raises(
        OptionError, match=r"aggregation 'mean' there.*settings.clip_ratio 0.2 there"
    ):
        train(changed, tmp_path, aggregate=alone)
    assert same(tmp_path / CHECKPOINT, unbroken() / CHECKPOINT)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda raw: raw[:-50], "cannot be read as safetensors"),
        (lambda raw: b"", "cannot be read as safetensors"),
        (lambda raw: raw.replace(b"gradweave-marl", b"gradweave-farm"), "expected a gradweave-m"),
        (
            lambda raw: raw.replace(b'"parameters.actor.agent"', b'"parameters.actor.agend"'),
            "is mi",
        ),
        (lambda raw: raw.replace(b'"dtype":"F32"', b'"dtype":"I32"', 1), "expected float32"),
    ],
)
def test_a_checkpoint_that_is_none_is_refused(tmp_path, spoil, reason):
    raw = (unbroken() / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(spoil(raw))
    with pytest.raises(FileError, match=reason) as raised:
        train(CONFIG, tmp_path, aggregate=alone)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_done_is_refused_before_a_folder_is_made(tmp_path):
    place = tmp_path / "made"
    more = len(jax.devices()) + 1
    settings = dataclasses.replace(SETTINGS, environments=2 * more)
    config = dataclasses.replace(CONFIG, devices=more, settings=settings)
    with pytest.raises(OptionError, match=f"devices: expected at most {more - 1}, got {more}"):
        train(config, place, aggregate=alone)
    assert not place.exists()
    place.write_text("taken")
    with pytest.raises(FileError, match="cannot be made a directory: File exists"):
        train(CONFIG, place, aggregate=alone)
    with pytest.raises(OptionError, match="environments: expected a multiple of the 3 devices"):
        dataclasses.replace(CONFIG, devices=3)


def test_a_checkpoint_of_before_a_setting_is_of_the_training_without_it(tmp_path):
    off = dataclasses.replace(
        CONFIG, settings=dataclasses.replace(SETTINGS, normalise_values=False)
    )
    said = off.flat()
    del said["settings.normalise_values"]
    about = {"config": said, "updates": 2}
    checkpoint.save(tmp_path / CHECKPOINT, {"x": np.zeros(1)}, about)
    assert updates_done(off, tmp_path) == 2
    with pytest.raises(OptionError, match=r"normalise_values False there, True here; give"):
        updates_done(CONFIG, tmp_path)


def test_what_agents_sent_last_is_read_by_its_old_name(tmp_path):
    checkpoint.save(tmp_path / CHECKPOINT, {"estimates": {"told": np.ones(2)}}, {})
    read = checkpoint.load(tmp_path / CHECKPOINT, {"estimates": {"last_sent": np.zeros(2)}})
    assert (read["estimates"]["last_sent"] == 1).all()


def test_reports_tell_how_far_it_is(tmp_path):
    reports: list[Report] = []
    train(CONFIG, tmp_path, aggregate=alone, report=reports.append)
    assert reports[-1].update == reports[-1].of == 9 and reports[-1].not_finite == (0,)
    assert reports[-1].seconds_left == 0 and reports[-1].steps == 24 * 9
    assert all(made.steps_per_s > 0 for made in reports)
    assert json.dumps([dataclasses.asdict(made) for made in reports])


SHORTER = dataclasses.replace(CONFIG, steps=24 * 4)


def test_a_training_at_its_end_is_extended(tmp_path):
    """By the compiled program of `CONFIG` throughout: its end is that of the unbroken training."""
    assert train(SHORTER, tmp_path, aggregate=alone).extended == ()
    with pytest.raises(OptionError, match=r"another training: steps 96 there, 211 here, which --s"):
        train(CONFIG, tmp_path, aggregate=alone)
    train(CONFIG, tmp_path, aggregate=alone, extend=True, stop_after=6)
    trained = train(CONFIG, tmp_path, aggregate=alone)  # as any other that was broken off
    assert (trained.resumed_from, trained.extended) == (6, (96,))
    for name in (CHECKPOINT, POLICY):
        assert same(tmp_path / name, unbroken() / name)
        said = checkpoint.about(tmp_path / name)
        assert said.pop("extended") == [96]
        assert said == checkpoint.about(unbroken() / name)
    assert read_log(tmp_path) == read_log(unbroken())
    with pytest.raises(OptionError, match="another training: steps 211 there, 96 here; give"):
        train(SHORTER, tmp_path, aggregate=alone, extend=True)


def test_a_training_that_is_not_at_its_end_is_not_extended(tmp_path):
    train(SHORTER, tmp_path, aggregate=alone, stop_after=2)
    reason = r"96 steps and has not finished \(2 of 4 updates\): finish it with --steps 96, then"
    with pytest.raises(OptionError, match=reason):
        train(CONFIG, tmp_path, aggregate=alone, extend=True)


def test_without_decay_the_number_of_steps_does_not_count():
    """So that an extended training is one that had the larger number from the start."""
    from gradweave.marl.learners import algorithms
    from gradweave.marl.program import Program

    settings = dataclasses.replace(SETTINGS, decay=False, recurrent=False)
    ends = []
    for updates in (2, 9):
        config = dataclasses.replace(CONFIG, steps=24 * updates, settings=settings)
        learner = algorithms.build(config, doors(), alone)
        program = Program(learner, jax.devices()[:1], 3, 1)
        state, _ = program.run(program.start(), 2)
        ends.append([x.tobytes() for x in jax.tree.leaves(program.parameters(state))])
    assert ends[0] == ends[1]


def test_the_schedule_is_kept_beside_the_checkpoint_which_names_it(tmp_path, monkeypatch):
    import gradweave as gw
    from gradweave.marl.folder import SCHEDULE, Combining
    from gradweave.schedules.file import load

    by = Combining(alone, gw.solve(gw.topology.ring(4)).schedule, kept=True)
    monkeypatch.setattr(training, "combining", lambda *_: by)
    trained = train(CONFIG, tmp_path, stop_after=1)
    assert trained.schedule is by.schedule
    assert checkpoint.about(tmp_path / CHECKPOINT)["schedule"] == by.digest
    assert Combining(alone, load(tmp_path / SCHEDULE)).digest == by.digest


def test_a_training_is_loaded_from_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "make", lambda spec, **options: doors())
    loaded = folder.load_trained(unbroken())
    assert (loaded.config, loaded.resumed_from) == (CONFIG, CONFIG.updates)
    held = arrays(unbroken() / POLICY)
    assert {x.tobytes() for x in jax.tree.leaves(loaded.parameters)} == {
        x.tobytes() for x in held.values()
    }
    with pytest.raises(FileError, match=r"there is no policy\.safetensors; give the folder of a t"):
        folder.load_trained(tmp_path)
    shutil.copy(unbroken() / CHECKPOINT, tmp_path)
    with pytest.raises(FileError, match="the training has not finished; train again"):
        folder.load_trained(tmp_path)
    raw = (unbroken() / POLICY).read_bytes()
    (tmp_path / POLICY).write_bytes(raw.replace(b"settings.clip_ratio", b"settings.klip_ratio"))
    with pytest.raises(FileError, match="settings: klip_ratio: unknown; did you mean clip_ratio"):
        folder.load_trained(tmp_path)


class Counting:
    """A program of two devices with the given gradients and parameters."""

    left = (0, 0)
    finite = True

    def left_out(self, _: Any) -> tuple[int, int]:
        return self.left

    def is_finite(self, _: Any) -> bool:
        return self.finite


def test_a_training_ends_that_learns_nothing_for_ten_updates():
    """Each device has four gradients an update: two seeds, an epoch, two minibatches."""
    program: Any = Counting()
    left_out = training.LeftOut.of(CONFIG)
    assert left_out.counted(program, None, 1) == (0, 0)
    for left, updates in (((20, 20), 5), ((36, 35), 4), ((72, 71), 9)):  # one was finite between
        program.left = left
        assert left_out.counted(program, None, updates) == left
    program.left = 76, 75
    with pytest.raises(NotFiniteError, match=r"last 10 updates, .* rewards of doors are finite"):
        left_out.counted(program, None, 1)


def test_a_training_ends_at_once_whose_parameters_are_not_finite():
    program: Any = Counting()
    program.finite = False
    with pytest.raises(NotFiniteError, match="parameters contain a NaN or an infinity"):
        training.LeftOut.of(CONFIG).counted(program, None, 1)


def test_an_algorithm_of_teams_says_once_that_agents_rewards_differ():
    noted: list[str] = []
    for algorithm in ("qmix", "ippo"):
        report = reporting(lambda _: None, noted.append, algorithm)
        for returns in ((), (2.0, 2.0), (0.25, -0.25), (3.0, 1.0)):
            mean = sum(returns) / 2 if returns else None
            report(Report(1, 9, 10, mean, 1.0, 1.0, returns))
    assert noted == [
        "qmix: learns the mean of the agents' rewards, which differ: returns -0.25 to 0.25, "
        "mean 0; if their interests are opposed, use iql or ippo"
    ]


def test_a_device_is_named_once_whose_gradients_are_not_finite():
    shown, noted = [], []
    report = reporting(shown.append, noted.append)
    for update, counts in enumerate([(0, 0, 0), (0, 0, 2), (0, 0, 3), (1, 0, 3)], 1):
        report(Report(update, 9, 10 * update, None, 1.0, 1.0, not_finite=counts))
    assert noted == [
        "device 2: gradients that are not finite, 2 by update 2; they are left out",
        "device 0: gradients that are not finite, 1 by update 4; they are left out",
    ]
    assert shown[0] == "update 1 of 9; 1 steps/s, about 1 s left"
