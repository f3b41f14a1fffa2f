"""A runtime's properties on a network: the costs of messages, and built-in all-reduce algorithms.

The models of `gradweave.simulator.seconds` cover links. On real processes, a message also takes
processor time at both ends, in part independent of its size. If processes share a machine's cores,
that is most of an all-reduce's time. A profile gives these costs by size, as in LogGP (Alexandrov,
Ionescu, Schauser and Scheiman, 1995), in a TOML file:

    name = "gloo"
    source = "measured: 4 processes on 2 cores"
    processors = 2                # shared by all servers; by default each server has some
    at_once = 1                   # messages that a server's processors handle concurrently

    [executor]                    # Gradweave's schedules on this runtime
    start_s = 0.0005              # processor time of a call at each server
    bytes = [64, 1048576]         # sizes of messages
    seconds = [0.0007, 0.0015]    # processor time of sender and receiver together

    [[own]]                       # the runtime's own all-reduce: its algorithm by size
    scheduler = "recursive_doubling"
    below_bytes = 8192            # limit on gradient sizes
    bytes = [64, 4096]
    seconds = [0.0001, 0.0002]

    [[own]]
    scheduler = "ring"
    bytes = [4096, 1048576]
    seconds = [0.0001, 0.0008]
"""

import dataclasses
import math
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedules.ready import ReadyAt
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.seconds import event_seconds, round_seconds
from gradweave.simulator.traffic import piece_bytes
from gradweave.topology.topology import Topology
from gradweave.training.config import convert, parse_toml, read_toml

NAMES = ("gloo", "ideal", "jax", "mpi", "nccl")
"""Included profiles; in ``ideal``, messages cost only what the network's links state."""
_FOLDER = "runtimes"


@dataclasses.dataclass(frozen=True)
class Costs:
    """Processor time of messages by size, interpolated linearly, for sender and receiver together.

    Raises:
        OptionError: sizes do not ascend, or a time is negative.
    """

    bytes: tuple[float, ...] = (0.0,)
    """Sizes of messages, ascending."""
    seconds: tuple[float, ...] = (0.0,)
    """Cost of a message of each size, which must not decrease with size."""
    start_s: float = 0.0
    """Processor time of a call at each server."""

    def __post_init__(self) -> None:
        if not self.bytes or len(self.bytes) != len(self.seconds):
            raise OptionError(
                f"bytes, seconds: expected as many sizes as times and at least one, got "
                f"{len(self.bytes)} and {len(self.seconds)}"
            )
        for name, values in (("bytes", self.bytes), ("seconds", self.seconds)):
            if not all(math.isfinite(value) and value >= 0 for value in values):
                raise OptionError(f"{name}: expected finite numbers of at least 0, got {values}")
        if any(np.diff(self.bytes) <= 0):
            raise OptionError(f"bytes: expected ascending sizes, got {self.bytes}")
        if any(np.diff(self.seconds) < 0):
            raise OptionError(f"seconds: expected no less for a larger message, got {self.seconds}")
        if not (math.isfinite(self.start_s) and self.start_s >= 0):
            raise OptionError(f"start_s: expected a finite time of at least 0, got {self.start_s}")

    @property
    def message_s(self) -> float:
        """Cost of an empty message, taken to be that of the smallest measured message."""
        return self.seconds[0]

    def of(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of messages of some sizes; extrapolated beyond the largest from the last two."""
        inside = np.interp(sizes, self.bytes, self.seconds)
        if len(self.bytes) == 1:
            return inside
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.bytes[-1] - self.bytes[-2])
        return inside + slope * np.maximum(sizes - self.bytes[-1], 0.0)


@dataclasses.dataclass(frozen=True)
class Algorithm(Costs):
    """An all-reduce built into a runtime: the strategy with the same messages, and their costs.

    Each algorithm has separate costs, since the time of a message depends on concurrent messages.
    """

    scheduler: str = "ring"
    """Specification of the strategy."""
    below_bytes: float = math.inf
    """Gradient sizes below which the runtime uses it, unless an earlier algorithm applies."""
    parts: int = 1
    """Number of parts into which each piece is cut."""


@dataclasses.dataclass(frozen=True)
class Runtime:
    """A profile: the costs of a runtime's messages in addition to the network's.

    Raises:
        OptionError: a value is out of range.
    """

    name: str
    """Name of the backend, such as ``gloo`` or ``mpi``."""
    source: str = ""
    """Origin of the figures."""
    processors: float | None = None
    """Cores shared by all servers, as by processes on one machine, or None if each has its own."""
    at_once: int = 1
    """Messages that a server's processors handle concurrently."""
    barriers: bool = False
    """Whether each round waits for the previous one, as in a compiled JAX program."""
    round_s: float = 0.0
    """Processor time of a round at each server, with `barriers`."""
    executor: Costs = Costs()
    """Costs of Gradweave's schedules."""
    own: tuple[Algorithm, ...] = ()
    """The runtime's own all-reduces, by size; empty if they are not known."""

    def __post_init__(self) -> None:
        if self.processors is not None and not 0 < self.processors < math.inf:
            raise OptionError(f"processors: expected more than 0, got {self.processors}")
        if self.at_once < 1:
            raise OptionError(f"at_once: expected at least 1, got {self.at_once}")
        if not 0 <= self.round_s < math.inf:
            raise OptionError(f"round_s: expected a finite time of at least 0, got {self.round_s}")

    def seconds(
        self, schedule: Schedule, gradient_bytes: float, ready_at_s: ReadyAt | None = None
    ) -> float:
        """Predicts the time of a schedule that Gradweave's executors run on this runtime.

        It is the start time plus the larger of two: the event model's time with each message
        delayed by its processor time (half at each end), and the time that processors need for all
        messages.

        Args:
            schedule: a schedule on the original network.
            gradient_bytes: size of the whole gradient.
            ready_at_s: [N] when each server is ready; see `gradweave.simulator.seconds`.
        """
        return self._seconds(schedule, gradient_bytes, self.executor, ready_at_s)

    def algorithm(self, gradient_bytes: float) -> Algorithm | None:
        """The runtime's own all-reduce for a gradient size, or None if it is not known."""
        return next((one for one in self.own if gradient_bytes < one.below_bytes), None)

    def own_seconds(
        self, schedule: Schedule, gradient_bytes: float, ready_at_s: ReadyAt | None = None
    ) -> float:
        """Like `seconds`, for the runtime's own all-reduce, given as a schedule of its messages."""
        own = self.algorithm(gradient_bytes) or Costs()
        return self._seconds(schedule, gradient_bytes, own, ready_at_s)

    def job_seconds(self, schedule: Schedule) -> NDArray[np.float64]:
        """[jobs] predicted end of each job of a demand, as `seconds` predicts for all together.

        Only messages that have arrived by then count as processor work.

        Args:
            schedule: a schedule of a demand on the original network.
        """
        demand, block = schedule.demanded, schedule.block
        assert block is not None
        arrived_s = self._arrivals(schedule, None, self.executor, None)
        of_job, ends_s = demand.job[block[schedule.piece]], np.zeros(len(demand.jobs))
        np.maximum.at(ends_s, of_job, arrived_s)
        costs_s = self.executor.of(piece_bytes(schedule, None))
        if costs_s.any():
            work = {end: self.work_s(schedule, costs_s, arrived_s <= end) for end in set(ends_s)}
            ends_s = np.array([max(end, work[end]) for end in ends_s])
        return ends_s + self._start_s(schedule.topology, self.executor)

    def _start_s(self, topology: Topology, costs: Costs) -> float:
        return self.time_for_all(topology.num_servers, costs.start_s)

    def _arrivals(
        self,
        schedule: Schedule,
        gradient_bytes: float | None,
        costs: Costs,
        ready_at_s: ReadyAt | None,
    ) -> NDArray[np.float64]:
        """[T] arrival of each transfer if processors handle all messages concurrently."""
        network = with_latency(schedule.topology, costs.message_s)
        on_it = schedule.replace(topology=network)
        if not self.barriers:
            return event_seconds(on_it, gradient_bytes, ready_at_s)[1]
        each_s = self.time_for_all(network.num_servers, self.round_s)
        rounds_s = round_seconds(on_it, gradient_bytes, ready_at_s) + each_s
        return np.cumsum(rounds_s)[schedule.round]

    def _seconds(
        self,
        schedule: Schedule,
        gradient_bytes: float,
        costs: Costs,
        ready_at_s: ReadyAt | None,
    ) -> float:
        arrived_s = self._arrivals(schedule, gradient_bytes, costs, ready_at_s)
        work_s = self.work_s(schedule, costs.of(piece_bytes(schedule, gradient_bytes)))
        path_s = float(arrived_s.max(initial=0.0))
        return self._start_s(schedule.topology, costs) + max(path_s, work_s)

    def work_s(
        self,
        schedule: Schedule,
        seconds: NDArray[np.float64],
        counts: NDArray[np.bool_] | None = None,
    ) -> float:
        """Time that processors need for a schedule's messages, half of each at each end.

        Args:
            schedule: the schedule.
            seconds: [P] processor time of a message of each piece, sender and receiver together.
            counts: [T] which messages count; all, if not given.
        """
        half, nodes = seconds[schedule.piece] / 2, schedule.topology.num_nodes
        if counts is not None:
            half = half * counts
        work = sum(np.bincount(end, half, nodes) for end in (schedule.source, schedule.target))
        busiest_s = float(np.max(work, initial=0.0)) / self.at_once
        if self.processors is None:
            return busiest_s
        return max(busiest_s, float(np.sum(work)) / self.processors)

    def time_for_all(self, servers: int, seconds: float) -> float:
        """Time until each of some servers has had a number of seconds of a processor."""
        return seconds if self.processors is None else seconds * max(1, servers / self.processors)

    def planned(self, topology: Topology) -> Topology:
        """The network for strategies, which consider links but not processors.

        A message occupies its server's links for as long as it keeps a processor busy when all
        servers have messages, and arrives later by that time.
        """
        held_s = self.time_for_all(topology.num_servers, self.executor.message_s / 2) / self.at_once
        ends = topology.is_server[topology.source] | topology.is_server[topology.target]
        later = with_latency(topology, self.executor.message_s)
        overhead_s = np.maximum(topology.overhead_s, np.where(ends, held_s, 0.0))
        return dataclasses.replace(later, overhead_s=overhead_s)

    def least(self, topology: Topology) -> tuple[Topology, float]:
        """A network and a start time for which an event-model bound is valid on this runtime.

        It is also valid for the runtime's own all-reduce, whose messages cost less.
        """
        costs = (self.executor, *self.own)
        cheapest = min(one.message_s for one in costs)
        start_s = min(one.start_s for one in costs)
        return with_latency(topology, cheapest), self.time_for_all(topology.num_servers, start_s)


IDEAL = Runtime("ideal", "messages cost what the network's links say")


def with_latency(topology: Topology, cost_s: float) -> Topology:
    """The network with half of a time added to the latency of links at each end at a server.

    It is added to latency and not to `Topology.overhead_s`: while a link sends one message, the
    kernel queues it, and the processes work on others.

    Args:
        topology: the network.
        cost_s: size-independent time of sender and receiver of a message together.
    """
    if cost_s == 0.0:
        return topology
    ends = topology.is_server[topology.source] * 1.0 + topology.is_server[topology.target]
    return dataclasses.replace(topology, latency_s=topology.latency_s + ends * (cost_s / 2))


def runtime_of(given: "Runtime | str | Path") -> Runtime:
    """A profile given by name, by a TOML file, or directly.

    Args:
        given: one of `NAMES`, or the path of a file that ends in ``.toml``.

    Raises:
        OptionError: for an unknown name, or a file that is not a profile.
    """
    if isinstance(given, Runtime):
        return given
    if str(given) == "ideal":
        return IDEAL
    if str(given) in NAMES:
        text = (
            resources.files("gradweave.simulator").joinpath(_FOLDER, f"{given}.toml").read_bytes()
        )
        return _converted(parse_toml(text, f"{given}.toml"), f"{given}.toml")
    if Path(given).suffix != ".toml":
        raise OptionError(
            f"runtime: expected {', '.join(NAMES)} or a file .toml, got {str(given)!r:.60}"
        )
    return _converted(read_toml(Path(given)), str(given))


def _converted(table: dict[str, Any], name: str) -> Runtime:
    try:
        return convert(table, Runtime)
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from error
