"""Schedules on torch.distributed: an all-reduce on any process group, and a hook for DDP.

    gradweave.execute.torch_distributed.all_reduce(gradient, schedule)

    ddp_model.register_comm_hook(state=state(schedule), hook=hook)

On gloo each message is sent as soon as its data is there; tensors on GPUs, which its messages do
not take, go by way of the host's memory. Other backends, whose messages between two processes must
be queued in the same order at both, run the schedule round by round.
"""

import itertools
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd import Variable

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
from gradweave.execute.torch_distributed.groups import Group, copy_of, default_group, member_of
from gradweave.execute.torch_distributed.round_by_round import Rounds
from gradweave.execute.torch_distributed.watchdog import Watchdog
from gradweave.schedule.schedule import Schedule

OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


def reduction_of(operation: dist.ReduceOp | dist.ReduceOp.RedOpType) -> Reduction | None:
    """How one of PyTorch's operations combines; None for those that schedules do not run."""
    if operation == dist.ReduceOp.AVG:
        return "mean"
    reductions: tuple[Reduction, ...] = ("sum", "max", "min")
    return next((each for each in reductions if operation == OPERATIONS[each]), None)


def all_reduce(
    tensor: torch.Tensor,
    schedule: Schedule,
    group: Group | None = None,
    *,
    reduction: Reduction = "sum",
) -> None:
    """Replaces each process's tensor by the reduction of all, in place.

    All processes of the group call it, with tensors of the same number of elements and type, which
    is checked first. For many calls a `Collective` is cheaper.

    Args:
        tensor: of any shape and strides.
        schedule: an all-reduce for as many servers as the group has processes; rank r is the r-th
            server in order of id.
        group: the process group; the default one if not given.
        reduction: sum, mean, max or min.

    Raises:
        ScheduleError: the schedule is for another number of servers, or another collective.
        OptionError: the tensor's type has no such reduction.
        RunError: the processes disagree on schedule, length, type or reduction.
        LostServerError: a process went away, or was silent for as long as the group's timeout.
    """
    check_all_reduce(schedule)
    collective_of(schedule, group)(tensor, reduction=reduction, compare=True)


def collective_of(schedule: Schedule, group: Group | None) -> "Collective":
    """A schedule on a group: made by the first call with both, which is collective."""
    made = _collectives.setdefault(group or default_group(), {})
    key = digest(schedule)
    if key not in made:
        made[key] = Collective(schedule, group)
    return made[key]


_collectives: weakref.WeakKeyDictionary[Group, dict[int, "Collective"]]
_collectives = weakref.WeakKeyDictionary()
"""By group and digest of the schedule, so that a file read twice is one schedule."""


class Collective:
    """A schedule on a process group, for many calls.

    Schedules of any collective: a reduce-scatter leaves each piece at its root, and undefined
    values elsewhere; an all-gather reads each piece at its root. Of a demand it takes this
    process's workspace: see `gradweave.execute.layout.Layout`, and `exchange`.

    Args:
        schedule: the schedule.
        group: the process group; the default one if not given.
        channels: instead of the group's own connections, those of pairs of gloo groups of the same
            processes, which may take different routes, and for each transfer which carries it.
        watchdog: ends collectives that stand still; if not given, lost servers are named. Needed
            for a group that PyTorch does not know, such as one of the channels.

    Raises:
        OptionError: torch.distributed has not been initialised, or this process is not in the
            group.
        ScheduleError: the schedule is for another number of servers.
    """

    def __init__(
        self,
        schedule: Schedule,
        group: Group | dist.ProcessGroupGloo | None = None,
        *,
        channels: Channels | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        first = channels[0][0][0] if channels else None
        self.group: Any = member_of(group or (first if isinstance(first, Group) else None))
        self.rank, self.size = self.group.rank(), self.group.size()
        """Of this process, and of the group."""
        check_servers(schedule, self.size, what="processes in the group")
        self.schedule = schedule
        self._layouts: dict[tuple[int, bool], Layout] = {}
        self.is_own = watchdog is None and is_own(schedule, dist.get_backend(self.group))
        """Whether the backend's own all-reduce is called, see `is_own`; it counts no bytes."""
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
            tensor: of any shape and strides.
            reduction: sum, mean, max or min.
            compare: whether to check that all processes have the same length, type and reduction;
                if not given, only where these are new.
            at: [P+1] where the pieces start, the same at all processes; as their shares are if not
                given.
            layout: of a demand, where the tensor has its pieces; for blocks of the size that was
                planned for, if not given.
        """
        if layout is None and self.schedule.demand is not None:
            layout = self.layout(tensor.element_size())
        check_reduction(
            reduction,
            floating=tensor.dtype.is_floating_point or tensor.dtype.is_complex,
            dtype=str(tensor.dtype).removeprefix("torch."),
        )
        key = (tensor.numel(), tensor.dtype, reduction)
        if compare or (compare is None and key not in self._compared):
            self._compare(tensor, reduction, layout)
            self._compared.add(key)
        with torch.no_grad():
            flat = self._within_reach(tensor.detach().reshape(-1))
            cuts = self._cuts(flat, at, layout)
            if self.is_own:
                self.guarded(lambda: dist.all_reduce(flat, OPERATIONS[reduction], self.group))
            else:
                self._run(flat, cuts, reduction)
            if reduction == "mean":
                for part, contributors in self._reduced(flat, cuts, layout):
                    part /= contributors
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat.view(tensor.shape))

    def _within_reach(self, flat: torch.Tensor) -> torch.Tensor:
        """The same values, contiguous, where the run can send them from."""
        if self.is_own or not self._on_host or flat.device.type == "cpu":
            return flat.contiguous()
        return torch.empty(
            flat.shape, dtype=flat.dtype, pin_memory=torch.cuda.is_available()
        ).copy_(flat)

    def layout(self, itemsize: int, elements: int | None = None) -> Layout:
        """Of a demand, where this process's workspace has its pieces.

        Args:
            itemsize: bytes of an element.
            elements: of every block, where it has another size than was planned for.

        Raises:
            OptionError: blocks that elements of that size do not fill.
            ScheduleError: a schedule without a demand.
        """
        resized = elements is not None
        key = (elements if resized else itemsize, resized)
        if key not in self._layouts:
            of = Layout.resized if resized else Layout.of
            self._layouts[key] = of(self.schedule, self.rank, key[0])
        return self._layouts[key]

    def _cuts(self, flat: torch.Tensor, at: Sequence[int] | None, layout: Layout | None) -> Cuts:
        """Where the pieces of a flat tensor are."""
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
        """The parts of a tensor that hold reductions at this process, and of how many."""
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
        """Calls one of torch.distributed's collectives; on gloo, names the server it fails for."""
        self._run.guarded(call)

    def _compare(self, tensor: torch.Tensor, reduction: Reduction, layout: Layout | None) -> None:
        name = str(tensor.dtype).removeprefix("torch.")
        try:  # now, since in the middle of a run it would leave the others waiting
            combine(reduction, *tensor.new_zeros((2, 1)))
        except RuntimeError as error:
            raise OptionError(f"tensor: there is no {reduction} of {name}") from error
        # Workspaces differ among processes.
        elements = tensor.numel() if layout is None else int(layout.size.sum())
        mine = torch.from_numpy(signature(self.schedule, elements, name, reduction))
        every = torch.stack(self._run.gather(mine if self._on_host else mine.to(tensor.device)))
        if error := mismatch(every.cpu().numpy()):
            raise error


class State:
    """State of `hook`: the schedule on a process group of its own."""

    def __init__(self, schedule: Schedule, group: Group | None = None) -> None:
        check_all_reduce(schedule)
        parent = member_of(group)
        check_servers(schedule, dist.get_world_size(parent), what="processes in the group")
        self._backend = dist.get_backend(parent)
        # A group of its own, so that its messages never meet those that DDP sends meanwhile.
        self._apart = copy_of(parent)
        self.collective = Collective(schedule, self._apart)
        """Counts the bytes sent."""
        self._is_own = self.collective.is_own
        self._queue = ThreadPoolExecutor(1, "gradweave")

    def submit(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Starts the mean of a tensor; buckets run one after the other, in the order of DDP."""
        if self._is_own:
            return self._own(tensor)
        done = torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else None)
        if self._backend != "gloo":
            self.collective(tensor, reduction="mean")
            done.set_result(tensor)
            return done
        written = (
            torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None
        )
        run = self._queue.submit(self._run, tensor, written, done)
        _raise_in_backward(run)
        return done

    def _own(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """The backend's own, as DDP calls it without a hook; errors are the backend's, too."""
        tensor /= self._apart.size()
        work = dist.all_reduce(tensor, group=self._apart, async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0])

    def _run(self, tensor: torch.Tensor, written: Any, done: torch.futures.Future) -> None:
        try:
            if written is not None:  # an event of backward's stream, which is not this thread's
                written.wait(torch.cuda.current_stream(tensor.device))
            self.collective(tensor, reduction="mean")
        except BaseException:
            # DDP takes nothing but a tensor, on a static graph before backward raises the error;
            # and the parameters' gradients may be views of this one.
            done.set_result(tensor.fill_(torch.nan))
            raise
        done.set_result(tensor)


def _raise_in_backward(run: Future[None]) -> None:
    """Has the running ``backward`` wait for a run, and raise the error that it ends with.

    DDP takes the error of a `torch.futures.Future` for its result, and cannot cast it to a tensor.
    A callback of autograd at the end of backward may raise anything; DDP's own callback comes after
    it.
    """
    try:
        Variable._execution_engine.queue_callback(run.result)
    except RuntimeError:  # outside of backward, in DDP's `join`
        run.result()


def state(schedule: Schedule, group: Group | None = None) -> State:
    """What to register together with `hook`; collective, since it makes a process group.

    Args:
        schedule: an all-reduce for as many servers as the group has processes.
        group: DDP's process group; the default one if not given. Its timeout holds for the hook.

    Raises:
        ScheduleError: the schedule is for another number of servers, or another collective.
    """
    return State(schedule, group)


def hook(
    state: State,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
) -> torch.futures.Future[torch.Tensor]:
    """Communication hook for DDP: the mean of each bucket, by the schedule.

    ``ddp_model.register_comm_hook(state=state(schedule), hook=hook)``

    Errors are raised by ``loss.backward()``: LostServerError where a process went away, or was
    silent for as long as the process group's timeout. The DDP model cannot be used any more then;
    its module can, in a new DDP model on a new process group.

    Source: https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
    """
    return state.submit(bucket.buffer())
