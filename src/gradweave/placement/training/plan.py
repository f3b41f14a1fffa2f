"""The description of a training that its processes receive."""

import dataclasses
from typing import Literal, get_args

from gradweave.common.checks import check_above_zero
from gradweave.errors import OptionError
from gradweave.placement.timeline.orders import ORDERS, Order
from gradweave.placement.workload import Transformer, Workload

Averages = Literal["schedule", "gloo", "pytorch"]
"""``schedule``: our schedules for the groups' averages, and our pipeline schedule for the order of
passes. ``gloo``: the same passes, with averages by gloo's all-reduce. ``pytorch``: PyTorch's own
pipeline schedules, and DistributedDataParallel around each stage."""
AVERAGES: tuple[str, ...] = get_args(Averages)
LETTERS = 128
"""Minimum vocabulary for text, whose tokens are its characters."""
FLOAT_BYTES = 4
"""Size of a value; values are computed and sent as float32."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """One training, the same for all processes."""

    servers: tuple[tuple[int, ...], ...]
    """[S][D] ranks: row s computes stage s, column p is pipeline p."""
    workload: Workload
    model: Transformer | None = None
    """Model to train on text; None: nothing is computed, and each pass sleeps for its seconds."""
    order: Order = "1f1b"
    averages: Averages = "schedule"
    schedules: tuple[str | None, ...] = ()
    """[S] the groups' all-reduces as in schedule files, or None for a group of one. Empty if no
    schedules are used."""
    seed: int = 0
    rate: float = 1e-3
    """Learning rate of AdamW."""

    def __post_init__(self) -> None:
        if self.order not in ORDERS or self.order == "interleaved":
            raise OptionError(f"order: expected gpipe or 1f1b, got {self.order!r:.60}")
        if self.averages not in AVERAGES:
            raise OptionError(
                f"averages: expected one of {', '.join(AVERAGES)}, got {self.averages!r:.60}"
            )
        check_above_zero(self, "rate")
        if self.averages == "pytorch" and self.workload.microbatches < len(self.servers):
            raise OptionError(
                f"microbatches: PyTorch's 1F1B expects at least {len(self.servers)}, the stages, "
                f"got {self.workload.microbatches}"
            )
        if self.model is not None:
            check_trainable(self.model)

    @property
    def stages(self) -> int:
        """S."""
        return len(self.servers)

    @property
    def data(self) -> int:
        """D."""
        return len(self.servers[0])


def check_trainable(model: Transformer) -> None:
    """Rejects a transformer that cannot be trained as it is estimated.

    Raises:
        OptionError: its vocabulary is too small for text, or its values are not float32.
    """
    if model.vocabulary < LETTERS:
        raise OptionError(
            f"vocabulary: expected at least {LETTERS}, for characters, got {model.vocabulary}"
        )
    if model.value_bytes != FLOAT_BYTES:
        raise OptionError(
            f"value_bytes: expected {FLOAT_BYTES}, as values are trained and sent as float32, "
            f"got {model.value_bytes}"
        )
