"""Starts of transfers by list scheduling: by hand, and by invariants."""

import dataclasses

import numpy as np
import pytest

from gradweave.schedulers.carriers import Carrier
from gradweave.schedulers.kernels.precedence import Dependencies
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.ordering import list_scheduling_kernel
from gradweave.schedulers.ordering.list_scheduling import dependencies, fastest_order
from gradweave.schedulers.ordering.list_scheduling_kernel import (
    ARRIVED,
    FREED,
    MOST_MOVED,
    READY,
    reversed_precedence,
)
from gradweave.schedulers.ordering.transfers import CarrierTransfers
from gradweave.schedules.schedule import COPY
from gradweave.topology.topology import Topology
from tests.interpreted import interpreted
from tests.schedulers.rows_lowered import KERNELS, rows_lowered


def test_paths_back_are_those_of_transfers_turned_round():
    trees, _ = rows_lowered()
    with interpreted(*KERNELS):
        back = list_scheduling_kernel.reversed_precedence(trees)
        again = list_scheduling_kernel.reversed_precedence(back)
    assert back.waits.tolist() == [[1, 1, 1, 0], [2, 2, 0, 0]]
    first = back.first_following
    followers = [back.following[first[p, m] : first[p, m + 1]].tolist() for p, m in
                 ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3))]  # fmt: skip
    assert followers == [[1], [], [0], [2], [], [], [0, 1], [0, 1]]
    assert (again.waits == trees.waits).all() and (again.following == trees.following).all()


def test_equal_carriers_share_their_dependencies_and_missing_transfers_take_no_time():
    """Twice the path 0→1→2 and once the hop 0→1, which has one transfer less."""
    row = Topology.from_links("row", servers=3, switches=0, links=[(0, 1), (1, 2)])
    row = dataclasses.replace(
        row, bandwidth_bytes_per_s=np.full(4, 10.0), latency_s=np.zeros(4), overhead_s=np.zeros(4)
    )
    ends = zip(row.source.tolist(), row.target.tolist(), strict=True)
    over = {pair: link for link, pair in enumerate(ends)}
    hops = (over[0, 1],), (over[1, 2],)
    path = Carrier(0, hops, (COPY, COPY), ((), (0,)))
    made = CarrierTransfers.of(row, [path, path, Carrier(0, hops[:1], (COPY,), ((),))])
    back = reversed_precedence(made.trees)
    assert back.waits.tolist() == [[1, 0], [1, 0], [0, 0]] and len(back.following) == 2
    start, seconds = fastest_order(made.trees, made.wires, np.arange(3), np.full(3, 10.0))
    # The first hop of all three, one after the other, beside the second hops.
    assert seconds == 3 and sorted(start[[0, 2, 4]]) == [0, 1, 2] and start[5] == np.inf
    assert sorted(start[[1, 3]]) == [1, 2]


def dispatched(trees: Dependencies, wires: Wires, part, size, order):
    hop = trees.hop[part]
    hold_s = wires.overhead[hop] + np.array(size)[:, None] / wires.rate[hop]
    with interpreted(*KERNELS):
        start, seconds, tried = list_scheduling_kernel.dispatch(
            trees, wires, np.array(part), hold_s.reshape(-1), np.array(order)
        )
    return start.tolist(), seconds, tried


def test_transfers_start_when_what_they_wait_for_is_there_and_their_link_is_free():
    trees, wires = rows_lowered()
    start, seconds, _ = dispatched(trees, wires, [0], [20.0], [0, 1, 2, 3])
    # 2→1: 5 s and 4 of latency; 1→0: 4.25 and 2; 0→1: 2.5 and 1; 1→2: 10.125 and 3.
    at = [0, 9, 9 + 6.25, 9 + 6.25 + 3.5]
    assert start == pytest.approx([at[1], at[0], at[2], at[3]])
    assert seconds == pytest.approx(at[3] + 13.125)
    # A second piece of the same part follows on each link as soon as that is free.
    start, seconds, _ = dispatched(trees, wires, [0, 0], [20.0, 20.0], list(range(8)))
    # 2→1 at 5 s, there at 14; 1→0 is free at 13.25, so at 14; 0→1 at 20.25; 1→2 is held from
    # 18.75 to 28.875, and the piece is there at 23.75.
    assert start[4:] == pytest.approx([14, 5, 20.25, 28.875])
    assert seconds == pytest.approx(28.875 + 13.125)
    # In the other order the second piece is first.
    again, _, _ = dispatched(trees, wires, [0, 0], [20.0, 20.0], [4, 5, 6, 7, 0, 1, 2, 3])
    assert again == start[4:] + start[:4]


def fan(*hops: tuple[tuple[int, ...], float], bandwidth: list[float]) -> tuple[Dependencies, Wires]:
    """Transfers without dependencies, over given links at given rates."""
    count = len(hops)
    links = np.array([link for over, _ in hops for link in over])
    first = np.cumsum([0, *(len(over) for over, _ in hops)])
    rate, none = np.array([one for _, one in hops], float), np.zeros(count)
    each = np.arange(count).reshape(1, count)
    zeros = np.zeros((1, count))
    trees = Dependencies(
        each, np.zeros((1, count), np.int64), np.zeros(0, np.int64),
        np.zeros((1, count + 1), np.int64), zeros, zeros, zeros,
    )  # fmt: skip
    return trees, Wires(links, first, rate, none, none, np.array(bandwidth, float))


def test_links_take_turns_by_their_most_urgent_transfer():
    """Transfer 8, the third in the order, finds link 3 too full, and waits there. So link 3 comes
    before link 4, where transfer 7 waits, and its transfer 3 takes the room for one at link 4."""
    over = [(1,), (0,), (2,), (3, 4), (0, 3), (2, 4, 5), (1, 3, 5), (4,), (1, 3, 5)]
    rates = [7, 4, 3, 4, 5, 6, 6, 4, 6]
    trees, wires = fan(*zip(over, rates, strict=True), bandwidth=[10.0] * 6)
    start, _, _ = dispatched(trees, wires, [0], [10.0], [4, 5, 8, 0, 7, 1, 2, 3, 6])
    assert start == pytest.approx([0, 0, 0, 0, 0, 0, 11 / 3, 5 / 3, 2])


def test_slower_transfers_share_a_link_and_what_does_not_fit_lets_others_pass():
    # Rates of 6, 6 and 4 on a link of 10: the second waits, and the third starts next to the first.
    trees, wires = fan(((0,), 6), ((0,), 6), ((0,), 4), bandwidth=[10])
    start, seconds, tried = dispatched(trees, wires, [0], [12.0], [0, 1, 2])
    assert start == [0, 2, 0] and seconds == 4 and tried == 4
    # At 10, 4 and 6 the first goes alone, and then both others.
    trees, wires = fan(((0,), 10), ((0,), 4), ((0,), 6), bandwidth=[10])
    assert dispatched(trees, wires, [0], [12.0], [0, 1, 2])[0] == pytest.approx([0, 1.2, 1.2])
    # Two links at a time: a blocked transfer waits at the blocking link, and others can pass.
    trees, wires = fan(((0,), 10), ((0, 1), 10), ((1,), 10), bandwidth=[10, 10])
    start, seconds, _ = dispatched(trees, wires, [0], [10.0], [0, 1, 2])
    assert start == [0, 1, 0] and seconds == 2
    # The order decides which is first.
    assert dispatched(trees, wires, [0], [10.0], [1, 0, 2])[0] == [1, 0, 1]
    # Rounding holds nothing back: three thirds fill a link.
    trees, wires = fan(*[((0,), 1 / 3)] * 3, ((0,), 1), bandwidth=[1 - 1e-12])
    assert dispatched(trees, wires, [0], [1.0], [0, 1, 2, 3])[0] == pytest.approx([0, 0, 0, 3])


def test_links_take_turns_by_their_first_transfers():
    """Two circuits wait at different links and share one more: the first in order has it.

    When the first link is full, the last one takes its place at the root of the heap and moves
    down, past either child.
    """
    trees, wires = fan(((0,), 1), ((1, 2), 1), ((2,), 1), bandwidth=[1, 1, 1])
    assert dispatched(trees, wires, [0], [1.0], [0, 1, 2])[0] == [0, 0, 1]
    trees, wires = fan(((0,), 1), ((1, 4), 1), ((2, 4), 1), ((3,), 1), bandwidth=[1] * 5)
    assert dispatched(trees, wires, [0], [1.0], [0, 1, 2, 3])[0] == [0, 0, 1, 0]
    assert dispatched(trees, wires, [0], [1.0], [0, 2, 1, 3])[0] == [0, 1, 0, 0]


def test_more_transfers_than_a_word_has_bits_go_in_order():
    count = 150
    trees, wires = fan(*[((0,), 1)] * count, ((1, 0), 1), bandwidth=[1, 1])
    order = np.random.default_rng(0).permutation(count + 1)
    start, seconds, _ = dispatched(trees, wires, [0], [1.0], order)
    assert np.argsort(start).tolist() == order.tolist() and seconds == count + 1
    assert sorted(start) == list(range(count + 1))


def test_kinds_of_events_by_latency():
    """A transfer without latency frees its link and arrives at once."""
    assert len({FREED, ARRIVED, READY}) == 3
    trees, wires = fan(((0,), 1), ((0,), 1), bandwidth=[1])
    late = wires._replace(latency=np.array([5.0, 0.0]), overhead=np.array([0.5, 0.25]))
    start, seconds, _ = dispatched(trees, late, [0], [1.0], [0, 1])
    assert start == [0, 1.5] and seconds == 6.5
    start, seconds, _ = dispatched(trees, late, [0], [1.0], [1, 0])
    assert start == [1.25, 0] and seconds == 1.25 + 6.5


def test_a_transfer_over_no_link_joins_others():
    """Two transfers, then one over no link, then one over each link; the second source is late."""
    _, wires = fan(((0,), 1), ((1,), 1), ((), np.inf), bandwidth=[1, 1])
    hop, before, after = np.array([[0, 1, 2, 0, 1]]), [0, 1, 2, 2], [2, 2, 3, 4]
    late = np.array([[0, 2.5, 0, 0, 0]])
    trees = dependencies(hop, np.array(before), np.array(after), late)
    start, seconds, tried = dispatched(trees, wires, [0], [1.0], [4, 3, 2, 1, 0])
    assert start == [0, 2.5, np.inf, 3.5, 3.5] and (seconds, tried) == (4.5, 4)


def test_of_many_blocked_transfers_only_some_are_tried():
    """Forty circuits need a busy link as well; a transfer behind them waits for the next event."""
    count = 40
    hops = [((1,), 1), *[((0, 1), 1)] * count, ((0,), 1)]
    trees, wires = fan(*hops, bandwidth=[1, 1])
    start, _, tried = dispatched(trees, wires, [0], [1.0], list(range(count + 2)))
    assert start[:-1] == list(range(count + 1)) and start[-1] == count + 1
    assert tried == 1 + MOST_MOVED + count + 1
