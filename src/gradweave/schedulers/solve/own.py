"""The all-reduce that a runtime has itself, as a schedule with its messages."""

import math

from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solve.variants import split
from gradweave.schedulers.textbook.double_tree import DoubleTree
from gradweave.schedulers.textbook.halving_doubling import HalvingDoubling, RecursiveDoubling
from gradweave.schedulers.textbook.ring import Ring
from gradweave.simulate.runtime import Algorithm, Runtime
from gradweave.topology.topology import Topology

STRATEGIES: dict[str, Scheduler] = {
    "ring": Ring(),
    "recursive_doubling": RecursiveDoubling(),
    "halving_doubling": HalvingDoubling(),
    "double_tree": DoubleTree(),
}
"""What a profile may call a runtime's algorithm: servers in the order of ranks."""
_GLOO_SEGMENTS = 2
"""A server, as ``gloo::allreduce`` (``gloo/allreduce.cc``) cuts the gradient at least."""
_MPI_DOUBLES_BELOW = ((16, 8192), (32, 4096), (64, 0), (128, 262144), (math.inf, 16384))
"""Below so many processes: bytes below which Open MPI 5 takes recursive doubling, and from which on
Rabenseifner's halving and doubling (``coll_tuned_decision_fixed.c``, sizes of a few bytes and its
non-overlapping reduce and broadcast left out)."""


def own_algorithms(name: str, servers: int) -> tuple[Algorithm, ...]:
    """What a runtime takes for so many servers, by the gradient's size.

    Args:
        name: of the runtime: ``gloo``, ``mpi``, ``jax`` or ``nccl``.
        servers: how many.
    """
    if name == "mpi":
        below = next(size for fewer, size in _MPI_DOUBLES_BELOW if servers < fewer)
        small = Algorithm(scheduler="recursive_doubling", below_bytes=below)
        return (small, Algorithm(scheduler="halving_doubling"))[below == 0 :]
    return (Algorithm(parts=_GLOO_SEGMENTS if name == "gloo" else 1),)


def own_schedule(topology: Topology, runtime: Runtime, gradient_bytes: float) -> Schedule | None:
    """The runtime's own all-reduce for a gradient; None where it is not known.

    Args:
        topology: the network.
        runtime: its profile.
        gradient_bytes: size of the whole gradient.

    Raises:
        OptionError: where a profile calls it what is not in `STRATEGIES`.
    """
    algorithm = runtime.algorithm(gradient_bytes)
    if algorithm is None:
        return None
    if algorithm.scheduler not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise OptionError(
            f"runtime: own: scheduler: expected {known}, got {algorithm.scheduler!r:.60}"
        )
    try:
        schedule = STRATEGIES[algorithm.scheduler].schedule(topology)
    except NoScheduleError:
        return None
    return split(schedule, algorithm.parts)
