"""Training on processes: measured and predicted steps, and losses."""

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
from gradweave.schedules.file import to_bytes
from gradweave.topology.topology import Topology

COMMAND = (sys.executable, "-m", "gradweave.placement.training.server")
"""Command that starts each process."""
HEADSTART_S = 0.1
"""Time for all processes to learn when to start and to request their messages, plus latencies."""


class Processes(Protocol):
    """One process for each server, which carries out tasks of `server.TrainingServer`."""

    def ask(self, task: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        """Gives each process the task for its rank; returns their answers by rank."""
        ...


Groups = Sequence[GroupSchedule | None]
Routed = Callable[[Groups], contextlib.AbstractContextManager[object]]
"""Routes the messages of the groups' schedules; processes connect inside its context."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to train, independent of the placement."""

    order: Order = "1f1b"
    steps: int = 6
    """Number of steps; if nothing is computed, an extra step is run first."""
    seed: int = 0
    """Seed of weights, batches and the schedules' searches."""
    rate: float = 1e-3
    """Learning rate of AdamW."""
    time_limit: float | None = None
    """Seconds for each schedule's search."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise OptionError(f"steps: expected at least 1, got {self.steps}")


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """The record of a training."""

    name: str
    placement: Placement
    averages: Averages
    predicted: StepTime | None
    """Prediction by `step_time`, or None if its model does not apply: averages are not by our
    schedules, passes compute a real model, or the processes are not on the network."""
    steps: list[StepTime]
    """The measured steps."""
    losses: list[float]
    """Mean loss of each step's batch, before the step; empty if nothing is computed."""

    @property
    def measured(self) -> StepTime:
        """The step with the median time, or the next longer one."""
        return sorted(self.steps, key=lambda step: step.seconds)[len(self.steps) // 2]

    @property
    def measured_s(self) -> float:
        """Median time of the steps in seconds, until the last gradient is averaged everywhere."""
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
    """The training's description for its processes, without schedules; ranks are those of servers.

    Raises:
        OptionError: for a setting that cannot be trained.
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
        folder: where processes on one machine find each other, or None if they have, and run on the
            network itself.
        routed: routes messages; not used if not given.
        told_after: how many times the network's largest latency passes until the last process has
            received a step's task and requested its messages.
        check: called regularly while schedules are searched for; raises an error if a process has
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
            name: name for progress lines and tables.
            placement: a placement on this network.
            settings: the settings.
            averages: see `Averages`.
            model: the model to train, matching the placement's workload; if not given, passes
                sleep for the workload's seconds.
            predicted: the step predicted by `predict`, whose schedules average the gradients; if
                not given and schedules are used, it is predicted first.
            progress: called with each step under way.

        Raises:
            OptionError: for a setting that cannot be trained.
            RunError: a process was lost or failed.
        """
        plan = plan_of(self.topology, placement, settings, averages, model)  # may reject
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
        """The predicted step, with its groups' schedules.

        Args:
            placement: a placement on this network.
            settings: the settings.
            groups: the schedules; searched for if not given.
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
"""Answers by stage and pipeline."""


def _measured(placement: Placement, order: Order, groups: Groups, answers: _Answers) -> StepTime:
    """The measured step, on a clock that starts with the last process's start."""
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
    """The mean over pipelines, which all have equally many tokens."""
    last = max(stage for stage, _ in answers)
    return float(np.mean([one["loss"] for (stage, _), one in answers.items() if stage == last]))


@contextlib.contextmanager
def on_this_machine(topology: Topology) -> Iterator[Trainers]:
    """Processes on this machine, one for each server, without the network's links.

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
