"""Simulation of schedules: rounds played by a policy, seconds, bytes."""

from gradweave.simulate.bandwidths import algorithm_bandwidth, bus_bandwidth
from gradweave.simulate.link_use import LinkUse, Waits, busiest_links
from gradweave.simulate.rounds import (
    GrownState,
    Policy,
    RoundState,
    play,
    schedule_from_rounds,
)
from gradweave.simulate.seconds import (
    Model,
    changed_seconds,
    event_seconds,
    fair_seconds,
    round_seconds,
    seconds,
)
from gradweave.simulate.sequential_steps import steps
from gradweave.simulate.traffic import Traffic, piece_bytes, traffic

__all__ = [
    "GrownState",
    "LinkUse",
    "Model",
    "Policy",
    "RoundState",
    "Traffic",
    "Waits",
    "algorithm_bandwidth",
    "bus_bandwidth",
    "busiest_links",
    "changed_seconds",
    "event_seconds",
    "fair_seconds",
    "piece_bytes",
    "play",
    "round_seconds",
    "schedule_from_rounds",
    "seconds",
    "steps",
    "traffic",
]
