"""The time of a training step: passes, their messages, and the groups' all-reduces."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import NoScheduleError
from gradweave.placement.placement import Placement
from gradweave.placement.timeline.groups import GroupSchedule, group_schedules
from gradweave.placement.timeline.operations import NOTHING, Step
from gradweave.placement.timeline.orders import Order, Pass, stage_order
from gradweave.placement.workload import Stage, Workload, each_device


@dataclasses.dataclass(frozen=True, eq=False)
class StepTime:
    """A training step in time, with the passes of each device."""

    order: Order
    seconds: float
    """Until the last gradient is averaged everywhere."""
    passes_s: float
    """Until the last backward pass."""
    busy_s: NDArray[np.float64]
    """[S, D] seconds that each device computes."""
    stage: NDArray[np.int64]
    """[P] stage of each pass."""
    pipeline: NDArray[np.int64]
    """[P] pipeline of each pass."""
    backward: NDArray[np.bool_]
    """[P] whether it is a backward pass."""
    microbatch: NDArray[np.int64]
    """[P] micro-batch."""
    start_s: NDArray[np.float64]
    """[P] start time."""
    end_s: NDArray[np.float64]
    """[P] end time."""
    groups: tuple[GroupSchedule | None, ...]
    """[S] the groups' schedules."""
    reduced_s: NDArray[np.float64]
    """[S] time at which each group's gradients are averaged."""

    @property
    def bubble(self) -> float:
        """Fraction of all devices' time, until the last backward pass, that is spent waiting."""
        total = self.busy_s.size * self.passes_s
        return 1 - float(self.busy_s.sum()) / total if total else 0.0

    @property
    def utilisation(self) -> float:
        """Fraction of all devices' time that is spent computing."""
        total = self.busy_s.size * self.seconds
        return float(self.busy_s.sum()) / total if total else 0.0


def step_time(
    placement: Placement,
    order: Order = "1f1b",
    *,
    chunks: int = 1,
    speed: float | Sequence[float] | None = None,
    groups: Sequence[GroupSchedule | None] | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> StepTime:
    """Predicts a training step event by event, with links shared fairly.

    A stage's device computes its passes in `order`. A pass starts when its activations, or their
    gradients, have arrived; messages on one route follow each other. A group's all-reduce follows
    our schedule for its links, and starts when its servers are done, while other stages still
    compute. All stages' messages share the links. The optimizer's update and the slowdown of passes
    by communication are left out.

    Args:
        placement: the placement.
        order: the order of the passes.
        chunks: number of chunks of the model on each device, for ``interleaved``; a pass of a
            chunk takes that fraction of the stage's seconds.
        speed: speed of every server, or of each in order of id.
        groups: [S] schedules from `group_schedules`; searched for if not given.
        seed: seed of the schedules' searches.
        time_limit: seconds for each of these searches.
        progress: called with each step under way.

    Raises:
        OptionError: for numbers that the order does not allow.
    """
    topology, stages = placement.topology, placement.workload.stages
    speeds = each_device("speed", speed, topology.num_servers) or [1.0] * topology.num_servers
    step = Step(topology)
    progress("laying out the passes")
    passes = _Passes(placement, step, order, chunks, speeds)
    passes.add_all()
    if groups is None:
        groups = group_schedules(
            topology,
            placement.servers,
            [stage.gradient_bytes for stage in stages],
            seed=seed,
            time_limit=time_limit,
            progress=progress,
        )
    ranges = []
    for group in groups:
        first = len(step.rows)
        if group is not None:
            step.all_reduce(group)
        ranges.append((first, len(step.rows)))
    progress("playing the step")
    start, end = step.play()
    at = np.array([row for row, *_ in passes.rows], np.int64)
    columns = np.array([column for _, *column in passes.rows], np.int64).reshape(-1, 4)
    stage, pipeline, backward, microbatch = columns.T
    busy = np.zeros(placement.servers.shape)
    np.add.at(busy, (stage, pipeline), end[at] - start[at])
    done = [float(end[at[stage == s]].max(initial=0.0)) for s in range(len(stages))]
    return StepTime(
        order,
        float(end.max(initial=0.0)),
        float(end[at].max(initial=0.0)),
        busy,
        stage,
        pipeline,
        backward.astype(bool),
        microbatch,
        start[at],
        end[at],
        tuple(groups),
        np.array([end[a:b].max(initial=done[s]) for s, (a, b) in enumerate(ranges)]),
    )


def exchange_seconds(groups: Sequence[GroupSchedule | None], placement: Placement) -> float:
    """Seconds of all groups' all-reduces running concurrently on fairly shared links.

    Args:
        groups: the groups' schedules.
        placement: the placement of these groups.
    """
    step = Step(placement.topology)
    for group in groups:
        if group is not None:
            step.all_reduce(group, ready=False)
    _, end = step.play()
    return float(end.max(initial=0.0))


def pass_seconds(placement: Placement) -> float:
    """Seconds of all pipelines' messages together, in whole batches, without compute.

    Args:
        placement: the placement.
    """
    workload = placement.workload
    stages = tuple(
        Stage(0.0, 0.0, stage.activation_bytes * workload.microbatches, 0.0)
        for stage in workload.stages
    )
    whole = dataclasses.replace(placement, workload=Workload(stages))
    step = Step(placement.topology)
    _Passes(whole, step, "gpipe", 1, [1.0] * placement.topology.num_servers).add_all()
    _, end = step.play()
    return float(end.max(initial=0.0))


class _Passes:
    """The passes of all pipelines, added in an order in which they could be computed."""

    def __init__(
        self, placement: Placement, step: Step, order: Order, chunks: int, speeds: list[float]
    ) -> None:
        self.placement, self.step, self.chunks = placement, step, chunks
        self.stages = placement.workload.stages
        self.speeds = np.array(speeds)[placement.topology.rank[placement.servers]]
        count = len(self.stages)
        self.orders = [
            stage_order(order, stage, count, placement.workload.microbatches, chunks)
            for stage in range(count)
        ]
        self.rows: list[tuple[int, int, int, int, int]] = []
        """Operation, stage, pipeline, backward and micro-batch of each pass."""

    def add_all(self) -> None:
        """Adds passes that can be computed next until all are added."""
        for pipeline in range(self.placement.servers.shape[1]):
            written: dict[tuple[int, Pass], int] = {}
            done = [0] * len(self.stages)
            while True:
                before = sum(done)
                for stage, order in enumerate(self.orders):
                    while done[stage] < len(order):
                        if not self._added(pipeline, stage, order[done[stage]], written):
                            break
                        done[stage] += 1
                if sum(done) == before:
                    break
            if sum(done) != sum(map(len, self.orders)):
                raise NoScheduleError("order: stages wait for each other; no pass can be next")

    def _added(
        self, pipeline: int, stage: int, one: Pass, written: dict[tuple[int, Pass], int]
    ) -> bool:
        """Adds a pass and the message after it if its input has been written."""
        before = self._neighbour(stage, one, -1)
        reads = NOTHING
        if before is not None:
            if before not in written:
                return False
            reads = written[before]
        stage_of, node = self.stages[stage], self._node(pipeline, stage)
        seconds = stage_of.backward_s if one.backward else stage_of.forward_s
        work = seconds / self.chunks / float(self.speeds[stage, pipeline])
        row = len(self.step.rows)
        cell = self.step.add(self.step.device(node), work, reads)
        self.rows.append((row, stage, pipeline, int(one.backward), one.microbatch))
        after = self._neighbour(stage, one, 1)
        if after is not None and after[0] != stage:
            size = self.stages[min(stage, after[0])].activation_bytes
            cell = self.step.send(node, self._node(pipeline, after[0]), size, cell)
        written[stage, one] = cell
        return True

    def _node(self, pipeline: int, stage: int) -> int:
        return int(self.placement.servers[stage, pipeline])

    def _neighbour(self, stage: int, one: Pass, way: int) -> tuple[int, Pass] | None:
        """The pass before or after a given pass of its micro-batch; None at the ends.

        The last stage's backward pass follows its forward pass directly, within the stage's order.
        """
        count = len(self.stages)
        place = one.chunk * count + stage + (-way if one.backward else way)
        if not 0 <= place < count * self.chunks:
            return None
        chunk, there = divmod(place, count)
        return there, dataclasses.replace(one, chunk=chunk)
