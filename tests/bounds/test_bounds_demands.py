"""Bounds for demands of any kind: formulas, trees of least length, and schedules above them."""

import dataclasses
import gc
import itertools
import weakref
from fractions import Fraction

import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds.demands.arborescence_kernel import least_arborescence
from gradweave.bounds.demands.demand_bound import demand_bound
from gradweave.bounds.demands.demand_lengths import FAR, DemandLengths, LeastCarriers
from gradweave.bounds.demands.link_windows import FEMTOSECONDS, NEVER, least_idle
from gradweave.bounds.prices import MAX_LENGTH
from gradweave.errors import OptionError
from gradweave.schedulers import solve_demand
from gradweave.schedules import Demand, Job, collective, demand_of

RATE = 10**9
EXACT = "bandwidth=1GB/s,latency=1us,overhead=1us"
LATENCY_S = OVERHEAD_S = Fraction(1e-6)
WHOLE = 12 * 10**6


def network(spec: str) -> gw.Topology:
    return gw.topology.from_spec(f"{spec},{EXACT}")


def cheapest_by_brute_force(cost: np.ndarray, root: int) -> int:
    """Over all ways to give each node but the root a parent, those without circles."""
    others = [node for node in range(len(cost)) if node != root]
    least = FAR
    for chosen in itertools.product(range(len(cost)), repeat=len(others)):
        parent = dict(zip(others, chosen, strict=True))
        total = sum(int(cost[parent[node], node]) for node in others)
        if total < least and all(leads_to(root, node, parent) for node in others):
            least = total
    return least


def leads_to(root: int, node: int, parent: dict[int, int]) -> bool:
    for _ in parent:
        node = parent.get(node, root)
    return node == root


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
def test_trees_of_least_length_are_those_of_brute_force(nodes: int):
    rng = np.random.default_rng(nodes)
    for _ in range(12):
        cost = rng.integers(0, 8, (nodes, nodes))
        cost[rng.random(cost.shape) < 0.3] = FAR
        np.fill_diagonal(cost, FAR)
        root = int(rng.integers(nodes))
        assert least_arborescence(cost, root, FAR) == cheapest_by_brute_force(cost, root)


PORTS = {
    # collective: bytes through the busiest port of n servers
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
    "scatter": lambda n: Fraction(n - 1, n),
    "gather": lambda n: Fraction(n - 1, n),
    "all_gather": lambda n: Fraction(n - 1, n),
    "reduce_scatter": lambda n: Fraction(n - 1, n),
    "all_to_all": lambda n: Fraction(n - 1, n),
}


@pytest.mark.parametrize("name", PORTS)
def test_on_a_star_the_ports_count(name: str):
    net = network("star:6")
    root = 2 if name in ("broadcast", "reduce", "scatter", "gather") else None
    bound = demand_bound(net, collective(name, range(6), WHOLE, root=root))
    least = PORTS[name](6) * WHOLE / RATE + 2 * LATENCY_S + OVERHEAD_S
    assert bound.lengths.time == pytest.approx(float(least), abs=1e-12)


@pytest.mark.parametrize(
    ("spec", "name", "bytes_per_rate", "messages"),
    [
        ("ring:8", "broadcast", Fraction(1, 2), 4),  # two ports, and four messages to the last
        ("ring:8", "reduce", Fraction(1, 2), 4),
        ("ring:8", "all_gather", Fraction(7, 16), 1),
        ("ring:8", "all_reduce", Fraction(7, 8), 1),  # 2 (n - 1) links for each tree, of 2 n
        ("torus:4x4", "broadcast", Fraction(1, 4), 4),
        ("torus:4x4", "all_gather", Fraction(15, 64), 1),
        ("torus:4x4", "all_to_all", Fraction(1, 2), 1),  # 32 hops away in all, n 16 parts, 4 ports
        ("complete:n=5", "all_reduce", Fraction(2, 5), 1),
        ("complete:n=5", "all_to_all", Fraction(1, 5), 1),
    ],
)
def test_bytes_take_what_the_formulas_say(
    spec: str, name: str, bytes_per_rate: Fraction, messages: int
):
    net = network(spec)
    root = 0 if name in ("broadcast", "reduce") else None
    size = 16 * 5 * 8 * 10**4
    demand = collective(name, net.servers, size, root=root)
    least = bytes_per_rate * size / RATE + messages * (LATENCY_S + OVERHEAD_S)
    assert demand_bound(net, demand).lengths.time == pytest.approx(float(least), abs=1e-12)


def test_of_few_bytes_links_wait_until_messages_can_have_come():
    net = network("ring:8")
    bound = demand_bound(net, collective("broadcast", net.servers, 1, root=3))
    assert bound.seconds_by("distance") == pytest.approx(5e-6)
    assert bound.parts[0].reason(str) == "from server 3 to server 7 it takes 5 us"
    assert bound.seconds == pytest.approx(8.0005e-6)  # half a byte over each of two links
    assert str(bound) == (
        "at least 8 us (bandwidth) for schedules that route through no other server, since "
        "1 byte must enter server 7 at 16 Gbit/s, and messages take 8 us on top of their bytes"
    )


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
def test_of_few_bytes_a_root_s_ports_count(name: str):
    # A star's messages arrive after 3 us, one a us from each port: of others 1, 2, 3, 5, 8 know.
    net = network("star:9")
    bound = demand_bound(net, collective(name, net.servers, 1, root=0))
    assert bound.seconds == pytest.approx(7e-6)
    does = "reach" if name == "broadcast" else "hear from"
    assert f"must {does} 8 others" in str(bound)
    # The last byte has left after 1 ms, with the first of these messages.
    bound = demand_bound(net, collective(name, net.servers, 10**6, root=0))
    assert bound.seconds_of_parts == pytest.approx(1e-3 + 6e-6)
    assert bound.seconds > bound.seconds_of_parts  # and pieces are passed on whole
    four = demand_bound(net, collective(name, range(4), 1, root=0))
    assert not four.seconds_by("messages") and four.seconds == pytest.approx(3e-6, rel=1e-3)


def test_windows_of_links_on_a_chain_by_hand():
    # Servers 0 and 1 with switch 3 between them; 1 and 2 joined, with latencies of their own.
    links = [(0, 3), (3, 1), (1, 2)]
    chain = gw.topology.Topology.from_links("chain", servers=3, switches=1, links=links)
    microseconds = [2, 5, 3, 5, 2, 3]  # 0→3, 1→2, 1→3, 2→1, 3→0, 3→1
    chain = dataclasses.replace(chain, latency_s=1e-6 * np.array(microseconds))
    demand = collective("broadcast", range(3), 8, root=0)
    idle = least_idle(chain, demand) / FEMTOSECONDS * 1e6
    # 2 + 3 + 1, or 2 + 2 + 1 there and back; 5 + 1 more from server 1 on
    assert idle == pytest.approx([5, 12, 12, 18, 5, 6])
    assert least_idle(chain, collective("reduce", [1, 2], 8, root=1))[0] == NEVER


def test_two_jobs_on_a_ring_by_hand():
    net = gw.topology.from_spec("ring:4,bandwidth=1GB/s,latency=0s,overhead=0s")
    both = [Job("all_reduce", 4 * 10**6), Job("broadcast", 2 * 10**6, root=0)]
    even = DemandLengths(net, demand_of(net, both), np.ones(8, int))
    assert even.used == (2 * 3 * 4 + 3 * 2) * 10**6
    assert even.time == Fraction(30, 8) / 1000


def test_jobs_that_begin_later_are_bounded_alone_from_then_on():
    net = gw.topology.from_spec("ring:4,bandwidth=1GB/s,latency=0s,overhead=0s")

    def bound(ready_at: float):
        late = Job("broadcast", 2 * 10**6, root=0, ready_at=ready_at)
        return demand_bound(net, demand_of(net, [Job("all_reduce", 4 * 10**6), late]))

    assert bound(1e-3).seconds == float(Fraction(30, 8) / 1000)  # while the other still runs
    assert bound(7.0).seconds == 7 + 1e-3
    assert str(bound(7.0)) == (  # its messages prove as much, for every schedule on a ring
        "at least 7.001 s (messages), since 2 MB must leave server 0 at 16 Gbit/s, and the last "
        "bytes reach all from 7 s on"
    )


def test_given_lengths_may_prove_more_and_never_less():
    net = network("mesh:4x4")
    demand = collective("all_to_all", net.servers, 16 * 10**6)
    left = np.arange(16) % 4 < 2
    cut = (left[net.source] & ~left[net.target]).astype(float)
    plain, better = demand_bound(net, demand), demand_bound(net, demand, lengths=cut)
    assert better.seconds > plain.seconds
    assert better.lengths.used == 8 * 8 * 10**6
    assert "64 MB must cross 4 link directions, which carry 32 Gbit/s together" in str(better)
    assert demand_bound(net, demand, lengths=np.ones_like(cut)).seconds >= plain.seconds


@pytest.mark.parametrize("others", [0.0, 5e-324])
def test_lengths_that_all_can_go_round_prove_nothing(others: float):
    net = network("torus:3x3")
    lengths = np.full(len(net.source), others)
    lengths[0] = 1.0
    demand = collective("all_to_all", net.servers, 9 * 10**6)
    assert demand_bound(net, demand, lengths=lengths).seconds <= demand_bound(
        net, demand
    ).seconds * (1 + 1e-9)


def test_servers_that_may_relay_make_paths_shorter_and_others_do_not():
    # From 0 to 2: two hops by server 1, three by switches 3 and 4.
    links = [(0, 1), (1, 2), (0, 3), (3, 4), (4, 2)]
    net = gw.topology.Topology.from_links("detour", servers=3, switches=2, links=links)
    ones = np.ones(10, int)

    def used(relays):
        return DemandLengths(net, gw.schedules.sends([(0, 2, 5)], relays=relays), ones).used

    assert (used([]), used([1])) == (15, 10)


def test_what_cannot_be_reached_is_refused_in_one_line():
    net = network("ring:6")
    with pytest.raises(OptionError, match="from server 0 to server 3 passes servers that are not"):
        demand_bound(net, collective("broadcast", [0, 3], 8, root=0))
    assert demand_bound(net, collective("broadcast", [0, 3], 8, root=0, relays=[1, 2])).seconds > 0
    with pytest.raises(OptionError, match="has no server 9, only 6"):
        demand_bound(net, collective("broadcast", [0, 9], 8, root=0))


def test_trees_among_some_servers_pass_no_others():
    broadcast = collective("broadcast", [0, 2, 4], 8, root=0)
    with pytest.raises(OptionError, match="passes servers that are not in the job"):
        _ = DemandLengths(network("ring:6"), broadcast, np.ones(12, int)).used


def test_links_that_carry_nothing_offer_nothing():
    """A spur that leads to no destination helps no byte, whatever its length."""
    net = network("mesh:1x3")
    demand = gw.schedules.sends([(2, 1, 10**6)])
    spur = (net.source == 0) | (net.target == 0)
    assert np.array_equal(least_idle(net, demand) == NEVER, spur)
    used = (net.source == 2) & (net.target == 1)
    alone, both = (DemandLengths(net, demand, each.astype(int)) for each in (used, used | spur))
    exact = Fraction(1, 1000) + LATENCY_S + OVERHEAD_S
    assert alone.time == both.time == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize(
    "lengths", [np.full(12, -1), np.full(12, MAX_LENGTH + 1), np.ones(11, int), np.ones(12)]
)
def test_lengths_that_are_none_are_refused(lengths: np.ndarray):
    demand = collective("broadcast", range(6), 8, root=0)
    with pytest.raises(OptionError, match=r"lengths: (link 0→1: )?expected"):
        DemandLengths(network("ring:6"), demand, lengths)


@pytest.mark.parametrize("lengths", [[1.0], [np.nan] * 12, [-1.0] * 12])
def test_duals_that_are_none_are_refused(lengths: list[float]):
    demand = collective("broadcast", range(6), 8, root=0)
    with pytest.raises(OptionError, match=r"lengths: (link 0→1: )?expected"):
        demand_bound(network("ring:6"), demand, lengths=np.array(lengths))


def overlapping(net: gw.Topology, rng: np.random.Generator) -> Demand:
    """Two or three jobs of random groups."""
    jobs = []
    for _ in range(int(rng.integers(2, 4))):
        name = str(rng.choice(list(PORTS)))
        group = rng.permutation(net.servers)[: int(rng.integers(3, net.num_servers))].tolist()
        root = group[0] if name in ("broadcast", "reduce", "scatter", "gather") else None
        jobs.append(Job(name, int(rng.integers(1, 10**7)), group, root, relays=net.servers))
    return demand_of(net, jobs)


@pytest.mark.parametrize("spec", ["star:5", "mesh:2x3", "bcube:n=2,k=1"])
def test_no_schedule_takes_less_than_any_lengths_prove(spec: str):
    rng = np.random.default_rng(7)
    net = network(spec)
    for _ in range(2):
        demand = overlapping(net, rng)
        found = solve_demand(net, demand, time_limit=0.1)
        least = min(one.seconds for one in found.attempts if one.seconds is not None)
        assert found.seconds == least >= found.bound.seconds
        for _ in range(10):
            lengths = rng.integers(0, 9, len(net.source))
            assert DemandLengths(net, demand, lengths).time <= least


def test_lengths_of_trees_are_kept_no_longer_than_the_network_s():
    ring = gw.topology.ring(4)
    least = LeastCarriers(ring, ring.servers, np.arange(1, 9))
    lengths = [least.tree(root, towards) for root in range(4) for towards in (False, True)]
    assert lengths == [least.tree(root, towards) for root in range(4) for towards in (False, True)]
    alive = weakref.ref(least)
    del least
    gc.collect()
    assert alive() is None
