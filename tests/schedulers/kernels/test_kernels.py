"""The shared kernels, interpreted: by hand and against plain Python."""

import heapq

import numpy as np
import pytest

from gradweave import topology
from gradweave.schedulers.kernels import (
    arborescence,
    bitset,
    events,
    paths,
    precedence,
    rarest_piece,
    residual,
    slots,
    worklist,
)
from gradweave.schedulers.ordering import lower
from gradweave.schedulers.problem import grouped, hop_table, hops_over
from gradweave.schedules.schedule import COPY, REDUCE
from tests.interpreted import interpreted

KERNELS = (lower, arborescence, bitset, events, paths, precedence, rarest_piece, residual, slots,
           worklist)  # fmt: skip


@pytest.fixture(autouse=True)
def _interpreted():
    with interpreted(*KERNELS):
        yield


def test_hops_by_server_and_by_link():
    """Three hops over links 0 and 1; the second hop uses link 1 twice."""
    hops = hop_table(
        np.array([1, 0, 1]), np.array([2, 2, 0]), np.array([0, 1, 1, 0]), np.array([0, 1, 3, 4]), 3
    )
    assert [column.tolist() for column in hops] == [
        [1, 0, 1], [2, 2, 0], [0, 1, 1, 0], [0, 1, 3, 4],
        [1, 0, 2], [0, 1, 3, 3], [2, 0, 1], [0, 1, 1, 3],
    ]  # fmt: skip
    over = hops_over(hops.links, hops.first_link, 3)
    assert (over.hop.tolist(), over.first.tolist()) == ([0, 2, 1, 1], [0, 2, 4, 4])
    places, first = grouped(np.array([1, 0, 1]), 2)
    assert (places.tolist(), first.tolist()) == ([1, 0, 2], [0, 1, 3])


def test_a_hop_takes_a_slot_of_each_link_or_none():
    """Links of 2, 1 and 3 slots."""
    links = np.array([0, 1, 0, 2, 2, 0])
    made = slots.no_slots_taken(np.array([2, 1, 3]))
    assert made.first.tolist() == [0, 2, 3, 6]
    assert slots.claim(made, links, 0, 2, 7)  # links 0 and 1
    assert made.used.tolist() == [1, 1, 0] and slots.is_full(made, 1)
    assert not slots.claim(made, links, 2, 2 + 4, 8)  # link 0 twice, but it has one slot left
    assert made.used.tolist() == [1, 1, 0]
    assert slots.claim(made, links, 2, 5, 9)  # link 0, and link 2 twice
    assert made.used.tolist() == [2, 1, 2] and slots.is_full(made, 0)
    assert not slots.claim(made, links, 0, 1, 10)
    assert slots.holds_slot(made, 0, 7) and slots.holds_slot(made, 2, 9)
    assert not slots.holds_slot(made, 2, 7)
    assert {slots.any_holder(made, 0) for _ in range(50)} == {7, 9}
    slots.release(made, links, 0, 2, 7)
    assert made.used.tolist() == [1, 0, 2] and made.holder[0] == 9
    assert slots.any_holder(made, 0) == 9


def test_a_route_that_uses_a_link_twice_needs_two_slots():
    links, capacity = np.array([0, 1, 0]), np.array([2, 1])
    for used, fits in [([0, 0], True), ([1, 0], False), ([0, 1], False)]:
        assert slots.fits(capacity, np.array(used), links, 0, 3) is fits
    assert slots.fits(capacity, np.array([1, 0]), links, 0, 2)


@pytest.mark.parametrize("numbered", [False, True])
def test_events_come_by_time_and_where_asked_by_number(numbered: bool):
    rng = np.random.default_rng(0)
    made, expected, got = events.no_events(200), [], []
    for what in rng.permutation(200).tolist():
        when = float(rng.integers(8))  # many at the same time
        events.push_event(made, when, what, numbered)
        heapq.heappush(expected, (when, what))
        if rng.random() < 0.3:
            assert made.when[0] == expected[0][0]
            got.append((made.when[0], events.pop_event(made, numbered)))
            if numbered:
                assert got[-1] == heapq.heappop(expected)
            else:
                expected.remove(got[-1])
                heapq.heapify(expected)
    while made.length[0]:
        assert made.when[0] == min(expected)[0]
        event = (made.when[0], events.pop_event(made, numbered))
        assert not numbered or event == min(expected)
        expected.remove(event)
    assert not expected


def test_members_stand_on_a_worklist_once():
    made = worklist.empty_worklist(4)
    for member in (2, 0, 2, 3):
        worklist.list_member(made, member)
    assert made.members[: made.length[0]].tolist() == [2, 0, 3]
    assert made.listed.tolist() == [True, False, True, True]


def test_the_rarest_piece_that_may_be_sent():
    """A one-way ring of three servers with a piece each; server 2 also has server 1's."""
    ring = np.arange(3)
    hops = hop_table(ring, (ring + 1) % 3, ring, np.arange(4), 3)
    limits = np.array([[0, 9, 9], [9, 0, 9], [9, 9, 0]], np.int16)
    made = rarest_piece.held_by_roots(hops, ring, limits)
    assert made.near.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert made.missing.tolist() == [2, 2, 2] and made.held_by.tolist() == [1, 1, 1]
    made.holds[2, 1], made.wanted[2, 1], made.held_by[1], made.steps[2, 1] = True, False, 2, 1
    rarest_piece.promise(hops, made.near, 2, 1, 1)
    assert made.near[0].tolist() == [0, 1, 1]
    everywhere = rarest_piece.Rarity(near=0, everywhere=1024, noise=512)
    choose = rarest_piece.rarest_piece
    assert choose(everywhere, made, 2, 0, 2, 5) == 2  # its piece, which no other server has
    made.near[0, 1] = 0
    assert choose(rarest_piece.Rarity(1024, 0, 512), made, 2, 0, 2, 5) == 1
    assert [rarest_piece.may_send(made, 2, 0, piece) for piece in range(3)] == [False, True, True]
    made.wanted[0, 2] = False
    assert choose(everywhere, made, 2, 0, 2, 5) == 1
    limits[0, 1] = 1  # the piece has made one step, and may make no more
    assert choose(everywhere, made, 2, 0, 2, 5) == -1 and not rarest_piece.may_send(made, 2, 0, 1)


def test_sets_of_more_members_than_a_word_has_bits():
    table = np.zeros((2, 70), bool)
    table[0, [0, 5, 63, 64]] = table[1, [1, 69]] = True
    words = bitset.pack(table)
    assert [[bitset.has(words, row, one) for one in range(70)] for row in (0, 1)] == table.tolist()
    assert [int(bitset.count(one)) for one in words.ravel()] == [3, 1, 1, 1]
    assert (
        bitset.lowest(words[1, 1]) == 5 and bitset.without_lowest(words[0, 0]) == 1 << 5 | 1 << 63
    )


def test_the_cost_of_a_tree_is_that_of_its_arcs():
    """From 0 over 1 to 2; the direct arc costs two more, but brings server 2 nearer."""
    cost = np.array([[np.inf, 1.0, 4.0], [1.0, np.inf, 2.0], [1.0, 1.0, np.inf]])
    for tolerance, total, parent in ((0.0, 3.0, [-1, 0, 1]), (2.0, 5.0, [-1, 0, 0])):
        found = arborescence.minimum_arborescence(cost, tolerance, 0)
        assert (found[0], found[1].tolist()) == (total, parent)
    # What an arc may cost more is relative to the mean of the cheapest tree's arcs, 1.5.
    for flatter, expected in ((1.2, [-1, 0, 1]), (1.4, [-1, 0, 0])):
        parent = np.empty(3, np.int64)
        arborescence.write_arborescence(cost, flatter, 0, parent)
        assert parent.tolist() == expected


def test_a_path_is_followed_back_by_its_last_links():
    """Servers 0 and 1 next to switch 2; no link leads out of server 3."""
    source, target = np.array([0, 1, 2, 2, 2]), np.array([2, 2, 0, 1, 3])
    first = np.searchsorted(source, np.arange(5))
    is_server = np.array([True, True, False, True])
    cost, last = paths.cheapest_paths(
        first, target, np.array([1.0, 2, 4, 8, 16]), np.array([0, 1, 3]), is_server
    )
    assert cost.tolist() == [[0, 9, 1, 17], [6, 0, 2, 18], [np.inf, np.inf, np.inf, 0]]
    assert last.tolist() == [[-1, 3, 0, 4], [2, -1, 1, 4], [-1, -1, -1, -1]]


def test_of_equal_paths_the_order_of_switches_decides():
    """From server 0 to 1 over switch 2 or 3; switch 3 is reached first."""
    source, target = np.array([0, 0, 2, 3]), np.array([3, 2, 1, 1])
    first = np.searchsorted(source, np.arange(5))
    is_server, dual = np.array([True, True, False, False]), np.array([1.0, 1.0, 2.0, 2.0])
    for numbered, last_link in [(True, 2), (False, 3)]:
        cost, last, waiting = np.empty(4), np.full(4, -1), np.empty(4, np.int64)
        paths.cheapest_from(first, target, is_server, dual, 0, numbered, cost, last, waiting)
        assert cost[1:].tolist() == [3, 1, 1] and last[1] == last_link


def test_a_schedule_has_the_routes_of_its_hops_and_waits_for_data():
    """Server 0 sends piece 0 to 1 over switch 2, then 1 sends it back, and 0 sends piece 1."""
    star = topology.star(2)
    link = {pair: number for number, pair in enumerate(zip(star.source, star.target, strict=True))}
    links = np.array([link[pair] for pair in ((0, 2), (2, 1), (1, 2), (2, 0))])
    made = lower.lower(
        star,
        links,
        np.array([0, 2, 4]),
        np.array([0, 1, 0]),
        piece=np.array([0, 0, 1]),
        op=np.array([REDUCE, COPY, COPY]),
        root=np.array([1, 0]),
        collective="all_reduce",
    )
    assert made.round.tolist() == [0, 1, 1] and made.root.tolist() == [1, 0]
    assert (made.source.tolist(), made.target.tolist()) == ([0, 1, 0], [1, 0, 1])
    assert made.route_nodes.tolist() == [0, 2, 1, 1, 2, 0, 0, 2, 1]
    assert made.route_offsets.tolist() == [0, 3, 6, 9]
    assert made.op.tolist() == [REDUCE, COPY, COPY]


def test_rounds_keep_the_order_on_each_link_and_wait_for_data():
    """Hops over link 0, links 0 and 1, link 1; the fourth transfer reads what the second writes."""
    links, first = np.array([0, 0, 1, 1]), np.array([0, 1, 3, 4])
    read, written = np.array([0, 0, 0, 2]), np.array([1, 2, 3, 4])
    made = lower.rounds_in_order(
        links, first, np.array([0, 1, 2, 0]), read, written, 5, np.ones(2, np.int64)
    )
    assert made.tolist() == [0, 1, 2, 2]


def test_rounds_of_units_and_of_links_with_room_for_two():
    """A third transfer finds the link full; two that exchange share the later one's round; a write
    to data that the last of them reads is not earlier."""
    links, first = np.array([0, 1]), np.array([0, 1, 2])
    hop, unit = np.array([0, 0, 0, 1, 0, 1]), np.array([0, 1, 2, 3, 3, 4])
    read, written = np.array([0, 0, 0, 1, 4, 5]), np.array([1, 2, 3, 6, 7, 4])
    made = lower.rounds_in_order(
        links, first, hop, read, written, 8, np.array([2, 3]), np.ones(6, bool), unit
    )
    assert made.tolist() == [0, 0, 1, 1, 1, 1]


def test_a_tail_is_the_longest_path_of_what_follows():
    """Of three transfers, the last waits for the second only."""
    waits, first, following = np.array([[0, 0, 1]]), np.array([[0, 0, 1, 1]]), np.array([2])
    seconds = np.array([[1.0, 2.0, 4.0]])
    tail_s, per_byte = precedence.tails(waits, first, following, seconds, seconds / 8, seconds * 10)
    assert tail_s.tolist() == [[1.125, 6.75, 4.5]] and per_byte.tolist() == [[10, 60, 40]]


def test_as_many_transfers_share_a_link_as_fit_there_and_behind_it():
    """Links 0 and 1 have room for exactly two and for three transfers, and behind each are two
    links with room for one."""
    slow = np.zeros((4, 4), bool)
    slow[:2, 2:] = True
    bandwidth = np.array([2.0, 3.0, 1.0, 1.0])
    found = residual.transfers_at_once(np.arange(3), 1.0, bandwidth, slow)
    assert found.tolist() == [2, 2, 1]
