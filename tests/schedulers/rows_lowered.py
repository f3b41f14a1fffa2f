"""Transfers of two trees among three servers in a row, for tests by hand."""

import numpy as np

from gradweave.schedulers.greedy import transfers_kernel
from gradweave.schedulers.greedy.tree_packing_kernel import FROM, TOWARDS, Grown
from gradweave.schedulers.kernels import bitset, events, precedence, worklist
from gradweave.schedulers.kernels.precedence import Dependencies
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.ordering import list_scheduling_kernel
from tests.interpreted import interpreted

KERNELS = transfers_kernel, list_scheduling_kernel, bitset, events, precedence, worklist


def rows_lowered() -> tuple[Dependencies, Wires]:
    """Servers 0, 1, 2 in a row, both stages, roots 0 and 1; links 0→1, 1→0, 1→2, 2→1.

    Bandwidths are 10, 5, 2 and 4 bytes/s; latencies 1, 2, 3 and 4 s; overheads .5, .25, .125, 0 s.
    """
    parent = np.array([[[-1, 0, 1], [-1, 0, 1]], [[1, -1, 1], [1, -1, 1]]])
    route = np.full((2, 2, 3, 1), -1, np.int32)
    route[0, 0, 1:, 0], route[0, 1, 1:, 0] = [1, 3], [0, 2]
    route[1, 0, [0, 2], 0], route[1, 1, [0, 2], 0] = [0, 3], [1, 2]
    grown = Grown(parent, route, np.zeros(4))
    with interpreted(*KERNELS):
        return transfers_kernel.transfers_of(
            grown, np.array([0, 1]), np.array([TOWARDS, FROM]), np.array([10.0, 5, 2, 4]),
            np.array([1.0, 2, 3, 4]), np.array([0.5, 0.25, 0.125, 0]),
        )  # fmt: skip
