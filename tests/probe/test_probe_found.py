"""What is concluded from rates, step by step and by hand: groups, joins, bandwidths, latencies."""

import numpy as np
import pytest

from gradweave.probe import explore
from gradweave.probe.explore import (
    ALIKE,
    NEAR,
    Findings,
    Group,
    _agree,
    _at_least,
    _Explorer,
    _mixed,
    _nearness,
    _nothing,
    _raised,
    _same_groups,
    _typical,
    clusters,
    fans,
    slots_ahead,
    together,
    tournaments,
    tournaments_ahead,
)
from gradweave.probe.infer import Latencies, _fitted, _spreads, inferred, snapped
from gradweave.probe.traffic import PARTS, Rate, between, total


def rate(bytes_per_s: float) -> Rate:
    return Rate(bytes_per_s, (bytes_per_s,) * PARTS)


def server(rank: int, out: float, into: float) -> Group:
    return Group((rank,), rate(out), rate(into))


def test_how_much_is_measured_of_few_servers_and_many():
    """Servers: tournaments, and those played in any case; fans; slots."""
    for servers, played, ahead, tries, slots in [
        (2, 1, 1, 6, 1 + 6 * 2),
        (3, 2, 2, 4, 2 * 3 + 4 * 3),
        (4, 3, 3, 3, 3 * 3 + 3 * 4),
        (5, 6, 5, 2, 5 * 5 + 2 * 5),
        (7, 5, 4, 1, 4 * 7 + 7),
        (8, 4, 3, 1, 3 * 7 + 4),
        (9, 4, 3, 1, 3 * 9 + 5),
        (10, 3, 2, 1, 2 * 9 + 5),
        (40, 3, 2, 1, 2 * 39 + 20),
    ]:
        assert tournaments(servers) == played, servers
        assert tournaments_ahead(servers) == ahead, servers
        assert fans(servers) == tries, servers
        assert slots_ahead(servers) == slots, servers
    assert together(7) == [(rank,) for rank in range(7)]
    assert together(8) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert together(9) == [(0, 5), (1, 6), (2, 7), (3, 8), (4,)]


def test_nearness_is_of_the_slower_own_link_both_ways_alike():
    nodes = [server(0, 10, 4), server(1, 8, 5), server(2, 0, 2)]
    rates = {(0, 1): 4, (1, 0): 2, (0, 2): 3, (2, 0): 1, (1, 2): 1, (2, 1): 1}
    near = _nearness(nodes, {pair: rate(one) for pair, one in rates.items()})
    # 4 of 5 there and 2 of 4 back; 3 of 2, so all of it, and 0 of a link that sends nothing.
    expected = [[1, 0.65, 0.5], [0.65, 1, 0.25], [0.5, 0.25, 1]]
    assert near == pytest.approx(np.array(expected))
    slow = [server(0, 0.5, 0.5), server(1, 0.5, 0.5)]
    near = _nearness(slow, {(0, 1): rate(0.4), (1, 0): rate(0.3)})
    assert near[0, 1] == near[1, 0] == pytest.approx(0.7)


def test_clusters_are_near_and_alike_in_what_else_is_near():
    def symmetric(**pairs: float) -> np.ndarray:
        near = np.eye(4)
        for name, value in pairs.items():
            a, b = map(int, name[1:])
            near[a, b] = near[b, a] = value
        return near

    least = symmetric(_01=NEAR, _02=0.5, _12=0.5)
    assert clusters(least) == [[0, 1], [2], [3]]
    assert clusters(symmetric(_01=NEAR - 1e-9)) == [[0], [1], [2], [3]]
    # 0 and 1 differ by 0.5 towards 2 and by nothing towards 3: by ALIKE on average.
    assert clusters(symmetric(_01=1, _02=2 * ALIKE)) == [[0, 1], [2], [3]]
    assert clusters(symmetric(_01=1, _02=2 * ALIKE + 1e-9)) == [[0], [1], [2], [3]]
    # The nearest first: 1 joins 2, and 0, as near as need be to 1, is too far from both.
    assert clusters(symmetric(_01=0.8, _12=0.9, _02=0.7)) == [[0], [1, 2], [3]]
    assert clusters(symmetric(_01=0.8, _12=0.9, _02=0.8)) == [[0, 1, 2], [3]]
    assert clusters(np.ones((2, 2))) == [[0, 1]]
    # Of clusters the averages count: 2 differs by 0.2 from 0, and as much from 1.
    third = symmetric(_01=1, _02=0.9, _12=0.9, _03=0.3, _13=0.3)
    assert clusters(third) == [[0, 1, 2], [3]]
    # By 0.3 and 0.15; then by 0.4 and 0.2.
    assert clusters(symmetric(_01=1, _02=0.9, _12=0.9, _03=0.5, _13=0.2)) == [[0, 1, 2], [3]]
    assert clusters(symmetric(_01=1, _02=0.9, _12=0.9, _03=0.7, _13=0.3)) == [[0, 1], [2], [3]]


def test_the_third_fastest_rate_counts_where_it_is_faster():
    some = [rate(one) for one in (3, 5, 1, 4, 2)]
    assert _at_least(rate(2), some) == rate(3)
    assert _at_least(rate(3.5), some) == rate(3.5)
    assert _at_least(rate(0.5), some[:2]) == rate(3)
    assert _at_least(rate(0.5), some[:1]) == rate(3)
    nodes = [server(0, 1, 9), server(1, 1, 1)]
    paired = {(0, 1): [rate(one) for one in (4, 2, 3)], (1, 0): [rate(one) for one in (8, 7, 6)]}
    first, second = _raised(nodes, paired)
    # Its own rate is among those of which the third fastest counts.
    assert (first.out, first.into) == (rate(2), rate(9))
    assert (second.out, second.into) == (rate(6), rate(2))


def test_the_median_counts_and_of_two_the_lower():
    paired = {(0, 1): [rate(3), rate(1), rate(2)], (1, 0): [rate(5), rate(4)]}
    assert _typical(paired) == {(0, 1): rate(2), (1, 0): rate(4)}


def test_tournaments_agree_only_if_each_shows_the_same_groups():
    nodes = [server(rank, 10, 10) for rank in range(3)]
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    alike = {pair: [rate(9), rate(10)] for pair in pairs}
    assert _same_groups(nodes, alike)
    assert not _same_groups(nodes, {pair: [rate(9), rate(1)] for pair in pairs})
    # More rates of some pairs than of others: what all have is compared.
    alike[0, 1] += [rate(1)]
    assert _same_groups(nodes, alike)


def test_members_in_turns_and_who_sends_to_whom():
    assert _mixed([[1, 4], [2], [3, 5, 6]]) == [1, 2, 3, 4, 5, 6]
    assert between([0, 1, 2], [7, 8]) == [(0, 7), (1, 8), (2, 7)]
    assert between([0], [7, 8]) == [(0, 7), (0, 8)]
    assert _agree(rate(100), rate(95)) and not _agree(rate(100), rate(94.9))
    assert _agree(rate(95), rate(100)) and not _agree(rate(94.9), rate(100))


def test_flows_together_are_no_faster_than_their_fastest_part():
    one, other = Rate(10, (9, 9, 3)), Rate(8, (2, 5, 8))
    assert total([one]) is one
    assert total([one, other]) == Rate(14, (11, 14, 11))
    assert total([Rate(6, (9, 9, 3)), Rate(7, (2, 5, 8))]) == Rate(13, (11, 14, 11))
    assert one.spread_bytes_per_s == 6


def explorer(rates: dict[tuple[int, int], list[float]]) -> tuple[_Explorer, list]:
    """With what each flow has next, and the slots that are asked for."""
    slots_asked: list = []

    def measure(slots, added):
        slots_asked.append((slots, added))
        return [[rate(rates[flow].pop(0)) for flow in slot] for slot in slots]

    return _Explorer(measure, lambda _: None), slots_asked


def test_a_server_sends_to_all_and_receives_from_all_and_the_fastest_time_counts(monkeypatch):
    monkeypatch.setattr(explore, "ENOUGH_SLOTS", 6)
    flows = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    # Twice three slots, of which each flow is in two.
    rates = {flow: [10.0 * (place + 1)] * 4 for place, flow in enumerate(flows)}
    rates[0, 1] = [10.0, 10.0, 13.0, 14.0]
    measuring, asked = explorer(rates)
    none = {flow: [rate(0.0)] for flow in flows}
    nodes = measuring._fans(3, none)
    slots = [[(0, 1), (0, 2), (1, 0), (2, 0)], [(0, 1), (1, 0), (1, 2), (2, 1)],
             [(0, 2), (1, 2), (2, 0), (2, 1)]]  # fmt: skip
    assert asked == [(slots, True)] * 2
    assert [node.out.bytes_per_s for node in nodes] == [13 + 20, 30 + 40, 50 + 60]
    assert [node.into.bytes_per_s for node in nodes] == [30 + 50, 14 + 60, 20 + 40]


def test_what_a_group_shares_is_the_fastest_of_all_its_members_at_once():
    nodes = [server(rank, 9, 9) for rank in range(4)]
    out = {(0, 2): [3.0, 5.0], (1, 3): [3.0, 2.0], (2, 0): [1.0, 1.0], (3, 1): [2.0, 4.0]}
    measuring, asked = explorer({flow: one * 6 for flow, one in out.items()})
    first, *rest = measuring._grouped(nodes, [[0, 1], [2], [3]])
    assert rest == nodes[2:] and first.parts == tuple(nodes[:2]) and first.members == (0, 1)
    assert (first.out.bytes_per_s, first.into.bytes_per_s) == (7, 5)
    # 12 slots and more of both ways: six times.
    assert [slots for slots, _ in asked] == [[[(0, 2), (1, 3), (2, 0), (3, 1)]]] * 6


def test_links_are_measured_alone_unless_two_loads_agree():
    nodes = [server(rank, 9, 9) for rank in range(4)]
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    paired = {pair: [rate(10.0)] for pair in pairs}
    alone = {pair: [11.0, 12.0] for pair in pairs}
    measuring, asked = explorer(alone)
    measuring._ahead = 1
    fan = {pair: [rate(99.0), rate(1.0), rate(10.4), rate(99.0)] for pair in pairs}
    fan[0, 1] = [rate(99.0), rate(9.6), rate(9.0), rate(99.0)]  # 9.6 agrees; 10.0 is faster
    fan[2, 3] = [rate(99.0), rate(2.0), rate(3.0), rate(99.0)]
    measuring._flows = {pair: list(rates) for pair, rates in fan.items()}
    links = measuring._links(nodes, paired)
    assert links.pop((2, 3)) == rate(12.0) and links.pop((0, 1)) == rate(10.0)
    assert set(links.values()) == {rate(10.4)} and len(links) == 10
    assert [slots for slots, _ in asked] == [[[(2, 3)]]] * 2
    # Of three the tournaments had each pair alone.
    three = {pair: [rate(5.0), rate(7.0), rate(6.0)] for pair in pairs if 3 not in pair}
    measuring, asked = explorer({})
    assert set(measuring._links(nodes[:3], three).values()) == {rate(7.0)}
    assert [slots for slots, _ in asked] == []


def test_each_step_is_told():
    """Of a star none but the first two; of racks what each shares; and of links of their own."""
    told: list[str] = []
    star = explore.explore(
        3, lambda slots, _: [[rate(10 / len(s))] * len(s) for s in slots], told.append
    )
    assert len(star.top) == 3 and not star.links
    assert [step.split()[0] for step in told] == ["pairs", "each"]


def measured(findings: Findings, servers: int):
    apart = 2e-3 * (1 - np.eye(servers))
    latencies = Latencies(apart, apart / 10, 2e-5)
    return inferred(findings, latencies, [f"h{rank}" for rank in range(servers)], "found")


def directions(topology) -> dict[tuple[int, int], float]:
    ends = zip(topology.source.tolist(), topology.target.tolist(), strict=True)
    return dict(zip(ends, topology.bandwidth_bytes_per_s.tolist(), strict=True))


def test_two_groups_are_joined_by_what_both_let_through():
    groups = [
        Group((0, 1), rate(80), rate(70), (server(0, 10, 20), server(1, 30, 40))),
        Group((2, 3), rate(60), rate(90), (server(2, 10, 20), server(3, 30, 40))),
    ]
    found = measured(Findings(tuple(groups), {}, {}), 4).topology
    assert directions(found) == {
        (0, 4): 10, (4, 0): 20, (1, 4): 30, (4, 1): 40, (2, 5): 10, (5, 2): 20, (3, 5): 30,
        (5, 3): 40, (4, 5): 80, (5, 4): 60,
    }  # fmt: skip
    assert found.labels == ("h0", "h1", "h2", "h3", "shared0", "shared1")
    assert set(found.overhead_s) == {2e-5}
    slow = [Group((0, 1), rate(80), rate(40), groups[0].parts), groups[1]]
    slow[1] = Group((2, 3), rate(60), rate(20), groups[1].parts)
    found = directions(measured(Findings(tuple(slow), {}, {}), 4).topology)
    assert (found[4, 5], found[5, 4]) == (20, 40)
    one = measured(Findings(tuple(server(rank, 10 + 5 * rank, 90) for rank in range(3)), {}, {}), 3)
    assert directions(one.topology) == {
        (0, 3): 10, (3, 0): 90, (1, 3): 15, (3, 1): 90, (2, 3): 20, (3, 2): 90,
    }  # fmt: skip


def test_a_group_slower_than_its_links_together_has_one_before_them():
    """Nine tenths of their sum are enough to be without."""
    links = {(0, 1): 100, (0, 2): 200, (1, 0): 50, (1, 2): 70, (2, 0): 1000, (2, 1): 2000}
    rates = {pair: rate(one) for pair, one in links.items()}
    top = (server(0, 270, 100), server(1, 500, 600), server(2, 2690, 800))
    found = measured(Findings(top, rates, {}), 3).topology
    assert directions(found) == {
        (0, 1): 100, (1, 0): 50, (0, 3): 200, (3, 0): 1000, (1, 3): 70, (3, 1): 2000,
        (2, 3): 2690, (3, 2): 800,
    }  # fmt: skip
    pair = {(0, 1): rate(100), (1, 0): rate(50)}
    found = measured(Findings((server(0, 1, 1), server(1, 1, 1)), pair, {}), 2).topology
    assert directions(found) == {(0, 1): 100, (1, 0): 50}


def test_spreads_are_those_of_the_links_and_of_the_pairs_that_cross_them():
    rates = {(0, 1): Rate(100, (90, 100, 115)), (1, 0): Rate(50, (50, 50, 51))}
    nodes = (_nothing(0), _nothing(1))
    found = measured(Findings(nodes, rates, {}), 2)
    assert found.bandwidth_spread_bytes_per_s.tolist() == [25, 1]
    assert found.latency_spread_s == pytest.approx([2e-4, 2e-4])
    assert found.topology.latency_s == pytest.approx([2e-3, 2e-3])
    crossed = np.zeros((3, 3, 2), bool)
    crossed[0, 1, 0] = crossed[0, 2, 0] = crossed[1, 2, 0] = True
    spread = np.array([[0, 5, 1], [5, 0, 4], [1, 4, 0]], float)
    assert _spreads(crossed, spread).tolist() == [4, 0]


def over(servers: int, routes: dict[tuple[int, int], list[int]], links: int) -> np.ndarray:
    """Both directions of each link on the routes both ways."""
    crossed = np.zeros((servers, servers, 2 * links), bool)
    for (a, b), route in routes.items():
        for link in route:
            crossed[a, b, [2 * link, 2 * link + 1]] = crossed[b, a, [2 * link, 2 * link + 1]] = True
    return crossed


def test_latencies_of_links_by_hand():
    star = over(3, {(0, 1): [0, 1], (0, 2): [0, 2], (1, 2): [1, 2]}, 3)
    least = np.array([[0, 3, 4], [3, 0, 5], [4, 5, 0]], float)
    assert _fitted(star, least) == pytest.approx([1, 1, 2, 2, 3, 3])
    # Two in a row that no pair tells apart share what they take.
    row = over(2, {(0, 1): [0, 1]}, 2)
    assert _fitted(row, np.array([[0.0, 6.0], [6.0, 0.0]])) == pytest.approx([3, 3, 3, 3])
    # None is below 0: pairs of 1, 1 and 4 would want −1 of the first link, which takes 0.
    least = np.array([[0, 1, 1], [1, 0, 4], [1, 4, 0]], float)
    found = _fitted(star, least)
    # Then of x + y nearest to 4 and x, y to 1: both (1 + 4) / 3.
    assert found == pytest.approx([0, 0, 5 / 3, 5 / 3, 5 / 3, 5 / 3])
    unused = over(2, {(0, 1): [0]}, 2)
    assert _fitted(unused, np.array([[0.0, 6.0], [6.0, 0.0]])) == pytest.approx([6, 6, 0, 0])


def test_bandwidths_within_a_tenth_are_one_and_others_are_cut_at_the_widest_gap():
    assert snapped(np.array([10.0, 11.0])).tolist() == [10.5, 10.5]  # 1.1 times 10 is 11 exactly
    assert snapped(np.array([100.0, 110.1])).tolist() == [100.0, 110.1]
    # The widest gap in proportion is between 10 and 13, not between 100 and 109.
    given = [10.0, 109.0, 13.0, 100.0, 14.0]
    assert snapped(np.array(given)).tolist() == [10.0, 104.5, 13.5, 104.5, 13.5]
