"""Trees and paths of the textbooks, for any demand."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import (
    BinomialTree,
    Bruck,
    Butterfly,
    Chain,
    Direct,
    DoubleBinaryTree,
    HierarchicalRing,
)
from gradweave.schedulers.textbook.exchanges import MAX_RADIX
from gradweave.schedulers.textbook.runtimes import Textbook
from gradweave.schedules import Demand, collective
from gradweave.simulator.seconds import event_seconds
from gradweave.verifier import verify

RING = gw.topology.ring(3)
"""A network for strategies whose trees do not depend on it."""


def test_direct_relays_where_others_may_and_trees_do_not():
    ring = gw.topology.ring(5)
    messages = collective("all_to_all", ring.servers, 100)
    assert verify(Direct().schedule(ring, messages)).valid
    with pytest.raises(NoScheduleError, match="direct: server 0 and server 2 share no link"):
        Direct().schedule(ring, collective("broadcast", ring.servers, 100, root=0))


@pytest.mark.parametrize("servers", range(2, 18))
def test_double_binary_trees_are_those_of_the_paper(servers: int):
    """Trees with half each, of logarithmic depth; nobody has children in both but the root."""
    made = list(DoubleBinaryTree()._parents(RING, np.arange(servers), 1))
    inner = [set(parent.tolist()) - {-1, 1} for parent in made]
    assert len(made) == 2 and not inner[0] & inner[1]
    for parent in made:
        assert parent[1] == -1 and np.bincount(parent[parent >= 0]).max() <= 2
        assert (parent == 1).sum() == 1
        assert max(map(len, ways_up(parent))) <= servers.bit_length() + 1


@pytest.mark.parametrize("servers", [2, 5, 8, 16])
def test_binomial_trees_take_as_few_steps_as_can_be(servers: int):
    (parent,) = BinomialTree()._parents(RING, np.arange(servers), 3 % servers)
    assert max(map(len, ways_up(parent))) <= (servers - 1).bit_length()
    star = gw.topology.from_spec(f"star:{servers},latency=0s,overhead=1us,bandwidth=1TB/s")
    demand = collective("broadcast", star.servers, 1, root=3 % servers)
    seconds = event_seconds(BinomialTree().schedule(star, demand))[1].max()
    assert seconds == pytest.approx((servers - 1).bit_length() * 1e-6, rel=1e-3)


def ways_up(parent: np.ndarray) -> list[list[int]]:
    """For each node, the nodes on its way to the root; fails if there is a cycle."""
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


def depth_and_sent(strategy: Textbook, demand: Demand, servers: int) -> tuple[int, set[int]]:
    """Longest chain of transfers that wait for each other, and bytes that servers send."""
    star = gw.topology.from_spec(f"star:{servers}")
    schedule = strategy.schedule(star, demand, time_limit=1e-3)
    reached: dict[tuple[int, int], int] = {}
    for row in np.argsort(schedule.round, kind="stable").tolist():
        piece, source = int(schedule.piece[row]), int(schedule.source[row])
        at = (piece, int(schedule.target[row]))
        reached[at] = max(reached.get(at, 0), reached.get((piece, source), 0) + 1)
    sent = gw.simulator.traffic(schedule).sent_bytes[star.servers]
    return max(reached.values()), set(sent.tolist())


FORMULAS = {
    # bytes are 1 from each server to each other, or of each server, or for each
    "Bruck, all-to-all": (Bruck(), "all_to_all", 16, 4, 16 // 2 * 4),
    "Bruck, radix 4": (Bruck(4), "all_to_all", 16, 2, 3 * 16 // 4 * 2),
    "pairwise": (Direct(), "all_to_all", 16, 1, 15),
    "all-to-all by exchanges": (Butterfly(), "all_to_all", 8, 3, 8 // 2 * 3),
    "Bine all-to-all": (Butterfly("bine"), "all_to_all", 8, 3, 8 // 2 * 3),
    "recursive doubling": (Butterfly(), "all_gather", 16, 4, 15),
    "recursive halving": (Butterfly(), "reduce_scatter", 16, 4, 15),
    "halving and doubling": (Butterfly(), "all_reduce", 8, 6, 2 * 7),
    "Bine all-reduce": (Butterfly("bine"), "all_reduce", 8, 6, 2 * 7),
    "recursive multiplying": (Butterfly(radix=4), "all_gather", 16, 2, 15),
    "Bruck, all-gather": (BinomialTree(), "all_gather", 16, 4, 15),
    "k-nomial all-gather": (BinomialTree(3), "all_gather", 9, 2, 8),
    "ring": (Chain(), "all_reduce", 8, 14, 14),
}
"""Strategy, collective, servers; steps and bytes that each server sends, as published."""


@pytest.mark.parametrize("case", FORMULAS)
def test_steps_and_bytes_are_as_published(case: str):
    strategy, name, servers, steps, sent = FORMULAS[case]
    demand = collective(name, range(servers), servers)
    assert depth_and_sent(strategy, demand, servers) == (steps, {sent})


def test_bruck_sends_to_as_many_servers_as_there_are_digits():
    star = gw.topology.star(9)
    schedule = Bruck(3).schedule(star, collective("all_to_all", range(9), 9))
    apart = np.unique((schedule.target - schedule.source) % 9)
    assert apart.tolist() == [1, 2, 3, 6]


def test_bine_partners_are_a_third_nearer_and_far_ones_exchange_little():
    """Bytes of an all-gather times distance on the ring, De Sensi et al., section 2."""
    far = {}
    for strategy in (Butterfly(), Butterfly("bine")):
        net = gw.topology.star(16)
        schedule = strategy.schedule(net, collective("all_gather", range(16), 16))
        apart = (schedule.target - schedule.source) % 16
        far[strategy.partners] = np.minimum(apart, 16 - apart)
    assert sorted(set(far["bine"].tolist())) == [1, 3, 5]
    assert np.bincount(far["hypercube"])[[1, 2, 4, 8]].tolist() == [128, 64, 32, 16]
    assert np.bincount(far["bine"])[[1, 3, 5]].tolist() == [128 + 64, 32, 16]


def test_folded_servers_get_all_from_those_that_stand_for_them():
    steps, sent = depth_and_sent(Butterfly(), collective("all_gather", range(7), 7), 7)
    assert steps == 2 + 2 and min(sent) == 1  # sent by a folded server


def test_hierarchical_rings_cross_boxes_as_little_as_can_be():
    boxes = gw.topology.from_spec("leaf_spine:leaves=3,spines=1,servers_per_leaf=4")
    demand = collective("all_reduce", boxes.servers, 12 * 2)
    schedule = HierarchicalRing().schedule(boxes, demand)
    box = np.arange(12) // 4
    crosses = box[boxes.rank[schedule.source]] != box[boxes.rank[schedule.target]]
    size = gw.simulator.traffic(schedule).sent_bytes[boxes.servers]
    # inside 2·3/4, across 2·2/3 of a quarter, of 24 bytes; each server sends to its successors
    assert size == pytest.approx(2 * 3 / 4 * 24 + 2 * 2 / 3 * 24 / 4)
    assert crosses.sum() * 2 == 12 * 2 * 2 * 2
    for some in (range(8), range(2, 6)):
        part = collective("broadcast", boxes.servers[some], 10**6, root=int(boxes.servers[2]))
        assert verify(HierarchicalRing().schedule(boxes, part)).valid
    with pytest.raises(NoScheduleError, match="hierarchical_ring: expected equally many serv"):
        HierarchicalRing().schedule(boxes, collective("all_gather", boxes.servers[:6], 60))


def test_a_pipelined_broadcast_takes_the_bytes_of_one_link_and_little_more():
    net = gw.topology.from_spec("ring:8,latency=0s,overhead=0s,bandwidth=1GB/s")
    schedule = Chain().schedule(net, collective("broadcast", net.servers, 10**7, root=0))
    pieces = schedule.pieces
    assert pieces > 32
    # Van de Geijn: (pieces + servers − 2) steps of one piece
    assert event_seconds(schedule)[1].max() == pytest.approx((pieces + 6) / pieces * 1e-2, rel=1e-3)


def test_options_are_checked():
    for make in (lambda: Bruck(1), lambda: BinomialTree(99), lambda: Butterfly("bine", 4)):
        with pytest.raises(OptionError, match="radix: expected 2"):
            make()
    with pytest.raises(OptionError, match="butterfly: partners: expected hypercube or bine"):
        Butterfly("bines")  # type: ignore[arg-type]


@pytest.mark.parametrize("radix", [1, 0, -2, MAX_RADIX + 1])
def test_a_radix_that_bruck_cannot_have_is_refused(radix):
    with pytest.raises(OptionError, match="radix: expected"):
        Bruck(radix=radix)
    assert Bruck(radix=MAX_RADIX).radix == MAX_RADIX


def test_an_all_reduce_in_double_binary_trees_has_two_for_each_root_and_nccls_has_two_in_all():
    """25 MB over ports of 12.5 GB/s: 2 · 7/8 · 2 ms, where only two trees would need 2 · 2 ms."""
    star = gw.topology.from_spec("star:8,bandwidth=100Gbit/s,latency=0s,overhead=0s")
    demand = gw.schedules.collective("all_reduce", range(8), 25 * 10**6)
    many, two = (
        gw.schedulers.demand_strategy(name).schedule(star, demand, seed=0)
        for name in ("double_binary_tree", "double_tree")
    )
    assert {*many.root.tolist()} == {*range(8)} and len({*two.root.tolist()}) == 2
    assert gw.simulator.seconds(many, None, "events") == pytest.approx(3.5e-3)
    assert gw.simulator.seconds(two, None, "events") >= 4e-3
