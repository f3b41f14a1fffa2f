"""A training step as operations: passes on devices, messages on routes, and their dependencies.

Each operation waits for its turn on its channel, which is a device or a route, and for its input. A
device is modelled as a channel over a separate link that carries one second of work per second, so
the simulation of schedules on fairly shared links (`gradweave.simulator.fair`) can simulate a whole
step.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradweave.placement.timeline.groups import GroupSchedule
from gradweave.schedules.schedule import table_of_rows
from gradweave.simulator.seconds import overheads
from gradweave.topology.routes import server_routes
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.simulator.fair import Sharing

NOTHING = 0
"""A cell that no operation writes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Operations:
    """Columns with one row per operation. Operations write cells and others read them."""

    channel: NDArray[np.int64]
    """[T] channel on which the operation waits for its turn."""
    work: NDArray[np.float64]
    """[T] seconds on a device, or bytes on a route."""
    reads: NDArray[np.int64]
    """[T] cell that it reads."""
    writes: NDArray[np.int64]
    """[T] cell that it writes."""
    round: NDArray[np.int64]
    """[T] an operation waits for writes of lower rounds to the cell that it reads."""


class Step:
    """Operations of a step, added in an order in which each channel may run them."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.links: list[NDArray[np.int64]] = []
        self.rows: list[tuple[int, float, int, int, int]] = []
        self.cells = NOTHING + 1
        self._device: dict[int, int] = {}
        self._route: dict[tuple[int, int], int] = {}
        self._by_route: dict[bytes, int] = {}

    def device(self, node: int) -> int:
        """The channel of a server's passes."""
        if node not in self._device:
            own = len(self.topology.source) + len(self._device)
            self._device[node] = self._channel(np.array([own]))
        return self._device[node]

    def route(self, source: int, target: int) -> int:
        """The channel of messages between two servers, over the shortest route."""
        if (source, target) not in self._route:
            rank = self.topology.rank
            *_, nodes, offsets = server_routes(self.topology, [rank[source]], [rank[target]])
            self._route[source, target] = self._channel(self.topology.links_along(nodes, offsets))
        return self._route[source, target]

    def _channel(self, links: NDArray[np.int64]) -> int:
        self.links.append(links)
        return len(self.links) - 1

    def add(
        self, channel: int, work: float, reads: int = NOTHING, round_: int | None = None
    ) -> int:
        """Adds an operation that writes a new cell; returns the cell."""
        self.cells += 1
        self.write(channel, work, reads, self.cells - 1, round_)
        return self.cells - 1

    def write(self, channel: int, work: float, reads: int, cell: int, round_: int | None) -> None:
        """Adds an operation that writes a given cell."""
        self.rows.append((channel, work, reads, cell, len(self.rows) if round_ is None else round_))

    def send(self, source: int, target: int, size: float, reads: int) -> int:
        """Adds a message of some bytes, with its overhead; returns the cell that it writes."""
        channel = self.route(source, target)
        links, topology = self.links[channel], self.topology
        narrowest = float(topology.bandwidth_bytes_per_s[links].min())
        overhead = float(topology.overhead_s[links].max())
        return self.add(channel, size + overhead * narrowest, reads)

    def all_reduce(self, group: GroupSchedule, ready: bool = True) -> None:
        """Adds a group's all-reduce; each server's part starts when its passes are done.

        Args:
            group: the schedule.
            ready: whether servers have passes to wait for.
        """
        schedule, topology = group.schedule, group.schedule.topology
        first = self.cells
        self.cells += topology.num_nodes * schedule.pieces
        base = len(self.rows) + schedule.pieces * topology.num_servers
        if ready:
            for server in topology.servers.tolist():
                channel = self.device(int(group.nodes[server]))
                for piece in range(schedule.pieces):
                    self.write(
                        channel, 0.0, NOTHING, first + server * schedule.pieces + piece, None
                    )
        channels = self._channels_of(group)
        links, _ = schedule.route_links
        starts = (schedule.route_offsets - np.arange(schedule.num_transfers + 1))[:-1]
        narrowest = np.minimum.reduceat(topology.bandwidth_bytes_per_s[links], starts)
        work = schedule.share[schedule.piece] * group.gradient_bytes
        work = work + overheads(schedule) * narrowest
        reads = first + schedule.source.astype(np.int64) * schedule.pieces + schedule.piece
        writes = first + schedule.target.astype(np.int64) * schedule.pieces + schedule.piece
        rounds = base + schedule.round.astype(np.int64)
        columns = (channels, work, reads, writes, rounds)
        self.rows += list(zip(*(column.tolist() for column in columns), strict=True))

    def _channels_of(self, group: GroupSchedule) -> NDArray[np.int64]:
        """[T] the channel of each transfer's route; all transfers of a route share one."""
        schedule = group.schedule
        table = table_of_rows(group.nodes[schedule.route_nodes], schedule.route_offsets)
        distinct, place = np.unique(table, axis=0, return_inverse=True)
        channels = []
        for row in distinct:
            nodes = row[row >= 0]
            key = nodes.astype(np.int64).tobytes()
            if key not in self._by_route:
                offsets = np.array([0, len(nodes)])
                self._by_route[key] = self._channel(self.topology.links_along(nodes, offsets))
            channels.append(self._by_route[key])
        return np.array(channels, np.int64)[place.reshape(-1)]

    def operations(self) -> Operations:
        """All operations added so far."""
        columns = list(zip(*self.rows, strict=True)) or [()] * 5
        channel, work, reads, writes, round_ = columns
        return Operations(
            np.array(channel, np.int64),
            np.array(work, np.float64),
            np.array(reads, np.int64),
            np.array(writes, np.int64),
            np.array(round_, np.int64),
        )

    def play(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[T] start and [T] end of each operation in seconds."""
        from gradweave.simulator.fair import play_fair

        if not self.rows:
            return np.zeros(0), np.zeros(0)
        return play_fair(self._sharing(self.operations()))

    def _sharing(self, rows: Operations) -> "Sharing":
        from gradweave.simulator.fair import Sharing

        topology, channels = self.topology, np.arange(len(self.links) + 1)
        latency = np.concatenate([topology.latency_s, np.zeros(len(self._device))])
        bandwidth = np.concatenate([topology.bandwidth_bytes_per_s, np.ones(len(self._device))])
        lengths = [len(one) for one in self.links]
        return Sharing(
            connection=rows.channel,
            queue=np.argsort(rows.channel, kind="stable"),
            first_queued=np.searchsorted(np.sort(rows.channel), channels),
            links=np.concatenate(self.links).astype(np.int64),
            first_link=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            latency=np.array([latency[one].sum() for one in self.links]),
            work=rows.work,
            earliest=np.zeros(len(rows.work)),
            round=rows.round,
            writes=rows.writes,
            readers=np.argsort(rows.reads, kind="stable"),
            first_reader=np.searchsorted(np.sort(rows.reads), np.arange(self.cells + 1)),
            bandwidth=bandwidth,
        )
