"""Properties of an optimizer, found by trying it on a few numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

_GRADIENT_SIZE = 1e-3
"""Below the norms at which clipping commonly begins."""


def updates_of(
    optimizer: optax.GradientTransformation, params: Any, gradients: list[Any]
) -> list[Any]:
    """The optimizer's updates for some gradients in a row, each applied before the next."""
    state, updates = optimizer.init(params), []
    for gradient in gradients:
        update, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, update)
        updates.append(update)
    return updates


def is_affine(optimizer: optax.GradientTransformation) -> bool:
    """Whether an optimizer's updates are linear in the gradients, apart from weight decay.

    Those of SGD are, with momentum or a learning-rate schedule; those of Adam are not. Tried on two
    parameters, with gradients of about 0.001: clipping goes unnoticed. True where the optimizer
    raises an error for these parameters, as nothing is known then.
    """
    draws = np.random.default_rng(0).standard_normal((2, 2, 2))
    first, second = (_GRADIENT_SIZE * draws).astype(np.float32)

    @jax.jit
    def updates(scale: jax.Array) -> list[jax.Array]:
        gradients = [scale * first[0] + second[0], scale * first[1]]
        return updates_of(optimizer, jnp.ones(2), gradients)

    try:
        with jax.ensure_compile_time_eval():
            none, once, twice = (np.stack(updates(scale)) for scale in (0.0, 1.0, 2.0))
    except Exception:  # whatever a user's optimizer raises
        return True
    curvature = np.abs((twice - once) - (once - none)).max()
    return bool(curvature <= 1e-2 * np.abs(once - none).max())
