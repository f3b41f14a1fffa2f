"""A synthetic stage that sleeps instead of computing: one machine stands for many devices."""

import time
from typing import Any

import torch
from torch import nn

from gradweave.placement.training.plan import FLOAT_BYTES
from gradweave.placement.workload import Workload


class SyntheticStage(nn.Module):
    """[1, any] → [1, elements]: sleeps for the seconds of a pass, and returns zeros.

    Its parameters are as large as the stage's gradient.

    Args:
        workload: the stages.
        stage: index of the stage, from 0.
    """

    def __init__(self, workload: Workload, stage: int) -> None:
        super().__init__()
        one = workload.stages[stage]
        self.weights = nn.Parameter(torch.zeros(max(1, round(one.gradient_bytes / FLOAT_BYTES))))
        self._seconds = one.forward_s, one.backward_s
        self._elements = elements_after(workload, stage)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleeps."""
        return _Sleeping.apply(x, self.weights, self._elements, *self._seconds)


def elements_after(workload: Workload, stage: int) -> int:
    """Number of values that a stage passes to the next for each micro-batch; 1 for the last."""
    if stage == len(workload.stages) - 1:
        return 1
    return max(1, round(workload.stages[stage].activation_bytes / FLOAT_BYTES))


class _Sleeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        x, weights, elements, forward_s, backward_s = given
        ctx.backward_s, ctx.shapes = backward_s, (x.shape, weights.shape)
        time.sleep(forward_s)
        return torch.zeros(1, elements)

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> Any:
        time.sleep(ctx.backward_s)
        before, weights = ctx.shapes
        wanted = ctx.needs_input_grad[0]
        return torch.zeros(before) if wanted else None, torch.zeros(weights), None, None, None
