"""Bandwidths as nccl-tests counts them."""

from gradweave.schedule.schedule import Collective


def algorithm_bandwidth(gradient_bytes: float, seconds: float) -> float:
    """Bytes of the gradient in each second.

    Args:
        gradient_bytes: size of the whole gradient; of an all-gather what every server ends with.
        seconds: that the collective takes.
    """
    return gradient_bytes / seconds


def bus_bandwidth(
    gradient_bytes: float, seconds: float, servers: int, collective: Collective = "all_reduce"
) -> float:
    """The bandwidth that each server's link would have, were it what decides: comparable by sizes.

    Args:
        gradient_bytes: size of the whole gradient.
        seconds: that the collective takes.
        servers: how many take part.
        collective: both stages or one.

    Returns:
        Bytes a second: the algorithm's times 2(N−1)/N for an all-reduce, (N−1)/N for a stage.

    Source: PERFORMANCE.md of nccl-tests.
    """
    stages = 2 if collective == "all_reduce" else 1
    moved = stages * (servers - 1) / servers
    return moved * algorithm_bandwidth(gradient_bytes, seconds)
