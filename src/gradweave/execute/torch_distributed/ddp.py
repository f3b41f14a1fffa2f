"""A hook of DDP that averages gradients by a schedule.

    gradweave.torch.ddp_hook(ddp_model, schedule)

With ``on_loss="shrink"``, the others continue if a server is lost: see `shrinking`.
"""

import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from gradweave.errors import OptionError
from gradweave.execute.program import check_all_reduce, check_servers
from gradweave.execute.torch_distributed.backend import Collective
from gradweave.execute.torch_distributed.completions import Completions
from gradweave.execute.torch_distributed.groups import Group, alone, copy_of, member_of
from gradweave.execute.torch_distributed.shrinking import OnLoss, Planner, Returning, Shrinking
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule


class State:
    """State of the hook of `ddp_hook`: the schedule on a separate process group."""

    def __init__(self, schedule: Schedule, group: Group | None = None) -> None:
        check_all_reduce(schedule)
        parent = member_of(group)
        check_servers(schedule, dist.get_world_size(parent), what="processes in the group")
        self._backend = dist.get_backend(parent)
        # A separate group, so that its messages never meet those that DDP sends meanwhile.
        self._apart = copy_of(parent)
        self.collective = Collective(schedule, self._apart)
        """The collective, which counts the bytes sent."""
        self._is_own = self.collective.is_own
        self._queue, self._completions = ThreadPoolExecutor(1, "gradweave"), Completions()

    def submit(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Starts the mean of a tensor; buckets run one after the other, in the order of DDP."""
        if self._is_own:
            return self._own(tensor)
        devices = [tensor.device] if tensor.is_cuda else None
        if self._backend != "gloo":
            self.collective(tensor, reduction="mean")
            done = torch.futures.Future(devices=devices)  # pyright: ignore[reportArgumentType]
            done.set_result(tensor)
            return done
        written = (
            torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None
        )
        done, complete = self._completions.future(lambda: tensor, devices)
        run = self._queue.submit(self._run, tensor, written, complete)
        _raise_in_backward(run)
        return done

    def _own(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """The backend's all-reduce, called as in DDP without a hook; errors are the backend's."""
        tensor /= self._apart.size()
        work = dist.all_reduce(tensor, group=self._apart, async_op=True)
        assert work is not None
        return work.get_future().then(lambda done: done.value()[0])

    def _run(self, tensor: torch.Tensor, written: Any, complete: Callable[[], None]) -> None:
        try:
            if written is not None:  # an event of the stream of backward's thread
                written.wait(torch.cuda.current_stream(tensor.device))
            self.collective(tensor, reduction="mean")
        except BaseException:
            # DDP accepts only tensors here. On a static graph it reads the result before backward
            # raises the error, and the parameters' gradients may be views of this tensor.
            tensor.fill_(torch.nan)
            raise
        finally:
            complete()


def _raise_in_backward(run: Future[None]) -> None:
    """Makes the running ``backward`` wait for a run, and raise the run's error.

    DDP would take the error of a `torch.futures.Future` for its result and fail to cast it to a
    tensor. A callback of autograd at the end of backward may raise any error, and DDP's callback
    runs after it.
    """
    try:
        Variable._execution_engine.queue_callback(run.result)
    except RuntimeError:  # outside of backward, in DDP's `join`
        run.result()


class ShrinkingState:
    """State of the hook of `ddp_hook` with ``on_loss="shrink"``.

    DDP itself communicates no more: each server's model gets a process group of this server alone.

    Args:
        model: see `ddp_hook`.
        schedule: see `ddp_hook`.
        group: see `ddp_hook`.
        optimizer: see `ddp_hook`.
    """

    def __init__(
        self,
        model: Any,
        schedule: ScheduleLike | Planner,
        group: Group | Returning | None,
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        if model.find_unused_parameters:
            raise OptionError("model: on_loss='shrink' needs find_unused_parameters=False")
        self._model = model
        self._place = {id(one): place for place, one in enumerate(model.parameters())}
        self._buffers = list(model.module.buffers()) if model.will_sync_module_buffers() else []
        state = [] if optimizer is None else [model.module, optimizer]
        self.means = Shrinking(schedule, group, state=state)
        """The averages, and the servers that take part in them."""
        model._update_process_group(alone(self.means.name))
        self._queue, self._completions = ThreadPoolExecutor(1, "gradweave"), Completions()
        self._waiting: list[Callable[[], None]] = []
        self._results: list[torch.Tensor] = []
        self._layout, self._error = 0, None
        if optimizer is not None:
            optimizer.register_step_post_hook(self._boundary)

    @property
    def steps(self) -> int:
        """Number of steps that the servers have completed, including those before this one came."""
        return self.means.steps

    @property
    def averaged(self) -> tuple[int, ...]:
        """The ranks whose gradients the last step has averaged."""
        return self.means.averaged

    def submit(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Starts the mean of a bucket; the futures of all are complete when the step is."""
        tensor, number, last = bucket.buffer(), bucket.index(), bucket.is_last()
        places = [self._place[id(one)] for one in bucket.parameters()]
        self._layout = zlib.crc32(repr(places).encode(), self._layout if number else 0)
        devices = [tensor.device] if tensor.is_cuda else None
        written = (
            torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None
        )
        done, complete = self._completions.future(lambda: self._results[number], devices)
        run = self._queue.submit(self._run, tensor, written, complete, last)
        _raise_in_backward(run)
        return done

    def _run(
        self, tensor: torch.Tensor, written: Any, complete: Callable[[], None], last: bool
    ) -> None:
        self._waiting.append(complete)
        over = last
        try:
            if written is not None:  # an event of the stream of backward's thread
                written.wait(torch.cuda.current_stream(tensor.device))
            if self._error is not None:
                raise self._error
            self.means.mean(tensor)
            if last:
                self._commit()
        except BaseException as error:
            # DDP reads the results before backward raises the error; see `State`.
            self._error, over = error, True
            self._results = [torch.full_like(one, torch.nan) for one in self.means.results()]
            raise
        finally:
            if over:
                waiting, self._waiting = self._waiting, []
                for each in waiting:
                    each()

    def _commit(self) -> None:
        """Completes a step, with the first member's buffers at all members, as in DDP."""
        flat = _as_bytes(self._buffers)
        if flat is not None:
            self.means.copy(flat)
        self._results = self.means.commit(self._layout)
        if flat is not None:
            _put(self._results[-1], self._buffers)

    def _boundary(self, *_: object) -> None:
        """Admits servers that have asked, and gives all of them the same buckets again."""
        if self.means.boundary():
            model, static = self._model, self._model.static_graph
            parameters, sparse = model._build_params_for_reducer()
            names = model._build_debug_param_to_name_mapping(parameters)
            model._ddp_init_helper(parameters, sparse, names, static)
            model._has_rebuilt_buckets = False
            if static:
                model.reducer._set_static_graph()
            dist._register_comm_hook(model.reducer, self, _hook)  # pyright: ignore


def _as_bytes(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """A copy of the contents of some tensors; None if there are none."""
    with torch.no_grad():
        parts = [one.reshape(-1).view(torch.uint8) for one in tensors if one.numel()]
        return torch.cat(parts) if parts else None


@torch.no_grad()
def _put(content: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Writes contents of `_as_bytes` into the tensors."""
    begin = 0
    for one in tensors:
        one.copy_(content[begin : begin + one.nbytes].view(one.dtype).view(one.shape))
        begin += one.nbytes


def ddp_hook(
    model: Any,
    schedule: ScheduleLike | Planner,
    group: Group | Returning | None = None,
    *,
    on_loss: OnLoss = "raise",
    optimizer: torch.optim.Optimizer | None = None,
) -> State | ShrinkingState:
    """Has DDP take the mean of each bucket of gradients by a schedule.

    All processes call it, since it makes a process group. ``loss.backward()`` raises the errors:
    LostServerError if a process went away, or was silent for longer than the process group's
    timeout. After that, the DDP model is unusable; its module can be used in a new DDP model on a
    new process group.

    With ``on_loss="shrink"``, the others average the gradients of such a step again without that
    server's, and continue. The process that holds the job's store must not be lost. Other
    collectives of the program on groups that have the lost server fail nevertheless. A process that
    was started again gives its place in the job as `group`; it is admitted after a step, and
    receives the parameters, the buffers and the optimizer's state.

    Args:
        model: a `torch.nn.parallel.DistributedDataParallel`.
        schedule: an all-reduce for as many servers as the group has processes; rank r is the r-th
            server in order of id. With ``on_loss="shrink"``, gloo's all-reduce runs between the
            servers that are left; or give a function from their ranks to the schedule between them.
        group: DDP's process group; the default group if not given. Its timeout applies to the hook.
        on_loss: what happens if a server is lost.
        optimizer: the optimizer, whose steps end the training steps between which servers are
            admitted; if not given, none is.

    Returns:
        The hook's state. Its ``collective`` counts the bytes sent. With ``on_loss="shrink"``, its
        ``steps`` counts the steps completed, and ``averaged`` has the ranks that the last one
        averaged.

    Raises:
        ScheduleError: the schedule is for another number of servers, or another collective.
        OptionError: the options do not go together, or the model may have unused parameters.

    Source: https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
    """
    if on_loss == "shrink":
        state = ShrinkingState(model, schedule, group, optimizer)
    elif on_loss != "raise":
        raise OptionError(f"on_loss: expected raise or shrink, got {on_loss!r}")
    elif callable(schedule) or isinstance(group, Returning):
        raise OptionError(
            "on_loss: expected shrink with a function of schedules, or a returning server"
        )
    else:
        state = State(as_schedule(schedule), group)
    model.register_comm_hook(state=state, hook=_hook)
    return state


def _hook(
    state: State | ShrinkingState,
    bucket: dist.GradBucket,  # pyright: ignore[reportPrivateImportUsage]
) -> torch.futures.Future[torch.Tensor]:
    given: Any = bucket
    return state.submit(given.buffer() if isinstance(state, State) else given)
