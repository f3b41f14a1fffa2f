"""Measures collectives on an emulated network, next to the simulator's predictions."""

import contextlib
import dataclasses
import functools
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import InputWarning, OptionError, RunError
from gradweave.execute.program import check_all_reduce
from gradweave.execute.running.server_processes import ANSWER_S, ServerProcesses
from gradweave.lab.emulation import Emulation, measured_network
from gradweave.lab.forwarding import Paths, schedule_paths, shortest_paths
from gradweave.lab.network import EmulatedNetwork
from gradweave.processes.ending import termination
from gradweave.schedules.ready import ready_at_once
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.runtime import with_latency
from gradweave.simulator.seconds import seconds as predicted_seconds
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_size

ELEMENT_BYTES = 4
"""Bytes per element: gradients are of float32."""
_HEADSTART_S = 0.05
"""Time for all processes to learn when to start."""
_PATIENCE_S = 1800.0
"""Predicted time of all runs from which a warning is given."""
_GREETING_BYTES = 1000
"""Approximate bytes that two processes exchange when they connect, which all pairs do."""
_CONNECTING_TRIPS = 8
"""Round trips for connecting two processes: they exchange greetings over two connections."""
_CALIBRATIONS = 5
"""Runs of a schedule with one-element pieces, which measure the cost of a message."""
_HALVINGS = 40
"""Bisections of the interval in the search for that cost."""
_SETTLE_S = 0.05
"""Time for the last acknowledgements before the counters are read, in addition to latencies."""


@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """The results of one contender on the emulated network; sizes are bytes, times seconds."""

    name: str
    schedule: Schedule | None
    """None for the backend's native collectives, which do not know the network."""
    gradient_bytes: int
    """Size of the gradient; for a demand, the bytes of all blocks, each counted once."""
    runs_s: list[float]
    """Time from the common start to the last server's end, for each run."""
    predicted_s: float | None
    """Prediction by `event_seconds`: transfers wait only for their data and their links, and arrive
    `message_cost_s` later."""
    fair_s: float | None
    """Prediction by `fair_seconds`: the same, with fairly shared links."""
    barrier_s: float | None
    """Prediction by `round_seconds`: with a barrier after each round."""
    link_bytes: NDArray[np.float64]
    """[L] bytes per run by the kernel's counters, including headers and acknowledgements."""
    predicted_link_bytes: NDArray[np.float64] | None
    """[L] predicted bytes per run, only data."""
    sent_bytes: list[int]
    """[N] bytes per run by each server's executor; zeros for the native collectives."""
    correct: bool
    """Whether every server's result was right."""
    message_cost_s: float | None = None
    """Time that sender and receiver take for a message of this schedule on this machine, in
    addition to the time for its bytes; measured before the runs."""

    @property
    def measured_s(self) -> float:
        """The median of the runs."""
        return statistics.median(self.runs_s)

    @property
    def ratio(self) -> float | None:
        """Measured over predicted time."""
        return None if self.predicted_s is None else self.measured_s / self.predicted_s

    @property
    def overhead(self) -> float | None:
        """Bytes on all links beyond the data, as a fraction of the data."""
        if self.predicted_link_bytes is None:
            return None
        return float(self.link_bytes.sum() / self.predicted_link_bytes.sum()) - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """The emulation, and the measurements on it."""

    emulation: Emulation
    measurements: list[Measurement]


def emulated(
    topology: TopologyLike, *, bandwidth_bytes_per_s: float, latency_s: float | None = None
) -> Topology:
    """The topology with bandwidths scaled down to what one machine can emulate.

    Args:
        topology: the network.
        bandwidth_bytes_per_s: bandwidth of the slowest link; the others are scaled in proportion.
        latency_s: latency of every link; unchanged if not given.
    """
    topology = as_topology(topology)
    slowest = topology.bandwidth_bytes_per_s.min()
    return dataclasses.replace(
        topology,
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s / slowest * bandwidth_bytes_per_s,
        latency_s=topology.latency_s if latency_s is None else topology.latency_s * 0 + latency_s,
    )


ForSizes = Schedule | None | Mapping[int, Schedule | None]
"""A schedule, or a schedule for each size; None stands for gloo's native all-reduce."""


def measure(
    topology: Topology,
    contenders: Sequence[tuple[str, ForSizes]],
    *,
    gradient_bytes: Sequence[int],
    repetitions: int = 5,
    progress: Callable[[str], None] = lambda _: None,
) -> Experiment:
    """Runs all-reduces on an emulated network of real processes.

    Args:
        topology: the network, with the bandwidths to emulate.
        contenders: names and schedules for this topology, for all sizes or by size. None stands for
            gloo's native all-reduce, whose messages take shortest paths, through servers if
            necessary.
        gradient_bytes: sizes, rounded down to whole elements of float32.
        repetitions: timed runs of each contender, after one untimed run.
        progress: called with the current step.

    Raises:
        OptionError: the caller is not root, the kernel lacks a feature, the emulation is far from
            the request, or a run would time out.
        LostServerError: a server's process died.
        RunError: a process failed, or a result was wrong.
    """
    if repetitions < 1:
        raise OptionError(f"repetitions: expected at least 1, got {repetitions}")
    for _, schedules in contenders:
        for size in gradient_bytes:
            if (schedule := _for_size(schedules, size)) is not None:
                check_all_reduce(schedule)
    contenders = [
        (
            name,
            {size: starting_at_once(name, _for_size(schedules, size)) for size in gradient_bytes},
        )
        for name, schedules in contenders
    ]
    check_time(topology, contenders, gradient_bytes, repetitions)
    with laboratory(topology, progress) as lab:
        measurements = [
            lab.measure(name, _for_size(schedules, size), size, repetitions, progress)
            for name, schedules in contenders
            for size in gradient_bytes
        ]
        return Experiment(lab.emulation, measurements)


def starting_at_once(name: str, schedule: Schedule | None) -> Schedule | None:
    """A schedule with all servers and jobs ready at once, which is how the lab runs it.

    It warns if the schedule was planned for servers or jobs that are ready later.

    Args:
        name: name of the contender.
        schedule: schedule of the contender, if it has one.
    """
    if schedule is None or (at_once := ready_at_once(schedule)) is schedule:
        return schedule
    warnings.warn(
        f"{name} is planned for servers or jobs that are ready later; the lab starts all together, "
        "and predicts for that",
        InputWarning,
        stacklevel=3,
    )
    return at_once


def _for_size(schedules: ForSizes, gradient_bytes: int) -> Schedule | None:
    return schedules[gradient_bytes] if isinstance(schedules, Mapping) else schedules


def check_time(
    topology: Topology,
    contenders: Sequence[tuple[str, ForSizes]],
    gradient_bytes: Sequence[int],
    repetitions: int,
) -> None:
    """Refuses an experiment in which a run would time out, and warns of a long one.

    Args:
        topology: the network, with the bandwidths to emulate.
        contenders: names and schedules, as for `measure`.
        gradient_bytes: sizes.
        repetitions: timed runs of each contender.

    Raises:
        OptionError: a run would time out; the message names it and its predicted time.
    """
    slowest = float(topology.bandwidth_bytes_per_s.min())
    servers = topology.num_servers
    round_trip_s = 2 * _longest_latency_s(topology)
    connecting = (servers - 1) * (_GREETING_BYTES / slowest + _CONNECTING_TRIPS * round_trip_s)
    total = 0.0
    for name, schedules in contenders:
        for size in gradient_bytes:
            schedule = _for_size(schedules, size)
            one = connecting + (
                2 * size * (servers - 1) / servers / slowest  # data that any server must receive
                if schedule is None
                else predicted_seconds(schedule, size, "events")
            )
            if one > ANSWER_S:
                raise OptionError(
                    f"{name}, {format_size(size)}: a run is predicted to take {one:,.0f} s, since "
                    f"the slowest link has {format_bandwidth(slowest)}, and a lab waits at most "
                    f"{ANSWER_S:g} s; raise the bandwidth or make the gradient smaller"
                )
            total += connecting + (repetitions + 1) * (one - connecting)
    if total > _PATIENCE_S:
        warnings.warn(
            f"all runs together are predicted to take {total / 60:,.0f} minutes",
            InputWarning,
            stacklevel=3,
        )


@contextlib.contextmanager
def laboratory(
    topology: TopologyLike, progress: Callable[[str], None] = lambda _: None
) -> Iterator["Laboratory"]:
    """An emulated network with one process per server, for the duration of the block.

    Args:
        topology: the network, with the bandwidths and latencies to emulate.
        progress: called with the current step.

    Raises:
        OptionError: the caller is not root, the kernel lacks a feature, or the emulation is far
            from the request.
    """
    topology = as_topology(topology)
    with termination(), measured_network(topology, progress) as (network, emulation, folder):
        starts = _starts(network)
        with ServerProcesses(topology, starts, folder / "log", network.check) as servers:
            yield Laboratory(network, servers, folder, emulation)


def _starts(network: EmulatedNetwork) -> list[tuple[list[str], Mapping[str, str]]]:
    """A process for each server, in its namespace."""
    servers = network.topology.servers.tolist()
    command = [sys.executable, "-m", "gradweave.lab.server"]
    return [
        ([*command, network.name(server), str(rank), str(len(servers))], os.environ)
        for rank, server in enumerate(servers)
    ]


class Laboratory:
    """A network and its processes, ready to run schedules."""

    def __init__(
        self,
        network: EmulatedNetwork,
        servers: ServerProcesses,
        folder: Path,
        emulation: Emulation,
    ) -> None:
        self.network, self.servers = network, servers
        self.emulation = emulation
        self._folder = folder
        self._connections = 0
        self._paths: list[Paths] = []
        self._counted = np.zeros(len(network.topology.source), np.int64)
        self._message_cost_s: dict[int, tuple[Schedule, float]] = {}

    def measure(
        self,
        name: str,
        schedule: Schedule | None,
        gradient_bytes: int,
        repetitions: int,
        progress: Callable[[str], None],
    ) -> Measurement:
        """Connects the processes, runs once to check the result, then runs timed.

        Before a schedule's first size, `message_cost_s` is measured.
        """
        cost_s = None if schedule is None else self.message_cost_s(schedule, progress)
        progress(f"{name}, {gradient_bytes / 1e6:g} MB: connecting")
        elements = gradient_bytes // ELEMENT_BYTES
        correct = self.connect(schedule, elements)
        if not correct:
            raise RunError(f"{name}: a server ended with a wrong result")
        runs = []
        for number in range(repetitions):
            progress(f"{name}, {gradient_bytes / 1e6:g} MB: run {number + 1} of {repetitions}")
            runs.append(self.run())
        measured = self.measurement(name, schedule, elements, runs, cost_s)
        self.finish()
        return measured

    def measurement(
        self,
        name: str,
        schedule: Schedule | None,
        elements: int,
        runs: Sequence["Run"],
        cost_s: float | None,
    ) -> Measurement:
        """The measurement that summarises runs of one contender, all with right results.

        Args:
            name: name of the contender.
            schedule: its schedule, or None for gloo's own collectives.
            elements: number of elements of float32.
            runs: at least one run.
            cost_s: cost of a message.
        """
        predicted: tuple[Any, ...] = (None,) * 4
        if schedule is not None:
            predicted = _prediction(with_message_cost(schedule, cost_s or 0.0), elements)
        return Measurement(
            name=name,
            schedule=schedule,
            gradient_bytes=elements * ELEMENT_BYTES,
            runs_s=[run.seconds for run in runs],
            predicted_s=predicted[0],
            fair_s=predicted[1],
            barrier_s=predicted[2],
            link_bytes=np.mean([run.link_bytes for run in runs], axis=0),
            predicted_link_bytes=predicted[3],
            sent_bytes=runs[-1].sent_bytes,
            correct=True,
            message_cost_s=cost_s,
        )

    def message_cost_s(self, schedule: Schedule, progress: Callable[[str], None]) -> float:
        """Time that sender and receiver need per message here, in addition to its bytes.

        Processes share this machine's cores, so the time depends on the number of messages that the
        schedule has in flight. It is measured with the schedule itself, in pieces of one element.
        """
        if id(schedule) not in self._message_cost_s:
            progress("measuring the cost of messages")
            small = in_elements(schedule)
            self.connect(small, schedule.pieces)
            took = min(self.run().seconds for _ in range(_CALIBRATIONS))
            self.finish()
            self._message_cost_s[id(schedule)] = schedule, message_cost_of(small, took)
        return self._message_cost_s[id(schedule)][1]

    @functools.cached_property
    def _longest_latency_s(self) -> float:
        return _longest_latency_s(self.network.topology)

    def connect(
        self, schedule: Schedule | None, elements: int, own: dict[str, Any] | None = None
    ) -> bool:
        """Routes and connects for one contender, in addition to those that are already connected.

        Args:
            schedule: the schedule, or None for gloo's own collectives.
            elements: number of elements of float32; unused for a demand.
            own: gloo's own collectives for a demand, see `gradweave.lab.work.own_task`.

        Returns:
            Whether its first result was right.
        """
        topology = self.network.topology
        paths = shortest_paths(topology) if schedule is None else schedule_paths(schedule)
        self.network.route(paths)
        # All processes of a group connect in pairs, even those that never exchange anything.
        self.network.forward(None)
        self._connections += 1
        number = self._connections - len(self._paths)
        task: dict[str, Any] = {
            "do": "prepare",
            "store": str(self._folder / f"connection{number}"),
            "interfaces": [self.network.interface(channel) for channel in range(paths.channels)],
            "elements": elements,
            "file": None,
            "own": own,
        }
        if schedule is not None:
            file = self._folder / f"schedule{self._connections}.json"
            schedule.save(file)
            task |= {"file": str(file), "channel": paths.channel.tolist()}
        answers = self.servers.ask(lambda _: task)
        self._paths.append(paths)
        self.network.forward(paths.forwarders)
        self._counted = self.network.sent_bytes()
        return all(answer["correct"] for answer in answers)

    def route(self, contender: int, paths: Paths | None = None) -> None:
        """Routes messages for one of the connected contenders.

        Args:
            contender: its number, in the order of connecting.
            paths: paths to use instead of the contender's.
        """
        chosen = self._paths[contender] if paths is None else paths
        self.network.route(chosen)
        self.network.forward(chosen.forwarders)

    def run(self, contender: int = -1) -> "Run":
        """Runs one of the connected contenders once; the last one if none is given."""
        at = time.monotonic() + _HEADSTART_S
        task = {"do": "run", "at": at, "work": contender}
        answers = self.servers.ask(lambda _: task)
        late = max(answer["start"] for answer in answers)
        end = max(answer["end"] for answer in answers)
        time.sleep(_SETTLE_S + self._longest_latency_s)
        before, self._counted = self._counted, self.network.sent_bytes()
        sent = [answer["sent_bytes"] for answer in answers]
        return Run(end - max(at, late), sent, self._counted - before)

    def finish(self) -> None:
        """Closes the connections of all contenders."""
        self.servers.ask(lambda _: {"do": "finish"})
        self._paths = []


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a contender."""

    seconds: float
    """Time from the common start to the last server's end."""
    sent_bytes: list[int]
    """[N] bytes by each server's executor."""
    link_bytes: NDArray[np.int64]
    """[L] bytes by the kernel's counters."""


def in_elements(schedule: Schedule) -> Schedule:
    """The schedule for a gradient, or demand, that gives it pieces of one element."""
    if schedule.demand is None:
        return schedule
    assert schedule.block is not None
    pieces = np.bincount(schedule.block, minlength=len(schedule.demand))
    small = dataclasses.replace(schedule.demand, bytes=pieces * ELEMENT_BYTES)
    return schedule.replace(demand=small, shares=None)


def _longest_latency_s(topology: Topology) -> float:
    """Maximum latency between two servers on routes with the fewest links."""
    routes = shortest_paths(topology).routes.values()
    along = (topology.find_links(route[:-1], route[1:]) for route in routes)
    return max(float(topology.latency_s[links].sum()) for links in along)


def with_message_cost(schedule: Schedule, cost_s: float) -> Schedule:
    """The schedule on links with additional latency: half of a message's cost at either end.

    Args:
        schedule: the schedule.
        cost_s: time that sender and receiver of a message need together, without its bytes.
    """
    return schedule.replace(topology=with_latency(schedule.topology, cost_s))


def message_cost_of(schedule: Schedule, seconds: float) -> float:
    """The cost of a message for which a schedule with one-element pieces takes that long by events.

    Args:
        schedule: the schedule, with pieces of equal size.
        seconds: the measured time; if latencies exceed it, the result is about 0.
    """

    def predicted(cost_s: float) -> float:
        size = schedule.pieces * ELEMENT_BYTES
        return predicted_seconds(with_message_cost(schedule, cost_s), size, "events")

    least, most = 0.0, seconds
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        least, most = (middle, most) if predicted(middle) < seconds else (least, middle)
    return least


def _prediction(
    schedule: Schedule, elements: int
) -> tuple[float, float, float, NDArray[np.float64]]:
    """Seconds by events, on fair links and with a barrier per round; [L] bytes of data on links."""
    size = elements * ELEMENT_BYTES
    piece_bytes = np.diff(schedule.piece_offsets(elements)) * ELEMENT_BYTES
    links, transfer = schedule.route_links
    return (
        predicted_seconds(schedule, size, "events"),
        predicted_seconds(schedule, size, "fair"),
        predicted_seconds(schedule, size, "rounds"),
        np.bincount(
            links,
            weights=piece_bytes[schedule.piece[transfer]],
            minlength=len(schedule.topology.source),
        ).astype(float),
    )
