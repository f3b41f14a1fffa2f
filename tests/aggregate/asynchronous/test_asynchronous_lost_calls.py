"""Calls that Ray loses: the request, or the answer, of any of them; with actors in this process."""

import contextlib
import dataclasses
import functools
import random
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optax", reason="the extra learn is not installed")
pytest.importorskip("ray", reason="the extra ray is not installed")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import ray
from ray import exceptions
from ray.exceptions import ActorUnavailableError

from gradweave.aggregate.asynchronous import (
    Run,
    Task,
    UpdateReport,
    actors,
    calls,
    checkpoint,
    train_on_ray,
)
from gradweave.aggregate.asynchronous import task as tasks
from gradweave.aggregate.asynchronous.shard import initial_shard
from gradweave.errors import RunError
from tests.aggregate.asynchronous.cases import SIZE, broken_at, close, plain_loop, same, task

HEARD, REQUEST, ANSWER = None, "request", "answer"
Losing = Callable[[int, str, int], str | None]
"""(number of the call, method, number of the actor) -> what of it is lost."""


class Reference:
    """A value that is there, or an error."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self.value, self.error = value, error


class Here:
    """A cluster whose actors are objects of this process: a call is done when it is made."""

    lost = False

    def __init__(self, losing: Losing = lambda *_: HEARD, seed: int | None = None) -> None:
        self.losing, self.made, self.actors = losing, 0, 0
        self.draw = None if seed is None else random.Random(seed)
        self.ray = types.SimpleNamespace(
            remote=self._class, kill=lambda actor: None, exceptions=exceptions
        )

    def _class(self, kind: type) -> Any:
        def hire(*given: Any) -> Any:
            number, self.actors = self.actors, self.actors + 1
            return Handle(self, kind(*given), number)

        hired = types.SimpleNamespace(remote=hire)
        return types.SimpleNamespace(options=lambda **_: hired)

    def call(self, actor: Any, number: int, method: str, given: tuple[Any, ...]) -> Reference:
        failed = [one.error for one in given if isinstance(one, Reference) and one.error]
        if failed:
            return Reference(error=failed[0])
        lost = self.losing(self.made, method, number)
        self.made += 1
        if lost == REQUEST:
            return Reference(error=ActorUnavailableError("not heard", None))
        values = [one.value if isinstance(one, Reference) else one for one in given]
        answer = Reference(getattr(actor, method)(*values))
        return Reference(error=ActorUnavailableError("no answer", None)) if lost else answer

    def wait(self, asked: Sequence[Any], timeout_s: float, count: int = 1) -> list[Any]:
        """Who does not wait finds nothing yet, if there is a seed, half of the time."""
        if timeout_s == 0 and self.draw is not None and self.draw.random() < 0.5:
            return []
        return list(asked)[:count]

    def get(self, asked: Sequence[Reference], timeout_s: float = 0) -> list[Any]:
        for reference in asked:
            if reference.error is not None:
                raise reference.error
        return [reference.value for reference in asked]

    def machines(self) -> list[str]:
        return ["here"]

    def affinities(self) -> list[str]:
        return ["here"]

    def resume(self, how: str) -> None: ...


class Handle:
    def __init__(self, here: Here, actor: Any, number: int) -> None:
        self._here, self._actor, self._number = here, actor, number

    def __getattr__(self, method: str) -> Any:
        return types.SimpleNamespace(
            remote=lambda *given: self._here.call(self._actor, self._number, method, given)
        )


@pytest.fixture
def trained(monkeypatch) -> Callable[..., Run]:
    """Trains here."""
    monkeypatch.setattr(actors._Actor, "__init__", lambda self: None)
    monkeypatch.setattr(actors, "compiled_apply", functools.cache(actors.compiled_apply))
    make, compiled = tasks.flat_gradient, {}

    def once(gradient: Any, *given: Any) -> Any:
        if gradient not in compiled:
            compiled[gradient] = make(gradient, *given)
        return compiled[gradient]

    monkeypatch.setattr(tasks, "flat_gradient", once)
    monkeypatch.setattr(calls, "FIRST_PAUSE_S", 0.0)

    def run(given: Task, here: Here, **options: Any) -> Run:
        found = contextlib.nullcontext(here)
        monkeypatch.setattr(sys.modules[train_on_ray.__module__], "cluster", lambda address: found)
        monkeypatch.setattr(ray, "get", here.get)
        options.setdefault("timeout_s", 5.0)
        return train_on_ray(given, **options)

    return run


SMALL = {"workers": 2, "servers": 2, "steps": 2, "elastic": False}
OFTEN = {"checkpoint_every": 1, "keep_every": 1}


def check_same(run: Run, whole: Run) -> None:
    assert (run.recovered, run.replaced) == (0, 0)
    assert same(run.params, whole.params)
    assert np.array_equal(run.history.loss, whole.history.loss)
    assert np.array_equal(run.traffic.pushed_bytes, whole.traffic.pushed_bytes)
    assert [kept.update for kept in run.kept] == [kept.update for kept in whole.kept]
    assert all(same(a.params, b.params) for a, b in zip(run.kept, whole.kept, strict=True))


def test_a_gradient_that_is_not_finite_is_left_out_and_its_worker_named(trained, tmp_path):
    given = task(gradient=broken_at(worker=1, steps=1), **SMALL)
    reports: list[UpdateReport] = []
    run = trained(given, Here(), folder=tmp_path, report=reports.append, **OFTEN)
    assert close(run.params, plain_loop(given)[0])
    assert [made.not_finite for made in reports] == [(1,), ()]
    assert run.history.finite.tolist() == [True, False, True, True]
    assert run.traffic.pushed_bytes.sum() == 3 * 4 * SIZE, "nothing of it is sent"
    cut = checkpoint.load_snapshot(tmp_path, given.digest(), 2)
    assert cut is not None and np.array_equal(cut.history.finite, run.history.finite)


def check_checkpoint(folder: Path, given: Task, whole: Run) -> None:
    """It is that of the last update, and its shards are the parameters."""
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["run.safetensors", *(f"server-{n}-update-2.safetensors" for n in (0, 1))]
    parts = [
        checkpoint.load_shard(
            checkpoint.shard_path(folder, server, 2),
            initial_shard(given.optimizer, np.zeros(end - begin, np.float32)),
        ).parameters
        for server, (begin, end) in enumerate(given.ranges())
    ]
    assert same(given.layout().tree(np.concatenate(parts)), whole.params)


@pytest.mark.parametrize("lost", [REQUEST, ANSWER])
def test_each_call_lost_once_changes_no_bit(trained, tmp_path, lost):
    given, here, methods = task(**SMALL), Here(), set()
    whole = trained(given, here, folder=tmp_path / "whole", **OFTEN)
    for place in range(here.made):

        def losing(number: int, method: str, _: int, place: int = place) -> str | None:
            if number == place:
                methods.add(method)
                return lost
            return HEARD

        folder = tmp_path / str(place)
        check_same(trained(given, Here(losing, seed=place), folder=folder, **OFTEN), whole)
        check_checkpoint(folder, given, whole)
    assert methods == {"ready", "pull", "push", "step", "execute"}


@pytest.mark.parametrize("seed", range(4))
def test_many_calls_lost_change_no_bit(trained, tmp_path, seed):
    given, draw = task(**SMALL), random.Random(seed)
    whole = trained(given, Here(), **OFTEN)
    here = Here(lambda *_: draw.choice([REQUEST, ANSWER] + 4 * [HEARD]), seed)
    check_same(trained(given, here, folder=tmp_path, **OFTEN), whole)
    check_checkpoint(tmp_path, given, whole)


@pytest.mark.parametrize("consistency", ["ssp:1", "async"])
def test_staleness_is_true_where_calls_are_lost(trained, consistency):
    """Each update takes 1 off the parameters, so that a gradient's loss says their version."""

    def gradient(x, draw):
        return x[0], jnp.ones_like(x)

    draw = random.Random(consistency)
    given = Task(
        np.zeros(3, np.float32),
        gradient,
        optax.sgd(1.0),
        workers=3,
        steps=30,
        consistency=consistency,
        servers=2,
    )
    here = Here(lambda *_: draw.choice([REQUEST, ANSWER] + 8 * [HEARD]), seed=0)
    run = trained(given, here, keep_every=1)
    history = run.history
    assert (run.recovered, run.replaced) == (0, 0)
    assert run.params.tolist() == [-90.0] * 3
    assert np.array_equal(history.staleness, history.update - 1 + history.loss)
    assert [kept.params[0] for kept in run.kept] == list(range(-1, -91, -1))
    for worker in range(3):
        clocks = history.clock[history.worker == worker]
        assert np.array_equal(clocks, np.arange(len(clocks))), "each step is counted once"


def test_a_worker_that_stays_unavailable_is_replaced(trained):
    given = task(**SMALL)
    whole = trained(given, Here())
    here = Here(lambda number, method, actor: REQUEST if actor == 3 and number > 20 else HEARD)
    run = trained(given, here, timeout_s=0.01)
    assert (run.recovered, run.replaced) == (0, 1)
    assert same(run.params, whole.params)


@pytest.mark.parametrize("method", ["pull", "push", "execute"])
def test_a_server_that_stays_unavailable_is_lost(trained, method):
    def losing(number: int, what: str, actor: int) -> str | None:
        return REQUEST if actor == 1 and number > 20 and what in (method, "ready") else HEARD

    with pytest.raises(RunError, match=r"^server 1 was lost \(The actor .*unavailable.*folder"):
        trained(task(**SMALL), Here(losing), timeout_s=0.01)


class Counting:
    """A computation with a state: how often it has stepped, which is its gradient."""

    share = 0.5

    def __init__(self, worker: int) -> None:
        self.state = {"steps": np.zeros(1, np.float32), "worker": np.full(1, worker)}

    def ready(self, vector: Any) -> None: ...

    def step(self, clock: int, pull: Callable[[], tasks.Pulled]) -> tasks.Stepped:
        first, again = pull(), pull()
        assert again.version >= first.version
        self.state = {**self.state, "steps": self.state["steps"] + 1}
        change = np.full(SIZE, self.state["steps"][0], np.float32)
        return tasks.Stepped(float(first.vector.sum()), change, int(self.state["steps"][0]))


def counting(**changes: Any) -> Task:
    return dataclasses.replace(
        task(**(SMALL | {"optimizer": optax.sgd(0.25), "steps": 4, "servers": 1} | changes)),
        gradient=None,
        computation=lambda worker, clock: Counting(worker),
        about={"name": "counting"},
    )


def test_a_computations_state_is_in_the_checkpoint_and_steps_once(trained, tmp_path):
    """Though the answer of each call is lost once, in turn; both workers' steps are 1 and 2."""
    given, here = counting(steps=2), Here()
    whole = trained(given, here, folder=tmp_path / "whole", **OFTEN)
    assert close(whole.params, jax.tree.map(lambda x: x - 0.25 * (1 + 2), given.params))
    for place in range(here.made):
        losing = lambda number, *_, place=place: ANSWER if number == place else HEARD  # noqa: E731
        folder = tmp_path / str(place)
        check_same(trained(given, Here(losing, seed=place), folder=folder, **OFTEN), whole)
        parts = checkpoint.parts(folder)
        assert len(parts) == 3 and {number for _, number in parts} == {2}
        for worker in range(2):
            path = checkpoint.state_path(folder, worker, 2)
            state = checkpoint.load_state(path, Counting(worker).state)
            assert (state["steps"][0], state["worker"][0]) == (2, worker)
    assert checkpoint.about(tmp_path / "whole") == ({"name": "counting"}, 4)


@pytest.mark.parametrize("seed", range(3))
def test_a_checkpoints_states_are_those_of_its_clocks(trained, tmp_path, seed):
    """A worker that hears of a checkpoint when it has gone on already spoils that one alone."""
    given, written = counting(steps=12, consistency="async"), set[int]()

    def report(_: UpdateReport) -> None:
        cut = checkpoint.load_snapshot(tmp_path, given.digest(), 2)
        if cut is not None and cut.updates not in written:
            written.add(cut.updates)
            paths = [checkpoint.state_path(tmp_path, worker, cut.updates) for worker in range(2)]
            states = [checkpoint.load_state(path, Counting(0).state) for path in paths]
            assert [state["steps"].item() for state in states] == list(cut.clock)

    draw = random.Random(seed)
    lost = lambda _, method, __: REQUEST if method == "save" and draw.random() < 0.2 else HEARD  # noqa: E731
    trained(given, Here(lost, seed), folder=tmp_path, report=report, **OFTEN)
    assert 1 < len(written) < 23


class Enough(Exception):
    """Ends a run from its report."""


@pytest.mark.parametrize("stop", [Enough, KeyboardInterrupt])
def test_a_run_that_was_ended_resumes_with_its_computations_states(trained, tmp_path, stop):
    """On Ctrl-C what was done last is saved, though no checkpoint was due."""
    every = 2 if stop is Enough else 100
    told: list[UpdateReport] = []

    def report(made: UpdateReport) -> None:
        told.append(made)
        if made.update == 3 and len(told) == 3:
            raise stop

    given, options = counting(), {"folder": tmp_path, "checkpoint_every": every, "report": report}
    with pytest.raises(stop):
        trained(given, Here(), **options)
    run = trained(given, Here(), **options)
    assert [made.update for made in told] == ([1, 2, 3, 3, 4] if stop is Enough else [1, 2, 3, 4])
    assert [made.aux for made in told][-1] == (4, 4)
    assert same(run.params, trained(given, Here()).params)


def test_a_worker_that_is_replaced_takes_its_state_of_the_checkpoint(trained, tmp_path):
    told: list[UpdateReport] = []

    def losing(number: int, method: str, actor: int) -> str | None:
        return REQUEST if actor == 2 and len(told) == 5 else HEARD

    trained(
        counting(steps=8),
        Here(losing),
        folder=tmp_path,
        checkpoint_every=2,
        timeout_s=0.01,
        report=told.append,
    )
    assert told[-1].replaced == 1
    one, other = zip(*(made.aux for made in told), strict=True)
    assert one == (1, 2, 3, 4, 5, 6, 7, 8)
    assert other == (1, 2, 3, 4, 5, 5, 6, 7), "that of the fourth update"
