"""Schedules on torch.distributed: an all-reduce on any process group.

    gradweave.torch.all_reduce(gradient, schedule)

On gloo, each message is sent as soon as its data is ready. gloo does not take tensors on GPUs, so
they go through host memory. Other backends require both ends to queue their messages in the same
order, so they run the schedule round by round.
"""

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gradweave.errors import OptionError
from gradweave.execute.layout import Layout
from gradweave.execute.program import check_all_reduce, check_servers, is_own
from gradweave.execute.reduction import Reduction, check_reduction
from gradweave.execute.signature import digest, mismatch, signature
from gradweave.execute.torch_distributed.gloo_messages import (
    Channels,
    Cuts,
    Messages,
    combine,
    pair,
)
from gradweave.execute.torch_distributed.groups import Group, default_group, member_of
from gradweave.execute.torch_distributed.memory import plain, read
from gradweave.execute.torch_distributed.round_by_round import Rounds
from gradweave.execute.torch_distributed.watchdog import Watchdog
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule

OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


def reduction_of(operation: dist.ReduceOp | dist.ReduceOp.RedOpType) -> Reduction | None:
    """How one of PyTorch's operations combines values; None for those that schedules cannot run."""
    if operation == dist.ReduceOp.AVG:
        return "mean"
    reductions: tuple[Reduction, ...] = ("sum", "max", "min")
    return next((each for each in reductions if operation == OPERATIONS[each]), None)


def all_reduce(
    tensor: torch.Tensor,
    schedule: ScheduleLike,
    group: Group | None = None,
    *,
    reduction: Reduction = "sum",
) -> None:
    """Replaces each process's tensor by the reduction of all tensors, in place.

    All processes of the group call it, with tensors of the same type and number of elements; this
    is checked first. For many calls, a `Collective` is cheaper.

    Args:
        tensor: a tensor of any shape and strides.
        schedule: an all-reduce for as many servers as the group has processes; rank r is the r-th
            server in order of id.
        group: the process group; the default group if not given.
        reduction: sum, mean, max or min.

    Raises:
        ScheduleError: the schedule is for another number of servers, or another collective.
        OptionError: the tensor's type has no such reduction.
        RunError: the processes disagree on schedule, length, type or reduction.
        LostServerError: a process went away, or was silent for longer than the group's timeout.
    """
    schedule = as_schedule(schedule)
    check_all_reduce(schedule)
    collective_of(schedule, group)(tensor, reduction=reduction, compare=True)


def collective_of(schedule: Schedule, group: Group | None) -> "Collective":
    """The `Collective` of a schedule on a group; making it, on first use, is collective."""
    made = _collectives.setdefault(group or default_group(), {})
    key = digest(schedule)
    if key not in made:
        made[key] = Collective(schedule, group)
    return made[key]


_collectives: weakref.WeakKeyDictionary[Group, dict[int, "Collective"]]
_collectives = weakref.WeakKeyDictionary()
"""By group and digest of the schedule, so that reading a file twice gives the same collective."""


class Collective:
    """A schedule on a process group, for many calls.

    Schedules of any collective are accepted: a reduce-scatter leaves each piece at its root, and
    undefined values elsewhere; an all-gather reads each piece at its root. For a demand, the tensor
    is this process's workspace: see `gradweave.execute.layout.Layout`, and `exchange`.

    Args:
        schedule: the schedule.
        group: the process group; the default group if not given.
        channels: connections to use instead of the group's, if transfers should take different
            routes: pairs of gloo groups of the same processes, and for each transfer the pair that
            carries it.
        watchdog: ends collectives that do not progress. If not given, lost servers are named. It is
            needed for a group that PyTorch does not know, such as one of the channels.

    Raises:
        OptionError: torch.distributed has not been initialised, or this process is not in the
            group.
        ScheduleError: the schedule is for another number of servers.
    """

    def __init__(
        self,
        schedule: ScheduleLike,
        group: Group | dist.ProcessGroupGloo | None = None,
        *,
        channels: Channels | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        schedule = as_schedule(schedule)
        first = channels[0][0][0] if channels else None
        self.group: Any = member_of(group or (first if isinstance(first, Group) else None))
        self.rank, self.size = self.group.rank(), self.group.size()
        """Rank of this process, and size of the group."""
        check_servers(schedule, self.size, what="processes in the group")
        self.schedule = schedule
        self._layouts: dict[tuple[int, bool], Layout] = {}
        self.is_own = watchdog is None and is_own(schedule, dist.get_backend(self.group))
        """Whether to call the backend's all-reduce instead, see `is_own`; its bytes are not
        counted."""
        self._compared: set[tuple[int, torch.dtype, str]] = set()
        if not isinstance(first, dist.ProcessGroupGloo):
            if dist.get_backend(first or self.group) == "gloo":
                channels = channels or ([pair(self.group)], None)
            elif channels is not None:
                raise OptionError("channels: only gloo groups can be channels")
        self._on_host = channels is not None
        if channels is None:
            self._run = Rounds(schedule, self.group)
        else:
            self._run = Messages(schedule, channels, self.group, watchdog)

    @property
    def sent_bytes(self) -> np.ndarray:
        """[N] bytes sent to each rank so far, counted message by message."""
        return self._run.sent_bytes

    def __call__(
        self,
        tensor: torch.Tensor,
        *,
        reduction: Reduction = "sum",
        compare: bool | None = None,
        at: Sequence[int] | None = None,
        layout: Layout | None = None,
    ) -> None:
        """Runs the collective on a tensor, in place; all processes of the group call it.

        Args:
            tensor: a tensor of any shape and strides.
            reduction: sum, mean, max or min.
            compare: whether to check that all processes have the same length, type and reduction;
                if not given, they are checked when they are new.
            at: [P+1] start of each piece, the same at all processes; follows from the pieces'
                shares if not given.
            layout: the tensor's layout for a demand; if not given, that of blocks of the planned
                size.
        """
        if layout is None and self.schedule.demand is not None:
            layout = self.layout(tensor.element_size())
        check_reduction(
            reduction,
            floating=tensor.dtype.is_floating_point or tensor.dtype.is_complex,
            dtype=str(tensor.dtype).removeprefix("torch."),
        )
        # Workspaces differ among processes, but their shared settings do not.
        elements = tensor.numel() if layout is None else layout.elements
        key = (elements, tensor.dtype, reduction)
        if compare or (compare is None and key not in self._compared):
            self._compare(tensor, reduction, elements)
            self._compared.add(key)
        with torch.no_grad():
            flat = self._within_reach(read(tensor))
            cuts = self._cuts(flat, at, layout)
            if self.is_own:
                self.guarded(lambda: dist.all_reduce(flat, OPERATIONS[reduction], self.group))
            else:
                self._run(flat, cuts, reduction)
            if reduction == "mean":
                for part, contributors in self._reduced(flat, cuts, layout):
                    part /= contributors
            if flat.data_ptr() != tensor.data_ptr():
                plain(tensor).copy_(flat.view(tensor.shape))

    def _within_reach(self, flat: torch.Tensor) -> torch.Tensor:
        """The same values in memory from which the run can send."""
        if self.is_own or not self._on_host or flat.device.type == "cpu":
            return flat
        return torch.empty(
            flat.shape, dtype=flat.dtype, pin_memory=torch.cuda.is_available()
        ).copy_(flat)

    def layout(self, itemsize: int, elements: int | None = None) -> Layout:
        """The layout of this process's workspace for a demand.

        Args:
            itemsize: bytes per element.
            elements: number of elements in every block, if it differs from the planned size.

        Raises:
            OptionError: the blocks are not multiples of the element size.
            ScheduleError: the schedule has no demand.
        """
        resized = elements is not None
        key = (elements if resized else itemsize, resized)
        if key not in self._layouts:
            of = Layout.resized if resized else Layout.of
            self._layouts[key] = of(self.schedule, self.rank, key[0])
        return self._layouts[key]

    def _cuts(self, flat: torch.Tensor, at: Sequence[int] | None, layout: Layout | None) -> Cuts:
        """Start and end of each piece in a flat tensor."""
        if layout is None:
            starts = self.schedule.piece_offsets(flat.numel()).tolist() if at is None else at
            return tuple(itertools.pairwise(starts))
        if flat.numel() != layout.length:
            raise OptionError(
                f"tensor: expected a workspace of {layout.length:,} elements, got {flat.numel():,}"
            )
        return layout.cuts

    def _reduced(
        self, flat: torch.Tensor, cuts: Cuts, layout: Layout | None
    ) -> list[tuple[torch.Tensor, int]]:
        """The parts of a tensor that hold reductions here, with their contributor counts."""
        if layout is not None:
            summed = layout.summed(self.schedule)
            return [(flat[slice(*cuts[piece])], count) for piece, count in summed]
        if self.schedule.collective == "all_reduce":
            return [(flat, self.size)]
        if self.schedule.collective == "all_gather":
            return []
        here = self.schedule.root == self.schedule.topology.servers[self.rank]
        return [(flat[slice(*cuts[piece])], self.size) for piece in np.flatnonzero(here).tolist()]

    def guarded(self, call: Callable[[], object]) -> None:
        """Calls one of torch.distributed's collectives; on gloo, an error names the lost server."""
        self._run.guarded(call)

    def attended(self, call: Callable[[], object]) -> None:
        """Calls a collective of the same processes in another gloo group.

        Raises:
            LostServerError: a server has gone away, or was silent for longer than the timeout.
        """
        self._run.attended(call)

    def _compare(self, tensor: torch.Tensor, reduction: Reduction, elements: int) -> None:
        name = str(tensor.dtype).removeprefix("torch.")
        try:  # checked now, since an error in the middle of a run would leave other ranks waiting
            combine(reduction, *tensor.new_zeros((2, 1)))
        except RuntimeError as error:
            raise OptionError(f"tensor: there is no {reduction} of {name}") from error
        mine = torch.from_numpy(signature(self.schedule, elements, name, reduction))
        every = torch.stack(self._run.gather(mine if self._on_host else mine.to(tensor.device)))
        if error := mismatch(every.cpu().numpy()):
            raise error
