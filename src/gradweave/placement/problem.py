"""The placement problem: which device computes which stage of which pipeline."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.placement.pairs import Pairs
from gradweave.placement.workload import Transformer, Workload, each_device
from gradweave.topology.units import as_size


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Devices, a workload, and the number of pipelines.

    A solution is a table [S, D] of devices: row s is the data-parallel group that computes stage s,
    column p the pipeline p. Devices beyond S·D stay idle.
    """

    pairs: Pairs
    workload: Workload
    data: int
    """D, the number of devices in a data-parallel group, which is the number of pipelines."""
    memory_bytes: tuple[float, ...] | None = None
    """[N] memory of each device, or None if memory is not limited."""
    speed: tuple[float, ...] | None = None
    """[N] speed of each device, by which stages' seconds are divided; 1 if not given."""
    gradient_scale: float = 1.0
    """Factor on gradient bytes, for costs in which gradients count more or less."""

    def __post_init__(self) -> None:
        devices, stages, data = self.devices, self.stages, self.data
        if devices < stages:
            raise OptionError(
                f"pipeline: expected at most {devices} stages, one for each device, got {stages}"
            )
        if data < 1:
            raise OptionError(f"data: expected at least 1, got {data}")
        if devices < stages * data:
            raise OptionError(
                f"data: expected at most {devices // stages}, which {devices} devices allow for "
                f"{stages} stages, got {data}"
            )
        self._check_memory()

    def _check_memory(self) -> None:
        """Rejects stages that do not fit, giving the devices with most memory to the largest."""
        if self.memory_bytes is None:
            return
        memory = sorted(self.memory_bytes, reverse=True)
        needs = sorted(((one.memory_bytes, s) for s, one in enumerate(self.workload.stages)))
        for place, (need, stage) in enumerate(reversed(needs), start=1):
            there = sum(one >= need for one in memory)
            if there < place * self.data:
                which = (
                    f"stage {stage} needs"
                    if place == 1
                    else f"stage {stage} and {place - 1} larger need"
                )
                raise OptionError(
                    f"memory: {which} {place * self.data} devices with {need / 1e9:.4g} GB "
                    f"or more, got {there}; use more stages or smaller micro-batches"
                )

    @property
    def devices(self) -> int:
        """N."""
        return len(self.pairs)

    @property
    def stages(self) -> int:
        """S."""
        return len(self.workload.stages)

    @property
    def spare(self) -> int:
        """Number of devices that stay idle."""
        return self.devices - self.stages * self.data

    @cached_property
    def fits(self) -> NDArray[np.bool_]:
        """[S, N] whether a device has the memory for a stage."""
        if self.memory_bytes is None:
            return np.ones((self.stages, self.devices), bool)
        need = np.array([stage.memory_bytes for stage in self.workload.stages])
        return need[:, None] <= np.array(self.memory_bytes)

    @cached_property
    def alike(self) -> bool:
        """Whether all orders of the groups along the pipelines are equally good."""
        return self.workload.even

    @cached_property
    def activation_bytes(self) -> NDArray[np.float64]:
        """[S−1] bytes from each stage to the next in a step, all micro-batches together."""
        each = [stage.activation_bytes for stage in self.workload.stages[:-1]]
        return np.array(each, np.float64) * self.workload.microbatches

    @cached_property
    def part_bytes(self) -> NDArray[np.float64]:
        """[S] bytes of a device's part of a stage's gradient, one D-th."""
        each = [stage.gradient_bytes for stage in self.workload.stages]
        return np.array(each, np.float64) * self.gradient_scale / self.data

    def first_fit(self, devices: Sequence[int] | NDArray) -> NDArray[np.int64]:
        """[N] devices in a given order, moved only as needed to fit; those beyond S·D are idle.

        Args:
            devices: [N] all devices in the desired order.
        """
        order = np.asarray(devices, np.int64)
        if self.fits.all():
            return order.copy()
        memory = np.array(self.memory_bytes)
        need = [stage.memory_bytes for stage in self.workload.stages]
        placed = np.full(self.stages * self.data, -1)
        left = order.tolist()
        for stage in sorted(range(self.stages), key=lambda s: -need[s]):
            chosen = [one for one in left if memory[one] >= need[stage]][: self.data]
            placed[stage * self.data : (stage + 1) * self.data] = chosen
            left = [one for one in left if one not in chosen]
        return np.concatenate([placed, np.array(left, np.int64)])


def problem_of(
    pairs: Pairs,
    model: Workload | Transformer,
    pipeline: int | None,
    data: int | None,
    memory_bytes: float | str | Sequence[float | str] | None = None,
    speed: float | Sequence[float] | None = None,
) -> Problem:
    """The problem, with missing numbers filled in.

    Args:
        pairs: pairs of the devices.
        model: stages, or a transformer to estimate them from.
        pipeline: number of stages; by default the workload's, or for a transformer all devices
            divided by `data`.
        data: number of pipelines; by default all devices divided by the stages.
        memory_bytes: memory of every device, or of each.
        speed: speed of every device, or of each.

    Raises:
        OptionError: for groups that cannot be balanced, or numbers that do not fit.
    """
    devices = len(pairs)
    if pipeline is None and isinstance(model, Workload):
        pipeline = len(model.stages)
    for name, value in (("pipeline", pipeline), ("data", data)):
        if value is not None and value < 1:
            raise OptionError(f"{name}: expected at least 1, got {value}")
    if pipeline is None:
        if data is None:
            raise OptionError("pipeline: expected the number of stages, or data, the pipelines")
        pipeline = _quotient("data", devices, data)
    if pipeline > devices:
        raise OptionError(
            f"pipeline: expected at most {devices} stages, one for each device, got {pipeline}"
        )
    if data is None:
        data = _quotient("pipeline", devices, pipeline)
    if isinstance(memory_bytes, float | int | str):
        memory_bytes = [memory_bytes] * devices
    sizes = None if memory_bytes is None else [as_size(size) for size in memory_bytes]
    memory = each_device("memory", sizes, devices)
    speeds = each_device("speed", speed, devices)
    return Problem(
        pairs,
        model.workload(pipeline, data),
        data,
        None if memory is None else tuple(memory),
        None if speeds is None else tuple(speeds),
    )


def _quotient(name: str, devices: int, divisor: int) -> int:
    """Number of devices in each of `divisor` groups."""
    if devices % divisor:
        other = "data" if name == "pipeline" else "pipeline"
        raise OptionError(
            f"{name}: {devices} devices cannot be balanced over {divisor} groups; give a divisor "
            f"of {devices}, or {other}={devices // divisor} too, which leaves "
            f"{devices % divisor} idle"
        )
    return devices // divisor
