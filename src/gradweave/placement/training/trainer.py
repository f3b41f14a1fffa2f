"""One process of a training: its stage, its pipeline, and its group's averages."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from gradweave.execute.torch_distributed.backend import Collective
from gradweave.placement.training.gpt import loss_of, stage_of
from gradweave.placement.training.passes import PYTORCH, OrderedPasses, TimedStage
from gradweave.placement.training.plan import Plan
from gradweave.placement.training.synthetic_stage import SyntheticStage, elements_after
from gradweave.placement.training.text import batch, characters
from gradweave.placement.workload import Transformer
from gradweave.schedules.file import from_bytes

CPU = torch.device("cpu")


class StageTrainer:
    """Trains a stage; all processes create one and then step together.

    Args:
        plan: the training.
        ahead_s: how far this process's monotonic clock is ahead of the clock that determines the
            start of steps.
    """

    def __init__(self, plan: Plan, ahead_s: float = 0.0) -> None:
        self._plan, self._ahead_s = plan, ahead_s
        table = np.array(plan.servers)
        rank = dist.get_rank()
        pipelines = [dist.new_group(column.tolist()) for column in table.T]
        groups = [dist.new_group(sorted(row.tolist())) for row in table]
        mine = np.argwhere(table == rank)
        self.idle = len(mine) == 0
        """Whether this process has no part in it."""
        if self.idle:
            return
        self._number, self._pipeline = mine[0].tolist()
        module = self._module()
        self._flat = _flat_gradients(module)
        self._average = self._averaging(groups[self._number])
        if plan.averages == "pytorch" and plan.data > 1:
            module = DistributedDataParallel(module, process_group=groups[self._number])
        self._stage = self._timed(module, pipelines[self._pipeline])
        self._passes = self._ordered()
        self._optimizer = None
        if plan.model is not None:
            self._text = characters()
            self._optimizer = torch.optim.AdamW(module.parameters(), plan.rate)

    def _module(self) -> torch.nn.Module:
        plan = self._plan
        if plan.model is None:
            return SyntheticStage(plan.workload, self._number)
        return stage_of(plan.model, plan.stages, self._number, plan.seed)

    def _timed(self, module: torch.nn.Module, pipeline: Any) -> TimedStage:
        number, plan = self._number, self._plan
        stage = TimedStage(
            module,
            number,
            plan.stages,
            CPU,
            input_args=self._example(number - 1),
            output_args=self._example(number),
            group=pipeline,
        )
        stage.noted = []
        # PyTorch numbers a group's processes by rank and expects the stages in that order.
        ranks = dist.get_process_group_ranks(pipeline)
        column = [row[self._pipeline] for row in plan.servers]
        stage.stage_index_to_group_rank = {s: ranks.index(one) for s, one in enumerate(column)}
        return stage

    def _example(self, stage: int) -> torch.Tensor:
        """Example output of a stage for one micro-batch; stage −1: input of the first stage."""
        plan, model = self._plan, self._plan.model
        if model is None:
            shape = (1, 1 if stage < 0 else elements_after(plan.workload, stage))
            return torch.zeros(shape, requires_grad=stage >= 0)
        rows = model.batch // (plan.data * model.microbatches)
        if stage < 0:
            return torch.zeros((rows, model.sequence), dtype=torch.int64)
        width = model.vocabulary if stage == plan.stages - 1 else model.width
        return torch.zeros((rows, model.sequence, width), requires_grad=True)

    def _ordered(self) -> Any:
        plan = self._plan
        loss_fn = loss_of if plan.model is not None else _no_loss
        if plan.averages == "pytorch":
            return PYTORCH[plan.order](self._stage, plan.workload.microbatches, loss_fn=loss_fn)
        passes = OrderedPasses(self._stage, plan.workload.microbatches, loss_fn, plan.order)
        passes.prepare()
        return passes

    def _averaging(self, group: Any) -> Callable[[], object] | None:
        """Averages the gradients over the group, unless that is left to PyTorch."""
        plan = self._plan
        if plan.data == 1 or plan.averages == "pytorch":
            return None
        if plan.averages == "gloo":
            return lambda: (dist.all_reduce(self._flat, group=group), self._flat.div_(plan.data))
        content = plan.schedules[self._number]
        if content is None:
            return None
        schedule = from_bytes(content.encode(), f"the schedule of stage {self._number}")
        collective = Collective(schedule, group)
        collective(self._flat, reduction="mean")  # connects, and compares schedules
        return lambda: collective(self._flat, reduction="mean")

    def step(self, number: int, at: float | None = None) -> dict[str, Any]:
        """Runs one step; called by all processes.

        Args:
            number: index of the step, from 0.
            at: when to start, by the reference clock; immediately if not given.

        Returns:
            Times by that clock: the start, the passes (see `TimedStage.noted`), the end of the last
            pass and of the average; and the mean loss if this process knows it.
        """
        if self.idle:
            return {}
        self._flat.zero_()
        self._stage.noted.clear()
        if isinstance(self._passes, OrderedPasses):
            self._passes.post()
        given, target = self._batch(number)
        ahead_s = self._ahead_s
        _wait_until(None if at is None else at + ahead_s)
        start = time.monotonic()
        losses: list[torch.Tensor] = []
        self._passes.step(*given, target=target, losses=losses)
        passed = time.monotonic()
        if self._average is not None:
            self._average()
        averaged = time.monotonic()
        if self._optimizer is not None:
            self._optimizer.step()
        return {
            "start": start - ahead_s,
            "passes": [
                (backward, number, begun - ahead_s, ended - ahead_s)
                for backward, number, begun, ended in self._stage.noted
            ],
            "passed": passed - ahead_s,
            "averaged": averaged - ahead_s,
            "loss": torch.stack(losses).mean().item() if losses else None,
        }

    def _batch(self, number: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
        """Input of the first stage, and target of the last, for this process's pipeline."""
        plan, model = self._plan, self._plan.model
        first, last = self._stage.is_first, self._stage.is_last
        if model is None:
            nothing = torch.zeros(plan.workload.microbatches, 1)
            return (nothing,) if first else (), nothing if last else None
        rows = model.batch // plan.data
        mine = slice(self._pipeline * rows, (self._pipeline + 1) * rows)
        given, target = inputs_and_targets(self._text, model, number, plan.seed, mine)
        return (given,) if first else (), target if last else None


def inputs_and_targets(
    text: NDArray[np.uint8], model: Transformer, step: int, seed: int, rows: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, T] tokens of some sequences of a step, and the token that follows each."""
    tokens = torch.from_numpy(batch(text, model, step, seed)[rows])
    return tokens[:, :-1], tokens[:, 1:].contiguous()


def whole_losses(
    model: Transformer, steps: int, *, seed: int = 0, rate: float = 1e-3
) -> list[float]:
    """Mean losses of the same training in this process, with the whole batch at once.

    Args:
        model: sizes of the model.
        steps: number of steps.
        seed: seed of weights and batches.
        rate: learning rate of AdamW.
    """
    module, text = stage_of(model, 1, 0, seed), characters()
    optimizer = torch.optim.AdamW(module.parameters(), rate)
    losses = []
    for step in range(steps):
        given, target = inputs_and_targets(text, model, step, seed, slice(None))
        optimizer.zero_grad()
        loss = loss_of(module(given), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _flat_gradients(module: torch.nn.Module) -> torch.Tensor:
    """[size] the gradients of all parameters, as one tensor of which they become views."""
    parameters = list(module.parameters())
    flat = torch.zeros(sum(one.numel() for one in parameters))
    for one, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        one.grad = part.view_as(one)
    return flat


def _no_loss(output: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    return output.sum()


def _wait_until(at: float | None) -> None:
    while at is not None and (left := at - time.monotonic()) > 0:
        time.sleep(max(left - 1e-3, 0))
