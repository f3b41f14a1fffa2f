"""Bandwidths by the definitions of nccl-tests."""

from gradweave.schedules.schedule import Collective


def algorithm_bandwidth(gradient_bytes: float, seconds: float) -> float:
    """Gradient bytes per second.

    Args:
        gradient_bytes: size of the whole gradient; for an all-gather, the size of its result.
        seconds: duration of the collective.
    """
    return gradient_bytes / seconds


STAGES = {"all_reduce": 2, "broadcast": 0, "reduce": 0, "send_recv": 0, "hypercube": 0}
"""Collectives that do not have one stage in which each rank sends or receives all but its part."""


def bus_factor(collective: str, servers: int) -> float:
    """Bus bandwidth per algorithm bandwidth.

    Args:
        collective: its name; (N−1)/N unless `STAGES` has it.
        servers: number of servers, N.

    Returns:
        2(N−1)/N for an all-reduce; 1 for a broadcast and others that move everything over one link.

    Source: ``…GetBw`` of the programs of nccl-tests.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    stages = STAGES.get(collective, 1)
    return stages * (servers - 1) / servers if stages else 1.0


def bus_bandwidth(
    gradient_bytes: float, seconds: float, servers: int, collective: Collective = "all_reduce"
) -> float:
    """Bandwidth of each server's link if that were the limit; comparable for any number of servers.

    Args:
        gradient_bytes: size of the whole gradient.
        seconds: duration of the collective.
        servers: number of servers.
        collective: both stages or one.

    Returns:
        Bytes per second: the algorithm's times `bus_factor`.

    Source: PERFORMANCE.md of nccl-tests.
    """
    return bus_factor(collective, servers) * algorithm_bandwidth(gradient_bytes, seconds)
