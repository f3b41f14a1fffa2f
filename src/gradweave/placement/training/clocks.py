"""Clocks of different machines, compared by messages between their processes."""

import time

import torch
import torch.distributed as dist

_ROUNDS = 5
"""Messages there and back for each process, the quickest of which counts."""


def clock_ahead_s() -> float:
    """How far this process's monotonic clock is ahead of the first one's; all processes call it.

    The first asks each other one in turn, and takes its answer for the time half way between its
    question and the answer's arrival: wrong by half the difference between the two ways, and by
    what the clocks drift apart later.

    Source: Cristian, "Probabilistic clock synchronization", 1989.
    """
    if dist.get_rank():
        return _answer()
    for peer in range(1, dist.get_world_size()):
        _ask(peer)
    return 0.0


def _ask(peer: int) -> None:
    """Finds how far a process is ahead, and tells it."""
    quickest, ahead = float("inf"), 0.0
    for _ in range(_ROUNDS):
        answer = torch.zeros(1, dtype=torch.float64)
        # gloo sends nothing before it is asked for, so that this comes before the question.
        arriving = dist.irecv(answer, peer)
        assert arriving is not None
        asked = time.monotonic()
        dist.send(torch.zeros(1), peer)
        arriving.wait()
        taken = time.monotonic() - asked
        if taken < quickest:
            quickest, ahead = taken, answer.item() - (asked + taken / 2)
    dist.send(torch.tensor([ahead], dtype=torch.float64), peer)


def _answer() -> float:
    for _ in range(_ROUNDS):
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.tensor([time.monotonic()], dtype=torch.float64), 0)
    ahead = torch.zeros(1, dtype=torch.float64)
    dist.recv(ahead, 0)
    return ahead.item()
