"""What kind of optimizer it is, found by trying it on a few numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

_SMALL = 1e-3
"""Size of the gradients, below what clipping by norms commonly begins at."""


def changes_made(
    optimizer: optax.GradientTransformation, params: Any, gradients: list[Any]
) -> list:
    """The changes that an optimizer makes to parameters, which follow them."""
    state, made = optimizer.init(params), []
    for gradient in gradients:
        change, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, change)
        made.append(change)
    return made


def is_affine(optimizer: optax.GradientTransformation) -> bool:
    """Whether an optimizer's changes are linear in the gradients, but for a decay of parameters.

    So are those of SGD, with momentum or a schedule of its rate, and not those of Adam. Tried on
    two parameters, with gradients of 0.001: clipping is not found. True where the optimizer
    refuses these parameters, as nothing is known then.
    """
    draws = np.random.default_rng(0).standard_normal((2, 2, 2))
    first, second = (_SMALL * draws).astype(np.float32)

    @jax.jit
    def tried(scale: jax.Array) -> list[jax.Array]:
        gradients = [scale * first[0] + second[0], scale * first[1]]
        return changes_made(optimizer, jnp.ones(2), gradients)

    try:
        with jax.ensure_compile_time_eval():
            none, once, twice = (np.stack(tried(scale)) for scale in (0.0, 1.0, 2.0))
    except Exception:  # whatever an optimizer of the user's raises
        return True
    bend = np.abs((twice - once) - (once - none)).max()
    return bool(bend <= 1e-2 * np.abs(once - none).max())
