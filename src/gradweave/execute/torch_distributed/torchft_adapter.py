"""A process group for torchft that runs all-reduces between replicas by schedules.

    group = gradweave.torch.torchft_process_group(lambda replicas: plans.get(len(replicas)))
    manager = torchft.Manager(pg=group, …)

torchft finds out which replicas are there, and reconfigures the group when a replica is lost or
comes back. It is not among the extras: install `torchft` yourself.
"""

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from gradweave.errors import MissingExtraError
from gradweave.execute.program import check_all_reduce, check_servers, is_own
from gradweave.execute.torch_distributed.backend import Collective, reduction_of
from gradweave.execute.torch_distributed.gloo_messages import connected
from gradweave.execute.torch_distributed.watchdog import Watchdog
from gradweave.schedules.given import ScheduleLike, as_schedule

Planner = Callable[[Sequence[int]], ScheduleLike | None]
"""From the numbers of the live replicas, which torchft reads off the end of their ids, to the
all-reduce between them; the i-th replica is the i-th server in order of id. None: gloo's own."""


def torchft_process_group(plan: Planner, timeout: timedelta = timedelta(seconds=60)) -> Any:
    """A `torchft.ProcessGroupGloo` that runs all-reduces of one tensor by schedules.

    gloo runs everything else. An error ends the all-reduces of all replicas, and torchft skips that
    step; `errored` returns the error until the group is configured again. Each all-reduce is
    complete when it returns.

    Args:
        plan: returns the schedule for the live replicas. All replicas must return the same
            schedule, which is checked. torchft treats an error raised here as a failed step.
        timeout: timeout for connecting, and for each message.

    Raises:
        MissingExtraError: torchft is not installed.
    """
    return _class()(plan, timeout)


@functools.cache
def _class() -> type:
    """The class, made on first use, since it needs torchft."""
    try:
        from torchft.process_group import (  # pyright: ignore[reportMissingImports]
            ProcessGroupGloo,
        )
        from torchft.work import _DummyWork  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("torchft is not installed; pip install torchft") from error

    class PlannedGloo(ProcessGroupGloo):
        def __init__(self, plan: Planner, timeout: timedelta) -> None:
            super().__init__(timeout)
            self._plan = plan
            self._collective: Collective | None = None
            self._watchdog = Watchdog(timeout)
            self._error: Exception | None = None

        def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
            made = super()._create_pg(store, rank, world_size)
            replicas = tuple(self._global_ranks or range(world_size))
            planned = self._plan(replicas) if world_size > 1 else None
            schedule = None if planned is None else as_schedule(planned)
            if schedule is not None and not is_own(schedule, "gloo"):
                check_all_reduce(schedule)
                check_servers(schedule, world_size, what="replicas")
                up, down = (
                    connected(store, f"gradweave {number}", rank, world_size, self._timeout)
                    for number in range(2)
                )
                channels, self._watchdog = ([(up, down)], None), Watchdog(self._timeout)
                self._collective = Collective(
                    schedule, up, channels=channels, watchdog=self._watchdog
                )
            return made

        def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> Any:
            reduction = reduction_of(getattr(opts, "reduceOp", opts))
            on_cpu = len(tensors) == 1 and tensors[0].device.type == "cpu"
            if self._collective is None or reduction is None or not on_cpu:
                return super().allreduce(tensors, opts)
            work = _DummyWork(tensors)
            try:
                self._collective(tensors[0], reduction=reduction)
            except Exception as error:
                self._error = error
                # Not raised: torchft's DDP accepts an error only from a future.
                work.future_ = torch.futures.Future()
                work.future_.set_exception(error)
            return work

        def errored(self) -> Exception | None:
            return self._error

        def abort(self, errored: bool = True) -> None:
            self._watchdog.abort()
            self._collective = self._error = None
            super().abort(errored)

        def shutdown(self) -> None:
            self._collective = None
            super().shutdown()

        def getBackendName(self) -> str:
            return "torchft-gradweave"

    return PlannedGloo
