"""Handling of an optimizer's steps, shared by all training methods in PyTorch.

A step is skipped if it is not finite, and parameters that are trained only later join the others
before their first step.
"""

import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradweave.aggregate.local.flat import FlatTensors, trained
from gradweave.errors import OptionError
from gradweave.execute.torch_distributed.groups import Group

Arguments = tuple[Any, dict[str, Any]]
"""Positional and keyword arguments of `torch.optim.Optimizer.step`."""


class GuardedSteps:
    """The guard that skips steps that are not finite, as in JAX.

    If a gradient is not finite, the optimizer gets no gradients, so that neither the parameters nor
    its state change; the gradients are put back afterwards. If only the result of a step is not
    finite, the parameters are restored, and the optimizer forgets the state of the parameters whose
    state is not finite.
    """

    def __init__(self) -> None:
        self.vectors: list[FlatTensors] = []
        """The parameters."""
        self.start: list[torch.Tensor] = []
        """The vectors before the step."""
        self._left_out: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        """Parameters with their gradients, while a step is made without them."""
        self.not_finite = 0
        """Number of steps skipped so far."""

    @torch.no_grad()
    def before(self, args: Any, kwargs: dict[str, Any]) -> Arguments | None:
        """Called before each step of the optimizer; returns other arguments for it, or None."""
        self.start = [one.read() for one in self.vectors]
        self._left_out = []
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._leave_out()
            return None

        def checked() -> Any:
            loss = closure()
            self._leave_out()
            return loss

        if len(args) > 1:
            return (args[0], checked, *args[2:]), kwargs
        return args, {**kwargs, "closure": checked}

    @torch.no_grad()
    def after(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether a step was finite and therefore kept; called after each step."""
        finite = all_finite(self._tensors())
        if not finite:
            for one in [one for one, kept in optimizer.state.items() if not _finite_state(kept)]:
                del optimizer.state[one]
        if self._left_out or not finite:
            finite = False
            self.not_finite += 1
            for vector, start in zip(self.vectors, self.start, strict=True):
                vector.write(start)
        for one, gradient in self._left_out:
            one.grad = gradient
        self._left_out = []
        return finite

    @torch.no_grad()
    def _leave_out(self) -> None:
        """Takes the gradients away if one is not finite."""
        gradients = [(one, one.grad) for one in self._tensors()]
        if not all_finite([one for _, one in gradients if one is not None]):
            self._left_out = gradients
            for one, _ in gradients:
                one.grad = None

    def _tensors(self) -> list[torch.Tensor]:
        return [one for vector in self.vectors for one in vector.tensors]


class Trained:
    """The trained parameters: those trained from the start, then those that joined later.

    Args:
        given: parameters, some of which may be trained later.

    Raises:
        OptionError: no parameter is trained, or some are not floating-point numbers.
    """

    def __init__(self, given: Iterable[torch.nn.Parameter]) -> None:
        self._known = list(given)
        self.joined = trained(self._known)
        self._apart: weakref.WeakKeyDictionary[torch.optim.Optimizer, set[int]]
        self._apart = weakref.WeakKeyDictionary()
        """Parameters that each optimizer had from the start but that were not given here."""

    def late(self, optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
        """Parameters that are trained from now on: unfrozen, or new in the optimizer."""
        own = parameters_of(optimizer)
        known = {id(one) for one in self._known}
        apart = self._apart.setdefault(optimizer, {id(one) for one in own} - known)
        self._known += [one for one in own if id(one) not in known | apart]
        joined = {id(one) for one in self.joined}
        return [one for one in self._known if one.requires_grad and id(one) not in joined]

    def has(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer updates some of these parameters."""
        known = {id(one) for one in self._known}
        return any(id(one) in known for one in parameters_of(optimizer))

    @property
    def places(self) -> list[int]:
        """Positions of the trained parameters among the given ones, in the order of joining."""
        place_of = {id(one): place for place, one in enumerate(self._known)}
        return [place_of[id(one)] for one in self.joined]

    def restore(self, places: Sequence[int]) -> None:
        """Restores the parameters at these positions; other trained parameters join them late.

        Raises:
            OptionError: a position is beyond the given parameters.
        """
        if max(places) >= len(self._known):
            raise OptionError(
                f"state: parameter {max(places)} is trained there, and there are "
                f"{len(self._known)}; give the same parameters as before"
            )
        self.joined = [self._known[place] for place in places]


def on_each_step_of(
    of: Trained, owner: Any, before: Callable[..., Arguments | None]
) -> weakref.finalize:
    """Calls `before` when an optimizer of these parameters begins a step, as long as `owner` lives.

    This is for hooks that see the optimizer only after its first step.

    Args:
        of: the parameters.
        owner: the object that `before` belongs to.
        before: an unbound method: takes the owner, the optimizer, and the arguments of its step.
    """
    held = weakref.ref(owner)

    def begin(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Arguments | None:
        alive = held()
        if alive is None or not of.has(optimizer):
            return None
        return before(alive, optimizer, args, kwargs)

    return weakref.finalize(owner, register_optimizer_step_pre_hook(begin).remove)


def check_alike(group: Group, name: str, vectors: Iterable[torch.Tensor]) -> None:
    """Refuses parameters that differ between the workers; all workers call it.

    Raises:
        OptionError: the message names the first worker that differs.
    """
    other = unlike_the_first(group, vectors)
    if other is not None:
        raise OptionError(
            f"{name}: expected the same parameters at all workers at the start, but those of "
            f"{other} are not those of 0; seed all alike, and load checkpoints afterwards"
        )


def unlike_the_first(group: Group, vectors: Iterable[torch.Tensor]) -> int | None:
    """The first worker whose numbers differ from worker 0's, if any; all workers call it."""
    digest, device = hashlib.blake2b(digest_size=8), torch.device("cpu")
    for one in vectors:
        digest.update(np.ascontiguousarray(one.cpu().numpy()).data)
        device = one.device
    own = torch.from_numpy(np.frombuffer(digest.digest(), np.int64).copy()).to(device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group=group)
    digests = [one.item() for one in every]
    return next((rank for rank, one in enumerate(digests) if one != digests[0]), None)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """All of an optimizer's parameters, in its order."""
    return [one for group in optimizer.param_groups for one in group["params"]]


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all elements are finite, with one query to the device."""
    found: Iterator[torch.Tensor] = (one.isfinite().all() for one in tensors)
    flags = list(found)
    return bool(torch.stack(flags).all()) if flags else True


def _finite_state(kept: dict[str, Any]) -> bool:
    tensors = [one for one in kept.values() if isinstance(one, torch.Tensor)]
    return all(all_finite([one]) for one in tensors)
