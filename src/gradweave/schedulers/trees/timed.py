"""Grown trees on a continuous clock, for links of unequal bandwidth and latency."""

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import throughput
from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers.hops import Hops
from gradweave.schedulers.problem import hop_table, hops_over, integers
from gradweave.schedulers.scheduler import (
    NEAR_BOUND,
    Scheduler,
    Traits,
    check_counts,
    from_all_gather,
)
from gradweave.schedulers.trees.grown import intake_of
from gradweave.schedules.schedule import COPY, Collective, Schedule
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.schedulers.trees.timed_kernel import Clocked


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Constants of the search, chosen by hand."""

    rarities: tuple[tuple[int, int, int], ...] = (
        # near, everywhere, noise
        (1024, 0, 512),
        (1024, 50, 512),
        (1024, 200, 64),
    )
    """Weights of rarity, see `Rarity`; restarts use them in turn."""
    target_makespans: tuple[float, ...] = (0.0, 0.5, 0.95, 0.25, 0.75)
    """Target makespans that restarts use in turn, from the bound (0) to the best so far (1)."""
    work: int = 100_000_000
    """Choices between pieces that all restarts together make by default: a few seconds."""
    min_restarts: int = 6
    max_restarts: int = 60
    """Limits of the resulting number of restarts."""


TUNING = Tuning()


@dataclasses.dataclass(frozen=True)
class Timed(Scheduler):
    """A randomised greedy all-gather in which links that become free take the most urgent piece.

    Like `Grown`, but without rounds: a transfer starts as soon as its links are free, whatever
    others do, so that a link with four times the bandwidth carries four times as many pieces. It
    keeps the best of several runs by the event model's time. The reduce-scatter is the reversed
    all-gather.
    """

    name: ClassVar[str] = "timed"

    gradient_bytes: float = math.inf
    """Gradient size to plan for; if infinite, latencies and overheads do not count."""
    pieces_per_server: int = 1
    """Number of pieces that each server is the root of."""
    restarts: int | None = None
    """Most runs. By default as many as a few seconds take on one core, estimated from the network's
    size and not from the clock."""
    routes: int = 4
    """Shortest routes to look for between two servers: one by the pinned rule, others at random."""

    def __post_init__(self) -> None:
        if not self.gradient_bytes > 0:
            raise OptionError(
                f"timed: gradient_bytes: expected more than 0, got {self.gradient_bytes:g}"
            )
        check_counts(self, "restarts", "routes", "pieces_per_server")

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(
            pieces_per_server=self.pieces_per_server,
            takes_pieces=True,
            takes_size=math.isinf(self.gradient_bytes),
        )

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return from_all_gather(self._all_gather, topology, collective, seed, stop, timed=True)

    def _all_gather(self, topology: Topology, seed: int, stop: Stop) -> Schedule:
        from gradweave.schedulers.kernels.rarest_piece import Rarity
        from gradweave.schedulers.trees.timed_kernel import grow_in_time

        root = np.repeat(np.arange(topology.num_servers), self.pieces_per_server)
        hops = Hops.of(topology, variants=self.routes)
        clocked = self._clocked(topology, hops, root)
        least = self._least(topology, len(root))
        stop = stop.at(least * (1 + NEAR_BOUND))
        work = len(hops.source) * len(root) * topology.num_servers
        restarts = self.restarts or int(
            np.clip(TUNING.work // work, TUNING.min_restarts, TUNING.max_restarts)
        )
        best, fastest = None, math.inf
        for restart in range(restarts):
            rarity = Rarity(*TUNING.rarities[restart % len(TUNING.rarities)])
            mixed = int(np.random.SeedSequence([seed, restart]).generate_state(1)[0])
            target_s = least
            if best is not None:
                aims = TUNING.target_makespans
                target_s += aims[restart % len(aims)] * (fastest - least)
            sent, start, seconds = grow_in_time(clocked, rarity, target_s, fastest, mixed)
            if len(sent) and seconds < fastest:
                best, fastest = (sent, start), seconds
            if stop.reached(fastest):
                break
        if best is None:
            raise NoScheduleError(f"timed: no all-gather of {topology.name!r} was completed")
        return _schedule(topology, clocked, best[0])

    def _least(self, topology: Topology, pieces: int) -> float:
        """Lower bound on an all-gather's time, in the clock's unit."""
        best = throughput(topology, "all_gather")
        if math.isinf(self.gradient_bytes):
            fastest = float(topology.bandwidth_bytes_per_s.max())
            return best.seconds(fastest * pieces)
        first = topology.is_server[topology.source]
        return (
            best.seconds(self.gradient_bytes)
            + float(topology.latency_s[first].min())
            + float(topology.overhead_s[first].min())
        )

    def _clocked(self, topology: Topology, hops: Hops, root: NDArray) -> "Clocked":
        from gradweave.schedulers.trees.timed_kernel import Clocked

        if math.isinf(self.gradient_bytes):
            # Any size gives the same order; with this one, a piece takes one unit of time on the
            # fastest link.
            piece_bytes = float(topology.bandwidth_bytes_per_s.max())
            latency = overhead = np.zeros(len(topology.source))
        else:
            piece_bytes = self.gradient_bytes / len(root)
            latency, overhead = topology.latency_s, topology.overhead_s
        bandwidth = (topology.bandwidth_bytes_per_s / piece_bytes).astype(np.float64)
        rate = np.minimum.reduceat(bandwidth[hops.links], hops.first_link[:-1])
        held = np.maximum.reduceat(overhead[hops.links], hops.first_link[:-1])
        hold = held + 1 / rate
        work = np.full(len(topology.source), np.inf)  # smallest bandwidth times duration of a piece
        np.minimum.at(work, hops.links[hops.first_link[1:] - 1], rate * hold)
        servers = topology.num_servers
        return Clocked(
            hops=hop_table(hops.source, hops.target, hops.links, hops.first_link, servers),
            over=hops_over(hops.links, hops.first_link, len(topology.source)),
            root=integers(root),
            bandwidth=bandwidth,
            rate=rate,
            latency=np.add.reduceat(latency[hops.links], hops.first_link[:-1]),
            hold=hold,
            intake=intake_of(hops, bandwidth / work, servers),
        )


def _schedule(topology: Topology, clocked: "Clocked", sent: NDArray[np.int64]) -> Schedule:
    """The all-gather made of the transfers `sent`, [T, 2] piece and hop, in order of start."""
    from gradweave.schedulers.ordering.lower import lower

    piece, hop = sent.T
    return lower(
        topology,
        clocked.hops.links,
        clocked.hops.first_link,
        hop,
        piece=piece,
        op=np.full(len(hop), COPY, np.int8),
        root=clocked.root,
        collective="all_gather",
    )
