"""Trainings on processes: measured steps beside the predicted one, and losses."""

import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.execute.running.server_processes import ServerProcesses
from gradweave.placement.placement import Placement
from gradweave.placement.timeline.groups import GroupSchedule
from gradweave.placement.timeline.orders import Order
from gradweave.placement.timeline.step import StepTime, step_time
from gradweave.placement.training.plan import Averages, Plan
from gradweave.placement.workload import Transformer
from gradweave.processes.cleared import cleared_folder
from gradweave.processes.ending import termination
from gradweave.processes.guarded import guarded
from gradweave.schedule.file import to_bytes
from gradweave.topology.topology import Topology

COMMAND = (sys.executable, "-m", "gradweave.placement.training.server")
"""Of each process."""
HEADSTART_S = 0.1
"""Time for all processes to learn when to start, and ask for their messages; beside latencies."""


class Processes(Protocol):
    """One process for each server, which carry out the tasks of `server.TrainingServer`."""

    def ask(self, task: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        """Gives each process its task, from its rank; returns their answers, by rank."""
        ...


Groups = Sequence[GroupSchedule | None]
Routed = Callable[[Groups], contextlib.AbstractContextManager[object]]
"""What routes the messages of some groups' schedules; processes connect inside of its context."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to train, whoever computes what."""

    order: Order = "1f1b"
    steps: int = 6
    """One more is taken before, where nothing is computed."""
    seed: int = 0
    """Of weights, batches and the schedules' searches."""
    rate: float = 1e-3
    """Of AdamW."""
    time_limit: float | None = None
    """Seconds for each schedule's search."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise OptionError(f"steps: expected at least 1, got {self.steps}")


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """A training as it went."""

    name: str
    placement: Placement
    averages: Averages
    predicted: StepTime | None
    """By `step_time`; None where its model does not hold: averages are not by our schedules, passes
    take what they take, or the processes are not on the network."""
    steps: list[StepTime]
    """As they were measured."""
    losses: list[float]
    """Mean of each step's batch, before the step; empty where nothing is computed."""

    @property
    def measured(self) -> StepTime:
        """The step whose time is the median, or next above it."""
        return sorted(self.steps, key=lambda step: step.seconds)[len(self.steps) // 2]

    @property
    def measured_s(self) -> float:
        """Median of the steps' seconds, until the last gradient is averaged everywhere."""
        return statistics.median(step.seconds for step in self.steps)

    @property
    def ratio(self) -> float | None:
        """Measured over predicted."""
        return None if self.predicted is None else self.measured_s / self.predicted.seconds


def plan_of(
    topology: Topology,
    placement: Placement,
    settings: Settings,
    averages: Averages,
    model: Transformer | None,
) -> Plan:
    """What the processes of a training are told, but for the schedules; their ranks are servers'.

    Raises:
        OptionError: for what cannot be trained so.
    """
    ranks = topology.rank[placement.servers].tolist()
    return Plan(
        tuple(map(tuple, ranks)),
        placement.workload,
        model,
        settings.order,
        averages,
        seed=settings.seed,
        rate=settings.rate,
    )


class Trainers:
    """A process for each server of a network, ready to train one placement after another.

    Args:
        topology: the network.
        processes: one for each of its servers.
        folder: where processes of one machine find each other; None: they have, and are on the
            network itself.
        routed: what routes messages; nothing if not given.
        told_after: how often the network's largest latency passes before the last process has a
            step's task and has asked for its messages.
        check: called now and then while schedules are sought; raises an error where a process has
            ended.
    """

    def __init__(
        self,
        topology: Topology,
        processes: Processes,
        folder: Path | None,
        routed: Routed | None = None,
        *,
        told_after: int = 2,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.topology = topology
        self._processes, self._folder, self._routed = processes, folder, routed
        self._on_network = routed is not None or folder is None
        self._told_after, self._check = told_after, check
        self._trainings = 0

    def train(
        self,
        name: str,
        placement: Placement,
        settings: Settings,
        *,
        averages: Averages = "schedule",
        model: Transformer | None = None,
        predicted: StepTime | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Training:
        """Trains, and measures each step from a common start to the last gradient averaged.

        Args:
            name: for progress and tables.
            placement: who computes what, on this network.
            settings: how.
            averages: see `Averages`.
            model: what is computed, of which the placement's workload is; if not given, passes
                sleep for the workload's seconds.
            predicted: the step as `predict` gives it, by whose schedules gradients are averaged;
                if not given and there are to be schedules, it is predicted first.
            progress: called with each step under way.

        Raises:
            OptionError: for what cannot be trained so.
            RunError: a process was lost, or failed.
        """
        plan = plan_of(self.topology, placement, settings, averages, model)  # or refuses
        step = None
        if averages == "schedule":
            step = predicted or self.predict(placement, settings, progress=progress)
        groups: Groups = step.groups if step is not None else ()
        schedules = (None if one is None else to_bytes(one.schedule).decode() for one in groups)
        plan = dataclasses.replace(plan, schedules=tuple(schedules))
        progress(f"{name}: connecting")
        self._connect(plan, groups)
        untimed = int(model is None)
        answers = []
        for number in range(settings.steps + untimed):
            progress(f"{name}: step {number + 1} of {settings.steps + untimed}")
            answers.append(self._step(number, placement))
        self._processes.ask(lambda _: {"do": "finish"})
        return Training(
            name,
            placement,
            averages,
            step if model is None and self._on_network else None,
            [_measured(placement, settings.order, groups, one) for one in answers[untimed:]],
            [] if model is None else [_loss(one) for one in answers],
        )

    def predict(
        self,
        placement: Placement,
        settings: Settings,
        *,
        groups: Groups | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> StepTime:
        """The step in time, with its groups' schedules.

        Args:
            placement: who computes what, on this network.
            settings: how.
            groups: the schedules; sought if not given.
            progress: called with each step under way.

        Raises:
            RunError: a process was lost meanwhile.
        """
        self._check()
        with guarded(self._check):
            step = step_time(
                placement,
                settings.order,
                groups=groups,
                seed=settings.seed,
                time_limit=settings.time_limit,
                progress=progress,
            )
        self._check()
        return step

    def _connect(self, plan: Plan, groups: Groups) -> None:
        self._trainings += 1
        folder = self._folder
        store = None if folder is None else str(folder / f"store-{self._trainings}")
        task = {"do": "prepare", "store": store, "plan": dataclasses.asdict(plan)}
        with contextlib.nullcontext() if self._routed is None else self._routed(groups):
            self._processes.ask(lambda _: task)

    def _step(self, number: int, placement: Placement) -> "_Answers":
        far_s = self._told_after * float(placement.topology.latency_s.max(initial=0.0))
        at = time.monotonic() + HEADSTART_S + far_s
        answers = self._processes.ask(lambda _: {"do": "step", "number": number, "at": at})
        ranks = self.topology.rank[placement.servers]
        return {where: answers[rank] for where, rank in np.ndenumerate(ranks)}


_Answers = Mapping[tuple[int, ...], dict[str, Any]]
"""Of each stage and pipeline."""


def _measured(placement: Placement, order: Order, groups: Groups, answers: _Answers) -> StepTime:
    """A step as it was, on the clock that begins with the last process's start."""
    origin = max(one["start"] for one in answers.values())
    rows = np.array(
        [
            (*where, backward, microbatch, begun - origin, ended - origin)
            for where, one in answers.items()
            for backward, microbatch, begun, ended in one["passes"]
        ]
    )
    counts: NDArray[np.int64] = rows[:, :4].astype(np.int64)
    stage, pipeline, backward, microbatch = counts.T
    start, end = rows[:, 4], rows[:, 5]
    busy = np.zeros(placement.servers.shape)
    np.add.at(busy, (stage, pipeline), end - start)
    averaged = np.zeros(placement.servers.shape)
    for where, one in answers.items():
        averaged[where] = one["averaged"] - origin
    return StepTime(
        order,
        float(averaged.max()),
        float(end.max()),
        busy,
        stage,
        pipeline,
        backward.astype(bool),
        microbatch,
        start,
        end,
        tuple(groups),
        averaged.max(axis=1),
    )


def _loss(answers: _Answers) -> float:
    """The mean over pipelines, which have as many tokens each."""
    last = max(stage for stage, _ in answers)
    return float(np.mean([one["loss"] for (stage, _), one in answers.items() if stage == last]))


@contextlib.contextmanager
def on_this_machine(topology: Topology) -> Iterator[Trainers]:
    """Processes of this machine, one for each server, without the network's links.

    Args:
        topology: the network.
    """
    size = topology.num_servers
    shared = {**os.environ, "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo"}
    starts = [(COMMAND, {**shared, "RANK": str(rank)}) for rank in range(size)]
    with (
        termination(),
        cleared_folder("gradweave-train-") as folder,
        ServerProcesses(topology, starts, folder / "log") as processes,
    ):
        yield Trainers(topology, processes, folder, check=processes.check_alive)
