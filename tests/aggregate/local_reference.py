"""The outer steps of local updates in NumPy, in the form in which they were published."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.aggregate.local.methods import LocalMethod

Array = NDArray[Any]


def outer_steps(
    method: LocalMethod,
    weights: Array,
    step: Callable[[Array, int], Array],
    start: Array,
    steps: int,
    parts: Callable[[int], Array] | None = None,
) -> Array:
    """[steps, N, size] parameters of all workers, without late ones.

    Args:
        method: any but `DiLoCo` with fragments; its options.
        weights: [T, N, N] mixing matrices.
        step: parameters [N, size] and the step's number, from 0 → those after the local step.
        start: [N, size] parameters at the start.
        steps: number of local steps.
        parts: number of a communication, from 1 → [part] places that are averaged.
    """
    theta, phi, m, last_y, history = start, start, np.zeros_like(start), start, []
    every, eta = np.arange(start.shape[1]), getattr(method, "outer_rate", 1.0)
    sent, part = theta, every
    for number in range(steps):
        theta = step(theta, number)
        communication, phase = divmod(number + 1, method.interval)
        if phase == 0:
            part = every if parts is None else parts(communication)
            sent = theta[:, part]
        if phase == method.delay and communication:
            w = weights[(communication - 1) % len(weights)]
            if method.name == "diloco":
                m = method.outer_momentum * m + (sent - phi).mean(0)
                theta = phi = phi + eta * ((sent - phi).mean(0) + method.outer_momentum * m)
            elif method.name == "noloco":
                apart, mean = phi - w @ phi, w @ (sent - phi)
                m = method.outer_momentum * m + eta * mean - method.consensus * apart
                theta = phi = phi + m
            elif method.name == "gasloc":
                y = phi + eta * (sent - phi)
                moved = method.consensus * (y - w @ y)
                theta = phi = y - moved + method.outer_momentum * (y - last_y)
                last_y = y
            elif method.name == "sparseloco":
                m = method.decay * m + (sent - phi)
                messages = np.stack([two_bits(e, made_of(method)) for e in m])
                m, theta = m - messages, phi + eta * messages.mean(0)
                phi = theta
            else:
                since = theta[:, part] - sent
                m, theta = m.copy(), theta.copy()
                m[:, part] = method.smoothing * m[:, part] + (1 - method.smoothing) * since
                theta[:, part] = sent.mean(0) + method.correction * m[:, part]
        history.append(theta)
    return np.array(history)


def made_of(method: LocalMethod) -> Any:
    """The compressor of the tests: a quarter of each chunk of eight."""
    return type(method.default_compressor)(share=0.25, block=8)


def two_bits(vector: Array, compressor: Any) -> Array:
    """The largest elements of each chunk, with the mean magnitude of the large or the small."""
    came = np.zeros_like(vector)
    for start in range(0, len(vector), compressor.block):
        chunk = np.zeros(compressor.block)
        part = vector[start : start + compressor.block]
        chunk[: len(part)] = part
        kept = np.argsort(-np.abs(chunk), kind="stable")[: round(compressor.share * len(chunk))]
        large = np.abs(chunk[kept]) > np.abs(chunk[kept]).mean()
        for of in (kept[large], kept[~large]):
            if len(of):
                chunk[of] = np.sign(chunk[of]) * np.abs(chunk[of]).mean()
        chunk[np.setdiff1d(np.arange(len(chunk)), kept)] = 0
        came[start : start + compressor.block] = chunk[: len(part)]
    return came
