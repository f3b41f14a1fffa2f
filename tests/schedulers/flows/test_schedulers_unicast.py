"""Plans for point-to-point messages: valid, near their bounds, the same for a seed."""

import math

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.schedulers.flows import unicast
from gradweave.schedulers.flows.ejection_kernel import rounds_by_ejection
from gradweave.schedulers.flows.parts import _Alternatives
from gradweave.schedulers.flows.rounds_kernel import Transfers
from gradweave.schedulers.flows.unicast import _counts, plan_unicast
from gradweave.schedules import Job, collective, demand_of, sends

DRAGONFLY = "dragonfly:groups=3,routers_per_group=2,servers_per_router=2,global_links=1"


@pytest.mark.parametrize(
    ("spec", "rounds"),
    [
        ("ring:7", 6),
        ("torus:4x4", 8),
        ("hypercube:dimension=4", 8),
        ("mesh:4x4", 16),
        ("bcube:n=4,k=1", 12),
        ("dcell:n=4,k=1", 24),
        ("fat_tree:k=4", 15),
        ("jellyfish:reference=J10,seed=0", 9),
        ("leaf_spine:leaves=4,spines=2,servers_per_leaf=3", 6),
        ("complete:n=5", 1),
        ("star:9", 8),
    ],
)
def test_an_all_to_all_in_rounds_is_optimal(spec: str, rounds: int) -> None:
    topology = gw.topology.from_spec(spec)
    demand = collective("all_to_all", topology.servers, topology.num_servers)
    plan = plan_unicast(topology, demand, "rounds")
    assert gw.verify(plan.schedule).valid
    assert (plan.schedule.rounds, plan.least) == (rounds, rounds)


@pytest.mark.parametrize("spec", ["torus:4x4", "mesh:3x4", "bcube:n=3,k=1", DRAGONFLY, "star:6"])
def test_seconds_are_near_the_bound(spec: str) -> None:
    topology = gw.topology.from_spec(spec)
    demand = collective("all_to_all", topology.servers, 10**9)
    plan = plan_unicast(topology, demand)
    assert gw.verify(plan.schedule).valid
    assert gw.simulator.seconds(plan.schedule, model="events") == plan.time
    assert 0 <= plan.gap < 0.02


def test_messages_are_cut_no_finer_once_a_plan_is_at_the_bound(monkeypatch) -> None:
    """Whole messages over one port after the other: no order of smaller parts is faster."""
    made, in_seconds = [], unicast._in_seconds

    def counted(*given):
        for found in in_seconds(*given):
            made.append(found)
            yield found

    monkeypatch.setattr(unicast, "_in_seconds", counted)
    topology = gw.topology.star(5)
    demand = collective("all_to_all", topology.servers, 10**8)
    plan = unicast.plan_unicast(topology, demand)
    assert plan.gap < unicast.CLOSE and len(made) == 1


@pytest.mark.parametrize("spec", ["leaf_spine:leaves=2,spines=2,servers_per_leaf=4", "fat_tree:4"])
def test_servers_of_one_switch_among_themselves(spec: str) -> None:
    """Links that no message can use would carry more images than their capacity."""
    topology = gw.topology.from_spec(spec)
    demand = collective("all_to_all", topology.servers[:4], 10**8)
    plan = plan_unicast(topology, demand)
    assert gw.verify(plan.schedule).valid
    assert 0 <= plan.gap < 0.02


@pytest.mark.parametrize("capacity", [1, 2])
def test_rounds_by_ejection_are_added_up_to_a_limit(capacity: int) -> None:
    """Eight transfers of one link each, over one link."""
    each = np.arange(9)
    parts = Transfers(each, each[:8] * 0, each[:8] * 0, each[:2], each[:1], each[:2])
    room = np.array([capacity])
    rounds, routes, count = rounds_by_ejection(parts, room, 8 // capacity - 1, 1, 0)
    assert count == 8 // capacity and (np.bincount(rounds) == capacity).all() and not routes.any()
    assert rounds_by_ejection(parts, room, 1, 1, 0)[2] == 0


@pytest.mark.parametrize("seed", range(3))
def test_random_messages_are_planned_alike_for_a_seed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = gw.topology.from_spec(
        ["jellyfish:reference=J10,seed=0", "mesh:3x4", DRAGONFLY][seed]
    )
    pairs = {tuple(rng.choice(topology.servers, 2, replace=False).tolist()) for _ in range(40)}
    demand = sends([(*pair, int(rng.integers(1, 10**6))) for pair in sorted(pairs)])
    for unit in ("rounds", "seconds"):
        plan, again = (plan_unicast(topology, demand, unit, pieces=3, seed=5) for _ in range(2))
        assert gw.verify(plan.schedule).valid
        assert plan.time >= plan.least
        assert np.array_equal(plan.schedule.route_nodes, again.schedule.route_nodes)
        assert np.array_equal(plan.schedule.round, again.schedule.round)


def test_only_servers_of_the_demand_and_relays_pass_on() -> None:
    torus = gw.topology.from_spec("torus:4x4")
    demand = collective("all_to_all", [0, 1, 2, 3], 4096)
    plan = plan_unicast(torus, demand, "rounds")
    assert set(plan.schedule.route_nodes.tolist()) == {0, 1, 2, 3}
    helped = collective("all_to_all", [0, 1, 2, 3], 4096, relays=range(4, 8))
    wider = plan_unicast(torus, helped, "rounds", pieces=4)
    assert wider.least < 4 * plan.least
    assert set(wider.schedule.route_nodes.tolist()) <= set(range(8))
    with pytest.raises(OptionError, match="from server 0 to server 2 passes servers that are not"):
        plan_unicast(torus, collective("all_to_all", [0, 2], 8))


def _skewed(servers: int, seed: int) -> np.ndarray:
    """[N, N] bytes, most of them to a few servers."""
    rng = np.random.default_rng(seed)
    liked = rng.permutation(1 / np.arange(1, servers + 1))
    return (1e8 * liked * rng.lognormal(0, 0.5, (servers, servers))).astype(np.int64)


@pytest.mark.parametrize("spec", ["mesh:4x4", "torus:4x4", "hypercube:dimension=4", "star:16"])
def test_skewed_sizes_are_near_the_bound_at_first_and_again(spec: str) -> None:
    topology = gw.topology.from_spec(spec)
    first, changed = (
        collective("all_to_all", topology.servers, _skewed(16, seed)) for seed in (0, 1)
    )
    plan = plan_unicast(topology, first)
    again = plan_unicast(topology, changed, known=plan)
    assert gw.verify(again.schedule).valid
    assert gw.simulator.seconds(again.schedule, model="events") == again.time
    assert 0 <= plan.gap < 0.04
    assert 0 <= again.gap < 0.06


def test_parts_are_as_unequal_as_the_flow() -> None:
    ring = gw.topology.from_spec("ring:5")
    plan = plan_unicast(ring, sends([(0, 1, 10**9)], relays=ring.servers))
    sizes = gw.simulator.traffic(plan.schedule).link_bytes / 1e9
    # Both ways round, half of it each, on one link and on four.
    assert np.allclose(np.sort(sizes), [0] * 5 + [0.5] * 5, atol=1e-3)
    assert plan.gap < 0.02


def test_nothing_of_a_job_is_sent_before_it_is_ready() -> None:
    ring = gw.topology.from_spec("ring:4")
    jobs = [Job("all_to_all", 4 * 10**8), Job("all_to_all", 4 * 10**8, ready_at=0.01)]
    demand = demand_of(ring, jobs)
    plan = plan_unicast(ring, demand)
    start, _ = gw.simulator.event_seconds(plan.schedule)
    assert plan.schedule.block is not None
    late = demand.job[plan.schedule.block[plan.schedule.piece]] == 1
    assert start[late].min() >= 0.01 > start[~late].min()
    assert plan.time < plan.least * 1.01  # while the other's bytes keep links busy


def test_another_demand_is_planned_from_the_last_plan() -> None:
    topology = gw.topology.from_spec("mesh:4x4")
    rng = np.random.default_rng(0)
    sizes = rng.integers(10**5, 10**6, (16, 16))
    plan = plan_unicast(topology, collective("all_to_all", topology.servers, sizes), pieces=2)
    changed = collective("all_to_all", topology.servers, sizes * rng.integers(1, 4, (16, 16)))
    again = plan_unicast(topology, changed, pieces=2, known=plan)
    assert gw.verify(again.schedule).valid
    assert again.flow.gap < 2e-3
    assert math.isclose(again.least, plan_unicast(topology, changed).least, rel_tol=3e-3)


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        (collective("broadcast", range(4), 8, root=0), "block 0: expected one contributor"),
        (collective("all_to_all", range(9), 99), "has no server 8"),
    ],
)
def test_what_is_not_for_it_is_refused(demand: gw.schedules.Demand, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        plan_unicast("ring:8", demand)


def test_parts_are_in_proportion_to_messages():
    """Four parts of the largest message; the others by bytes, rounded to even, at least one."""
    assert _counts(np.array([40, 20, 10, 1, 30, 35]), 4).tolist() == [4, 2, 1, 1, 3, 4]
    assert _counts(np.array([7]), 3).tolist() == [3]


def test_shortest_routes_between_servers_pass_switches_alone():
    """Servers 0, 1 and 2; from 0 to 1 over switch 3 or 4; over server 2 is as short, and none."""
    pairs = [(0, 3), (3, 1), (0, 4), (4, 1), (0, 2), (2, 1)]
    net = gw.topology.Topology.from_links("by hand", servers=3, switches=2, links=pairs)
    found = _Alternatives(net, np.ones(len(net.source)), None)
    link = {ends: k for k, ends in enumerate(zip(net.source, net.target, strict=True))}
    routes = found._shortest(0, 1)
    assert sorted(routes) == [(link[0, 3], link[3, 1]), (link[0, 4], link[4, 1])]
    assert found._shortest(0, 2) == [(link[0, 2],)]
