"""Behaviour shared by all methods in PyTorch, by hand and with processes of this machine."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from gradweave.aggregate import DiLoCo, threefry
from gradweave.aggregate.local.flat import FlatTensors
from gradweave.aggregate.local.methods import LOCAL
from gradweave.aggregate.torch_steps import GuardedSteps, Trained, on_each_step_of
from gradweave.errors import OptionError
from tests.aggregate import torch_steps_cases as cases
from tests.aggregate.local_reference import outer_steps
from tests.aggregate.torch_steps_cases import AIMS, SIZES, STEPS, WEIGHTS, N
from tests.patience import PATIENCE_S


class SGD:
    """SGD with momentum as in PyTorch, for all workers at once: [N, size]."""

    def __init__(self, how: dict[str, Any]) -> None:
        self.spoilt = cases.SPOILT if "spoilt" in how else {}
        self.late = (
            np.arange(sum(SIZES)) < SIZES[0] if "late" in how else np.zeros(sum(SIZES), bool)
        )
        self.v = np.zeros(AIMS.shape)

    def moves(self, x: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        """[N, size] the change of each worker, and [N] whether it makes the step."""
        gradient = np.where(self.late & (number < cases.LATE), 0, x - AIMS)
        good = np.array([number not in self.spoilt.get(rank, []) for rank in range(N)])
        self.v = np.where(good[:, None], cases.MOMENTUM * self.v + gradient, self.v)
        return np.where(good[:, None], -cases.RATE * self.v, 0), good


def by_local_updates(how: dict[str, Any]) -> tuple[np.ndarray, int]:
    """[STEPS, N, size] the parameters, and how many workers the last average counted."""
    method, sgd = DiLoCo(**how["method"]), SGD(how)
    size = sum(SIZES)
    x, shared, m = np.zeros((N, size)), np.zeros(size), np.zeros(size)
    taken, history, counted = np.zeros(N), [], 0
    part, change, mine = np.zeros(0, int), np.zeros(0), np.zeros(N, bool)
    order = np.roll(np.arange(size), -SIZES[0] if "late" in how else 0)  # in which they join
    for step in range(1, STEPS + 1):
        u, good = sgd.moves(x, step - 1)
        x, taken = x + u, taken + good
        if step % method.interval == 0:
            there = order[: SIZES[1]] if "late" in how and step <= cases.LATE else order
            length = -(-len(there) // method.fragments)
            turn = (step // method.interval - 1) % method.fragments
            part = there[turn * length : (turn + 1) * length]
            mine, taken = taken > 0, np.zeros(N)
            change = (x - shared)[mine][:, part].mean(0)
        if step % method.interval == method.delay and step >= method.interval:
            counted = int(mine.sum())
            m[part] = 0.9 * m[part] + change
            shared[part] += 0.7 * (change + 0.9 * m[part])
            keep = np.where(mine, method.keep, 0)[:, None]
            x[:, part] = keep * x[:, part] + (1 - keep) * shared[part]
        history.append(x.copy())
    return np.array(history), counted


def by_gossip(how: dict[str, Any]) -> np.ndarray:
    """[STEPS, N, size] the parameters of D-PSGD: x ← W x + u."""
    x, sgd, history = np.zeros(AIMS.shape), SGD(how), []
    for number in range(STEPS):
        x = WEIGHTS @ x + sgd.moves(x, number)[0]
        history.append(x)
    return np.array(history)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The findings of each worker."""
    folder = tmp_path_factory.mktemp("workers")
    ended = subprocess.run(
        [sys.executable, "-m", cases.__name__, str(folder), str(PATIENCE_S)],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(N)]


def of_all(workers: list[dict[str, Any]], name: str, key: str) -> np.ndarray:
    return np.array([one["trainings"][name][key] for one in workers])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, how in cases.TRAININGS.items() if "method" in how])
def test_local_updates_leave_out_what_is_not_finite_and_take_late_parameters(workers, name):
    how = cases.TRAININGS[name]
    expected, counted = by_local_updates(how)
    x = of_all(workers, name, "x").swapaxes(0, 1)
    np.testing.assert_allclose(x, expected, atol=0.02 if "compressor" in how else 1e-6)
    assert of_all(workers, name, "counted").tolist() == [counted] * N
    spoilt = cases.SPOILT if "spoilt" in how else {}
    left_out = [len(spoilt.get(rank, [])) for rank in range(N)]
    assert of_all(workers, name, "not_finite").tolist() == left_out


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, how in cases.TRAININGS.items() if "outer" in how])
def test_outer_steps_by_hand(workers, name):
    method, sgd, size = LOCAL[name](**cases.TRAININGS[name]["outer"]), SGD({}), sum(SIZES)
    weights = method.default_mixing(N, 2).weights

    def parts(number: int) -> np.ndarray:
        turns, turn = divmod(number - 1, method.fragments)
        key = threefry.fold_in(threefry.fold_in(threefry.key_of(2), 0), turns)
        return threefry.permutation(key, size).numpy()[4 * turn : 4 * turn + 4]

    def step(theta: np.ndarray, number: int) -> np.ndarray:
        return theta + sgd.moves(theta, number)[0]

    start, of_parts = np.zeros(AIMS.shape), parts if method.scattered else None
    expected = outer_steps(method, weights, step, start, STEPS, of_parts)
    found = of_all(workers, name, "x").swapaxes(0, 1)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    if method.mixes:  # all parameters and two buffers, to each neighbour
        turns = np.arange(STEPS // 3) % len(weights)
        messages = (weights[turns] > 0).sum((0, 2)) - STEPS // 3
        assert of_all(workers, name, "sent").tolist() == (messages * 4 * (size + 2)).tolist()
    if method.feeds_back:  # of seven elements two: a word of digits, a word of bits, and two floats
        assert of_all(workers, name, "sent").tolist() == [STEPS // 3 * (N - 1) * 16] * N


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gossip", "gossip closure", "late gossip"])
def test_gossip_leaves_out_what_is_not_finite_and_takes_late_parameters(workers, name):
    expected = by_gossip(cases.TRAININGS[name])
    np.testing.assert_allclose(of_all(workers, name, "x").swapaxes(0, 1), expected, atol=1e-6)
    means = [one["trainings"][name]["consensus"] for one in workers]
    for first, second, *_ in means:
        np.testing.assert_allclose([*first, *second], expected[-1].mean(0), atol=1e-6)


@pytest.mark.slow
def test_parameters_that_join_late_are_compressed_with_the_others(workers):
    x = of_all(workers, "late choco", "x")[:, -1]
    alone = SGD(cases.TRAININGS["late choco"])
    apart = np.zeros(AIMS.shape)
    for number in range(STEPS):
        apart += alone.moves(apart, number)[0]
    spread = np.ptp(x, axis=0) / np.ptp(apart, axis=0)
    assert spread[: SIZES[0]].max() < 0.6 and spread[SIZES[0] :].max() < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.TRAININGS)
def test_a_training_goes_on_with_the_same_bits(workers, name):
    for one in workers:
        for key in ("x", "not_finite", "buffers"):
            assert str(one["again"][name][key]) == str(one["trainings"][name][key])


def buffers_by_hand(name: str) -> np.ndarray:
    """[STEPS, N, 2] where worker i adds i + 1 in each step, and one is NaN for a moment."""
    b, history = np.zeros((N, 2)), []
    for number in range(STEPS):
        b = b + np.arange(1.0, N + 1)[:, None]
        if number == cases.NAN_BUFFER:
            b[1, 1] = math.nan
        finite = np.isfinite(b)
        if name == "gossip":
            b = WEIGHTS @ np.where(finite, b, 0) / (WEIGHTS @ finite.astype(float))
        elif number % 4 == 3:
            b = np.tile(np.nanmean(b, axis=0), (N, 1))
        history.append(b)
    return np.array(history)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gossip", "diloco", "compressed", "quorum"])
def test_buffers_are_averaged_where_they_are_finite(workers, name):
    found = of_all(workers, name, "buffers").swapaxes(0, 1)
    expected = buffers_by_hand(name)
    np.testing.assert_allclose(found[..., :2], expected, rtol=1e-6)
    assert found[-1, :, 2].tolist() == [STEPS, 2 * STEPS, 3 * STEPS]  # integers stay a worker's own
    if name == "gossip":
        *_, mean, most = workers[0]["trainings"][name]["consensus"]
        floats = sum(SIZES) + 2  # parameters and buffers
        assert workers[0]["trainings"][name]["sent"] == STEPS * (N - 1) * floats * 4
        np.testing.assert_allclose(mean, expected[-1].mean(0), rtol=1e-6)
        assert most == 3 * STEPS


@pytest.mark.slow
def test_workers_that_begin_differently_are_named(workers):
    for one in workers:
        local, quorum, refused, *unfit, warned, late = one["said"]
        assert unfit == [
            "diloco: expected an exchange like BySchedule, got ByMixing",
            "sparseloco: expected an exchange like Gathered, got Compressed",
            "the mixing matrix is for 2 workers, the group has 3 processes; make both for the same "
            "number",
        ]
        alike = "the same parameters at all workers at the start, but those of 2 are not those of 0"
        assert all(alike in line for line in (local, quorum, refused))
        assert "the parameters of worker 2 differ from those of worker 0" in warned
        assert "1 parameter trained from now on" in late and "make a new QuorumMember" in late


def guarded(*parameters: torch.nn.Parameter, **options: Any) -> tuple[Any, GuardedSteps]:
    guard = GuardedSteps()
    guard.vectors = [FlatTensors(parameters)]
    optimizer = torch.optim.SGD(parameters, **options)
    optimizer.register_step_pre_hook(lambda _, args, kwargs: guard.before(args, kwargs))
    return optimizer, guard


def test_a_step_whose_result_is_not_finite_is_left_out():
    """Gradients of 3e38 twice: v = 3e38, then .9 * 3e38 + 3e38 overflows float32."""
    x = torch.nn.Parameter(torch.ones(2))
    other = torch.nn.Parameter(torch.ones(1))
    optimizer, guard = guarded(x, other, lr=1e-38, momentum=0.9)
    made = []
    for _ in range(3):
        x.grad, other.grad = torch.tensor([3e38, 0.0]), torch.tensor([1.0])
        optimizer.step()
        made.append(guard.after(optimizer))
    # 1 - 1e-38 * 3e38 = -2; then skipped, with its state forgotten; then 3 less again.
    assert made == [True, False, True] and guard.not_finite == 1
    torch.testing.assert_close(x.detach(), torch.tensor([-5.0, 1.0]))
    assert optimizer.state[x]["momentum_buffer"].tolist() == [pytest.approx(3e38), 0.0]
    assert optimizer.state[other]["momentum_buffer"].item() == pytest.approx(1 + 0.9 + 0.81)


def test_a_hook_is_called_as_long_as_its_owner_lives_and_for_its_optimizers():
    class Owner:
        seen = 0

        def before(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
            Owner.seen += 1

    x, y = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    own, other = torch.optim.SGD([x]), torch.optim.SGD([y])
    owner = Owner()
    on_each_step_of(Trained([x]), owner, Owner.before)
    own.step()
    other.step()
    assert Owner.seen == 1
    del owner
    own.step()
    assert Owner.seen == 1


def test_which_parameters_are_late():
    """Four parameters: trained, frozen, only in the optimizer, and added to the optimizer."""
    given, frozen, apart, added = (torch.nn.Parameter(torch.zeros(1)) for _ in range(4))
    frozen.requires_grad_(False)
    optimizer = torch.optim.SGD([given, frozen, apart])
    of = Trained([given, frozen])
    assert of.late(optimizer) == []
    optimizer.add_param_group({"params": [added]})
    assert of.late(optimizer) == [added]
    frozen.requires_grad_(True)
    of.joined += of.late(optimizer)
    assert of.places == [0, 1, 2] and of.late(optimizer) == []
    of.restore([2, 0])
    assert of.joined[0] is added and of.joined[1] is given and of.late(optimizer)[0] is frozen
    with pytest.raises(OptionError, match="parameter 3 is trained there, and there are 3"):
        of.restore([0, 3])
