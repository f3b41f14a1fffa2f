"""Trees and paths of the textbooks, for any demand."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import NoScheduleError
from gradweave.schedule import collective
from gradweave.schedulers import BinomialTree, Chain, Direct, DoubleBinaryTree
from gradweave.schedulers.demands.textbook import TEXTBOOK, Textbook
from gradweave.simulate.seconds import event_seconds
from gradweave.verify import verify
from tests.schedulers.demands.random_jobs import random_jobs


@pytest.mark.parametrize("strategy", TEXTBOOK, ids=lambda one: one.name)
@pytest.mark.parametrize("spec", ["star:5", "complete:n=4"])
def test_random_jobs_are_valid_or_refused(strategy: Textbook, spec: str):
    topology = gw.topology.from_spec(spec)
    for seed in range(4):
        demand = random_jobs(topology, seed, relays=True)
        if demand.unicast and not strategy.unicast:
            with pytest.raises(NoScheduleError, match="several contributors or destinations"):
                strategy.schedule(topology, demand, time_limit=0.05)
        else:
            assert verify(strategy.schedule(topology, demand, time_limit=0.05)).valid


def test_direct_relays_where_others_may_and_trees_do_not():
    ring = gw.topology.ring(5)
    messages = collective("all_to_all", ring.servers, 100)
    assert verify(Direct().schedule(ring, messages)).valid
    with pytest.raises(NoScheduleError, match="direct: server 0 and server 2 share no link"):
        Direct().schedule(ring, collective("broadcast", ring.servers, 100, root=0))


@pytest.mark.parametrize("servers", range(2, 18))
def test_double_binary_trees_are_those_of_the_paper(servers: int):
    """Trees with half each, of logarithmic depth; nobody has children in both but the root."""
    made = list(DoubleBinaryTree()._parents(servers, 1))
    inner = [set(parent.tolist()) - {-1, 1} for parent in made]
    assert len(made) == 2 and not inner[0] & inner[1]
    for parent in made:
        assert parent[1] == -1 and np.bincount(parent[parent >= 0]).max() <= 2
        assert (parent == 1).sum() == 1
        assert max(map(len, ways_up(parent))) <= servers.bit_length() + 1


@pytest.mark.parametrize("servers", [2, 5, 8, 16])
def test_binomial_trees_take_as_few_steps_as_can_be(servers: int):
    (parent,) = BinomialTree()._parents(servers, 3 % servers)
    assert max(map(len, ways_up(parent))) <= (servers - 1).bit_length()
    star = gw.topology.from_spec(f"star:{servers},latency=0s,overhead=1us,bandwidth=1TB/s")
    demand = collective("broadcast", star.servers, 1, root=3 % servers)
    seconds = event_seconds(BinomialTree().schedule(star, demand))[1].max()
    assert seconds == pytest.approx((servers - 1).bit_length() * 1e-6, rel=1e-3)


def ways_up(parent: np.ndarray) -> list[list[int]]:
    """From each node the nodes on its way to the root; fails where it leads round."""
    ways = []
    for node in range(len(parent)):
        way: list[int] = []
        while parent[node] >= 0:
            node = int(parent[node])
            way.append(node)
            assert len(way) < len(parent)
        ways.append(way)
    return ways


def test_chains_make_rings_of_both_directions():
    net = gw.topology.from_spec("ring:4,latency=0s,overhead=0s,bandwidth=1GB/s")
    schedule = Chain().schedule(net, collective("all_reduce", net.servers, 4 * 10**6))
    # each link carries 3/4 of it; no schedule takes less
    assert event_seconds(schedule)[1].max() == pytest.approx(3e-3, rel=1e-3)
