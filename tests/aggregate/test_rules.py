"""One worker's communication by every rule, as their papers have it, with messages by hand."""

import types

import numpy as np
import pytest

pytest.importorskip("jax")

from gradweave.aggregate.compressors import COMPRESSORS, Grid, RandomK, TopK, Uncompressed
from gradweave.aggregate.rules import (
    DCDPSGD,
    DPSGD,
    ECDPSGD,
    ChocoSGD,
    NaivePSGD,
    WorkerState,
    check_gossip_options,
)  # fmt: skip

X, ESTIMATE, MIXTURE, U, OTHERS = np.random.default_rng(0).standard_normal((5, 6))
X[:2] = np.round(ESTIMATE[:2], 2)  # not moved since, but for the rounding with which x is kept


def c(vector: np.ndarray) -> np.ndarray:
    """The compressor."""
    return np.round(vector, 1)


def mix(arrived: np.ndarray) -> np.ndarray:
    """W: its own and what others sent."""
    return 0.6 * arrived + 0.4 * c(OTHERS)


def communicated(rule, number: float = 5.0) -> WorkerState:
    channel = types.SimpleNamespace(
        number=number,
        compress=lambda vector: ("sent", c(vector)) if rule.compresses else ("sent", vector),
        decompress=lambda payload: payload[1],
        mix=lambda payload: mix(payload[1]),
        rounded=lambda vector: np.round(vector, 2),
    )
    return rule.communicate(WorkerState(X, ESTIMATE, MIXTURE), U, channel)


def check(found: WorkerState, x, estimate, mixture) -> None:
    for one, other in zip(found, (x, estimate, mixture), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


PROGRESS = np.where(np.arange(6) < 2, 0, X - ESTIMATE) + U
"""Of the optimizer, and of local steps: none where x is the estimate as it was rounded."""


def test_d_psgd_and_the_naive_one():
    check(communicated(DPSGD()), mix(X) + U, ESTIMATE, MIXTURE)
    check(communicated(NaivePSGD()), mix(c(X)) + U, ESTIMATE, MIXTURE)


def test_dcd_psgd():
    q = c(MIXTURE + PROGRESS - ESTIMATE)
    check(communicated(DCDPSGD()), ESTIMATE + q, ESTIMATE + q, MIXTURE + mix(q))


@pytest.mark.parametrize("t", [1.0, 5.0])
def test_ecd_psgd(t: float):
    ahead = MIXTURE + PROGRESS
    sent = mix(c((1 - t / 2) * ESTIMATE + t / 2 * ahead))
    check(communicated(ECDPSGD(), t), ahead, ahead, (1 - 2 / t) * MIXTURE + 2 / t * sent)


def test_choco_sgd():
    q = c(X + U - ESTIMATE)
    estimate, mixture = ESTIMATE + q, MIXTURE + mix(q)
    x = X + U + 0.4 * (mixture - estimate)
    check(communicated(ChocoSGD(consensus=0.4)), x, estimate, mixture)


def test_options_at_their_ends():
    for steps in (1, 1_000_000):
        check_gossip_options(steps, "warn")
    assert ChocoSGD(consensus=1.0).consensus == 1


def test_errors_of_what_is_sent_whole():
    for whole in (Uncompressed(), RandomK(share=1.0), TopK(share=1.0)):
        assert whole.relative_error(9) == whole.absolute_error(9) == 0
    for few in (RandomK(share=0.5), TopK(share=0.5)):
        assert few.absolute_error(8) == np.inf
    assert RandomK(share=0.25).relative_error(16) == pytest.approx(np.sqrt(3))
    assert TopK(share=0.25).relative_error(16) == pytest.approx(np.sqrt(0.75))
    assert Grid(step=0.2).absolute_error(25) == pytest.approx(0.5)
    assert Grid().relative_error(25) == np.inf
    for kind in COMPRESSORS.values():
        assert kind().relative_error(0) in (0, np.inf)
