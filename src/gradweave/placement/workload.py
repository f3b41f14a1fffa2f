"""The computation: a model cut into stages, and a simple estimator for transformers."""

import dataclasses
import math
from collections.abc import Sequence

from gradweave.common.checks import check_above_zero, check_at_least_one, check_not_below_zero
from gradweave.errors import OptionError
from gradweave.topology.units import as_size

ADAM_BYTES = 16
"""Memory per parameter under Adam in mixed precision: weight and gradient of 2 bytes each, a
weight and two moments of 4 each (Rajbhandari et al., "ZeRO", 2020)."""
LAYER_BYTES = 34
"""Activation memory of a layer per token and unit of width, without the attention activations that
are recomputed (Korthikanti et al., "Reducing activation recomputation", 2022)."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of the model that one device computes, described for one micro-batch."""

    forward_s: float
    """Seconds of a micro-batch's forward pass on a device of speed 1."""
    backward_s: float
    """Seconds of its backward pass."""
    activation_bytes: float
    """Bytes sent to the next stage for each micro-batch; as many come back. Ignored for the last
    stage, which sends none."""
    gradient_bytes: float
    """Averaged over the stage's data-parallel group once per step."""
    memory_bytes: float = 0.0
    """Memory that a device needs for it; 0 if unknown."""

    def __post_init__(self) -> None:
        check_not_below_zero(self, *(field.name for field in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True)
class Workload:
    """A training step: ordered stages, and the micro-batches that pass through each pipeline."""

    stages: tuple[Stage, ...]
    microbatches: int = 1
    name: str = "workload"

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        check_at_least_one(self, "microbatches")
        if not self.stages:
            raise OptionError("stages: expected at least one, got none")

    @property
    def even(self) -> bool:
        """Whether all stages are alike, so that any group may compute any stage."""
        return all(stage == self.stages[0] for stage in self.stages)

    def workload(self, pipeline: int | None, data: int) -> "Workload":
        """Returns itself, whatever the groups' size.

        Raises:
            OptionError: it has another number of stages.
        """
        if pipeline not in (None, len(self.stages)):
            raise OptionError(
                f"pipeline: expected {len(self.stages)}, the stages of {self.name}, got {pipeline}"
            )
        return self


def even_stages(
    stages: int,
    *,
    activation_bytes: float | str,
    gradient_bytes: float | str,
    forward_s: float = 0.0,
    backward_s: float = 0.0,
    memory_bytes: float | str = 0.0,
    microbatches: int = 1,
    name: str = "even stages",
) -> Workload:
    """A workload of identical stages.

    Args:
        stages: number of stages.
        activation_bytes: see `Stage`, as for the others.
        gradient_bytes: of each stage.
        forward_s: of each stage, for a micro-batch.
        backward_s: of each stage, for a micro-batch.
        memory_bytes: of each stage.
        microbatches: micro-batches that pass through each pipeline in a step.
        name: name of the workload.
    """
    sizes = map(as_size, (activation_bytes, gradient_bytes, memory_bytes))
    one = Stage(forward_s, backward_s, *sizes)
    return Workload((one,) * stages, microbatches, name)


@dataclasses.dataclass(frozen=True)
class Transformer:
    """A transformer's dimensions, from which stages are estimated.

    A layer has 12·width² parameters. A forward pass takes two operations per parameter and token
    plus 4·sequence·width for attention; a backward pass takes twice as many. The first stage also
    has the embedding, and the last the output matrix. Normalisation, biases and the output's
    activations are left out.

    >>> one = Transformer(layers=24, width=2048).workload(8, 8)
    >>> round(sum(stage.gradient_bytes for stage in one.stages) / 2 / 1e9, 2)
    1.41
    """

    layers: int = 24
    width: int = 2048
    sequence: int = 2048
    """Tokens per sequence."""
    batch: int = 512
    """Sequences per step, over all pipelines."""
    microbatches: int = 8
    """Number of micro-batches in each pipeline's part of the batch."""
    vocabulary: int = 50_257
    value_bytes: int = 2
    """Size of an activation or gradient value as sent."""
    flops: float = 1e14
    """Operations per second of a device of speed 1."""

    def __post_init__(self) -> None:
        counts = ("layers", "width", "sequence", "batch", "microbatches", "vocabulary")
        check_at_least_one(self, *counts, "value_bytes")
        check_above_zero(self, "flops")

    @property
    def name(self) -> str:
        """The model in words."""
        return f"transformer of {self.layers} layers, width {self.width}"

    def workload(self, pipeline: int | None, data: int) -> Workload:
        """The stages, with layers divided as evenly as possible and the first stages larger.

        Args:
            pipeline: number of stages.
            data: pipelines that share the batch.

        Raises:
            OptionError: there are fewer layers than stages, or the batch cannot be divided.
        """
        if pipeline is None:
            raise OptionError("pipeline: expected the number of stages of the transformer")
        if self.layers < pipeline:
            raise OptionError(
                f"pipeline: expected at most {self.layers}, the model's layers, got {pipeline}"
            )
        unit = data * self.microbatches
        if self.batch % unit:
            raise OptionError(
                f"data: {data} × {self.microbatches} micro-batches need a batch that is a multiple "
                f"of {unit}, got {self.batch}; give another number of pipelines, or "
                f"batch={-(-self.batch // unit) * unit} of the transformer"
            )
        sequences = self.batch // unit
        stages = [
            self._stage(stage, count, pipeline, sequences)
            for stage, count in enumerate(self.layers_of_stages(pipeline))
        ]
        return Workload(tuple(stages), self.microbatches, self.name)

    def layers_of_stages(self, pipeline: int) -> list[int]:
        """Layers of each stage, divided as evenly as possible with the first stages larger.

        >>> Transformer(layers=5).layers_of_stages(3)
        [2, 2, 1]
        """
        whole, more = divmod(self.layers, pipeline)
        return [whole + (stage < more) for stage in range(pipeline)]

    def _stage(self, stage: int, layers: int, pipeline: int, sequences: int) -> Stage:
        tokens = sequences * self.sequence
        matrix = self.vocabulary * self.width
        parameters = layers * 12 * self.width**2
        operations = tokens * (2 * parameters + layers * 4 * self.sequence * self.width)
        last = stage == pipeline - 1
        operations += 2 * tokens * matrix * last
        parameters += matrix * ((stage == 0) + last)
        waiting = min(self.microbatches, pipeline - stage)  # forward passes without their backward
        return Stage(
            forward_s=operations / self.flops,
            backward_s=2 * operations / self.flops,
            activation_bytes=float(tokens * self.width * self.value_bytes),
            gradient_bytes=float(parameters * self.value_bytes),
            memory_bytes=float(
                ADAM_BYTES * parameters + waiting * layers * LAYER_BYTES * tokens * self.width
            ),
        )


def each_device(name: str, given: float | Sequence[float] | None, count: int) -> list[float] | None:
    """A property of devices, given once for all or individually.

    Args:
        name: name for messages.
        given: a number above 0, or one for each device, or None if it does not matter.
        count: number of devices.

    Raises:
        OptionError: for a wrong count or an invalid number.
    """
    if given is None:
        return None
    values = [float(given)] * count if isinstance(given, int | float) else list(map(float, given))
    if len(values) != count:
        raise OptionError(f"{name}: expected {count}, one for each device, got {len(values)}")
    wrong = next((one for one in values if not 0 < one < math.inf), None)
    if wrong is not None:
        raise OptionError(f"{name}: expected numbers above 0, got {wrong}")
    return values
