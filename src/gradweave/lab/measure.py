"""Measures collectives on an emulated network, beside the simulator's predictions."""

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
from gradweave.schedule.schedule import Schedule
from gradweave.simulate.runtime import with_latency
from gradweave.simulate.seconds import seconds as predicted_seconds
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_size

ELEMENT_BYTES = 4
"""Gradients are of float32."""
_HEADSTART_S = 0.05
"""Time for all processes to learn when to start."""
_PATIENCE_S = 1800.0
"""Predicted time of all runs beyond which there is a warning beforehand."""
_GREETING_BYTES = 1000
"""About the bytes that two processes exchange when they connect, as all pairs do."""
_CONNECTING_TRIPS = 8
"""Round trips in which two processes connect: they greet one another over two connections."""
_CALIBRATIONS = 5
"""Runs of a schedule whose pieces are of one element, which tell what a message costs."""
_HALVINGS = 40
"""Of the interval in which that is looked for."""
_SETTLE_S = 0.05
"""Time for the last acknowledgements, before the counters are read; beside the latencies."""


@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """One contender on the emulated network; sizes are bytes, times seconds."""

    name: str
    schedule: Schedule | None
    """None for the backend's native collectives, which know nothing of the network."""
    gradient_bytes: int
    """Of a demand, bytes of all its blocks, each once."""
    runs_s: list[float]
    """From the common start to the last server's end, run by run."""
    predicted_s: float | None
    """By `simulate.event_seconds`: transfers wait only for their data and their links, and arrive
    `message_cost_s` later."""
    fair_s: float | None
    """By `simulate.fair_seconds`: the same, with links shared fairly."""
    barrier_s: float | None
    """By `simulate.round_seconds`: a barrier after each round."""
    link_bytes: NDArray[np.float64]
    """[L] bytes per run by the kernel's counters, headers and acknowledgements included."""
    predicted_link_bytes: NDArray[np.float64] | None
    """[L] bytes per run of data alone."""
    sent_bytes: list[int]
    """[N] bytes per run by each server's executor; zeros for the native collectives."""
    correct: bool
    """Whether every server's result was right."""
    message_cost_s: float | None = None
    """What sender and receiver of a message of this schedule take beside its bytes on this machine,
    measured before."""

    @property
    def measured_s(self) -> float:
        """Median of the runs."""
        return statistics.median(self.runs_s)

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        return None if self.predicted_s is None else self.measured_s / self.predicted_s

    @property
    def overhead(self) -> float | None:
        """Bytes on all links beyond the data, as a fraction of the data."""
        if self.predicted_link_bytes is None:
            return None
        return float(self.link_bytes.sum() / self.predicted_link_bytes.sum()) - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Experiment:
    """What was emulated, and what was measured on it."""

    emulation: Emulation
    measurements: list[Measurement]


def emulated(
    topology: Topology, *, bandwidth_bytes_per_s: float, latency_s: float | None = None
) -> Topology:
    """The topology with its bandwidths reduced to those that one machine can emulate.

    Args:
        topology: the network.
        bandwidth_bytes_per_s: of the slowest link; the others keep their proportion to it.
        latency_s: of every link; that of the topology if not given.
    """
    slowest = topology.bandwidth_bytes_per_s.min()
    return dataclasses.replace(
        topology,
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s / slowest * bandwidth_bytes_per_s,
        latency_s=topology.latency_s if latency_s is None else topology.latency_s * 0 + latency_s,
    )


ForSizes = Schedule | None | Mapping[int, Schedule | None]
"""A schedule, or one for each size; None is gloo's native all-reduce."""


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
        contenders: names and schedules for this topology, for all sizes or by size; None is gloo's
            native all-reduce, whose messages take shortest paths, through servers where they must.
        gradient_bytes: sizes, rounded down to whole elements of float32.
        repetitions: timed runs of each, after one that is not.
        progress: called with the step under way.

    Raises:
        OptionError: not root, or the kernel lacks what is needed; what it emulates is far from
            what is asked for; or a run would take longer than processes are waited for.
        LostServerError: a server's process died.
        RunError: a process failed, or a result was wrong.
    """
    if repetitions < 1:
        raise OptionError(f"repetitions: expected at least 1, got {repetitions}")
    for _, schedules in contenders:
        for size in gradient_bytes:
            if (schedule := _for_size(schedules, size)) is not None:
                check_all_reduce(schedule)
    check_time(topology, contenders, gradient_bytes, repetitions)
    with laboratory(topology, progress) as lab:
        measurements = [
            lab.measure(name, _for_size(schedules, size), size, repetitions, progress)
            for name, schedules in contenders
            for size in gradient_bytes
        ]
        return Experiment(lab.emulation, measurements)


def _for_size(schedules: ForSizes, gradient_bytes: int) -> Schedule | None:
    return schedules[gradient_bytes] if isinstance(schedules, Mapping) else schedules


def check_time(
    topology: Topology,
    contenders: Sequence[tuple[str, ForSizes]],
    gradient_bytes: Sequence[int],
    repetitions: int,
) -> None:
    """Refuses an experiment one of whose runs would time out, and warns of a long one.

    Args:
        topology: the network, with the bandwidths to emulate.
        contenders: names and schedules, as for `measure`.
        gradient_bytes: sizes.
        repetitions: timed runs of each.

    Raises:
        OptionError: naming the run and its predicted time.
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
                2 * size * (servers - 1) / servers / slowest  # what any server must receive
                if schedule is None
                else predicted_seconds(schedule, size, "events")
            )
            if one > ANSWER_S:
                raise OptionError(
                    f"{name}, {format_size(size)}: a run is predicted to take {one:,.0f} s where "
                    f"the slowest link has {format_bandwidth(slowest)}, and a lab waits "
                    f"{ANSWER_S:g} s at most; raise the bandwidth or make the gradient smaller"
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
    topology: Topology, progress: Callable[[str], None] = lambda _: None
) -> Iterator["Laboratory"]:
    """An emulated network with one process per server, for as long as the block lasts.

    Args:
        topology: the network, with the bandwidths and latencies to emulate.
        progress: called with the step under way.

    Raises:
        OptionError: not root, the kernel lacks what is needed, or what it emulates is far from what
            is asked for.
    """
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
        """What runs of one contender come to, all of whose results were right.

        Args:
            name: of the contender.
            schedule: by which they ran; None for gloo's own.
            elements: of float32.
            runs: at least one.
            cost_s: what a message costs.
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
        """What sender and receiver of a schedule's messages take beside the bytes, here.

        Processes share this machine's cores, so it depends on how many messages a schedule has
        under way: it is measured with the schedule itself, in pieces of one element.
        """
        if id(schedule) not in self._message_cost_s:
            progress("measuring what messages cost")
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
        """Routes and connects for one contender, beside those that are connected already.

        Args:
            schedule: None for gloo's own.
            elements: of float32; needless for a demand.
            own: of a demand, what gloo's own do: `gradweave.lab.work.own_task`.

        Returns:
            Whether its first result was right.
        """
        topology = self.network.topology
        paths = shortest_paths(topology) if schedule is None else schedule_paths(schedule)
        self.network.route(paths)
        # All processes of a group connect in pairs, even those that will exchange nothing.
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
        """Routes messages for one of several contenders that are connected.

        Args:
            contender: by the order in which they were.
            paths: in place of its own.
        """
        chosen = self._paths[contender] if paths is None else paths
        self.network.route(chosen)
        self.network.forward(chosen.forwarders)

    def run(self, contender: int = -1) -> "Run":
        """Runs one of those that are connected once, the last if none is given."""
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
    """From the common start to the last server's end."""
    sent_bytes: list[int]
    """[N] by each server's executor."""
    link_bytes: NDArray[np.int64]
    """[L] by the kernel's counters."""


def in_elements(schedule: Schedule) -> Schedule:
    """A schedule that has pieces of one element where its gradient has as many; of a demand too."""
    if schedule.demand is None:
        return schedule
    assert schedule.block is not None
    pieces = np.bincount(schedule.block, minlength=len(schedule.demand))
    small = dataclasses.replace(schedule.demand, bytes=pieces * ELEMENT_BYTES)
    return schedule.replace(demand=small, shares=None)


def _longest_latency_s(topology: Topology) -> float:
    """From a server to another, by routes of fewest links; of several the sum may be less."""
    routes = shortest_paths(topology).routes.values()
    along = (topology.find_links(route[:-1], route[1:]) for route in routes)
    return max(float(topology.latency_s[links].sum()) for links in along)


def with_message_cost(schedule: Schedule, cost_s: float) -> Schedule:
    """The schedule on links whose messages come later by what their ends take, half at either.

    Args:
        schedule: the schedule.
        cost_s: what sender and receiver of a message take together, beside its bytes.
    """
    return schedule.replace(topology=with_latency(schedule.topology, cost_s))


def message_cost_of(schedule: Schedule, seconds: float) -> float:
    """The cost of a message with which a schedule in pieces of one element takes so long by events.

    Args:
        schedule: the schedule, of pieces of equal size.
        seconds: the time that was measured; where latencies alone take longer, about 0 is returned.
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
    """Seconds by events, on fair links and with a barrier a round; [L] bytes of data on links."""
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
