"""Episodes to imitate: repaired, followed to the letter in any order, and made likelier."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")

import equinox as eqx
import jax
import jax.numpy as jnp

from gradweave.environment import Rewards, Size, stack
from gradweave.environment.problem import Instance, Problem
from gradweave.learning import experts
from gradweave.learning.experts import KEPT, Experts
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.ppo import PPO, gradient, samples, with_agent
from gradweave.learning.rollout import Rollout, record
from gradweave.learning.training import train
from gradweave.topology import from_spec
from gradweave.verifier import verify
from tests.learning.tiny import CONFIG, rows

INSTANCES = (
    Instance(from_spec("dcell:n=3,k=1"), "all_gather", "grown"),
    Instance(from_spec("bcube:n=2,k=1"), "reduce_scatter", "fixed"),
)
SIZE = Size.covering([instance.size for instance in INSTANCES])
EPISODES = 6
HOW = Rollout(12, 4, Rewards.ours())


@pytest.fixture(scope="module")
def policy():
    return HierarchicalPolicy(jax.random.key(0), 3.0)


@pytest.fixture(scope="module")
def expert(policy):
    return Experts.of(INSTANCES, SIZE).play(policy, [0, 1], (3, 7))


def of_problem(expert, number: int):
    return jax.tree.map(lambda x: x[number], expert)


def test_experts_are_schedules_and_repaired_ones_meet_the_bound(expert):
    """Of policies that know nothing."""
    for number, instance in enumerate(INSTANCES):
        servers, trees = instance.size.servers, instance.size.trees
        rounds, hops = (np.asarray(x) for x in (expert.sent_round[number], expert.sent_hop[number]))
        assert len(rounds) == KEPT
        for sent_round, sent_hop in zip(rounds, hops, strict=True):
            schedule = instance.schedule(sent_round[:servers, :trees], sent_hop[:servers, :trees])
            assert verify(schedule).valid
            assert schedule.rounds == instance.bound or number == 1
        assert (rounds[:, servers:] < 0).all() and (rounds[:, :, trees:] < 0).all()


def test_the_shortest_of_several_are_kept_and_one_alone_takes_the_best_actions(monkeypatch):
    """Of eight three end, after 9, 5 and 7 rounds: the first place is the shortest's again."""
    asked, ends = [], iter([9, -1, 5, -1, -1, 7, -1, -1])

    def play(problem: Any, weights: Any, **how: Any) -> Any:
        asked.append(how)
        rounds = next(ends)
        one = np.full((2, 3), rounds)
        return SimpleNamespace(rounds=rounds, sent_round=one, sent_hop=one + 10)

    monkeypatch.setattr(experts, "play", play)
    any_one: Any = None
    size: Any = SimpleNamespace(servers=3, trees=4)
    rounds, hops = Experts((), size)._best(any_one, any_one, (3, 7))
    assert [how["temperature"] for how in asked] == [0.0, *[1.0] * 7]
    assert [how["seed"] for how in asked] == [(3, 7, number) for number in range(8)]
    assert all(how["repair"] for how in asked)
    assert rounds[:, :2, :3].tolist() == [[[kept] * 3] * 2 for kept in (5, 7, 9, 5)]
    assert (hops[:, :2, :3] == rounds[:, :2, :3] + 10).all()
    assert (rounds[:, 2:] < 0).all() and (rounds[:, :, 3:] < 0).all()


def test_what_is_recorded_is_the_experts_episode_and_imitation_makes_it_likelier(policy, expert):
    problem, one = Problem.of(INSTANCES[0], SIZE), of_problem(expert, 0)
    keys, busiest = jax.random.split(jax.random.key(1), EPISODES), jnp.asarray(6)
    log, ends = eqx.filter_jit(record)(policy, problem, keys, busiest, HOW, one)
    followed = one.following(EPISODES)
    assert ends.done.all()
    np.testing.assert_array_equal(ends.sent_round, followed.sent_round)
    sent = np.asarray(followed.sent_round) >= 0
    assert (np.asarray(ends.sent_hop)[sent] == np.asarray(followed.sent_hop)[sent]).all()
    draws = log.draws
    real = np.asarray(draws.real)
    wanted, pieces = (np.asarray(x) for x in draws.wanted)
    assert real.sum() > 50
    assert np.take_along_axis(wanted, np.asarray(draws.hop)[..., None], -1)[..., 0][real].all()
    assert np.take_along_axis(pieces, np.asarray(draws.piece)[..., None], -1)[..., 0][real].all()
    can = np.asarray(draws.moment.count) > 0
    assert not (wanted & ~can).any() and (wanted & real[..., None] < can).any()

    rows = samples(jax.tree.map(lambda x: x[None], log), "workload", PPO())
    ascent = eqx.filter_jit(gradient)
    direction, before = ascent(policy, stack([problem]), rows, "workload", PPO())
    moved = jax.tree.map(lambda x, g: x - 0.05 * g, policy.workload, direction)
    better = with_agent(policy, "workload", moved)
    _, after = ascent(better, stack([problem]), rows, "workload", PPO())
    assert before["gain"] < after["gain"] < 0  # logarithms of probabilities


def test_a_training_begins_with_it(tmp_path):
    """Workload scheduling alone changes, and the log says that the episodes were an expert's."""
    config = dataclasses.replace(CONFIG, imitation_updates=2, seeds=1)
    reports = []
    policy = train(config, tmp_path, report=reports.append, devices=1, stop_after=1)
    (report,) = reports
    assert (report.agent, report.update, report.of) == ("imitation", 1, config.updates)
    (row,) = rows(tmp_path)
    assert row["agent"] == "imitation" and row["gain"] < 0
    key = jax.random.split(jax.random.key(config.seed), 1)[0]
    start = HierarchicalPolicy(key, config.tree_bias)
    for name, same in (("tree", True), ("workload", False)):
        before, after = (jax.tree.leaves(getattr(x, name)) for x in (start, policy))
        equal = [bool((a == b).all()) for a, b in zip(before, after, strict=True)]
        assert all(equal) == same
