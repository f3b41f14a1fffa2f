"""Bandwidths by the definitions of nccl-tests."""

from gradweave.schedules.schedule import Collective


def algorithm_bandwidth(gradient_bytes: float, seconds: float) -> float:
    """Gradient bytes per second.

    Args:
        gradient_bytes: size of the whole gradient; for an all-gather, the size of its result.
        seconds: duration of the collective.
    """
    return gradient_bytes / seconds


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
        Bytes per second: the algorithm's times 2(N−1)/N for an all-reduce, (N−1)/N for a stage.

    Source: PERFORMANCE.md of nccl-tests.
    """
    stages = 2 if collective == "all_reduce" else 1
    moved = stages * (servers - 1) / servers
    return moved * algorithm_bandwidth(gradient_bytes, seconds)
