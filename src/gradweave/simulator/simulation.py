"""Predicts the rounds, seconds and bytes of a schedule on its network."""

import dataclasses

from gradweave.common.wording import counted
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.planned_for import stated_bytes
from gradweave.schedules.ready import ReadyAt
from gradweave.simulator.seconds import seconds
from gradweave.simulator.traffic import Traffic, traffic
from gradweave.topology.units import as_size, format_seconds, format_size

DEFAULT_BYTES = 100_000_000
"""Size of the gradient if neither the caller nor the schedule states one."""


@dataclasses.dataclass(frozen=True, eq=False)
class Simulation:
    """The predicted cost of a schedule; links cost what the network states."""

    gradient_bytes: float
    rounds: int
    seconds: float
    """Without barriers: a transfer starts as soon as its data and links are free."""
    barrier_seconds: float
    """With a barrier after each round."""
    fair_seconds: float
    """Without barriers, with links shared fairly, as by TCP."""
    traffic: Traffic
    """Bytes per link and per server."""

    def __str__(self) -> str:
        return (
            f"{format_size(self.gradient_bytes)} in {counted(self.rounds, 'round')}: "
            f"{format_seconds(self.seconds)} without barriers, "
            f"{format_seconds(self.barrier_seconds)} with a barrier after each round, "
            f"{format_seconds(self.fair_seconds)} with fairly shared links"
        )


def simulate(
    schedule: ScheduleLike,
    gradient_bytes: float | str | None = None,
    *,
    ready_at_s: ReadyAt | None = None,
) -> Simulation:
    """Predicts rounds, seconds and bytes of a schedule on its network.

    Args:
        schedule: a schedule, a solution, or the path of a schedule file.
        gradient_bytes: size of the whole gradient, such as ``"100MB"``; if not given, the size that
            the schedule was planned for, or `DEFAULT_BYTES`.
        ready_at_s: [N] seconds at which each server's gradient is ready; see
            `gradweave.simulator.seconds`.

    >>> import gradweave as gw
    >>> print(gw.simulate(gw.schedulers.Ring().schedule("ring:n=4,bandwidth=10Gbit/s"), "100MB"))
    100 MB in 6 rounds: 120 ms without barriers, 120 ms with a barrier after each round, 120 ms ...
    """
    schedule = as_schedule(schedule)
    if gradient_bytes is None:
        gradient_bytes = stated_bytes(schedule)
    size = DEFAULT_BYTES if gradient_bytes is None else as_size(gradient_bytes)
    event_s, barrier_s, fair_s = (
        seconds(schedule, size, model, ready_at_s=ready_at_s)
        for model in ("events", "rounds", "fair")
    )
    moved = traffic(schedule, size)
    return Simulation(size, schedule.rounds, event_s, barrier_s, fair_s, moved)
