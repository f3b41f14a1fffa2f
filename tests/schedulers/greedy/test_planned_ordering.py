"""Features of transfers: by hand."""

import numpy as np
import pytest

from gradweave.schedulers.greedy import transfers_kernel
from gradweave.schedulers.greedy.tree_packing_kernel import FROM, Grown
from tests.interpreted import interpreted
from tests.schedulers.rows_lowered import KERNELS, rows_lowered


def test_what_waits_for_what_in_a_row():
    """From 2 to 1 to 0 and back; towards 1 from both sides, and then from it."""
    trees, wires = rows_lowered()
    assert trees.waits.tolist() == [[1, 0, 1, 1], [0, 0, 2, 2]]
    followers = [
        [
            trees.following[trees.first_following[p, m] : trees.first_following[p, m + 1]].tolist()
            for m in range(4)
        ]
        for p in range(2)
    ]
    # Transfers: 1's and 2's hop towards the root, then from it; of the other root 0's and 2's.
    assert followers == [[[2], [0], [3], []], [[2, 3], [2, 3], [], []]]
    assert wires.links.tolist() == [1, 3, 0, 2, 0, 3, 1, 2]
    assert wires.rate.tolist() == [5, 4, 10, 2, 10, 4, 5, 2]
    assert wires.latency.tolist() == [2, 4, 1, 3, 1, 4, 2, 3]
    assert wires.overhead.tolist() == [0.25, 0, 0.5, 0.125, 0.5, 0, 0.25, 0.125]
    # To the end: 2→1, 1→0, 0→1, 1→2 of the first; the slower of what follows of the second.
    row = [3.125, 3.125 + 1.5, 3.125 + 1.5 + 2.25, 3.125 + 1.5 + 2.25 + 4]
    assert trees.tail_s[0].tolist() == [row[2], row[3], row[1], row[0]]
    assert trees.tail_s[1].tolist() == [1.5 + 3.125, 4 + 3.125, 2.25, 3.125]
    per_byte = [1 / 2, 1 / 2 + 1 / 10, 1 / 2 + 1 / 10 + 1 / 5, 1 / 2 + 1 / 10 + 1 / 5 + 1 / 4]
    assert trees.tail_s_per_byte[0] == pytest.approx(np.array(per_byte)[[2, 3, 1, 0]])
    assert trees.tail_s_per_byte[1] == pytest.approx([0.1 + 0.5, 0.25 + 0.5, 0.2, 0.5])


def test_a_way_of_two_links_is_as_slow_as_the_slower_one():
    parent, route = np.array([[[-1, 0]]]), np.full((1, 1, 2, 2), -1, np.int32)
    route[0, 0, 1] = 1, 0
    with interpreted(*KERNELS):
        _, wires = transfers_kernel.transfers_of(
            Grown(parent, route, np.zeros(2)), np.zeros(1, np.int64), np.array([FROM]),
            np.array([2.0, 5.0]), np.array([1.0, 2.0]), np.array([0.5, 0.25]),
        )  # fmt: skip
    assert (wires.links.tolist(), wires.first.tolist()) == ([1, 0], [0, 2])
    assert (wires.rate[0], wires.latency[0], wires.overhead[0]) == (2, 3, 0.5)


def test_what_is_known_of_transfers_by_hand():
    """Pieces of 20 bytes of the first part and 40 of the second."""
    trees, wires = rows_lowered()
    with interpreted(*KERNELS):
        known = transfers_kernel.features_of(trees, wires, np.array([0, 1]), np.array([20.0, 40.0]))
    # Loads link by link: 0→1 and 1→0 carry both pieces, and so do 1→2 and 2→1.
    load = [2 * 0.5 + 60 / 10, 2 * 0.25 + 60 / 5, 2 * 0.125 + 60 / 2, 60 / 4]
    most = load[2]
    hops = [[1, 3, 0, 2], [0, 3, 1, 2]]
    late, held, rate = [1, 2, 3, 4], [0.5, 0.25, 0.125, 0], [10, 5, 2, 4]
    takes = [[late[k] + held[k], 1 / rate[k]] for k in range(4)]

    def path(piece: int, *links: int) -> float:
        seconds, per_byte = (sum(takes[k][i] for k in links) for i in range(2))
        return (seconds + [20, 40][piece] * per_byte) / most

    tails = [
        [path(0, 1, 0, 2), path(0, 3, 1, 0, 2), path(0, 0, 2), path(0, 2)],
        [path(1, 0, 2), path(1, 3, 2), path(1, 1), path(1, 2)],
    ]
    # Only 2's hop comes before 1's; before the last hops of the second piece, 2's, the slower.
    heads = [
        [path(0, 3), 0, path(0, 3, 1), path(0, 3, 1, 0)],
        [0, 0, path(1, 3), path(1, 3)],
    ]
    expected = np.empty((2, 4, 6))
    expected[..., 0] = [[0.25] * 4, [0.75] * 4]
    expected[..., 1], expected[..., 2] = tails, heads
    expected[..., 3] = np.array(load)[np.array(hops)] / most
    expected[..., 4] = [[0, 0, 1, 1]] * 2
    expected[..., 5] = [[0, 0, 0, 1], [0, 0, 1, 1]]
    assert known == pytest.approx(expected, rel=1e-6)
    assert known.dtype == np.float32
