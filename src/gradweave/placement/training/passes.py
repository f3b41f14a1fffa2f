"""Passes of a stage in PyTorch: timed, and in our orders with receives posted in advance."""

import time
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from gradweave.placement.timeline.orders import Order, stage_order

PYTORCH = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
"""PyTorch's own schedules of a pipeline, by order."""


class TimedStage(PipelineStage):
    """A stage that records when its passes start and end, in seconds of the monotonic clock."""

    noted: list[tuple[bool, int, float, float]]
    """For each pass: whether it is backward, its micro-batch, its start and its end."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Runs PyTorch's method and records the pass."""
        begun = time.monotonic()
        output = super().forward_one_chunk(fwd_chunk_id, *args, **options)
        self.noted.append((False, fwd_chunk_id, begun, time.monotonic()))
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> None:
        """Runs PyTorch's method and records the pass."""
        begun = time.monotonic()
        super().backward_one_chunk(bwd_chunk_id, *args, **options)
        self.noted.append((True, bwd_chunk_id, begun, time.monotonic()))


class OrderedPasses(PipelineScheduleSingle):
    """Passes in the order of `stage_order`, each as soon as its message has arrived.

    PyTorch's schedules post a receive only when they reach its pass, and gloo sends nothing before
    the receiver requests it. So each message takes the latency of its route twice, and 1F1B waits
    for messages to be taken before it continues. This class posts all receives of a step in advance
    and waits for sends only at the end, so a message takes only the time that the network needs.

    Args:
        stage: PyTorch's stage.
        microbatches: M.
        loss_fn: loss of the last stage's output and target.
        order: see `Order`.
    """

    def __init__(self, stage: PipelineStage, microbatches: int, loss_fn: Any, order: Order) -> None:
        super().__init__(stage, microbatches, loss_fn=loss_fn)
        self._passes = stage_order(order, stage.stage_index, stage.num_stages, microbatches)
        self._arriving: dict[tuple[bool, int], list[dist.Work]] = {}

    def prepare(self) -> None:
        """Agrees with the other stages on message shapes; called by all stages of the pipeline."""
        self._stage.has_backward = True
        self._initialize_stage((), {})

    def post(self) -> None:
        """Posts all receives of the next step, unless they are posted already."""
        if self._arriving:
            return
        for one in self._passes:
            of = self._stage.get_bwd_recv_ops if one.backward else self._stage.get_fwd_recv_ops
            self._arriving[one.backward, one.microbatch] = [
                _work(dist.irecv(op.tensor, op.peer, group=op.group)) for op in of(one.microbatch)
            ]

    def _step_microbatches(
        self,
        arg_mbs: list | None = None,
        kwarg_mbs: list | None = None,
        target_mbs: list | None = None,
        losses: list | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        arg_mbs, kwarg_mbs = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        self.post()
        stage, sent = self._stage, []
        for one in self._passes:
            number = one.microbatch
            for work in self._arriving.pop((one.backward, number)):
                work.wait()
            if one.backward:
                last = one == self._passes[-1]
                loss = self._maybe_get_loss(stage, number)
                stage.backward_one_chunk(number, loss=loss, last_backward=last)
                ops = stage.get_bwd_send_ops(number)
            else:
                output = stage.forward_one_chunk(number, arg_mbs[number], kwarg_mbs[number])
                self._maybe_compute_loss(stage, output, target_mbs, number)
                ops = stage.get_fwd_send_ops(number)
            sent += [_work(dist.isend(op.tensor, op.peer, group=op.group)) for op in ops]
        for work in sent:
            work.wait()
        self._update_losses(stage, losses)
        stage.scale_grads(self._n_microbatches)


def _work(work: dist.Work | None) -> dist.Work:
    assert work is not None  # None: this process is not in the group
    return work
