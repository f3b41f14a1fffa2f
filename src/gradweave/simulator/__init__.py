"""Simulation of schedules: rounds played by a policy, seconds, bytes."""

from gradweave.simulator.link_use import busiest_links
from gradweave.simulator.rounds import GrownState, RoundState, schedule_from_rounds
from gradweave.simulator.seconds import (
    Model,
    changed_seconds,
    event_seconds,
    fair_seconds,
    round_seconds,
    seconds,
)
from gradweave.simulator.sequential_steps import steps
from gradweave.simulator.simulation import simulate
from gradweave.simulator.traffic import traffic

__all__ = [
    "GrownState",
    "Model",
    "RoundState",
    "busiest_links",
    "changed_seconds",
    "event_seconds",
    "fair_seconds",
    "round_seconds",
    "schedule_from_rounds",
    "seconds",
    "simulate",
    "steps",
    "traffic",
]
