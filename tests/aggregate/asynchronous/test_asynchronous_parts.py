"""Layout and ranges, planned durations, checkpoints."""

import contextlib
import json
import os
import sys

import pytest

pytest.importorskip("optax", reason="the extra learn is not installed")

import jax
import numpy as np
import optax
from hypothesis import given, settings
from hypothesis import strategies as st

from gradweave.aggregate.asynchronous import Stragglers, checkpoint, train_on_ray
from gradweave.aggregate.asynchronous.actor_pool import ServerLost
from gradweave.aggregate.asynchronous.checkpoint import Snapshot
from gradweave.aggregate.asynchronous.clocks import Gradient, Update
from gradweave.aggregate.asynchronous.history import COLUMNS, History, HistoryBuilder
from gradweave.aggregate.asynchronous.layout import layout, ranges, to_host
from gradweave.aggregate.asynchronous.shard import compiled_apply, initial_shard
from gradweave.common import arrays
from gradweave.errors import FileError, OptionError, RunError
from tests.aggregate.asynchronous.cases import SIZE, params, same, task


@given(st.integers(1, 10_000), st.integers(1, 60))
def test_ranges_are_balanced_and_cover_everything(size, servers):
    if servers > size:
        with pytest.raises(OptionError, match=f"servers: expected 1 to {size}"):
            ranges(size, servers)
        return
    found = ranges(size, servers)
    lengths = [end - begin for begin, end in found]
    assert len(found) == servers
    assert [place for begin, end in found for place in range(begin, end)] == list(range(size))
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=5)


@settings(max_examples=25)
@given(SHAPES, st.sampled_from(["f2", "f4"]), st.integers(0, 9))
def test_a_vector_becomes_the_pytree_that_it_came_from(shapes, kind, seed):
    random = np.random.default_rng(seed)
    tree = {
        str(place): [random.standard_normal(shape).astype(kind)]
        for place, shape in enumerate((*shapes, (2,)))
    }
    made = layout(tree)
    vector = to_host(tree, made)
    assert vector.shape == (made.size,)
    assert vector.dtype == made.dtype == np.dtype(kind)
    assert same(made.tree(vector), tree)
    assert jax.tree.structure(made.tree(vector)) == jax.tree.structure(tree)


def test_planned_durations():
    slow = Stragglers(step_s=0.02, slow=((3, 5.0),))
    assert [slow.duration_s(worker, 0, 4, 0.0) for worker in range(4)] == [0.02, 0.02, 0.02, 0.1]
    pauses = Stragglers(step_s=1.0, pause_rate=0.25, pause_s=10.0, seed=1)
    drawn = [
        pauses.duration_s(worker, clock, 4, 0.0) for worker in range(4) for clock in range(500)
    ]
    assert set(drawn) == {1.0, 11.0}
    assert 0.22 < np.mean(np.array(drawn) == 11.0) < 0.28
    again = [
        pauses.duration_s(worker, clock, 4, 9.0) for worker in range(4) for clock in range(500)
    ]
    assert again == drawn, "whenever the step runs"
    other = Stragglers(step_s=1.0, pause_rate=0.25, pause_s=10.0, seed=2)
    assert [other.duration_s(0, c, 4, 0.0) for c in range(500)] != drawn[:500]
    assert Stragglers().duration_s(0, 0, 4, 0.0) == 0.0


def test_slow_spells():
    spells = Stragglers(step_s=1.0, spell_s=4.0, spell_factor=5.0, seed=3)
    mine = [spell for spell in range(400) if spells.slow_in_spell(spell, 4) == 0]
    assert 75 < len(mine) < 125
    alone = next(s for s in mine if s - 1 not in mine and s + 1 not in mine)
    begin = 4.0 * alone
    assert spells.duration_s(1, 0, 4, begin) == 1.0
    # Four of the five seconds are in the spell and do 0.8 of the work.
    assert spells.duration_s(0, 0, 4, begin) == pytest.approx(4.2)
    assert spells.duration_s(0, 0, 4, begin - 0.5) == pytest.approx(0.5 + 2.5)
    assert spells.duration_s(0, 0, 4, begin + 3.0) == pytest.approx(1.0 + 0.8)
    assert Stragglers(step_s=0.1, spell_s=4.0).duration_s(0, 0, 4, 0.3) == 0.1, "not rounded"


def test_gradients_a_second_are_those_after_the_beginning_and_until_the_end():
    columns = {name: np.zeros(5, kind) for name, kind in COLUMNS.items()}
    history = History(**columns | {"seconds": np.array([1.0, 2.0, 2.5, 4.0, 4.5])})
    assert history.gradients_per_s(1.0, 4.0) == 1.0
    assert history.gradients_per_s(0.0, 1.0) + history.gradients_per_s(1.0, 2.0) == 2.0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"step_s": -1.0}, "step_s: expected 0 or more seconds"),
        ({"pause_rate": 1.5}, "pause_rate: expected 0 to 1, got 1.5"),
        ({"step_s": 1.0, "slow": ((0, 0.5),)}, "slow: worker 0: expected a factor of 1 or more"),
        ({"slow": ((0, 5.0),)}, "step_s: expected more than 0 seconds"),
        ({"step_s": 1.0, "slow": ((0, 5.0), (0, 2.0))}, "slow: expected each worker once"),
        ({"step_s": 1.0, "spell_s": 1.0, "spell_factor": 0.0}, "spell_factor: expected a factor"),
    ],
)
def test_bad_durations_are_refused(given, reason):
    with pytest.raises(OptionError, match=reason):
        Stragglers(**given)


def shard(seed=0):
    optimizer = optax.adam(1e-2)
    draws = np.random.default_rng(seed).standard_normal((3, 10)).astype(np.float32)
    apply, made = compiled_apply(optimizer), initial_shard(optimizer, draws[0])
    return optimizer, apply(made, list(draws[1:]), 1.0)


def test_a_shard_comes_back_bit_for_bit(tmp_path):
    optimizer, made = shard()
    path = checkpoint.shard_path(tmp_path, 0, 1)
    checkpoint.save_shard(path, made)
    like = initial_shard(optimizer, np.zeros(10, np.float32))
    assert same(checkpoint.load_shard(path, like), made)
    with pytest.raises(FileError, match="was it written with another optimizer"):
        checkpoint.load_shard(path, initial_shard(optax.sgd(0.1), np.zeros(10, np.float32)))
    with pytest.raises(FileError, match=r"expected float32 \(9,\), got float32 \(10,\)"):
        checkpoint.load_shard(path, initial_shard(optimizer, np.zeros(9, np.float32)))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(FileError, match="cannot be read as safetensors"):
        checkpoint.load_shard(path, like)


def cut_of(updates):
    """A cut that says so many updates; its history has six."""
    log = HistoryBuilder()
    for number in range(1, 7):
        gradients = tuple(Gradient(worker, number - 1, number - 1) for worker in range(4))
        log.add(Update(number, gradients), [0.5, 0.25, 0.125, number], [True] * 4, 0.1 * number)
    return Snapshot(updates, (updates,) * 4, log.build(), 1.5)


def test_a_cut_comes_back_and_older_shards_go(tmp_path):
    given = task(steps=6)
    (_, made), cut = shard(), cut_of(6)
    for updates in (3, 6):
        for server in range(2):
            checkpoint.save_shard(checkpoint.shard_path(tmp_path, server, updates), made)
    checkpoint.save_snapshot(tmp_path, cut, given.digest())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.safetensors",
        "server-0-update-6.safetensors",
        "server-1-update-6.safetensors",
    ]
    found = checkpoint.load_snapshot(tmp_path, given.digest(), 4)
    assert found is not None
    assert (found.updates, found.clock, found.seconds) == (6, (6,) * 4, 1.5)
    for name in checkpoint.COLUMNS:
        assert np.array_equal(getattr(found.history, name), getattr(cut.history, name))


SERVERS = 2


def cuts_saved_as_they_overlap(folder, made):
    """Three cuts on two servers; the second server is always ahead, the first always late."""
    given = task(steps=6)
    for updates in (2, 4, 6, 8):
        if updates < 8:
            checkpoint.save_shard(checkpoint.shard_path(folder, 1, updates), made)
        if updates > 2:
            checkpoint.save_shard(checkpoint.shard_path(folder, 0, updates - 2), made)
            checkpoint.save_snapshot(folder, cut_of(updates - 2), given.digest())


def named_shards(folder):
    """Those of the cut that the file of the run names."""
    run = json.loads(arrays.metadata(folder / checkpoint.FILE)["run"])
    paths = [checkpoint.shard_path(folder, server, run["updates"]) for server in range(SERVERS)]
    return run["updates"], paths


def test_a_cut_keeps_the_shards_of_the_next(tmp_path):
    _, made = shard()
    cuts_saved_as_they_overlap(tmp_path, made)
    updates, paths = named_shards(tmp_path)
    assert updates == 6
    assert sorted(tmp_path.glob("server-*")) == paths


def test_a_worker_that_is_away_has_its_state_of_the_checkpoint(tmp_path):
    """A killed process may have written another state for a later checkpoint."""

    def save(worker, updates, steps):
        checkpoint.save_state(
            checkpoint.state_path(tmp_path, worker, updates), {"steps": np.full(1, steps)}
        )

    def steps(worker):
        path = checkpoint.state_there(tmp_path, worker, 2)
        return path and checkpoint.load_state(path, {"steps": np.zeros(1, int)})["steps"].item()

    save(0, 2, 6)
    for worker in (0, 1):  # worker 1 has had no state yet
        save(worker, 4, 7)
        save(worker, 6, 8)
    assert steps(0) == 6
    for before, updates in ((2, 4), (4, 6)):
        checkpoint.keep_states(tmp_path, (0, 1), before, updates)
        checkpoint.save_snapshot(tmp_path, cut_of(updates), task(steps=6).digest())
        assert steps(0) == 6
    assert steps(1) is None


class KilledError(Exception):
    """In place of SIGKILL."""


def test_killed_at_every_step_a_cut_has_its_shards(tmp_path, monkeypatch):
    """Before and after each renaming and each removal, the run's file names shards that are there.

    Whatever else was left, the next run removes.
    """
    optimizer, made = shard()
    like = initial_shard(optimizer, np.zeros(10, np.float32))
    left = 0

    def counted(do):
        def step(*given, **options):
            nonlocal left
            left -= 1
            if left == 0:
                raise KilledError
            return do(*given, **options)

        return step

    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(os, "unlink", counted(os.unlink))
    ended, seen = False, set()
    for step in range(1, 100):
        folder = tmp_path / str(step)
        folder.mkdir()
        left = step
        try:
            cuts_saved_as_they_overlap(folder, made)
            ended = True
        except KilledError:
            pass
        left = -1
        if (folder / checkpoint.FILE).exists():
            updates, paths = named_shards(folder)
            seen.add(updates)
            assert all(same(checkpoint.load_shard(path, like), made) for path in paths), step
            (folder / ".gradweave-0123456789abcdef.part").touch()  # SIGKILL leaves one behind
            checkpoint.remove_others(folder, updates)
            assert sorted(folder.iterdir()) == [folder / checkpoint.FILE, *paths]
        if ended:
            break
    assert ended and step > 12 and seen == {2, 4, 6}


@pytest.mark.parametrize(("kept", "ended"), [((1, 2, 3, 4, 5), True), ((1, 1, 1, 1), False)])
def test_recoveries_are_counted_from_the_last_checkpoint(tmp_path, monkeypatch, kept, ended):
    """A server is lost again and again, after a checkpoint of so many updates each time."""
    given, left = task(steps=6), list(kept)

    class Driver:
        recovered = 0

        def __init__(self, *_):
            pass

        def run(self, cut):
            if not left:
                return cut.updates
            log = HistoryBuilder()
            for number in range(1, left.pop(0) + 1):
                log.add(Update(number, (Gradient(0, 0, 0),)), [0.0], [True], 0.1)
            history = log.build()
            cut = Snapshot(history.updates, (0,) * given.workers, history, 1.0)
            checkpoint.save_snapshot(tmp_path, cut, given.digest())
            raise ServerLost(0)

    module = sys.modules[train_on_ray.__module__]
    monkeypatch.setattr(module, "_Driver", Driver)
    monkeypatch.setattr(module, "cluster", contextlib.nullcontext)
    if ended:
        assert train_on_ray(given, folder=tmp_path) == 5
    else:
        with pytest.raises(RunError, match="lost 4 times with no checkpoint in between"):
            train_on_ray(given, folder=tmp_path)


def test_cuts_that_are_none_are_refused(tmp_path):
    given = task(steps=6)
    assert checkpoint.load_snapshot(tmp_path, given.digest(), 4) is None
    checkpoint.save_snapshot(tmp_path, cut_of(6), given.digest())
    moved = {**params(), "outer": np.ones(3, np.float32)}
    for changes in ({"seed": 4}, {"consistency": "async"}, {"params": moved}, {"servers": 3}):
        with pytest.raises(OptionError, match="belongs to another task"):
            checkpoint.load_snapshot(tmp_path, task(steps=6, **changes).digest(), 4)
    assert checkpoint.load_snapshot(tmp_path, task(steps=9).digest(), 4) is not None, "it may go on"
    checkpoint.save_snapshot(tmp_path, cut_of(5), given.digest())
    with pytest.raises(FileError, match="are not those of 5 updates"):
        checkpoint.load_snapshot(tmp_path, given.digest(), 4)
    path = tmp_path / checkpoint.FILE
    for spoil in (lambda raw: raw[:-9], lambda raw: b"", lambda raw: raw.replace(b"loss", b"gain")):
        raw = path.read_bytes()
        path.write_bytes(spoil(raw))
        with pytest.raises(FileError, match=r"run\.safetensors"):
            checkpoint.load_snapshot(tmp_path, given.digest(), 4)
        path.write_bytes(raw)
    assert layout(params()).size == SIZE
