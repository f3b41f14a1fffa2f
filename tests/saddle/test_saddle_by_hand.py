"""A worker's own steps by every method, by hand."""

from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np
import pytest

from gradweave import saddle

RATE, LOCAL_STEPS, ITERATIONS = 0.15, 3, 4
SAMPLES = np.array([[0.3, -0.2, 0.1, 0.4], [-0.5, 0.2, 0.7, -0.1]])
"""What each of an iteration's samples adds to the operator's value."""
OTHERS = np.array([0.2, -0.4, 0.6, 0.1])
"""What the worker averages with."""
START = np.array([0.5, -1.0, 0.25, 2.0])
Operator = Callable[[np.ndarray, int], np.ndarray]
Steps = Iterator[tuple[np.ndarray, np.ndarray]]
"""(z after the average, the point where the operator was asked last) of each iteration."""


def turned(z, sample: int):
    """F(z, ξ): a rotation, a cube and the sample, so that each term of a step shows."""
    return np.array([1, 1, -1, -1]) * z[np.array([2, 3, 0, 1])] + 0.1 * z**3 + SAMPLES[sample]


def mixed(z):
    """The average with neighbours."""
    return 0.75 * z + 0.25 * OTHERS


def descent_ascent(f: Operator) -> Steps:
    z = START
    while True:
        z, point = mixed(z - RATE * f(z, 0)), z
        yield z, point


def extra_gradient(f: Operator) -> Steps:
    z = START
    while True:
        half = z - RATE * f(z, 0)
        z = mixed(z - RATE * f(half, 1))
        yield z, half


def past_gradient(f: Operator) -> Steps:
    z, value = START, np.zeros(4)
    while True:
        half = z - RATE * value
        value = f(half, 0)
        z = mixed(z - RATE * value)
        yield z, half


def optimistic(f: Operator) -> Steps:
    z, before = START, f(START, 0)
    while True:
        now = f(z, 0)
        z, point = mixed(z - 2 * RATE * now + RATE * before), z
        before = now
        yield z, point


def tracked(f: Operator) -> Steps:
    z, y, before = START, np.zeros(4), np.zeros(4)
    while True:
        now = f(z, 0)
        y = y + now - before
        half = z - RATE * y
        z = mixed(z - RATE * (f(half, 0) + y - now))
        y, before = mixed(y), now
        yield z, half


def prox_skip(f: Operator) -> Steps:
    z, h, share = START, np.zeros(4), 0.4
    while True:
        half = z - RATE * (f(z, 0) - h)
        ahead = z - RATE * (f(half, 1) - h)
        z = (1 - share) * ahead + share * mixed(ahead)
        h = h + (z - ahead) / (RATE * LOCAL_STEPS)
        yield z, half


class Adam:
    """Kingma and Ba 2015, algorithm 1, with the moments that are usual for GANs."""

    def __init__(self) -> None:
        self.m, self.v, self.t = np.zeros(4), np.zeros(4), 0

    def __call__(self, g: np.ndarray) -> np.ndarray:
        self.t += 1
        self.m = 0.5 * self.m + 0.5 * g
        self.v = 0.9 * self.v + 0.1 * g**2
        return self.m / (1 - 0.5**self.t) / (np.sqrt(self.v / (1 - 0.9**self.t)) + 1e-8)


def extra_adam(f: Operator) -> Steps:
    z, adam = START, Adam()
    while True:
        half = z - RATE * adam(f(z, 0))
        z = mixed(z - RATE * adam(f(half, 1)))
        yield z, half


def tracked_adam(f: Operator) -> Steps:
    z, y, before, adam = START, np.zeros(4), np.zeros(4), Adam()
    while True:
        now = f(z, 0)
        y = y + now - before
        half = z - RATE * adam(y)
        z = mixed(z - RATE * adam(f(half, 0) + y - now))
        y, before = mixed(y), now
        yield z, half


METHODS = {
    saddle.GradientDescentAscent(RATE): descent_ascent,
    saddle.ExtraGradient(RATE): extra_gradient,
    saddle.PastGradient(RATE): past_gradient,
    saddle.Optimistic(RATE): optimistic,
    saddle.Tracked(RATE): tracked,
    saddle.ProxSkip(RATE, share=0.4): prox_skip,
    saddle.ExtraAdam(RATE): extra_adam,
    saddle.TrackedAdam(RATE): tracked_adam,
}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_methods_iterations(method: saddle.Method):
    z, calls = jnp.asarray(START), 0
    memory, rate = method.start(z), jnp.asarray(RATE)

    def operator(z, sample: int):
        nonlocal calls
        calls += 1
        return turned(z, sample)

    expected = METHODS[method](turned)
    for _ in range(ITERATIONS):
        proposal = method.propose(z, memory, operator, rate)
        averages = tuple(mixed(each) for each in proposal.send)
        z, memory = method.receive(proposal.send, averages, proposal.memory, rate, LOCAL_STEPS)
        after, point = next(expected)
        np.testing.assert_allclose(z, after, rtol=0, atol=1e-13)
        np.testing.assert_allclose(proposal.point, point, rtol=0, atol=1e-13)
        assert len(proposal.send) == method.vectors == 1 + len(method.extra(z))
    assert calls == ITERATIONS * method.calls
    idle = method.idle(z, memory)
    sends = (z, memory["tracker"]) if method.vectors == 2 else (z,)
    for found, kept in zip(idle.send, sends, strict=True):
        np.testing.assert_array_equal(found, kept)
    assert idle.memory is memory and idle.point is z
