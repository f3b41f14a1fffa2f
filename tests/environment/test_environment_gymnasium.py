"""The adapter to Gymnasium passes Gymnasium's own checks, and its masks mean what they say."""

import functools
import importlib
import sys

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("gymnasium")

import gymnasium
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from gradweave.environment.gymnasium_adapter import NAME, GymnasiumScheduling
from gradweave.environment.numbered import every_tree, random_workload
from gradweave.errors import OptionError, ScheduleError
from gradweave.verifier import verify
from tests.environment.networks import instance

pytestmark = pytest.mark.usefixtures("quick_compilation")

INSTANCES = [instance("bcube:n=2,k=1"), instance("ring:5", "fixed all_reduce")]
TREES, HOPS = 10, 10
FORMS = {
    "both": ({}, spaces.Discrete(1 + TREES + HOPS * TREES)),
    "workloads": ({"tree_policy": every_tree}, spaces.Discrete(HOPS * TREES)),
    "trees": ({"workload_policy": random_workload}, spaces.Discrete(1 + TREES)),
    "trees at once": (
        {"workload_policy": random_workload, "selection": "multi_hot"},
        spaces.MultiBinary(TREES),
    ),
}


@functools.cache
def environment(form: str) -> GymnasiumScheduling:
    made = gymnasium.make(NAME, instances=INSTANCES, **FORMS[form][0]).unwrapped
    assert isinstance(made, GymnasiumScheduling)
    return made


def masked(env: GymnasiumScheduling, rng: np.random.Generator):
    """A random action that keeps to the mask."""
    mask = env.action_masks()
    if isinstance(env.action_space, spaces.MultiBinary):
        zero, one = mask.reshape(-1, 2).T
        assert zero.all()
        some = one & (rng.random(len(one)) < 0.5)
        return (some if some.any() else one).astype(np.int8)
    return int(rng.choice(np.flatnonzero(mask)))


@pytest.mark.parametrize("form", FORMS)
def test_gymnasium_finds_nothing_to_complain_about(form: str):
    check_env(environment(form))


@pytest.mark.parametrize("form", FORMS)
def test_actions_are_as_promised(form: str):
    env = environment(form)
    assert env.action_space == FORMS[form][1]
    env.reset(seed=0)
    choices = env.action_space.n if form != "trees at once" else 2 * TREES
    assert env.action_masks().shape == (choices,)
    assert env.action_masks().dtype == bool


@pytest.mark.parametrize("form", FORMS)
def test_episodes_that_keep_to_the_mask_are_schedules(form: str):
    env, rng = environment(form), np.random.default_rng(0)
    for which in (0, 1):
        observation, info = env.reset(seed=7, options={"instance": which})
        assert info == {"rounds": 0, "instance": which}
        over, steps, total = False, 0, 0.0
        while not over:
            before = observation
            observation, reward, terminated, truncated, info = env.step(masked(env, rng))
            assert observation in env.observation_space
            assert not np.array_equal(before, observation), "the action had no effect"
            over = terminated or truncated
            total += reward
            steps += 1
        assert terminated, "a random episode on these is done long before its limit"
        made = env.schedule()
        assert verify(made).valid
        assert made.topology is INSTANCES[which].topology
        assert made.rounds == info["rounds"]
        if form == "workloads":
            assert steps == len(made.round)
            assert np.isclose(total, 1, atol=1e-5)
        flows = len(made.round)
        share = INSTANCES[which].size.trees / flows
        # What flow-tree selection is paid, were no tree selected and were all, in every round.
        least = 1 + 10 - (made.rounds - 1) * share
        most = least + 0.1 * made.rounds
        if form.startswith("trees"):
            assert least < total < most
        if form == "both":
            assert least < total - 1 < most
            assert steps > flows + made.rounds
        if form == "trees at once":
            assert steps == made.rounds


@pytest.mark.parametrize("form", ["both", "trees"])
def test_a_seed_fixes_the_episodes(form: str):
    def play(seed: int) -> list:
        env, rng = environment(form), np.random.default_rng(0)
        seen = [env.reset(seed=seed)]
        for _ in range(3):
            for _ in range(6):
                seen.append(env.step(masked(env, rng))[1:])
            seen.append(env.reset())
        return [info["instance"] for _, info in seen[:1]] + [repr(said) for said in seen]

    assert play(3) == play(3)
    assert any(play(3) != play(seed) for seed in range(4, 8))


def test_every_instance_is_drawn():
    env = environment("both")
    env.reset(seed=0)
    assert {env.reset()[1]["instance"] for _ in range(20)} == {0, 1}


def test_mistakes_are_named():
    with pytest.raises(OptionError, match="selection: multi_hot is for flow-tree selection only"):
        GymnasiumScheduling(INSTANCES, selection="multi_hot")
    env = GymnasiumScheduling(INSTANCES, tree_policy=every_tree)
    for asked in (env.action_masks, env.schedule, lambda: env.step(0)):
        with pytest.raises(
            OptionError, match=r"(action_masks|schedule|step): .* call reset\(\) first"
        ):
            asked()
    with pytest.raises(OptionError, match="options: expected an instance from 0 to 1, got 2"):
        env.reset(options={"instance": 2})
    env.reset(seed=0)
    with pytest.raises(ScheduleError, match="the episode is not finished"):
        env.schedule()


def test_without_gymnasium_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "gradweave.environment.gymnasium_adapter")
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    importlib.import_module("gradweave.environment")
    with pytest.raises(ImportError, match=r"needs gymnasium: pip install 'gradweave\[learn\]'"):
        importlib.import_module("gradweave.environment.gymnasium_adapter")
