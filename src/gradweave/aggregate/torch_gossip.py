"""Decentralized training in PyTorch: hooks on an optimizer's steps, with the same rules as in JAX.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gossip = Gossip(optimizer, ChocoSGD(), MixingMatrix.ring(8), MaxNorm(bits=4))

From then on each `optimizer.step()` also mixes this process's parameters with its neighbours'. The
model is not wrapped in DDP: nothing else is sent. The notation and the rules are those of
`gradweave.aggregate.rules`, with the same compressors and mixing matrices. With the same seed,
parameters equal those of `gradweave.aggregate.gossip` in JAX up to rounding. JAX is not needed.
"""

import contextlib
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gradweave.aggregate import threefry
from gradweave.aggregate.arrays import PyTree
from gradweave.aggregate.compressors import Compressor, Uncompressed
from gradweave.aggregate.local.flat import FlatTensors, floating, trained
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.payloads import as_bytes, from_bytes
from gradweave.aggregate.rules import (
    ChocoSGD,
    GossipRule,
    Strictness,
    WorkerState,
    check_gossip_options,
)
from gradweave.aggregate.torch_steps import (
    Arguments,
    GuardedSteps,
    Trained,
    check_alike,
    parameters_of,
    unlike_the_first,
)
from gradweave.aggregate.validity import ValidityWarning, advised_consensus, check_validity, enforce
from gradweave.common.wording import listed, noun_of
from gradweave.errors import OptionError, RunError
from gradweave.execute.torch_distributed.groups import Group, copy_of


class Gossip:
    """Adds a rule to an optimizer of PyTorch; all processes of the group make one.

    A gradient that is not finite is skipped as in JAX: the process's optimizer makes no step, but
    the process still mixes. So every process must call `optimizer.step()` equally often. This
    excludes `torch.amp.GradScaler`, which skips steps; bfloat16 does not need it.

    Learning-rate schedules and anything else that acts on the optimizer work as before. Create this
    before loading a checkpoint's parameters, then call `load_state_dict`.

    Parameters that are unfrozen, or added to the optimizer, join the others before their first
    step, which must be the same step at all workers.

    Args:
        optimizer: optimizer of a worker's local steps. It is not replaced: hooks are added to it.
        rule: what workers send, and how they use what they receive.
        mixing: weights with which a worker averages its neighbours' parameters with its own; worker
            i is rank i of the group.
        compressor: compressor of all messages; by default no compression.
        group: the process group; by default the default group. Messages use a copy of it.
        local_steps: steps per communication.
        seed: seed of the compressor's random numbers, the same at all workers.
        strictness: how to handle a doubtful choice, see `gradweave.aggregate.check_validity`.
        same_data: whether all workers draw their data from one distribution.
        buffers: buffers of the model, such as BatchNorm's statistics. Floating-point buffers are
            mixed with the same weights, uncompressed, without elements that are not finite; each
            worker keeps its integer buffers.

    Raises:
        OptionError: an argument is out of its range, or doubtful with ``"refuse"``; or the workers'
            parameters differ and the rule keeps estimates (with other rules this is a doubt).
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rule: GossipRule,
        mixing: MixingMatrix,
        compressor: Compressor | None = None,
        group: Group | None = None,
        *,
        local_steps: int = 1,
        seed: int = 0,
        strictness: Strictness = "warn",
        same_data: bool = False,
        buffers: Iterable[torch.Tensor] = (),
    ) -> None:
        check_gossip_options(local_steps, strictness)
        rule.check_mixing(mixing)
        self._rule, self._mixing = rule, mixing
        self._compressor = compressor or Uncompressed()
        self._local_steps, self._seed = local_steps, seed
        self._optimizer = optimizer
        self._trained = Trained(parameters_of(optimizer))
        self._buffers = list(buffers)
        self._vectors: list[_Vector] = []
        self._guard = GuardedSteps()
        self._add(self._trained.joined)
        coarsest = min((one.dtype for one in self._vectors), key=lambda each: each.itemsize)
        self._strictness: Strictness = strictness
        self._validity_of = partial(
            check_validity,
            rule.name,
            compressor=self._compressor if rule.compresses else None,
            size=sum(one.numel() for one in self._trained.joined),
            consensus=rule.consensus if isinstance(rule, ChocoSGD) else None,
            dtype=coarsest,
            same_data=same_data,
        )
        watched = None if strictness == "ignore" else optimizer
        enforce(self._validity_of(mixing, optimizer=watched), strictness)
        self._group = copy_of(group)
        self._check_workers()
        self.steps = 0
        """Number of optimizer steps so far."""
        self.sent_bytes = 0
        """Bytes that this process has sent so far."""
        self._hooks = (
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        )

    @property
    def not_finite(self) -> int:
        """Number of steps skipped because this process's gradients were not finite."""
        return self._guard.not_finite

    def remove(self) -> None:
        """Removes the hooks from the optimizer. All processes call it before the same step."""
        for hook in self._hooks:
            hook.remove()

    def mix_by(self, mixing: MixingMatrix) -> None:
        """Continues with another mixing matrix, for instance after links have changed.

        All processes call it before the same step. A checkpoint does not contain the matrix: to
        resume from it, make `Gossip` with the last matrix.

        Raises:
            OptionError: the matrix differs between workers, or is for another number of workers; or
                the rule keeps estimates, which are sums with the earlier weights.
        """
        if self._rule.keeps_estimates:
            raise OptionError(
                f"{self._rule.name} keeps sums with the weights of its mixing matrix, which "
                "therefore cannot change; with d_psgd it can"
            )
        self._check_size(mixing)
        enforce(self._validity_of(mixing), self._strictness)
        weights = torch.tensor(mixing.weights, device=self._trained.joined[0].device)
        other = unlike_the_first(self._group, [weights])
        if other is not None:
            raise OptionError(
                f"mix_by: expected the same matrix at all workers, but that of worker {other} "
                "differs from that of worker 0"
            )
        self._mixing = mixing

    @torch.no_grad()
    def consensus(self) -> list[torch.Tensor]:
        """The mean of all workers' parameters, for evaluation or saving; all processes call it.

        Returns:
            One tensor per trained parameter, in the optimizer's order, then the buffers that were
            given; integer buffers have the maximum over the workers.
        """
        self._join_late()
        joined = {id(one) for one in self._trained.joined}
        parameters = [one for one in parameters_of(self._optimizer) if id(one) in joined]
        means = []
        for one in (*parameters, *self._buffers):
            if one.is_floating_point():
                mean = one.detach().to(torch.promote_types(one.dtype, torch.float32), copy=True)
                dist.all_reduce(mean, group=self._group)
                means.append(mean.div_(self._mixing.workers).to(one.dtype))
            else:
                most = one.detach().to(torch.int64, copy=True)
                dist.all_reduce(most, dist.ReduceOp.MAX, group=self._group)
                means.append(most.to(one.dtype))
        return means

    def state_dict(self) -> dict[str, Any]:
        """The worker's state between steps, except its parameters and its optimizer's state.

        The state differs by worker, and so do the parameters.
        """
        return {
            "steps": self.steps,
            "sent_bytes": self.sent_bytes,
            "not_finite": self.not_finite,
            "parameters": self._trained.places,
            "estimates": [one.estimate for one in self._vectors],
            "mixtures": [one.mixture for one in self._vectors],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state.

        Raises:
            OptionError: the state belongs to other parameters, or to another rule.
        """
        if "parameters" in state:
            self._trained.restore(state["parameters"])
            self._vectors.clear()
            self._add(self._trained.joined)
        for name in ("estimates", "mixtures"):
            given = [None if one is None else len(one) for one in state[name]]
            expected = [len(one) if self._rule.keeps_estimates else None for one in self._vectors]
            if given != expected:
                raise OptionError(
                    f"state of {self._rule.name}: expected {name} of {expected} elements, got "
                    f"{given}; it belongs to other parameters, or to another rule"
                )
        self.steps, self.sent_bytes = int(state["steps"]), int(state["sent_bytes"])
        self._guard.not_finite = int(state["not_finite"])
        for vector, estimate, mixture in zip(
            self._vectors, state["estimates"], state["mixtures"], strict=True
        ):
            if estimate is not None:
                vector.estimate.copy_(estimate)
                vector.mixture.copy_(mixture)

    def _check_workers(self) -> None:
        """Refuses a group of another size, and parameters that differ although they must not."""
        self._check_size(self._mixing)
        vectors = [one.parameters.read() for one in self._vectors]
        self._check_alike([floating(self._buffers).read(), *vectors])

    def _check_alike(self, vectors: Sequence[torch.Tensor]) -> None:
        """Refuses parameters that differ between workers, or warns of them; all workers call it."""
        if self._rule.keeps_estimates or self._strictness == "refuse":
            check_alike(self._group, self._rule.name, vectors)
        elif self._strictness == "warn":
            other = unlike_the_first(self._group, vectors)
            if other is not None:
                warnings.warn(
                    f"{self._rule.name}: the parameters of worker {other} differ from those of "
                    "worker 0; use one seed, unless different starts are intended",
                    ValidityWarning,
                    stacklevel=4,
                )

    def _add(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Adds parameters to the vectors of their types."""
        for dtype in dict.fromkeys(one.dtype for one in parameters):
            if all(vector.dtype != dtype for vector in self._vectors):
                self._vectors.append(_Vector(dtype))
        for vector in self._vectors:
            vector.add([one for one in parameters if one.dtype == vector.dtype], self._rule)
        self._guard.vectors = [vector.parameters for vector in self._vectors]

    @torch.no_grad()
    def _join_late(self) -> None:
        """Adds parameters that become trained; all workers do so before the same step."""
        late = self._trained.late(self._optimizer)
        if late:
            trained(late)
            self._check_alike([FlatTensors(late).read()])
            self._trained.joined += late
            self._add(late)

    def _check_size(self, mixing: MixingMatrix) -> None:
        mixing.check_workers(dist.get_world_size(self._group), f"{self._rule.name}'s mixing matrix")

    def _before_step(self, _: torch.optim.Optimizer, args: Any, kwargs: Any) -> Arguments | None:
        """Saves the parameters, and makes the optimizer skip a step with gradients not finite."""
        self._join_late()
        return self._guard.before(args, kwargs)

    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Computes u, and mixes if a communication is due."""
        self.steps += 1
        self._guard.after(optimizer)
        number, late = divmod(self.steps, self._local_steps)
        if not late:
            self._communicate(number)

    def _communicate(self, number: int) -> None:
        """Communication `number`, from 1, with the neighbours of this turn."""
        key = threefry.fold_in(threefry.key_of(self._seed), number)
        key = threefry.fold_in(key, dist.get_rank(self._group))
        for place, (vector, x) in enumerate(zip(self._vectors, self._guard.start, strict=True)):
            channel = TorchChannel(
                number,
                self._mixing,
                self._compressor,
                threefry.fold_in(key, place),
                vector.dtype,
                x,
                self._group,
            )
            worker = WorkerState(x, vector.estimate, vector.mixture)
            after = self._rule.communicate(worker, vector.parameters.read() - x, channel)
            vector.parameters.write(after.x)
            vector.estimate, vector.mixture = after.estimate, after.mixture
            self.sent_bytes += channel.sent_bytes
        self._mix_buffers(number)

    def _mix_buffers(self, number: int) -> None:
        """Averages the buffers with the neighbours', over the finite values of each element."""
        buffers = floating(self._buffers)
        if not len(buffers):
            return
        own = buffers.read()
        meeting = Meeting(number, self._mixing, own.dtype, self._group)
        self.sent_bytes += meeting.sent_to * own.numel() * own.element_size()
        buffers.write(mixed_where_finite(meeting, own))


class _Vector:
    """The parameters of one type, and the rule's state for them."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.parameters = FlatTensors([], torch.promote_types(dtype, torch.float32))
        self.estimate: Any = None
        self.mixture: Any = None

    def __len__(self) -> int:
        return len(self.parameters)

    def add(self, parameters: Sequence[torch.nn.Parameter], rule: GossipRule) -> None:
        """Adds parameters, which must agree between workers if the rule keeps estimates."""
        if not parameters:
            return
        self.parameters.tensors += parameters
        if rule.keeps_estimates:
            new = FlatTensors(parameters, self.parameters.dtype).read()
            self.estimate = new if self.estimate is None else torch.cat([self.estimate, new])
            self.mixture = new.clone() if self.mixture is None else torch.cat([self.mixture, new])


class Meeting:
    """The neighbours of a worker in one communication, and their weights.

    Args:
        number: number of the communication, from 1.
        mixing: the weights; communications use its steps in turn.
        dtype: type to which weights are rounded.
        group: process group, in which rank i is worker i.
    """

    def __init__(self, number: int, mixing: MixingMatrix, dtype: torch.dtype, group: Group) -> None:
        turn = (number - 1) % mixing.period
        rank = dist.get_rank(group)
        self._group = group
        kind = np.float64 if dtype == torch.float64 else np.float32
        self._weights = mixing.weights_in(kind)[turn, rank].tolist()
        self.own: float = self._weights[rank]
        """Weight of this worker's vector."""
        pairs = [pair for exchange in mixing.exchanges[turn] for pair in exchange.pairs]
        self._to = [target for source, target in pairs if source == rank]
        self._from = [source for source, target in pairs if target == rank]

    @property
    def sent_to(self) -> int:
        """Number of workers that receive from this worker."""
        return len(self._to)

    def exchanged(self, message: torch.Tensor) -> list[tuple[float, torch.Tensor]]:
        """Sends a message to all neighbours, and returns their messages with their weights.

        Raises:
            RunError: a neighbour is lost, or silent for the group's timeout.
        """
        messages = [torch.empty_like(message) for _ in self._from]
        into = dict(zip(self._from, messages, strict=True))
        _exchange(self._group, into, self._to, message)
        return [(self._weights[one], into[one]) for one in self._from]


def mixed_where_finite(meeting: Meeting, own: torch.Tensor) -> torch.Tensor:
    """[size] the average with the neighbours', over the finite values of each element."""
    total, weights = torch.zeros_like(own), torch.zeros_like(own)
    for weight, one in [(meeting.own, own), *meeting.exchanged(own)]:
        finite = one.isfinite()
        total.add_(torch.where(finite, one, 0), alpha=weight)
        weights.add_(finite, alpha=weight)
    return torch.where(weights > 0, total / weights, own)


class TorchChannel:
    """One communication of one vector [size] with the neighbours, as used by a rule.

    Args:
        number: number of the communication, from 1.
        mixing: weights with which a worker averages its neighbours' payloads with its own;
            communications use its steps in turn.
        compressor: compressor of the messages.
        key: key of the compressor's random numbers.
        dtype: type of the parameters, and of the messages.
        like: a vector of the type in which the rule computes.
        group: process group, in which rank i is worker i.
    """

    def __init__(
        self,
        number: int,
        mixing: MixingMatrix,
        compressor: Compressor,
        key: threefry.Key,
        dtype: torch.dtype,
        like: torch.Tensor,
        group: Group,
    ) -> None:
        self.number = number
        self.sent_bytes = 0
        """Bytes that this worker has sent in this communication."""
        self._compressor, self._key, self._dtype = compressor, key, dtype
        self._size, self._computed = len(like), like.dtype
        self._mu = mixing.mu
        self._meeting = Meeting(number, mixing, like.dtype, group)

    @property
    def consensus(self) -> float:
        """γ that the mixing matrix and the compressor allow for vectors of this size."""
        return advised_consensus(self._mu, self._compressor.relative_error(self._size))

    def compress(self, vector: torch.Tensor) -> PyTree:
        """[size] → payload, in the parameters' precision."""
        return self._compressor.compress(self._key, vector.to(self._dtype))

    def decompress(self, payload: PyTree) -> torch.Tensor:
        """Payload → [size]."""
        return self._compressor.decompress(payload, self._size, self._computed)

    def rounded(self, vector: torch.Tensor) -> torch.Tensor:
        """The vector rounded to the parameters' type."""
        return vector.to(self._dtype).to(vector.dtype)

    def mix(self, payload: PyTree) -> torch.Tensor:
        """Sends a payload to all neighbours; returns Σ_j W_ij of all, its own included.

        Raises:
            RunError: a neighbour is lost, or silent for the group's timeout.
        """
        message = as_bytes(payload)
        arrived = self._meeting.exchanged(message)
        self.sent_bytes += self._meeting.sent_to * message.numel()
        total = self.decompress(payload).mul(self._meeting.own)
        for weight, one in arrived:
            total.add_(self.decompress(from_bytes(one, payload)), alpha=weight)
        return total


def _exchange(
    group: Group, into: dict[int, torch.Tensor], targets: list[int], message: torch.Tensor
) -> None:
    """Receives a message from each of some workers, and sends a message to some.

    Raises:
        RunError: names the worker at the other end; with backends other than gloo, all of them.
    """
    operations = {
        source: [dist.P2POp(dist.irecv, buffer, group=group, group_peer=source)]
        for source, buffer in into.items()
    }
    for target in targets:
        to = dist.P2POp(dist.isend, message, group=group, group_peer=target)
        operations.setdefault(target, []).append(to)
    batches = [([peer], some) for peer, some in operations.items()]
    if batches and dist.get_backend(group) != "gloo":  # NCCL requires all messages at once
        batches = [(list(operations), list(itertools.chain(*operations.values())))]
    under_way = []
    for peers, some in batches:
        with _naming(peers):
            under_way.append((peers, dist.batch_isend_irecv(some)))
    for peers, works in under_way:
        with _naming(peers):
            for work in works:
                work.wait()


@contextlib.contextmanager
def _naming(peers: list[int]) -> Iterator[None]:
    """Names workers in a backend's error about a broken connection.

    Raises:
        RunError: replaces the backend's error.
    """
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RunError(
            f"{noun_of(len(peers), 'worker')} {listed(list(map(str, peers)))} lost, or silent for "
            f"the group's timeout: {reason}"
        ) from error
