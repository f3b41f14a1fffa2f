"""The scheduler: topology in, verified schedule out; one strategy a file."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from gradweave.errors import OptionError
from gradweave.schedule.compose import compose, reverse
from gradweave.schedule.schedule import COLLECTIVES, Collective, Provenance, Schedule
from gradweave.stop import Stop
from gradweave.topology.spec import as_topology
from gradweave.topology.topology import Topology
from gradweave.verify import verify


@dataclasses.dataclass(frozen=True)
class Traits:
    """What a strategy with its options is like: all that those who choose between strategies ask.

    A strategy states them in its property `traits`; nobody asks for its class or its name.
    """

    forwards: bool = False
    """Whether routes may pass through servers that neither add nor keep what passes."""
    aggregates: bool = False
    """Whether switches add what they receive."""
    overlaps: bool = False
    """Whether a piece's all-gather may begin before all of the reduce-scatter has ended."""
    one_root: bool = False
    """Whether the gradient moves in one piece, with one root."""
    own_pieces: bool = False
    """Whether it decides by itself how many pieces there are and which server roots them."""
    pieces_per_server: int = 1
    """Pieces that each server is the root of, where there is one piece or more for each."""
    takes_pieces: bool = False
    """Whether it has an option of that name."""
    takes_steps: bool = False
    """Whether its options `steps`, which is not given, and `restarts` make for fewer transfers in a
    row."""
    takes_size: bool = False
    """Whether its option `gradient_bytes` makes it fast for a size, which is not given."""
    takes_ready_times: bool = False
    """Whether it has an option `ready_at_s`, which is not given."""
    repairs: bool = False
    """Whether it goes on from an earlier schedule: then it is tried first."""
    by_groups: bool = False
    """Whether it costs little where a network consists of groups, however many servers."""
    by_symmetry: bool = False
    """Whether it costs as much as one tree where a symmetry is known, however many servers."""
    proves: bool = False
    """Whether it proves that there is no better schedule, which on few servers takes little."""
    after_proofs: bool = False
    """Whether it waits for such a proof where that takes no longer."""
    one_draw: bool = False
    """Whether a schedule of it is one draw, so that the mean of many tells more than the best."""

    @property
    def rounds_compare(self) -> bool:
        """Whether its rounds say something beside those of others, and beside a bound.

        They do not where it moves the gradient in one piece, or in pieces of its own choice.
        """
        return not (self.one_root or self.own_pieces)

    @property
    def freer_than_exact(self) -> bool:
        """Whether it may do what the exact model leaves out."""
        return self.forwards or self.overlaps or self.aggregates


@dataclasses.dataclass(frozen=True)
class Scheduler(abc.ABC):
    """One strategy. Its options are its fields, checked at construction.

    A subclass gives `name` and `make`, and `traits` where it has any; it may give
    `steps_fit_rounds` and `improve`. Nothing else is overridden. Callers use `schedule`, which
    verifies what `make` made.
    """

    name: ClassVar[str]
    """The strategy's name on the command line and in files."""

    @property
    def traits(self) -> Traits:
        """What it is like, with these options."""
        return Traits()

    def steps_fit_rounds(self, topology: Topology) -> bool:
        """Whether it goes in steps each of which takes one round there.

        Args:
            topology: the network.
        """
        return False

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
        known: Schedule | None = None,
    ) -> Schedule:
        """As `schedule`, in whatever time a caller's search has left.

        Args:
            topology: the network.
            stop: when to return the best found so far.
            collective: a stage, or both.
            seed: every random choice depends on it alone.
            known: a schedule that there is already, for strategies that can go on from one.
        """
        if collective not in COLLECTIVES:
            raise OptionError(
                f"collective: expected one of {', '.join(COLLECTIVES)}, got {collective!r}"
            )
        given = topology, collective, seed, stop
        made = self.make(*given) if known is None else self.improve(known, *given)
        schedule = made.replace(scheduler=Provenance(self.name, self.options(), seed))
        traits = self.traits
        verify(
            schedule,
            forwarding_servers=traits.forwards,
            aggregating_switches=traits.aggregates,
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
    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule, for `schedule` to verify and to say who made it.

        Args:
            topology: the network.
            collective: a stage, or both.
            seed: every random choice depends on it alone.
            stop: when to return the best found so far; strategies that do not search ignore it.

        Returns:
            The schedule; its provenance is filled in by `schedule`.

        Raises:
            NoScheduleError: where the strategy finds none.
        """

    def improve(
        self, known: Schedule, topology: Topology, collective: Collective, seed: int, stop: Stop
    ) -> Schedule:
        """As `make`, where there is a schedule already, which most strategies do not look at.

        Args:
            known: a valid schedule of the same network and collective.
            topology: the network.
            collective: a stage, or both.
            seed: every random choice depends on it alone.
            stop: when to return the best found so far.
        """
        return self.make(topology, collective, seed, stop)


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


NEAR_BOUND = 1e-3
"""How far above the least time possible, relative to it, a schedule may be that ends a search for
few seconds. Chosen by hand."""
SEARCHING = 0.9
"""Share of a time limit for which searches go on: what they found is still to be finished, joined
and verified."""
MAX_COUNT = 1_000_000
"""Largest value of an option that counts something, unless a strategy has a reason for another."""


class Named(Protocol):
    """A strategy of any kind."""

    name: ClassVar[str]


def check_counts(scheduler: Named, *options: str, least: int = 1, most: int = MAX_COUNT) -> None:
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
