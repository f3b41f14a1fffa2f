"""Decentralized training in PyTorch: hooks on an optimizer's steps, by the rules used in JAX.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gossip = Gossip(optimizer, ChocoSGD(), MixingMatrix.ring(8), MaxNorm(bits=4))

From then on each `optimizer.step()` also mixes this process's parameters with its neighbours'. The
model is not wrapped in DDP: nothing else is sent. The notation is that of
`gradweave.aggregate.rules`, and so are the rules themselves: parameters are those of
`gradweave.aggregate.gossip` in JAX, to rounding, with the same seed. Compressors and mixing
matrices are the same ones. JAX is not needed.
"""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gradweave.aggregate import threefry
from gradweave.aggregate.arrays import PyTree
from gradweave.aggregate.compressors import Compressor, Uncompressed
from gradweave.aggregate.local.flat import FlatParameters
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.payloads import as_bytes, from_bytes
from gradweave.aggregate.rules import (
    ChocoSGD,
    GossipRule,
    Strictness,
    WorkerState,
    check_gossip_options,
)
from gradweave.aggregate.validity import advised_consensus, check, enforce
from gradweave.errors import OptionError, RunError
from gradweave.execute.torch_distributed.groups import Group, copy_of
from gradweave.wording import counted, listed, noun_of


class Gossip:
    """A rule around an optimizer of PyTorch; all processes of the group make one.

    A gradient that is not finite is left out as in JAX: the process's optimizer makes no step, and
    the process mixes all the same. So every process must call `optimizer.step()` equally often:
    `torch.amp.GradScaler`, which leaves steps out, does not go with it; bfloat16 needs none.

    Learning-rate schedules and whatever else acts on the optimizer work as before. Make this before
    a checkpoint's parameters are loaded, then call `load_state_dict`.

    Args:
        optimizer: what a worker alone would do. It is not replaced: hooks are added to it.
        rule: what workers send, and what they make of it.
        mixing: whose parameters a worker averages with its own; worker i is rank i of the group.
        compressor: of all that is sent; nothing is compressed if not given.
        group: the process group; the default one if not given. Messages go by a copy of it.
        local_steps: steps between communications.
        seed: of the compressor's random numbers, the same at all workers.
        strictness: what to do about a doubtful choice, see `gradweave.aggregate.check`.
        same_data: whether all workers' data are drawn alike.

    Raises:
        OptionError: an argument is out of its range, or, with ``"refuse"``, in doubt; or the rule
            keeps estimates, and the parameters are not the same at all workers.
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
    ) -> None:
        check_gossip_options(local_steps, strictness)
        rule.check_mixing(mixing)
        self._rule, self._mixing = rule, mixing
        self._compressor = compressor or Uncompressed()
        self._local_steps, self._seed = local_steps, seed
        self._parameters = _trained(optimizer)
        self._vectors = [
            _Vector(dtype, [one for one in self._parameters if one.dtype == dtype], rule)
            for dtype in dict.fromkeys(one.dtype for one in self._parameters)
        ]
        coarsest = min((one.dtype for one in self._vectors), key=lambda each: each.itemsize)
        self._strictness: Strictness = strictness
        self._validity_of = partial(
            check,
            rule.name,
            compressor=self._compressor if rule.compresses else None,
            size=sum(one.numel() for one in self._parameters),
            consensus=rule.consensus if isinstance(rule, ChocoSGD) else None,
            dtype=coarsest,
            same_data=same_data,
        )
        watched = None if strictness == "ignore" else optimizer
        enforce(self._validity_of(mixing, optimizer=watched), strictness)
        self._group = copy_of(group)
        self._check_workers()
        self._left_out: list[torch.Tensor | None] | None = None
        """The gradients, while a step is made without them."""
        self._before: list[torch.Tensor] = []
        self.steps = 0
        """Of the optimizer so far."""
        self.sent_bytes = 0
        """By this process so far."""
        self.not_finite = 0
        """Steps so far in which this process's gradients were not finite, and so left out."""
        self._hooks = (
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        )

    def remove(self) -> None:
        """Leaves the optimizer as it was. All processes call it before the same step."""
        for hook in self._hooks:
            hook.remove()

    def mix_by(self, mixing: MixingMatrix) -> None:
        """Goes on with another matrix: where links changed, or workers are to meet otherwise.

        All processes call it before the same step. A checkpoint does not have the matrix: make
        `Gossip` with the last one to go on from there.

        Raises:
            OptionError: it is not the same at all workers, or not of as many workers; or the rule
                keeps estimates, which are sums by the weights that were.
        """
        if self._rule.keeps_estimates:
            raise OptionError(
                f"{self._rule.name} keeps sums by the weights of its mixing matrix, which stays as "
                "it is; d_psgd takes another at any time"
            )
        self._check_size(mixing)
        enforce(self._validity_of(mixing), self._strictness)
        other = self._unlike_the_first(mixing.weights.tobytes())
        if other is not None:
            raise OptionError(
                f"mix_by: expected the same matrix at all workers, but that of {other} is not that "
                "of 0"
            )
        self._mixing = mixing

    @torch.no_grad()
    def consensus(self) -> list[torch.Tensor]:
        """The mean of all workers' parameters, to evaluate or to save; all processes call it.

        Returns:
            As many tensors as the optimizer has parameters that are trained, in its order.
        """
        means = []
        for one in self._parameters:
            mean = one.detach().to(torch.promote_types(one.dtype, torch.float32), copy=True)
            dist.all_reduce(mean, group=self._group)
            means.append(mean.div_(self._mixing.workers).to(one.dtype))
        return means

    def state_dict(self) -> dict[str, Any]:
        """What a worker remembers between steps, beside its parameters and its optimizer's state.

        Each worker has its own, as it has its own parameters.
        """
        return {
            "steps": self.steps,
            "sent_bytes": self.sent_bytes,
            "not_finite": self.not_finite,
            "estimates": [one.estimate for one in self._vectors],
            "mixtures": [one.mixture for one in self._vectors],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there.

        Raises:
            OptionError: it is of other parameters, or of another rule.
        """
        for name in ("estimates", "mixtures"):
            given = [None if one is None else len(one) for one in state[name]]
            expected = [len(one) if self._rule.keeps_estimates else None for one in self._vectors]
            if given != expected:
                raise OptionError(
                    f"state of {self._rule.name}: expected {name} of {expected} elements, got "
                    f"{given}; it is of other parameters, or of another rule"
                )
        self.steps, self.sent_bytes = int(state["steps"]), int(state["sent_bytes"])
        self.not_finite = int(state["not_finite"])
        for vector, estimate, mixture in zip(
            self._vectors, state["estimates"], state["mixtures"], strict=True
        ):
            if estimate is not None:
                vector.estimate.copy_(estimate)
                vector.mixture.copy_(mixture)

    def _check_workers(self) -> None:
        """Refuses a group of another size, and workers that do not begin alike where they must."""
        self._check_size(self._mixing)
        if not self._rule.keeps_estimates:
            return
        vectors = [one.parameters.read().cpu().numpy().tobytes() for one in self._vectors]
        other = self._unlike_the_first(*vectors)
        if other is not None:
            raise OptionError(
                f"{self._rule.name}: expected the same parameters at all workers at the start, "
                f"but those of {other} are not those of 0; seed all alike, and load checkpoints "
                "afterwards"
            )

    def _check_size(self, mixing: MixingMatrix) -> None:
        workers = dist.get_world_size(self._group)
        if workers != mixing.workers:
            raise OptionError(
                f"{self._rule.name}'s mixing matrix is for "
                f"{counted(mixing.workers, 'worker')}, the group has "
                f"{counted(workers, 'process', 'processes')}; make one for as many"
            )

    def _unlike_the_first(self, *parts: bytes) -> int | None:
        """The first worker that has other bytes than worker 0, if there is one; all call it."""
        digest = hashlib.blake2b(digest_size=8)
        for part in parts:
            digest.update(part)
        own = torch.from_numpy(np.frombuffer(digest.digest(), np.int64).copy())
        own = own.to(self._parameters[0].device)
        every = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(every, own, group=self._group)
        digests = [one.item() for one in every]
        return next((rank for rank, one in enumerate(digests) if one != digests[0]), None)

    @torch.no_grad()
    def _before_step(self, *_: Any) -> None:
        """Keeps the parameters, and has the optimizer make no step if a gradient is not finite."""
        self._before = [vector.parameters.read() for vector in self._vectors]
        self._left_out = None
        gradients = [one.grad for one in self._parameters]
        if not _all_finite([one for one in gradients if one is not None]):
            self._left_out = gradients
            for one in self._parameters:
                one.grad = None

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        """Finds u, and mixes when it is time."""
        self.steps += 1
        after = [vector.parameters.read() for vector in self._vectors]
        if finite := self._left_out is None and _all_finite(after):
            moves = [now - then for now, then in zip(after, self._before, strict=True)]
        else:
            moves = [torch.zeros_like(then) for then in self._before]
        if self._left_out is not None:
            for one, gradient in zip(self._parameters, self._left_out, strict=True):
                one.grad = gradient
        self.not_finite += not finite
        number, late = divmod(self.steps, self._local_steps)
        if not late:
            self._communicate(number, moves)
        elif not finite:
            for vector, then in zip(self._vectors, self._before, strict=True):
                vector.parameters.write(then)
        self._before, self._left_out = [], None

    def _communicate(self, number: int, moves: Sequence[torch.Tensor]) -> None:
        """Communication `number`, from 1, with the neighbours whose turn it is."""
        key = threefry.fold_in(threefry.key_of(self._seed), number)
        key = threefry.fold_in(key, dist.get_rank(self._group))
        for place, (vector, x, u) in enumerate(
            zip(self._vectors, self._before, moves, strict=True)
        ):
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
            after = self._rule.communicate(worker, u, channel)
            vector.parameters.write(after.x)
            vector.estimate, vector.mixture = after.estimate, after.mixture
            self.sent_bytes += channel.sent_bytes


class _Vector:
    """The parameters of one type, and what a rule keeps of them."""

    def __init__(
        self, dtype: torch.dtype, parameters: list[torch.nn.Parameter], rule: GossipRule
    ) -> None:
        self.dtype = dtype
        self.parameters = FlatParameters(parameters, torch.promote_types(dtype, torch.float32))
        self._size = sum(one.numel() for one in parameters)
        self.estimate: Any = self.parameters.read() if rule.keeps_estimates else None
        self.mixture: Any = self.parameters.read() if rule.keeps_estimates else None

    def __len__(self) -> int:
        return self._size


class TorchChannel:
    """One communication of one vector [size] with the neighbours, as a rule uses it.

    Args:
        number: of the communication, from 1.
        mixing: whose z a worker averages with its own; of its steps the one whose turn it is.
        compressor: of what is sent.
        key: of the compressor's random numbers.
        dtype: of the parameters, and of what is sent.
        like: a vector as the rule computes with.
        group: whose rank i is worker i.
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
        turn = (number - 1) % mixing.period
        rank = dist.get_rank(group)
        self.number = number
        self.sent_bytes = 0
        """By this worker in this communication."""
        self._compressor, self._key, self._dtype = compressor, key, dtype
        self._size, self._computed = len(like), like.dtype
        self._group, self._mu = group, mixing.mu
        kind = np.float64 if like.dtype == torch.float64 else np.float32
        self._weights = mixing.weights_in(kind)[turn, rank].tolist()
        self._own = self._weights[rank]
        pairs = [pair for exchange in mixing.exchanges[turn] for pair in exchange.pairs]
        self._to = [target for source, target in pairs if source == rank]
        self._from = [source for source, target in pairs if target == rank]

    @property
    def consensus(self) -> float:
        """γ that the mixing matrix and the compressor bear for vectors of this size."""
        return advised_consensus(self._mu, self._compressor.relative_error(self._size))

    def compress(self, vector: torch.Tensor) -> PyTree:
        """[size] → payload, of the parameters' precision."""
        return self._compressor.compress(self._key, vector.to(self._dtype))

    def decompress(self, payload: PyTree) -> torch.Tensor:
        """Payload → [size]."""
        return self._compressor.decompress(payload, self._size, self._computed)

    def rounded(self, vector: torch.Tensor) -> torch.Tensor:
        """To the parameters' type, and back."""
        return vector.to(self._dtype).to(vector.dtype)

    def mix(self, payload: PyTree) -> torch.Tensor:
        """Sends a payload to all neighbours: Σ_j W_ij of what arrives, its own with it, [size].

        Raises:
            RunError: a neighbour is lost, or silent for as long as the group's timeout.
        """
        message = as_bytes(payload)
        messages = [torch.empty_like(message) for _ in self._from]
        into = dict(zip(self._from, messages, strict=True))
        _exchange(self._group, into, self._to, message)
        self.sent_bytes += len(self._to) * message.numel()
        total = self.decompress(payload).mul(self._own)
        for source, arrived in zip(self._from, messages, strict=True):
            total.add_(self.decompress(from_bytes(arrived, payload)), alpha=self._weights[source])
        return total


def _exchange(
    group: Group, into: dict[int, torch.Tensor], targets: list[int], message: torch.Tensor
) -> None:
    """Receives a message of each of some workers, and sends one to some.

    Raises:
        RunError: naming the worker that it is from or for; where not gloo carries them, all.
    """
    operations = {
        source: [dist.P2POp(dist.irecv, buffer, group=group, group_peer=source)]
        for source, buffer in into.items()
    }
    for target in targets:
        to = dist.P2POp(dist.isend, message, group=group, group_peer=target)
        operations.setdefault(target, []).append(to)
    batches = [([peer], some) for peer, some in operations.items()]
    if batches and dist.get_backend(group) != "gloo":  # NCCL wants to know of all at once
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
    """Names workers in what a backend says of a broken connection.

    Raises:
        RunError: in place of the backend's error.
    """
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise RunError(
            f"{noun_of(len(peers), 'worker')} {listed(list(map(str, peers)))} lost, or silent for "
            f"as long as the group's timeout: {reason}"
        ) from error


def _trained(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """The optimizer's parameters that are trained.

    Raises:
        OptionError: there are none, or some are no floating-point numbers.
    """
    parameters = [
        one for group in optimizer.param_groups for one in group["params"] if one.requires_grad
    ]
    if not parameters:
        raise OptionError("optimizer: expected at least one parameter that is trained")
    for place, one in enumerate(parameters):
        if not one.dtype.is_floating_point:
            raise OptionError(
                f"parameter {place} of the optimizer: expected floating-point numbers, which can "
                f"be mixed, got {str(one.dtype).removeprefix('torch.')}"
            )
    return parameters


def _all_finite(tensors: list[torch.Tensor]) -> bool:
    """Whether all elements are, asked once of the device."""
    found: Iterator[torch.Tensor] = (one.isfinite().all() for one in tensors)
    return bool(torch.stack(list(found)).all()) if tensors else True
