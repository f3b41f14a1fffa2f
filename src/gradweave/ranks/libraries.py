"""The all-reduces of stock libraries for a given rank order, simulated."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradweave.common.checks import did_you_mean
from gradweave.common.stop import UNLIMITED
from gradweave.errors import OptionError
from gradweave.ranks.pattern import (
    Pattern,
    double_tree,
    halving_doubling,
    recursive_doubling,
    ring,
)
from gradweave.schedulers.solving.own import ALGORITHMS, own_algorithms
from gradweave.schedulers.solving.variants import split
from gradweave.schedulers.textbook.double_tree import DoubleTree
from gradweave.schedulers.textbook.halving_doubling import HalvingDoubling, RecursiveDoubling
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.runtime import Algorithm, Runtime, runtime_of, with_latency
from gradweave.simulator.traffic import piece_bytes
from gradweave.topology.topology import Topology

LIBRARIES = {"gloo": "gloo", "nccl": "nccl", "openmpi": "mpi"}
"""The runtime whose profile has the message costs of each library."""
NCCL_STEP_BYTES = 1 << 19
"""Bytes that NCCL sends at a time: its buffer of 4 MiB (``NCCL_BUFFSIZE``) in 8 steps
(``NCCL_STEPS``)."""
_MOST_PARTS = 16
"""Maximum number of parts in the simulation of a tree: more would change its time by less than a
tenth."""


@dataclasses.dataclass(frozen=True)
class OwnAllReduce:
    """One of a library's all-reduces, for gradients of one size.

    gloo's ring sends from each rank to the previous rank (``gloo/allreduce.cc``), the rings of
    other libraries to the next.
    """

    library: str
    algorithm: Algorithm
    runtime: Runtime
    gradient_bytes: float

    @property
    def name(self) -> str:
        """Name of the strategy, such as ``ring`` or ``halving_doubling``."""
        return self.algorithm.scheduler

    @property
    def is_ring(self) -> bool:
        """Whether each rank sends to a neighbour, so that `gradweave.ranks.bound` applies."""
        return self.name == "ring"

    def pattern(self, servers: int) -> Pattern:
        """The data sent between ranks.

        Args:
            servers: number of servers.
        """
        size, parts = self.gradient_bytes, self.algorithm.parts
        if self.is_ring:
            return ring(servers, size, parts, backward=self.library == "gloo")
        if self.name == "double_tree":
            return double_tree(servers, size, parts)
        by_halves = self.name == "halving_doubling"
        return (halving_doubling if by_halves else recursive_doubling)(servers, size)

    def travel(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """The servers in the strategy's order, which for a ring is the direction of travel.

        Args:
            ranks: servers in order of rank.
        """
        backward = self.is_ring and self.library == "gloo"
        return tuple(ranks[::-1]) if backward else tuple(ranks)

    def schedule(self, topology: Topology, ranks: Sequence[int]) -> Schedule:
        """Its messages for a rank order; not verified.

        Args:
            topology: the network.
            ranks: the node id of the server at each rank.
        """
        strategy = ALGORITHMS[self.name]
        assert isinstance(strategy, (Ring, HalvingDoubling, RecursiveDoubling, DoubleTree))
        placed = dataclasses.replace(strategy, order=self.travel(ranks))
        parts = self.algorithm.parts
        made = split(placed.make(topology, "all_reduce", 0, UNLIMITED), parts)
        if self.name == "double_tree" and parts > 1:
            # Each part is one step behind the previous part: both directions share the links.
            level, part = np.divmod(made.round, parts)
            made = made.replace(round=level + part)
        return made

    def network(self, topology: Topology) -> Topology:
        """The network with the cost of its messages added as latency.

        Args:
            topology: the network.
        """
        return with_latency(topology, self.algorithm.message_s)

    def least_work_s(self, topology: Topology, ranks: Sequence[int]) -> float:
        """Start of the call plus processor time for all messages, which is the same for all orders.

        Args:
            topology: the network.
            ranks: any order.
        """
        schedule = self.schedule(topology, ranks)
        costs = self.algorithm.of(piece_bytes(schedule, self.gradient_bytes))
        return self.runtime.work_s(schedule, costs)

    @property
    def start_s(self) -> float:
        """Start time of the call at each server."""
        return self.algorithm.start_s

    def seconds(self, topology: Topology, ranks: Sequence[int]) -> float:
        """Its predicted time for a rank order, simulated event by event.

        Args:
            topology: the network.
            ranks: the node id of the server at each rank.
        """
        return self.runtime.own_seconds(self.schedule(topology, ranks), self.gradient_bytes)


def own_all_reduces(
    library: str,
    servers: int,
    gradient_bytes: float,
    runtime: Runtime | str | Path | None = None,
) -> tuple[OwnAllReduce, ...]:
    """The all-reduces that a library has for a gradient size; it uses the fastest.

    gloo has a ring. Open MPI uses recursive doubling below some size and halving and doubling from
    there on, depending on the number of processes. NCCL chooses between its ring and its double
    binary tree by a model that does not know the network between nodes; the faster one is assumed.

    Args:
        library: one of `LIBRARIES`.
        servers: number of ranks.
        gradient_bytes: size of the whole gradient.
        runtime: a profile of message costs, or its name; the library's profile if not given.

    Raises:
        OptionError: for an unknown library or profile, or a profile without own all-reduces.
    """
    if library not in LIBRARIES:
        guess = did_you_mean(library, LIBRARIES)
        raise OptionError(f"library: {guess}expected {', '.join(LIBRARIES)}, got {library!r:.60}")
    profile = runtime_of(LIBRARIES[library] if runtime is None else runtime)
    fitting = next(
        one
        for one in own_algorithms(LIBRARIES[library], servers)
        if gradient_bytes < one.below_bytes
    )
    taken = [fitting]
    if library == "nccl":
        parts = math.ceil(gradient_bytes / 2 / NCCL_STEP_BYTES)
        parts = min(max(parts, 1), _MOST_PARTS)
        taken.append(dataclasses.replace(fitting, scheduler="double_tree", parts=parts))
    return tuple(_with_costs(library, one, profile, gradient_bytes) for one in taken)


def _with_costs(
    library: str, algorithm: Algorithm, profile: Runtime, gradient_bytes: float
) -> OwnAllReduce:
    """The algorithm with its message costs: those measured for it, otherwise those for the size."""
    alike = [one for one in profile.own if one.scheduler == algorithm.scheduler]
    measured = (alike or [profile.algorithm(gradient_bytes) or Algorithm()])[0]
    costly = dataclasses.replace(
        measured, scheduler=algorithm.scheduler, parts=algorithm.parts, below_bytes=math.inf
    )
    return OwnAllReduce(
        library, costly, dataclasses.replace(profile, own=(costly,)), gradient_bytes
    )
