"""The all-reduce that a runtime ships, as a schedule with the runtime's messages."""

import math

from gradweave.common.stop import UNLIMITED
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solving.variants import split
from gradweave.schedulers.textbook.double_tree import DoubleTree
from gradweave.schedulers.textbook.halving_doubling import HalvingDoubling, RecursiveDoubling
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.runtime import Algorithm, Runtime
from gradweave.topology.topology import Topology

ALGORITHMS: dict[str, Scheduler] = {
    one.name: one for one in (Ring(), RecursiveDoubling(), HalvingDoubling(), DoubleTree())
}
"""The algorithm names that a profile may use, each with servers in the order of ranks."""
_GLOO_SEGMENTS = 2
"""Segments per server: the minimum that ``gloo::allreduce`` (``gloo/allreduce.cc``) uses."""
_MPI_DOUBLES_BELOW = ((16, 8192), (32, 4096), (64, 0), (128, 262144), (math.inf, 16384))
"""(processes, bytes): with fewer than that many processes, Open MPI 5 uses recursive doubling below
that many bytes and Rabenseifner's halving and doubling from there on
(``coll_tuned_decision_fixed.c``, without its special cases of a few bytes and its non-overlapping
reduce and broadcast)."""


def own_algorithms(name: str, servers: int) -> tuple[Algorithm, ...]:
    """The algorithms that a runtime uses for a number of servers, by gradient size.

    Args:
        name: the runtime: ``gloo``, ``mpi``, ``jax`` or ``nccl``.
        servers: the number of servers.
    """
    if name == "mpi":
        below = next(size for fewer, size in _MPI_DOUBLES_BELOW if servers < fewer)
        small = Algorithm(scheduler="recursive_doubling", below_bytes=below)
        return (small, Algorithm(scheduler="halving_doubling"))[below == 0 :]
    return (Algorithm(parts=_GLOO_SEGMENTS if name == "gloo" else 1),)


def own_schedule(topology: Topology, runtime: Runtime, gradient_bytes: float) -> Schedule | None:
    """The all-reduce that the runtime ships, for a gradient, or None if it is not known.

    Args:
        topology: the network.
        runtime: its profile.
        gradient_bytes: size of the whole gradient.

    Raises:
        OptionError: if a profile names an algorithm that is not in `ALGORITHMS`.
    """
    algorithm = runtime.algorithm(gradient_bytes)
    if algorithm is None:
        return None
    if algorithm.scheduler not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise OptionError(
            f"runtime: own: scheduler: expected {known}, got {algorithm.scheduler!r:.60}"
        )
    scheduler = ALGORITHMS[algorithm.scheduler]
    try:
        made = scheduler.make(topology, "all_reduce", 0, UNLIMITED)
    except NoScheduleError:
        return None
    return scheduler.verified(split(made, algorithm.parts), 0)
