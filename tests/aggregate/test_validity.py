"""The limits that a choice is compared with: their formulas by hand, and which side is doubted."""

import dataclasses
import math

import numpy as np
import pytest

pytest.importorskip("optax", reason="the extra train is not installed")

from gradweave import aggregate
from gradweave.aggregate import MaxNorm, MixingMatrix, rules, validity
from gradweave.aggregate.validity import check_validity

RING = MixingMatrix.ring(8)
RHO, MU = (1 + math.sqrt(2)) / 3, 4 / 3
"""Of that ring, whose eigenvalues are (1 + 2 cos 2πk/8) / 3."""


def test_what_is_reported():
    compressor = MaxNorm(bits=2, block=8)
    found = check_validity("choco_sgd", RING, compressor, 100, consensus=0.2)
    alpha = math.sqrt((math.sqrt(1 + 7) - 1) / 2)
    assert (found.rho, found.mu) == pytest.approx((RHO, MU))
    assert found.spectral_gap == pytest.approx(1 - RHO)
    assert found.alpha == pytest.approx(alpha) and found.sigma == math.inf
    assert found.alpha_limit == 1 and found.consensus == 0.2
    delta = 1 - alpha**2
    assert found.consensus_limit < 1
    assert found.consensus_limit == pytest.approx(2 * delta / ((2 - delta) * MU))
    other = check_validity("dcd_psgd", RING, aggregate.Grid(step=0.1), 100, consensus=0.2)
    assert other.consensus is None and other.consensus_limit == math.inf
    assert other.sigma == pytest.approx(0.1 * 10 / 2) and other.alpha == math.inf
    nothing = check_validity("d_psgd", RING, None, 100)
    assert (nothing.alpha, nothing.sigma, nothing.unbiased) == (0, 0, True)


def test_the_limit_of_the_relative_error():
    limits = {name: check_validity(name, RING, None, 9).alpha_limit for name in rules.RULES}
    dcd = (1 - RHO) / (2 * math.sqrt(2) * MU)
    assert limits.pop("dcd_psgd") == pytest.approx(dcd)
    assert limits.pop("choco_sgd") == 1
    assert set(limits.values()) == {math.inf}
    assert check_validity("dcd_psgd", MixingMatrix.ring(1), None, 9).alpha_limit == math.inf


def second_moments(delta: float, a: float) -> np.ndarray:
    """Of (x, x̂): x̂ ← x with probability δ, then x ← x − a·x̂; on E[x², x·x̂, x̂²]."""
    sent = np.array([[(1 - a) ** 2, 0, 0], [1 - a, 0, 0], [1, 0, 0]])
    kept = np.array([[1, -2 * a, a**2], [0, 1, -a], [0, 0, 1]])
    return delta * sent + (1 - delta) * kept


@pytest.mark.parametrize("alpha", [0.3, 0.7, 0.95, 0.999])
def test_the_limit_of_consensus_is_where_moments_stop_shrinking(alpha: float):
    limit = validity.consensus_limit(2.0, alpha)
    for factor, shrinks in ((0.999, True), (1.001, False)):
        matrix = second_moments(1 - alpha**2, 2.0 * limit * factor)
        assert (np.abs(np.linalg.eigvals(matrix)).max() < 1) == shrinks


def test_the_consensus_that_is_taken_is_the_limit():
    assert validity.advised_consensus(4 / 3, 0.669) == 0.57
    assert validity.advised_consensus(4 / 3, 0.975) == 0.037
    assert validity.advised_consensus(2.0, 0.0) == 1
    assert validity.advised_consensus(2.0, 1.5) == rules.CONSENSUS  # where there is no limit
    few = check_validity("choco_sgd", RING, aggregate.TopK(0.05), 1000)
    assert few.consensus == few.advised_consensus == 0.038
    said = str(check_validity("choco_sgd", RING, aggregate.MaxNorm(bits=4), 1000, consensus=0.3))
    assert said.endswith("consensus 0.3 (limit 0.5724): with 0.57 workers agree sooner")


def test_where_the_limit_of_consensus_ends():
    assert validity.consensus_limit(2.0, 0.0) == 1  # 2/(1 · 2)
    assert validity.consensus_limit(0.1, 0.5) == 1
    assert validity.consensus_limit(0.0, 0.999) == 1
    assert validity.consensus_limit(0.1, 1.0) == validity.consensus_limit(0.0, 1.5) == 0


def test_where_doubts_begin():
    def doubts(method: str, **fields) -> list[str]:
        found = dataclasses.replace(check_validity(method, RING, None, 9), **fields)
        return list(validity._doubts_of_method(found))

    for method in ("dcd_psgd", "ecd_psgd"):
        assert doubts(method) == []
        assert "unbiased" in doubts(method, unbiased=False)[0]
    assert doubts("choco_sgd", unbiased=False) == doubts("d_psgd", unbiased=False) == []
    assert doubts("dcd_psgd", alpha=0.05, alpha_limit=0.05) == []
    assert len(doubts("dcd_psgd", alpha=0.051, alpha_limit=0.05)) == 1
    assert doubts("ecd_psgd", sigma=1e9, alpha=math.inf, alpha_limit=0.1) == []
    assert len(doubts("ecd_psgd", sigma=math.inf)) == 1
    assert doubts("choco_sgd", alpha=0.99, consensus=0.4, consensus_limit=0.4) == []
    (said,) = doubts("choco_sgd", alpha=0.99, consensus=0.41, consensus_limit=0.4)
    assert "consensus 0.41 exceeds 0.4," in said
    (said,) = doubts("choco_sgd", alpha=1.0, consensus=0.41, consensus_limit=0.0)
    assert "alpha 1 is not below 1" in said
    assert len(doubts("naive_psgd")) == 1


def test_who_never_hears_of_others():
    """ρ at 1, but for what rounding takes."""
    for between, works in ((1e-8, True), (1e-11, False)):
        weights = np.array([[1 - between, between], [between, 1 - between]])
        found = check_validity("d_psgd", MixingMatrix.of(weights), None, 9)  # ρ is 1 − 2 · between
        assert bool(found.impossible) != works
