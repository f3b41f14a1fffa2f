"""Offsets between the clocks of different machines, measured by messages between processes."""

import time

import torch
import torch.distributed as dist

from gradweave.processes.clock_offset import ROUNDS, ahead_s


def clock_ahead_s() -> float:
    """How far this process's monotonic clock is ahead of rank 0's; called by all processes.

    Rank 0 queries each other process in turn, and sends it the offset that `ahead_s` computes.
    """
    if dist.get_rank():
        return _answer()
    for peer in range(1, dist.get_world_size()):
        _ask(peer)
    return 0.0


def _ask(peer: int) -> None:
    """Measures how far a process's clock is ahead, and sends it the result."""
    asked: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        answer = torch.zeros(1, dtype=torch.float64)
        # gloo sends nothing before it is requested, so this must come before the question.
        arriving = dist.irecv(answer, peer)
        assert arriving is not None
        begun = time.monotonic()
        dist.send(torch.zeros(1), peer)
        arriving.wait()
        asked.append((begun, time.monotonic(), answer.item()))
    ahead, _ = ahead_s(asked)
    dist.send(torch.tensor([ahead], dtype=torch.float64), peer)


def _answer() -> float:
    for _ in range(ROUNDS):
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.tensor([time.monotonic()], dtype=torch.float64), 0)
    ahead = torch.zeros(1, dtype=torch.float64)
    dist.recv(ahead, 0)
    return ahead.item()
