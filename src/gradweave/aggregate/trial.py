"""Properties of an optimizer, determined by applying it to a few numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.lazy import LazyModule

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    import optax
    import torch
else:
    jax, jnp = LazyModule("jax"), LazyModule("jax.numpy")
    optax, torch = LazyModule("optax"), LazyModule("torch")

_GRADIENT_SIZE = 1e-3
"""Size of the gradients, below the norms at which clipping commonly begins."""


def updates_of(
    optimizer: optax.GradientTransformation, params: Any, gradients: list[Any]
) -> list[Any]:
    """The optimizer's updates for consecutive gradients, each applied before the next."""
    state, updates = optimizer.init(params), []
    for gradient in gradients:
        update, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, update)
        updates.append(update)
    return updates


def is_affine(optimizer: optax.GradientTransformation | torch.optim.Optimizer) -> bool:
    """Whether an optimizer's updates are linear in the gradients, apart from weight decay.

    This holds for SGD, with momentum or a learning-rate schedule, but not for Adam. The test uses
    two parameters, with gradients of about 0.001, so it does not detect clipping. It returns True
    if the optimizer raises an error for these parameters, since nothing is known then.

    Args:
        optimizer: an optimizer of optax or PyTorch; for PyTorch, a new one of the same class and
            settings is tested.
    """
    draws = np.random.default_rng(0).standard_normal((2, 2, 2))
    first, second = (_GRADIENT_SIZE * draws).astype(np.float32)
    of_torch = hasattr(optimizer, "param_groups")
    try:
        updates = _updates_of_torch(optimizer) if of_torch else _updates_of_optax(optimizer)
        none, once, twice = (
            updates(np.stack([scale * first[0] + second[0], scale * first[1]]))
            for scale in np.arange(3, dtype=np.float32)
        )
    except Exception:  # a user's optimizer may raise anything
        return True
    curvature = np.abs((twice - once) - (once - none)).max()
    return bool(curvature <= 1e-2 * np.abs(once - none).max())


def _updates_of_optax(optimizer: Any) -> Callable[[NDArray], NDArray]:
    """Gradients [steps, 2] → updates [steps, 2] of parameters that start at 1."""
    compiled = jax.jit(lambda gradients: updates_of(optimizer, jnp.ones(2), list(gradients)))

    def updates(gradients: NDArray) -> NDArray:
        with jax.ensure_compile_time_eval():
            return np.stack(compiled(jnp.asarray(gradients)))

    return updates


def _updates_of_torch(optimizer: Any) -> Callable[[NDArray], NDArray]:
    """Like `_updates_of_optax`, in float64 because the updates are differences of parameters."""
    takes = inspect.signature(type(optimizer)).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in takes}

    def updates(gradients: NDArray) -> NDArray:
        tried = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        other = type(optimizer)([tried], **settings)
        values = [tried.detach().numpy().copy()]
        for gradient in gradients:
            tried.grad = torch.from_numpy(gradient).double()
            other.step()
            values.append(tried.detach().numpy().copy())
        return np.diff(values, axis=0)

    return updates
