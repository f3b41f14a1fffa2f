"""The learned scheduler with many servers: its candidate hops, and its gap to the bound."""

import numpy as np
import pytest

from gradweave.environment.instance import Instance
from gradweave.learning.best_episode import _spread
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import play
from gradweave.learning.policies.policy import read_weights
from gradweave.schedulers.hops import Hops
from gradweave.schedulers.learned import ROUTES
from gradweave.topology import from_spec
from gradweave.topology.routes import switch_only_trees


@pytest.mark.parametrize(("spec", "at_bound"), [("torus:8x8", True), ("fat_tree:k=6", False)])
def test_best_actions_are_within_three_percent_without_training_on_such_networks(spec, at_bound):
    topology = from_spec(spec)
    instance = Instance(topology, "all_gather", "grown", routes=ROUTES, spread=_spread(topology))
    made = play(CompiledInstance.of(instance), read_weights(), seed=(0, 0), temperature=0.0)
    assert instance.bound <= made.rounds <= (1.0 if at_bound else 1.03) * instance.bound


@pytest.mark.parametrize("spec", ["fat_tree:k=4", "bcube:n=4,k=1", "star:12", "torus:4x4"])
def test_spread_hops_lead_near_and_far_by_shortest_routes(spec):
    topology, receivers = from_spec(spec), 7
    all_of_them, some = Hops.of(topology), Hops.of(topology, variants=2, spread=receivers)
    servers, lengths = topology.num_servers, np.diff(some.first_link)
    _, distance = switch_only_trees(topology)
    for server in range(servers):
        mine, all_mine = some.source == server, all_of_them.source == server
        targets = np.unique(some.target[mine])
        assert len(targets) == min(receivers, len(np.unique(all_of_them.target[all_mine])))
        assert set(lengths[mine]) == set(np.diff(all_of_them.first_link)[all_mine])
    ends = topology.servers[some.source], topology.servers[some.target]
    assert (lengths == distance[some.target, ends[0]]).all()
    used = np.unique(some.links)
    ports = np.flatnonzero(topology.is_server[topology.source])
    assert np.isin(ports, used).all(), "a port has no hop"
    nodes = np.split(some.route_nodes, some.route_offsets[1:-1])
    assert len({route.tobytes() for route in nodes}) == len(nodes)
    assert [(route[0], route[-1]) for route in nodes] == list(zip(*ends, strict=True))


@pytest.mark.parametrize("members", [1, 63, 64, 65, 130])
def test_means_over_a_part_and_over_the_rest(members):
    from gradweave.learning.policies.messages_kernel import means_of_parts
    from gradweave.schedulers.kernels.bitset import pack

    rng = np.random.default_rng(members)
    whole, x = rng.random(members) < 0.8, rng.normal(size=(members, 4)).astype(np.float32)
    part = rng.random((6, members)) < rng.random((6, 1))
    part[0], part[1] = False, True
    got = means_of_parts(pack(part), pack(whole[None])[0], np.ones(6, bool), x)
    for means, mask in zip(got, (part & whole, ~part & whole), strict=True):
        number = np.maximum(mask.sum(1, keepdims=True), 1)
        np.testing.assert_allclose(means, mask @ x.astype(float) / number, rtol=1e-4, atol=1e-6)
