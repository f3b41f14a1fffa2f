"""Local updates in PyTorch: a hook on an optimizer's step, as there is one for DDP's gradients.

    hook = LocalUpdates(model.parameters(), DiLoCo(local_steps=50), schedule)
    optimizer.register_step_post_hook(hook)

The model is not wrapped in DDP: between averages nothing is sent. The notation is that of
`gradweave.aggregate.local.methods`.
"""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gradweave.aggregate import threefry
from gradweave.aggregate.local.flat import FlatTensors, floating, trained
from gradweave.aggregate.local.methods import Arrived, LocalMethod, Worker
from gradweave.aggregate.local.torch_exchanges import (
    ByMixing,
    BySchedule,
    Exchange,
    Gathered,
)
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.torch_steps import (
    Arguments,
    GuardedSteps,
    Trained,
    all_finite,
    check_alike,
    on_each_step_of,
)
from gradweave.errors import OptionError
from gradweave.execute.torch_distributed.groups import default_group
from gradweave.schedules.given import ScheduleLike


class Averages(NamedTuple):
    """The result of a communication, for one fragment."""

    number: int
    """Number of the communication, from 1."""
    size: int
    """Number of elements of all parameters when it began."""
    arrived: Arrived
    """The average over the workers that count."""
    counted: int
    """Number of workers that made a step since the last communication; all, if neighbours mix."""
    mine: bool
    """Whether this worker made a step."""
    buffers: torch.Tensor
    """Average of each buffer element over the workers that have a finite value, or NaN."""


class LocalUpdates:
    """A hook for `torch.optim.Optimizer.register_step_post_hook`.

    With a delay, a thread averages a fragment while the next steps are made.

    A step that is not finite is skipped as in JAX: neither the parameters nor the optimizer's state
    change. A worker that made no finite step since the last communication does not count in the
    average, and takes φ. Parameters that are unfrozen, or added to the optimizer, join before their
    first step, which must be the same step at all workers. Create this before loading a
    checkpoint's parameters, then call `load_state_dict`.

    Args:
        parameters: parameters of the model, equal at all workers at the start.
        method: what workers send, when, and how they use its average.
        exchange: how messages are averaged: for methods that mix, a mixing matrix, by default the
            method's; for others a schedule, by default the backend's all-reduce.
        buffers: buffers of the model, such as BatchNorm's statistics. Floating-point buffers are
            averaged with each fragment, without elements that are not finite; each worker keeps its
            integer buffers.
        seed: seed of the parts that are averaged and of default exchanges, the same at all workers.

    Raises:
        OptionError: there are no parameters, the workers' parameters differ, the exchange does not
            fit the method, or the method has to exclude workers, which needs
            `gradweave.aggregate.local.quorum`.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        method: LocalMethod,
        exchange: Exchange | ScheduleLike | MixingMatrix | None = None,
        *,
        buffers: Iterable[torch.Tensor] = (),
        seed: int = 0,
    ) -> None:
        self._trained = Trained(parameters)
        if method.quorum > 1 or method.in_time > 0:
            raise OptionError(
                "quorum: a collective waits for all its workers; use "
                "gradweave.aggregate.local.quorum.QuorumMember"
            )
        self._method, self._seed = method, seed
        self.exchange = _exchange_of(method, exchange, seed)
        self._buffers = floating(buffers)
        self._guard = GuardedSteps()
        self._hold(self._trained.joined)
        self._shared = self._parameters.read()
        self._momentum = torch.zeros_like(self._shared)
        check_alike(self.exchange.group, method.name, [self._buffers.read(), self._shared])
        self._queue = ThreadPoolExecutor(1, "gradweave-local")
        self._arriving: Future[Averages] | None = None
        self._taken = 0
        """Number of steps that this worker has made since the last communication."""
        self.steps = 0
        """Number of optimizer steps so far."""
        self.counted = 0
        """Number of workers that made a step before the last communication."""
        on_each_step_of(self._trained, self, LocalUpdates._before_step)

    @property
    def not_finite(self) -> int:
        """Number of steps skipped because this worker's gradients were not finite."""
        return self._guard.not_finite

    def __call__(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Called after each step of the optimizer."""
        self.steps += 1
        phase, number = self.steps % self._method.interval, self.steps // self._method.interval
        self._taken += self._guard.after(optimizer)
        with torch.no_grad():
            if phase == 0:
                size = len(self._shared)
                worker = self._worker(number, size)
                mine, self._taken = self._taken > 0 and all_finite([worker.x]), 0
                message = self._method.message(worker if mine else worker._replace(x=worker.shared))
                self._arriving = self._queue.submit(
                    self._averages, number, size, message, mine, self._buffers.read()
                )
            if phase == self._method.delay and self._arriving is not None:
                self._take(self._arriving.result())
                self._arriving = None

    def state_dict(self) -> dict[str, Any]:
        """The worker's state between steps, except its parameters and its optimizer's state.

        The state differs by worker. This call waits for a pending average, so all processes must
        call it after the same step.
        """
        arrived = None if self._arriving is None else self._arriving.result()
        return {
            "steps": self.steps,
            "taken": self._taken,
            "counted": self.counted,
            "not_finite": self.not_finite,
            "parameters": self._trained.places,
            "shared": self._shared.clone(),
            "momentum": self._momentum.clone(),
            "arriving": arrived and (*arrived[:2], *arrived.arrived, *arrived[3:]),
            "exchange": self.exchange.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state.

        Raises:
            OptionError: the state belongs to other parameters.
        """
        self._trained.restore(state["parameters"])
        self._hold(self._trained.joined)
        if len(state["shared"]) != len(self._parameters):
            raise OptionError(
                f"state of {self._method.name}: expected {len(self._parameters)} elements, got "
                f"{len(state['shared'])}; it belongs to other parameters"
            )
        self._shared = state["shared"].to(self._shared)
        self._momentum = state["momentum"].to(self._shared)
        self._arriving = None
        if state["arriving"] is not None:
            number, size, *vectors, counted, mine, buffers = state["arriving"]
            arrived = Arrived(*(one.to(self._shared) for one in vectors))
            averages = Averages(number, size, arrived, counted, mine, buffers)
            self._arriving = self._queue.submit(lambda: averages)
        self.steps, self._taken = int(state["steps"]), int(state["taken"])
        self.counted, self._guard.not_finite = int(state["counted"]), int(state["not_finite"])
        self.exchange.load_state_dict(state["exchange"])

    def _hold(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parameters = FlatTensors(parameters)
        self._guard.vectors = [self._parameters]

    @torch.no_grad()
    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> Arguments | None:
        """Lets late parameters join, and makes the optimizer skip steps that are not finite."""
        if late := self._trained.late(optimizer):
            new = FlatTensors(trained(late), self._shared.dtype).read()
            if self._arriving is not None:
                self._arriving.result()  # keeps the order of messages the same at all workers
            check_alike(self.exchange.group, self._method.name, [new])
            self._trained.joined += late
            self._hold(self._trained.joined)
            self._shared = torch.cat([self._shared, new])
            self._momentum = torch.cat([self._momentum, torch.zeros_like(new)])
        return self._guard.before(args, kwargs)

    def _averages(
        self, number: int, size: int, message: torch.Tensor, mine: bool, buffers: torch.Tensor
    ) -> Averages:
        """The averages over the workers that count. Runs in a thread."""
        exchange, group = self.exchange, self.exchange.group
        workers = dist.get_world_size(group)
        buffers = buffers.to(message)
        if isinstance(exchange, ByMixing):
            arrived = Arrived(message, message, exchange.mean(message))
            return Averages(number, size, arrived, workers, mine, exchange.mixed(buffers))
        finite = buffers.isfinite()
        sums = torch.cat([message.new_tensor([mine]), finite, torch.where(finite, buffers, 0)])
        dist.all_reduce(sums, group=group)
        counted = int(sums[0])
        mean = exchange.mean(message.clone() if mine else torch.zeros_like(message))
        if 0 < counted < workers:
            mean *= workers / counted
        own = exchange.own if isinstance(exchange, Gathered) else message
        counts, totals = sums[1:].split(len(buffers)) if len(buffers) else (buffers, buffers)
        arrived = Arrived(message, own, mean)
        return Averages(number, size, arrived, counted, mine, totals / counts)

    def _take(self, averages: Averages) -> None:
        """Makes new parameters and buffers of the averages."""
        self.counted, method = averages.counted, self._method
        keep = method.keep if averages.mine else 0.0
        own = self._buffers.read()
        mean = averages.buffers.to(own)
        mean = torch.where(own.isfinite(), keep * own + (1 - keep) * mean, mean)
        self._buffers.write(torch.where(mean.isfinite(), mean, own))
        if not averages.counted:
            return
        part = self._part(averages.number, averages.size)
        worker = self._worker(averages.number, averages.size)
        after = method.take(worker, averages.arrived, averages.mine)
        x = self._parameters.read()
        x[part], self._shared[part], self._momentum[part] = after
        self._parameters.write(x)

    def _worker(self, number: int, size: int) -> Worker:
        """The fragment of a communication."""
        part = self._part(number, size)
        return Worker(self._parameters.read()[part], self._shared[part], self._momentum[part])

    def _part(self, number: int, size: int) -> slice | torch.Tensor:
        """The places of a fragment among the first `size` elements."""
        turn, length = (number - 1) % self._method.fragments, -(-size // self._method.fragments)
        part = slice(turn * length, min((turn + 1) * length, size))
        if not self._method.scattered:
            return part
        key = threefry.fold_in(threefry.key_of(self._seed), 0)
        key = threefry.fold_in(key, (number - 1) // self._method.fragments)
        return threefry.permutation(key, size, self._shared.device)[part]


def _exchange_of(method: LocalMethod, given: Any, seed: int) -> Exchange:
    """The exchange of a method.

    Raises:
        OptionError: the given exchange does not fit it.
    """
    if given is None and method.mixes:
        given = method.default_mixing(default_group().size(), seed)
    elif given is None and method.feeds_back:
        given = Gathered(method.default_compressor, seed=seed)
    if isinstance(given, Exchange):
        made = given
    else:
        made = ByMixing(given) if isinstance(given, MixingMatrix) else BySchedule(given)
    fits = (isinstance(made, ByMixing), isinstance(made, Gathered))
    if fits != (method.mixes, method.feeds_back):
        like = "ByMixing" if method.mixes else "Gathered" if method.feeds_back else "BySchedule"
        raise OptionError(
            f"{method.name}: expected an exchange like {like}, got {type(made).__name__}"
        )
    return made
