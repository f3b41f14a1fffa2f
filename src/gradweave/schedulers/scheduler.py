"""The scheduler: topology in, verified schedule out; one strategy a file."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np

from gradweave.errors import OptionError
from gradweave.schedule.compose import compose, reverse
from gradweave.schedule.schedule import COLLECTIVES, Collective, Provenance, Schedule
from gradweave.stop import Stop
from gradweave.topology.spec import as_topology
from gradweave.topology.topology import Topology
from gradweave.verify import verify


@dataclasses.dataclass(frozen=True)
class Scheduler(abc.ABC):
    """One strategy. Its options are its fields, checked at construction.

    A subclass gives `name` and `_make`; nothing else is overridden.
    """

    name: ClassVar[str]
    """The strategy's name on the command line and in files."""
    forwards_through_servers: ClassVar[bool] = False
    """Whether routes may pass through servers that neither add nor keep what passes."""
    own_pieces: ClassVar[bool] = False
    """Whether it decides by itself how many pieces there are and which server roots them; then its
    rounds do not compare with others'."""

    def schedule(
        self,
        topology: Topology | str,
        *,
        collective: Collective = "all_reduce",
        seed: int = 0,
        time_limit: float | None = None,
    ) -> Schedule:
        """Makes a schedule and verifies it.

        Args:
            topology: the network, or its specification or file as on the command line.
            collective: a stage, or both.
            seed: every random choice depends on it alone.
            time_limit: seconds after which to return the best found so far; None to let the
                strategy finish. Strategies that do not search ignore it. Compiling loops, which a
                first run on a machine does, does not count.

        Returns:
            A valid schedule.

        Raises:
            NoScheduleError: where the strategy finds none.
            InvalidScheduleError: where the strategy has a fault: what it made does not verify.
        """
        network = as_topology(topology)
        return self.schedule_until(network, Stop.after(time_limit), collective, seed=seed)

    def schedule_until(
        self,
        topology: Topology,
        stop: Stop,
        collective: Collective = "all_reduce",
        *,
        seed: int = 0,
    ) -> Schedule:
        """As `schedule`, in whatever time a caller's search has left.

        Args:
            topology: the network.
            stop: when to return the best found so far.
            collective: a stage, or both.
            seed: every random choice depends on it alone.
        """
        if collective not in COLLECTIVES:
            raise OptionError(
                f"collective: expected one of {', '.join(COLLECTIVES)}, got {collective!r}"
            )
        schedule = self._make(topology, collective, seed, stop).replace(
            scheduler=Provenance(self.name, self.options(), seed)
        )
        verify(
            schedule,
            forwarding_servers=may_forward(self),
            aggregating_switches=self._aggregating_switches(),
        ).raise_if_invalid()
        return schedule

    def options(self) -> dict[str, Any]:
        """The strategy's fields, as they are written to a schedule's file."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.repr
        }

    @abc.abstractmethod
    def _make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it and adds its provenance."""

    def _aggregating_switches(self) -> bool:
        return bool(getattr(self, "aggregating_switches", False))


def to_spec(scheduler: Scheduler) -> str:
    """The specification of a strategy: its name, and the options that are not at their defaults.

    >>> from gradweave.schedulers import Ring
    >>> to_spec(Ring(order="hamiltonian"))
    'ring:order=hamiltonian'
    """
    options = [
        f"{field.name}={_written(value)}"
        for field in dataclasses.fields(scheduler)
        if field.repr and (value := getattr(scheduler, field.name)) != field.default
    ]
    return scheduler.name + (":" + ",".join(options) if options else "")


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value)


SEARCHING = 0.9
"""Share of a time limit for which searches go on: what they found is still to be finished, joined
and verified."""
MAX_COUNT = 1_000_000
"""Largest value of an option that counts something, unless a strategy has a reason for another."""


def check_counts(
    scheduler: Scheduler, *options: str, least: int = 1, most: int = MAX_COUNT
) -> None:
    """Refuses options that count something and are out of range; None is allowed.

    Raises:
        OptionError: names the strategy, the option and its range.
    """
    for option in options:
        value = getattr(scheduler, option)
        if value is not None and not least <= value <= most:
            raise OptionError(
                f"{scheduler.name}: {option}: expected {least:,} to {most:,}, got {value}"
            )


def may_forward(scheduler: Scheduler) -> bool:
    """Whether a strategy, with its options, may send through servers that do not use what passes.

    Args:
        scheduler: the strategy; an option ``forwarding`` of it may forbid what its class allows.
    """
    return scheduler.forwards_through_servers and getattr(scheduler, "forwarding", True)


def from_stage(
    stage: Literal["reduce_scatter", "all_gather"],
    make: Callable[[Topology], Schedule],
    topology: Topology,
    collective: Collective,
) -> Schedule:
    """The collective that one stage gives rise to: itself, its reverse, or both in a row.

    Args:
        stage: what `make` makes.
        make: makes that stage on a network of the same links; capacities may be others.
        topology: the network.
        collective: what to make.
    """
    if collective == stage:
        return make(topology)
    # Reversal moves each link direction's load to its opposite, so what is to be reversed is made
    # for the opposites' capacities.
    opposite = topology.capacity[topology.opposite]
    alike = np.array_equal(opposite, topology.capacity)
    to_reverse = make(topology if alike else dataclasses.replace(topology, capacity=opposite))
    other = reverse(to_reverse if alike else to_reverse.replace(topology=topology))
    if collective != "all_reduce":
        return other
    schedule = to_reverse if alike else make(topology)
    return compose(schedule, other) if stage == "reduce_scatter" else compose(other, schedule)


def from_all_gather(
    make: Callable[[Topology, int, Stop], Schedule],
    topology: Topology,
    collective: Collective,
    seed: int,
    stop: Stop,
) -> Schedule:
    """The collective that a search for an all-gather gives rise to.

    Args:
        make: makes an all-gather from a network, a seed and when to stop.
        topology: the network.
        collective: what to make.
        seed: of the search.
        stop: of all of it.
    """
    opposite = topology.capacity[topology.opposite]
    two = collective == "all_reduce" and not np.array_equal(opposite, topology.capacity)
    stops = iter([*map(stop.part, [SEARCHING / 2, SEARCHING] if two else [SEARCHING])])

    def search(network: Topology) -> Schedule:
        return make(network, seed, next(stops))

    return from_stage("all_gather", search, topology, collective)
