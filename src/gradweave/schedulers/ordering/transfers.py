"""The transfers of carriers as arrays: hops over distinct routes, dependencies and urgency."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.carriers import Carrier
from gradweave.schedulers.kernels.wires import Wires, wires_over
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.schedulers.kernels.precedence import Dependencies


@dataclasses.dataclass(frozen=True, eq=False)
class CarrierTransfers:
    """The transfers of C carriers, at most M each, over H distinct routes."""

    topology: Topology
    trees: "Dependencies"
    """Hops, dependencies and tails of the transfers."""
    wires: Wires
    """The routes."""
    op: NDArray[np.int64]
    """[C, M] `REDUCE` or `COPY`."""

    @staticmethod
    def of(topology: Topology, carriers: Sequence[Carrier]) -> "CarrierTransfers":
        """The transfers of carriers that are ready from the start.

        Args:
            topology: the network.
            carriers: at least one; equal carriers share their dependencies.
        """
        from gradweave.schedulers.kernels.precedence import Dependencies, tails

        number: dict[Carrier, int] = {}
        kind = np.array([number.setdefault(one, len(number)) for one in carriers])
        shape = len(number), max(len(one.routes) for one in number)
        route: dict[tuple[int, ...], int] = {}
        hop, (op, waits) = np.full(shape, -1, np.int64), np.zeros((2, *shape), np.int64)
        following: list[int] = []
        first = np.zeros((shape[0], shape[1] + 1), np.int64)
        for row, carrier in enumerate(number):
            count = len(carrier.routes)
            hop[row, :count] = [route.setdefault(one, len(route)) for one in carrier.routes]
            op[row, :count] = carrier.ops
            waits[row, :count] = [len(before) for before in carrier.waits]
            after: list[list[int]] = [[] for _ in range(shape[1])]
            for transfer, before in enumerate(carrier.waits):
                for one in before:
                    after[one].append(transfer)
            first[row] = np.cumsum([len(following), *map(len, after)])
            following += [transfer for each in after for transfer in each]
        links = np.array([link for one in route for link in one], np.int64)
        wires = wires_over(topology, links, np.cumsum([0, *map(len, route)]))
        followers, there = np.array(following, np.int64), hop >= 0
        held_s = np.where(there, (wires.latency + wires.overhead)[hop], 0.0)
        per_byte = np.where(there, (1 / wires.rate)[hop], 0.0)
        ready = np.zeros(shape)
        tail = tails(waits, first, followers, held_s, ready, per_byte)
        rows = hop[kind], waits[kind], followers, first[kind], ready[kind]
        trees = Dependencies(*rows, *(one[kind] for one in tail))
        return CarrierTransfers(topology, trees, wires, op[kind])

    @functools.cached_property
    def source(self) -> NDArray[np.int64]:
        """[H] rank of the server at the start of each route."""
        first = self.wires.links[self.wires.first[:-1]]
        return self.topology.rank[self.topology.source[first]].astype(np.int64)

    @functools.cached_property
    def target(self) -> NDArray[np.int64]:
        """[H] rank of the server at the end of each route."""
        last = self.wires.links[self.wires.first[1:] - 1]
        return self.topology.rank[self.topology.target[last]].astype(np.int64)
