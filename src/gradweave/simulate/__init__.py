"""Simulation of schedules: rounds played by a policy, seconds, bytes."""

from gradweave.simulate.rounds import (
    GrownState,
    Policy,
    RoundState,
    play,
    schedule_from_rounds,
)
from gradweave.simulate.seconds import Model, event_seconds, round_seconds, seconds
from gradweave.simulate.traffic import Traffic, bytes_per_piece, traffic

__all__ = [
    "GrownState",
    "Model",
    "Policy",
    "RoundState",
    "Traffic",
    "bytes_per_piece",
    "event_seconds",
    "play",
    "round_seconds",
    "schedule_from_rounds",
    "seconds",
    "traffic",
]
