"""What the agents see, recomputed from the reference at every step; each reward by itself."""

import dataclasses
import functools

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")

import jax

from gradweave.environment import Rewards, SchedulingEnvironment, State
from gradweave.environment.problem import Instance
from tests.environment.episodes import Episodes, episodes, length, padded, without_limit
from tests.environment.networks import SETTINGS, instance
from tests.environment.reference import Replay, replay

NETWORKS = ("lopsided", "jellyfish:switches=3,degree=2,servers_per_switch=2,seed=0")


@functools.partial(jax.jit, static_argnums=0)
def seen(environment: SchedulingEnvironment, problem, trees, workloads):
    """What is observed before each of the given actions, for several episodes."""

    def step(state: State, action: tuple):
        after = environment.step(problem, state, *action).state
        return after, environment.observe(problem, state)

    def play(trees, workloads):
        return jax.lax.scan(step, environment.reset(problem), (trees, workloads))[1]

    return jax.vmap(play, in_axes=1, out_axes=1)(trees, workloads)


class Sight:
    """The observations as their definitions say, from what was sent so far."""

    def __init__(self, tried: Instance, again: Replay, played: Episodes) -> None:
        self.tried, self.again = tried, again
        self.width = played.trees.shape[-1]
        self.sent: dict[tuple[int, int], int] = {}
        """Round of each workload sent, by hop and tree."""
        self.selected_before: set[int] = set()
        hops = tried.hops
        self.routes = [
            list(zip(route[:-1].tolist(), route[1:].tolist(), strict=True))
            for route in np.split(hops.route_nodes, hops.route_offsets[1:-1])
        ]
        ends = zip(tried.topology.source.tolist(), tried.topology.target.tolist(), strict=True)
        self.link = {end: link for link, end in enumerate(ends)}

    def act(self, trees: np.ndarray, workload: int) -> None:
        again, now = self.again, self.again.reference.round
        _, allowed = again.allowed(self.width)
        if workload in allowed:
            self.sent[divmod(workload, self.width)] = now
        again.step(trees, workload)
        if again.reference.round > now:
            self.selected_before = again.selected

    def transfers_of(self, places) -> dict[int, int]:
        """Distinct transfers of workloads, tree by tree: several hops can make the same one."""
        hops, servers = self.tried.hops, self.tried.topology.num_servers
        reduces = [stage == "reduce_scatter" for stage in self.tried.stages]
        ends = {
            # The one server that has its part of the tree done by the transfer.
            (tree, int(hops.source[hop] if reduces[tree // servers] else hops.target[hop]))
            for hop, tree in places
        }
        return {tree: sum(t == tree for t, _ in ends) for tree in range(self.width)}

    def trees(self) -> dict[str, np.ndarray]:
        servers, trees = self.tried.topology.num_servers, self.again.trees
        exists = np.arange(self.width) < trees
        sent = np.bincount([tree for _, tree in self.sent], minlength=self.width)
        sent = sent / (servers - 1)
        ready = self.again.reference.ready()
        count = self.transfers_of(ready)
        load = np.zeros(48)
        for hop, _ in ready:
            for step in self.routes[hop]:
                load[self.link[step]] += 1 / self.tried.topology.capacity[self.link[step]]
        return {
            "sent": sent,
            "available": np.array([count[tree] for tree in range(self.width)]) / (servers - 1),
            "remaining": exists - sent,
            "pressure": load / (load.max() or 1),
            "selected_before": np.isin(np.arange(self.width), list(self.selected_before)),
        }

    def workloads(self) -> dict[str, np.ndarray]:
        topology, now = self.tried.topology, self.again.reference.round
        available = np.zeros(96 * self.width)
        available[self.again.allowed(self.width)[1]] = 1
        load = np.zeros(len(topology.source))
        for (hop, _), round_ in self.sent.items():
            for step in self.routes[hop] if round_ == now else []:
                load[self.link[step]] += 1
        room = np.zeros(48)
        room[: len(load)] = 1 - load / topology.capacity
        return {"available": available.reshape(96, -1), "room": room}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", NETWORKS)
def test_observations_are_what_their_definitions_say(name: str, setting: str):
    tried = instance(name, setting)
    problem = without_limit(padded(tried))
    played = episodes(problem)
    observed_in = seen(SchedulingEnvironment(), problem, played.trees, played.workload)
    tree_seen, workload_seen = jax.tree.map(np.asarray, observed_in)
    for episode in range(2):
        sight = Sight(tried, Replay(tried, Rewards()), played)
        for step in range(length(played, episode)):
            for observed, expected in (
                (tree_seen, sight.trees()),
                (workload_seen, sight.workloads()),
            ):
                for what, values in expected.items():
                    got = getattr(observed, what)[step, episode]
                    np.testing.assert_allclose(got, values, atol=1e-5, err_msg=f"{what}, {step}")
            sight.act(played.trees[step, episode], int(played.workload[step, episode]))


@pytest.mark.parametrize("setting", ["fixed all_reduce", "grown all_gather"])
def test_held_and_pending_say_who_can_give_what(setting: str):
    """At the end all is held and nothing pending; at the start a reduce-scatter's leaves give."""
    tried = instance("lopsided", setting)
    problem = without_limit(padded(tried))
    environment = SchedulingEnvironment()
    first = environment.observe(problem, environment.reset(problem))[1]
    servers, trees = tried.size.servers, tried.size.trees
    exists = np.zeros((6, 12), bool)
    exists[:servers, :trees] = True
    assert float(first.pending.sum()) == trees * (servers - 1)
    if setting == "grown all_gather":
        assert np.array_equal(first.held[:servers, :trees], np.eye(servers))
    else:
        parents = {(piece, parent) for piece, parent in zip(*parents_of(tried), strict=True)}
        leaves = [(s, p) for p in range(servers) for s in range(servers) if (p, s) not in parents]
        held = np.zeros((servers, servers), bool)
        held[tuple(np.transpose(leaves))] = True
        assert np.array_equal(first.held[:, :servers], held)
    played = episodes(problem)
    done = int(np.flatnonzero(played.ended.any(0))[0])
    end = jax.tree.map(lambda leaf: leaf[done], played.last)
    last = environment.observe(problem, end)[1]
    assert np.array_equal(last.held, exists)
    assert not last.pending.any()


def parents_of(tried: Instance) -> tuple[list[int], list[int]]:
    trees = tried.flow_trees
    return trees.piece.tolist(), tried.topology.rank[trees.parent].tolist()


NOTHING = Rewards(sent=0, selected=0, done=0, unfinished=0, workload=0, rounds=0)


@pytest.mark.parametrize("term", [field.name for field in dataclasses.fields(Rewards)])
def test_each_term_of_the_rewards_stands_alone(term: str):
    """With the others switched off, a term is what the reference makes of it, and is not 0."""
    tried = instance("ring:5", "fixed all_gather")
    weights = dataclasses.replace(NOTHING, **{term: 2.0})
    played = episodes(without_limit(padded(tried)), rewards=weights)
    assert played.ended.any()
    for episode in range(4):
        replay(tried, played, episode, weights)
    assert played.tree_reward.any() == (term != "workload")
    assert played.workload_reward.any() == (term in ("workload", "rounds"))


def test_without_terms_there_are_no_rewards():
    played = episodes(padded(instance("ring:5")), rewards=NOTHING)
    assert not played.tree_reward.any()
    assert not played.workload_reward.any()


def test_our_rewards_add_up_to_the_rounds_over_the_bound():
    tried = instance("irregular", "grown all_reduce")
    played = episodes(without_limit(padded(tried)), rewards=Rewards.ours())
    for episode in np.flatnonzero(played.ended.any(0)):
        end = length(played, episode)
        rounds = int(played.last.round[episode])
        for rewards in (played.tree_reward, played.workload_reward):
            assert np.isclose(rewards[:end, episode].sum(), -rounds / tried.bound, atol=1e-4)
