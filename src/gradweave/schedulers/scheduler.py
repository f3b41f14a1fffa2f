"""The protocol of strategies: they take a topology and return a verified schedule."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedules.compose import compose, reverse
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import Collective, Provenance, Schedule, Stage, check_collective
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology
from gradweave.verifier import verify


@dataclasses.dataclass(frozen=True)
class Traits:
    """Properties of a strategy with its options: everything needed to choose between strategies.

    A strategy states them in its property `traits`; callers never check its class or its name.
    """

    forwards: bool = False
    """Whether routes may pass through servers that only forward."""
    aggregates: bool = False
    """Whether switches add the data they receive."""
    overlaps: bool = False
    """Whether a piece's all-gather may start before the whole reduce-scatter has ended."""
    one_root: bool = False
    """Whether the gradient moves as one piece, with one root."""
    own_pieces: bool = False
    """Whether it chooses the number of pieces and their roots itself."""
    pieces_per_server: int = 1
    """Pieces that each server is the root of, if each has at least one."""
    takes_pieces: bool = False
    """Whether it has an option `pieces_per_server`."""
    takes_steps: bool = False
    """Whether its options `steps`, not given so far, and `restarts` can reduce the number of steps
    in sequence."""
    takes_size: bool = False
    """Whether it has an option `gradient_bytes` to optimise for a size, not given so far."""
    takes_ready_times: bool = False
    """Whether it has an option `ready_at_s`, not given so far."""
    repairs: bool = False
    """Whether it starts from an earlier schedule: then it is tried first."""
    by_groups: bool = False
    """Whether it is cheap on networks that consist of groups, however many servers there are."""
    by_symmetry: bool = False
    """Whether it costs only as much as one tree if a symmetry is known, however many servers."""
    proves: bool = False
    """Whether it proves that there is no better schedule, which is fast with few servers."""
    after_proofs: bool = False
    """Whether it comes after strategies that prove, if these take no longer."""
    one_draw: bool = False
    """Whether its schedule is a single random draw, so that comparisons should use the mean of
    many, not the best."""

    @property
    def rounds_compare(self) -> bool:
        """Whether its rounds are comparable with other strategies' rounds and with a bound.

        They are not if it moves the gradient as one piece, or in a number of pieces of its choice.
        """
        return not (self.one_root or self.own_pieces)

    @property
    def freer_than_exact(self) -> bool:
        """Whether it may use freedoms that the exact model excludes."""
        return self.forwards or self.overlaps or self.aggregates


@dataclasses.dataclass(frozen=True)
class Strategy(abc.ABC):
    """One way to plan: a scheduler, or a strategy for demands.

    Options are fields, checked at construction. A subclass defines `name`, `make` and, if needed,
    `forwards`, `one_root`, `traits`, `steps_fit_rounds`, `improve` and `bounded`; it overrides
    nothing else. Callers use `schedule`, or in a search `schedule_until`, which verify the result.
    """

    name: ClassVar[str]
    """The strategy's name on the command line and in files."""
    time_share: ClassVar[float] = 1.0
    """Its share of a search's time for jobs, relative to that of other strategies."""
    forwards: ClassVar[bool] = False
    """Whether its routes may pass through servers that only forward; for a demand, of the job."""
    one_root: ClassVar[bool] = False
    """Whether the gradient moves as one piece, with one root."""

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(forwards=self.forwards, one_root=self.one_root)

    def options(self) -> dict[str, Any]:
        """The strategy's fields, as written to schedule files."""
        return {
            field.name: to_spec(value) if isinstance(value, Strategy) else value
            for field in dataclasses.fields(self)
            if field.repr
            for value in (getattr(self, field.name),)
        }

    def schedule_until(
        self,
        topology: Topology,
        asked: Any,
        stop: Stop,
        *,
        seed: int = 0,
        known: Schedule | None = None,
    ) -> Schedule:
        """As `schedule`, within the time that a caller's search has left.

        Args:
            topology: the network.
            asked: a collective among all servers, for a scheduler; otherwise a demand.
            stop: when to return the best found so far.
            seed: the only source of every random choice.
            known: an existing schedule, for strategies that can start from one.
        """
        if isinstance(asked, Demand):
            asked.check_servers(topology)
        else:
            check_collective(asked)
        given = topology, asked, seed, stop
        made = self.make(*given) if known is None else self.improve(known, *given)
        return self.verified(made, seed)

    def verified(self, made: Schedule, seed: int) -> Schedule:
        """The schedule, verified under the strategy's rules, with its provenance.

        Raises:
            InvalidScheduleError: if it does not verify.
        """
        schedule = made.replace(scheduler=Provenance(self.name, self.options(), seed))
        self.check(schedule)
        return schedule

    def check(self, schedule: Schedule) -> None:
        """Verifies a schedule under the strategy's rules.

        Raises:
            InvalidScheduleError: if it does not verify.
        """
        verify(
            schedule,
            forwarding_servers=self.traits.forwards,
            aggregating_switches=self.traits.aggregates,
        ).raise_if_invalid()

    @abc.abstractmethod
    def make(self, topology: Topology, asked: Any, seed: int, stop: Stop, /) -> Schedule:
        """Makes the schedule; callers verify it and add its provenance.

        Args:
            topology: the network.
            asked: a collective among all servers, for a scheduler: a stage, or both. Otherwise a
                demand: the blocks to sum and move, by servers of the network.
            seed: the only source of every random choice.
            stop: when to return the best found so far; strategies that do not search ignore it.

        Returns:
            The schedule; its provenance is filled in by the caller.

        Raises:
            NoScheduleError: if the strategy finds none, or does not support the demand.
        """

    def improve(
        self, known: Schedule, topology: Topology, asked: Any, seed: int, stop: Stop, /
    ) -> Schedule:
        """As `make`, given a valid schedule of the same problem, which most strategies ignore."""
        return self.make(topology, asked, seed, stop)

    def bounded(
        self, topology: Topology, asked: Any, stop: Stop, /, *, seed: int = 0
    ) -> tuple[Schedule, SecondsBound | None]:
        """As `schedule_until`, with the bound that its search has proved, if it proves any."""
        return self.schedule_until(topology, asked, stop, seed=seed), None

    def steps_fit_rounds(self, topology: Topology) -> bool:
        """Whether it proceeds in steps that each take one round on a network."""
        return False

    def refused(self, why: str) -> NoScheduleError:
        """The error for a problem that the strategy does not support."""
        return NoScheduleError(f"{self.name}: {why}")


@dataclasses.dataclass(frozen=True)
class Scheduler(Strategy):
    """One strategy for a collective among all servers: `make` is asked for a collective."""

    def schedule(
        self,
        topology: TopologyLike,
        *,
        collective: Collective = "all_reduce",
        seed: int = 0,
        time_limit: float | None = None,
    ) -> Schedule:
        """Makes a schedule and verifies it.

        Args:
            topology: the network, or its specification or file as on the command line.
            collective: a stage, or both.
            seed: the only source of every random choice.
            time_limit: seconds after which to return the best found so far; None to let the
                strategy finish. Strategies that do not search ignore it. The compilation of loops
                in the first run on a machine does not count.

        Returns:
            A valid schedule.

        Raises:
            NoScheduleError: if the strategy finds none.
            InvalidScheduleError: if the strategy has a bug: its schedule does not verify.
        """
        network = as_topology(topology)
        return self.schedule_until(network, collective, Stop.after(time_limit), seed=seed)


@dataclasses.dataclass(frozen=True)
class DemandStrategy(Strategy):
    """One strategy for demands: `make` is asked for a demand."""

    def schedule(
        self,
        topology: Topology | str,
        demand: Demand,
        *,
        seed: int = 0,
        time_limit: float | None = None,
    ) -> Schedule:
        """Makes a fast schedule, and verifies it.

        Args:
            topology: the network, or its specification or file as on the command line.
            demand: the blocks to sum and move.
            seed: the only source of every random choice.
            time_limit: seconds after which to return the best found so far.

        Raises:
            NoScheduleError: if the strategy finds none, or does not support the demand.
            InvalidScheduleError: if the strategy has a bug: its schedule does not verify.
        """
        network = as_topology(topology)
        return self.schedule_until(network, demand, Stop.after(time_limit), seed=seed)


def to_spec(scheduler: Strategy) -> str:
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
"""Relative gap to the lower bound at which a search for seconds ends. Chosen by hand."""
SEARCHING = 0.9
"""Share of a time limit for searches; the rest is for finishing, joining and verifying results."""
MAX_COUNT = 1_000_000
"""Largest value of integer options, unless a strategy has a reason for another limit."""


def check_counts(scheduler: Strategy, *options: str, least: int = 1, most: int = MAX_COUNT) -> None:
    """Refuses integer options that are out of range; None is allowed.

    Raises:
        OptionError: with the strategy, the option and its range.
    """
    for option in options:
        value = getattr(scheduler, option)
        if value is not None and not least <= value <= most:
            raise OptionError(
                f"{scheduler.name}: {option}: expected {least:,} to {most:,}, got {value}"
            )


def from_stage(
    stage: Stage,
    make: Callable[[Topology], Schedule],
    topology: Topology,
    collective: Collective,
    *,
    timed: bool = False,
) -> Schedule:
    """A collective built from one stage: the stage itself, its reverse, or both in sequence.

    Args:
        stage: the stage that `make` makes.
        make: makes that stage on a network with the same links, whose directions may be mirrored.
        topology: the network.
        collective: the collective to make.
        timed: whether `make` plans by bandwidths, latencies and overheads, and not by capacities
            only.
    """
    if collective == stage:
        return make(topology)
    # Reversal moves each link direction's load to its opposite, so the stage to reverse is made
    # for a network with the directions' properties exchanged.
    mirrored = topology.mirrored(timed=timed)
    alike = mirrored is topology
    to_reverse = make(mirrored)
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
    *,
    timed: bool = False,
) -> Schedule:
    """A collective built from a search for all-gathers.

    Args:
        make: makes an all-gather from a network, a seed and a stop.
        topology: the network.
        collective: the collective to make.
        seed: the seed of the search.
        stop: when to stop altogether.
        timed: as for `from_stage`.
    """
    half, whole = stop.part(SEARCHING / 2), stop.part(SEARCHING)

    def search(network: Topology) -> Schedule:
        # An all-reduce makes a stage on the mirrored network first, and then one on its own.
        first_of_two = collective == "all_reduce" and network is not topology
        return make(network, seed, half if first_of_two else whole)

    return from_stage("all_gather", search, topology, collective, timed=timed)
