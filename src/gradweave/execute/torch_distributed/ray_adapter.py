"""A backend for Ray's collective groups (`ray.util.collective`) that runs schedules.

register_ray_backend(all_reduce=schedule)              # in the driver, and in each actor
collective.init_collective_group(4, rank, "gradweave")
collective.allreduce(tensor)
"""

from typing import Any

import torch

from gradweave.common.lazy import missing
from gradweave.execute.program import check_all_reduce, check_collective, check_servers
from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed.backend import Collective
from gradweave.execute.torch_distributed.shards import (
    all_gather_into,
    reduce_scatter_into,
    sharded,
)
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule

NAME = "gradweave"


def register_ray_backend(
    *,
    all_reduce: ScheduleLike | None = None,
    all_gather: ScheduleLike | None = None,
    reduce_scatter: ScheduleLike | None = None,
    name: str = NAME,
) -> None:
    """Registers a backend for groups with as many actors as the schedules have servers.

    Its groups are Ray's gloo groups. Schedules run sums, minima and maxima of tensors and arrays on
    CPUs; the actor of rank r is the r-th server in order of id. gloo runs all other calls, and
    collectives without a schedule. The driver only checks that the backend exists, so it needs no
    schedules.

    Args:
        all_reduce: schedule for `allreduce`.
        all_gather: schedule for `allgather`; each server roots 1/N.
        reduce_scatter: schedule for `reducescatter`; each server roots 1/N.
        name: name of the backend; each name can be registered once per process.

    Raises:
        MissingExtraError: Ray is not installed.
        ScheduleError: a schedule is for another collective, or its servers root unequal shares.
    """
    all_reduce = None if all_reduce is None else as_schedule(all_reduce)
    all_gather = None if all_gather is None else as_schedule(all_gather)
    reduce_scatter = None if reduce_scatter is None else as_schedule(reduce_scatter)
    try:
        from ray.util.collective import (  # pyright: ignore[reportMissingImports]
            register_collective_backend,
        )
        from ray.util.collective.collective_group.torch_gloo_collective_group import (  # pyright: ignore[reportMissingImports]
            TorchGLOOGroup,
        )
        from ray.util.collective.types import (  # pyright: ignore[reportMissingImports]
            ReduceOp,
        )
    except ImportError as error:
        raise missing("gradweave.torch.register_ray_backend", "ray") from error

    schedules: dict[str, Schedule] = {}
    if all_reduce is not None:
        check_all_reduce(all_reduce)
        schedules["all_reduce"] = all_reduce
    if all_gather is not None:
        check_collective(all_gather, "all_gather")
        schedules["all_gather"] = sharded(all_gather)
    if reduce_scatter is not None:
        check_collective(reduce_scatter, "reduce_scatter")
        schedules["reduce_scatter"] = sharded(reduce_scatter)
    reductions: dict[Any, Reduction] = {
        ReduceOp.SUM: "sum",
        ReduceOp.MIN: "min",
        ReduceOp.MAX: "max",
    }

    class Planned(TorchGLOOGroup):
        def __init__(self, world_size: int, rank: int, group_name: str) -> None:
            for schedule in schedules.values():
                check_servers(schedule, world_size, what="actors in the group")
            super().__init__(world_size, rank, group_name)
            group: Any = self._pg
            self.planned = {key: Collective(each, group) for key, each in schedules.items()}

        @classmethod
        def backend(cls) -> Any:
            return name.upper()

        def allreduce(self, tensor: Any, allreduce_options: Any = None) -> None:
            reduction = reductions.get(getattr(allreduce_options, "reduceOp", ReduceOp.SUM))
            if reduction is None or "all_reduce" not in self.planned:
                super().allreduce(tensor, allreduce_options)
            else:
                self.planned["all_reduce"](self._check_tensor_input(tensor), reduction=reduction)

        def allgather(self, tensor_list: Any, tensor: Any, allgather_options: Any = None) -> None:
            if "all_gather" not in self.planned:
                super().allgather(tensor_list, tensor, allgather_options)
                return
            mine = self._check_tensor_input(tensor).contiguous()
            whole = mine.new_empty(len(tensor_list[0]), mine.numel())
            all_gather_into(self.planned["all_gather"], whole, mine)
            for part, got in zip(self._check_tensor_list_input(tensor_list), whole, strict=True):
                part.copy_(got.view(part.shape))

        def reducescatter(
            self, output_tensor: Any, tensor_list: Any, reducescatter_options: Any = None
        ) -> None:
            reduction = reductions.get(getattr(reducescatter_options, "reduceOp", ReduceOp.SUM))
            if reduction is None or "reduce_scatter" not in self.planned:
                super().reducescatter(output_tensor, tensor_list, reducescatter_options)
                return
            parts = self._check_tensor_list_input(tensor_list)
            whole = torch.cat([part.reshape(-1) for part in parts])
            into = self._check_tensor_input(output_tensor)
            by = self.planned["reduce_scatter"]
            reduce_scatter_into(by, into, whole, reduction, keep_input=False)

    register_collective_backend(name, Planned)
