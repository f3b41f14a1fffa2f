"""What stock libraries do with an order of ranks: their own all-reduces, played."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradweave.checks import did_you_mean
from gradweave.errors import OptionError
from gradweave.ordering.pattern import (
    Pattern,
    double_tree,
    halving_doubling,
    recursive_doubling,
    ring,
)
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.solve.own import STRATEGIES, own_algorithms
from gradweave.schedulers.solve.variants import split
from gradweave.schedulers.textbook.double_tree import DoubleTree
from gradweave.schedulers.textbook.halving_doubling import HalvingDoubling, RecursiveDoubling
from gradweave.schedulers.textbook.ring import Ring
from gradweave.simulate.runtime import Algorithm, Runtime, runtime_of, with_latency
from gradweave.simulate.traffic import piece_bytes
from gradweave.stop import UNLIMITED
from gradweave.topology.topology import Topology

LIBRARIES = {"gloo": "gloo", "nccl": "nccl", "openmpi": "mpi"}
"""The runtime whose profile says what each library's messages cost."""
_NCCL_STEP_BYTES = 1 << 19
"""What NCCL sends at once: its buffer of 4 MiB (``NCCL_BUFFSIZE``) in 8 steps
(``NCCL_STEPS``)."""
_MOST_PARTS = 16
"""Parts in which a tree is played at most: more of them change its time by less than a tenth."""


@dataclasses.dataclass(frozen=True)
class OwnAllReduce:
    """One of a library's all-reduces, for gradients of one size.

    gloo's ring sends from each rank to the one before it (``gloo/allreduce.cc``), those of others
    to the one after.
    """

    library: str
    algorithm: Algorithm
    runtime: Runtime
    gradient_bytes: float

    @property
    def name(self) -> str:
        """Of the strategy, such as ``ring`` or ``halving_doubling``."""
        return self.algorithm.scheduler

    @property
    def is_ring(self) -> bool:
        """Whether each rank sends to the next, which `gradweave.ordering.bound` is about."""
        return self.name == "ring"

    def pattern(self, servers: int) -> Pattern:
        """What it sends between ranks.

        Args:
            servers: how many.
        """
        size, parts = self.gradient_bytes, self.algorithm.parts
        if self.is_ring:
            return ring(servers, size, parts, backward=self.library == "gloo")
        if self.name == "double_tree":
            return double_tree(servers, size, parts)
        by_halves = self.name == "halving_doubling"
        return (halving_doubling if by_halves else recursive_doubling)(servers, size)

    def travel(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """The servers as the strategy stands them: in the direction in which a ring sends.

        Args:
            ranks: servers in the order of ranks.
        """
        backward = self.is_ring and self.library == "gloo"
        return tuple(ranks[::-1]) if backward else tuple(ranks)

    def schedule(self, topology: Topology, ranks: Sequence[int]) -> Schedule:
        """Its messages with ranks in an order; not verified.

        Args:
            topology: the network.
            ranks: the node id of the server at each rank.
        """
        strategy = STRATEGIES[self.name]
        assert isinstance(strategy, (Ring, HalvingDoubling, RecursiveDoubling, DoubleTree))
        placed = dataclasses.replace(strategy, order=self.travel(ranks))
        parts = self.algorithm.parts
        made = split(placed.make(topology, "all_reduce", 0, UNLIMITED), parts)
        if self.name == "double_tree" and parts > 1:
            # Each part a step behind the one before: those that go up and down share the links.
            level, part = np.divmod(made.round, parts)
            made = made.replace(round=level + part)
        return made

    def network(self, topology: Topology) -> Topology:
        """The network with what its messages cost, as latency.

        Args:
            topology: the network.
        """
        return with_latency(topology, self.algorithm.message_s)

    def least_work_s(self, topology: Topology, ranks: Sequence[int]) -> float:
        """Start of the call, and processors' time for all messages: the same for all orders.

        Args:
            topology: the network.
            ranks: any order.
        """
        schedule = self.schedule(topology, ranks)
        costs = self.algorithm.of(piece_bytes(schedule, self.gradient_bytes))
        return self.runtime.work_s(schedule, costs)

    @property
    def start_s(self) -> float:
        """Of the call, at each server."""
        return self.algorithm.start_s

    def seconds(self, topology: Topology, ranks: Sequence[int]) -> float:
        """Its predicted time with ranks in an order, played event by event.

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
    """The all-reduces that a library has for gradients of a size; it takes the fastest.

    gloo has its ring. Open MPI has recursive doubling below some size and halving and doubling from
    it on, by the number of processes. NCCL chooses by a model of its own, which does not know what
    is between nodes: its ring and its double binary tree, whichever is faster.

    Args:
        library: one of `LIBRARIES`.
        servers: how many ranks.
        gradient_bytes: size of the whole gradient.
        runtime: a profile of what its messages cost, or its name; the library's own if not given.

    Raises:
        OptionError: for an unknown library or profile, or one without all-reduces of its own.
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
        parts = math.ceil(gradient_bytes / 2 / _NCCL_STEP_BYTES)
        parts = min(max(parts, 1), _MOST_PARTS)
        taken.append(dataclasses.replace(fitting, scheduler="double_tree", parts=parts))
    return tuple(_with_costs(library, one, profile, gradient_bytes) for one in taken)


def _with_costs(
    library: str, algorithm: Algorithm, profile: Runtime, gradient_bytes: float
) -> OwnAllReduce:
    """The algorithm with what its messages cost: those measured of it, else of the size."""
    alike = [one for one in profile.own if one.scheduler == algorithm.scheduler]
    measured = (alike or [profile.algorithm(gradient_bytes) or Algorithm()])[0]
    costly = dataclasses.replace(
        measured, scheduler=algorithm.scheduler, parts=algorithm.parts, below_bytes=math.inf
    )
    return OwnAllReduce(
        library, costly, dataclasses.replace(profile, own=(costly,)), gradient_bytes
    )
