"""The all-reduce that a runtime has itself, as a schedule with its messages."""

import math

from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solve.variants import split
from gradweave.schedulers.textbook.halving_doubling import HalvingDoubling, RecursiveDoubling
from gradweave.schedulers.textbook.ring import Ring
from gradweave.simulate.runtime import Algorithm, Own
from gradweave.topology.topology import Topology

STRATEGIES: dict[str, Scheduler] = {
    "ring": Ring(),
    "recursive_doubling": RecursiveDoubling(),
    "halving_doubling": HalvingDoubling(),
}
"""What a profile may call a runtime's algorithm: servers in the order of ranks."""
_GLOO = (Algorithm("ring", parts=2),)
"""Two segments a server, as ``gloo::allreduce`` (``gloo/allreduce.cc``) cuts them at least."""
_MPI = (
    (16, (Algorithm("recursive_doubling", 8192), Algorithm("halving_doubling"))),
    (32, (Algorithm("recursive_doubling", 4096), Algorithm("halving_doubling"))),
    (64, (Algorithm("halving_doubling"),)),
    (128, (Algorithm("recursive_doubling", 262144), Algorithm("halving_doubling"))),
    (math.inf, (Algorithm("recursive_doubling", 16384), Algorithm("halving_doubling"))),
)
"""Below so many processes: by size, Open MPI 5's ``coll_tuned_decision_fixed.c``, sizes of a few
bytes and its non-overlapping reduce and broadcast left out."""


def own_algorithms(name: str, servers: int) -> tuple[Algorithm, ...]:
    """What a runtime takes for so many servers, by the gradient's size.

    Args:
        name: of the runtime: ``gloo``, ``mpi``, ``jax`` or ``nccl``.
        servers: how many.
    """
    if name == "mpi":
        return next(algorithms for below, algorithms in _MPI if servers < below)
    return _GLOO if name == "gloo" else (Algorithm("ring"),)


def own_schedule(topology: Topology, own: Own, gradient_bytes: float) -> Schedule | None:
    """The runtime's own all-reduce for a gradient; None where it is not known.

    Args:
        topology: the network.
        own: of the runtime's profile.
        gradient_bytes: size of the whole gradient.

    Raises:
        OptionError: where a profile calls it what is not in `STRATEGIES`.
    """
    algorithm = own.algorithm(gradient_bytes)
    if algorithm is None:
        return None
    if algorithm.scheduler not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise OptionError(
            f"runtime: own.algorithms: scheduler: expected {known}, got {algorithm.scheduler!r:.60}"
        )
    try:
        schedule = STRATEGIES[algorithm.scheduler].schedule(topology)
    except NoScheduleError:
        return None
    return split(schedule, algorithm.parts)
