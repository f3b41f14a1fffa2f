"""Whether a decentralized method is expected to converge, checked before training."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from gradweave.aggregate.compressors import Compressor
from gradweave.aggregate.mixing import MixingMatrix
from gradweave.aggregate.rules import CONSENSUS, Strictness
from gradweave.aggregate.trial import is_affine
from gradweave.common.lazy import LazyModule
from gradweave.common.wording import counted
from gradweave.errors import OptionError

if TYPE_CHECKING:
    import jax.numpy as jnp
    import optax
    import torch
else:
    jnp, torch = LazyModule("jax.numpy"), LazyModule("torch")


class ValidityWarning(UserWarning):
    """Warns of a choice that is not backed by theory."""


@dataclasses.dataclass(frozen=True)
class Validity:
    """What is known about a method, a mixing matrix and a compressor before training.

    The conditions are sufficient, from proofs for arbitrary gradients. Training may well converge
    without them, and with difference compression often does.
    """

    method: str
    mixing: str
    workers: int
    rho: float
    """ρ of the mixing matrix, the factor by which a step shrinks the workers' disagreement."""
    mu: float
    """μ of the mixing matrix."""
    compressor: str | None
    unbiased: bool
    alpha: float
    """The compressor's relative error for vectors as long as the parameters."""
    alpha_limit: float
    """The method's limit for that error, infinity if it has none."""
    sigma: float
    """The compressor's absolute error for vectors as long as the parameters."""
    consensus: float | None
    """γ of CHOCO-SGD, or None for other methods."""
    consensus_limit: float
    """Largest γ for which the compressor's errors are expected to decay, infinity if unknown."""
    impossible: tuple[str, ...]
    """Reasons why it cannot work."""
    doubts: tuple[str, ...]
    """Reasons why it may not work."""

    @property
    def spectral_gap(self) -> float:
        """1 − ρ."""
        return 1 - self.rho

    @property
    def advised_consensus(self) -> float:
        """The recommended γ for CHOCO-SGD, see the function of this name."""
        return _in_two_digits(self.consensus_limit)

    def __str__(self) -> str:
        lines = [
            f"{self.method} on {self.mixing}, {counted(self.workers, 'worker')}: "
            f"rho {self.rho:.4f}, spectral gap {self.spectral_gap:.4f}, mu {self.mu:.4f}"
        ]
        if self.compressor is not None:
            lines.append(
                f"{self.compressor}, {'unbiased' if self.unbiased else 'biased'}: alpha "
                f"{self.alpha:.4g} (limit {self.alpha_limit:.4g}), absolute error {self.sigma:.4g}"
            )
        if self.consensus is not None:
            lines.append(f"consensus {self.consensus:.4g} (limit {self.consensus_limit:.4g})")
            if self.consensus < self.advised_consensus:
                lines[-1] += f": with {self.advised_consensus:.2g} workers agree sooner"
        lines += [f"cannot work: {reason}" for reason in self.impossible]
        lines += [f"in doubt: {reason}" for reason in self.doubts]
        return "\n".join(lines)


def check_validity(
    method: str,
    mixing: MixingMatrix,
    compressor: Compressor | None,
    size: int,
    *,
    consensus: float | None = None,
    optimizer: optax.GradientTransformation | torch.optim.Optimizer | None = None,
    dtype: Any = None,
    same_data: bool = False,
) -> Validity:
    """Compares a choice with the conditions under which convergence is proved.

    Args:
        method: ``"d_psgd"``, ``"dcd_psgd"``, ``"ecd_psgd"``, ``"choco_sgd"`` or ``"naive_psgd"``.
        mixing: the mixing matrix.
        compressor: the compressor, or None without compression.
        size: number of parameters.
        consensus: γ of ``"choco_sgd"``, or None for the recommended value; other methods ignore it.
        optimizer: the wrapped optimizer, which is tested on a few numbers; None to skip that test.
        dtype: type of the parameters, of JAX or PyTorch; by default float32.
        same_data: whether all workers draw their data from one distribution, for instance by
            playing the same game; then their optimizers need not be linear.

    Source: Tang et al. 2018, theorems 1 and 3; Koloskova, Stich and Jaggi 2019, assumption 1. The
    limit of γ is that of `consensus_limit`.

    >>> from gradweave.aggregate.compressors import MaxNorm
    >>> print(check_validity("dcd_psgd", MixingMatrix.ring(8), MaxNorm(bits=8), 100))
    dcd_psgd on ring:8, 8 workers: rho 0.8047, spectral gap 0.1953, mu 1.3333
    max_norm, unbiased: alpha 0.03914 (limit 0.05178), absolute error inf
    """
    alpha = compressor.relative_error(size) if compressor else 0.0
    sigma = compressor.absolute_error(size) if compressor else 0.0
    choco = method == "choco_sgd"
    if consensus is None:
        consensus = advised_consensus(mixing.mu, alpha)
    validity = Validity(
        method=method,
        mixing=mixing.name,
        workers=mixing.workers,
        rho=mixing.rho,
        mu=mixing.mu,
        compressor=compressor.name if compressor else None,
        unbiased=compressor.unbiased if compressor else True,
        alpha=alpha,
        alpha_limit=_alpha_limit(method, mixing),
        sigma=sigma,
        consensus=consensus if choco else None,
        consensus_limit=consensus_limit(mixing.mu, alpha) if choco else math.inf,
        impossible=tuple(_impossible(mixing)),
        doubts=(),
    )
    doubts = [
        *_doubts_of_mixing(mixing),
        *_doubts_of_method(validity),
        *_doubts_of_optimizer(optimizer, same_data),
        *_doubts_of_dtype(dtype),
    ]
    return dataclasses.replace(validity, doubts=tuple(doubts))


def _alpha_limit(method: str, mixing: MixingMatrix) -> float:
    """The limit in theory for the compressor's relative error; infinity if there is none."""
    if method == "choco_sgd":
        return 1.0
    if method == "dcd_psgd" and mixing.mu > 0:
        return (1 - mixing.rho) / (2 * math.sqrt(2) * mixing.mu)
    return math.inf


def _impossible(mixing: MixingMatrix) -> Iterator[str]:
    if mixing.rho > 1 - 1e-9:
        yield (
            f"rho is {mixing.rho:.6f}: updates of some workers never reach others; connect the "
            "network, or give each worker's parameters a weight in its average"
        )


def _doubts_of_mixing(mixing: MixingMatrix) -> Iterator[str]:
    if not mixing.symmetric:
        yield "the mixing matrix is not symmetric, as the proofs require"


def _doubts_of_method(of: Validity) -> Iterator[str]:
    """Doubts about the combination of method and compressor."""
    if of.method in ("dcd_psgd", "ecd_psgd") and not of.unbiased:
        yield f"{of.method} needs an unbiased compressor; choco_sgd works with any"
    if of.method == "dcd_psgd" and of.alpha > of.alpha_limit:
        yield (
            f"alpha {_number(of.alpha)} exceeds the limit (1 - rho) / (2 sqrt(2) mu) = "
            f"{of.alpha_limit:.4g}, below which convergence is proved; more bits, smaller blocks "
            "or a "
            "larger share of elements lower alpha, more links raise the limit"
        )
    if of.method == "ecd_psgd" and math.isinf(of.sigma):
        yield (
            "the compressor's error grows with the vector, and ecd_psgd sends ever larger "
            "vectors: expect divergence; use an absolute grid, or dcd_psgd or choco_sgd"
        )
    if of.consensus is not None:
        yield from _doubts_of_choco(of, of.consensus)
    if of.method == "naive_psgd":
        yield "compression errors stay in the parameters; use dcd_psgd or choco_sgd"


def _doubts_of_choco(of: Validity, consensus: float) -> Iterator[str]:
    if of.alpha >= of.alpha_limit:
        yield (
            f"alpha {_number(of.alpha)} is not below 1: the error may exceed the vector itself; "
            "use more bits or smaller blocks, or top_k, or random_k_unscaled"
        )
    elif consensus > of.consensus_limit:
        yield (
            f"consensus {consensus:.4g} exceeds {of.consensus_limit:.4g}, up to which errors of "
            "such a compressor are expected to decay; use a smaller value, or send more"
        )


def _doubts_of_optimizer(
    optimizer: optax.GradientTransformation | torch.optim.Optimizer | None, same_data: bool
) -> Iterator[str]:
    if optimizer is not None and not same_data and not is_affine(optimizer):
        yield (
            "the wrapped optimizer (such as Adam) is not linear in the gradients: if workers' data "
            "differ, they do not converge to the joint optimum; use SGD with momentum, or average "
            "gradients (mean, ring, scheduled)"
        )


def _doubts_of_dtype(dtype: Any) -> Iterator[str]:
    if dtype is None:
        return
    of = (torch if type(dtype).__module__ == "torch" else jnp).finfo(dtype)
    if of.bits < 32:
        yield (
            f"parameters are {of.dtype}, and each mixing is rounded to {of.eps:.1g} of them: "
            "keep them in float32, and cast for the gradient"
        )


def consensus_limit(mu: float, alpha: float) -> float:
    """The largest γ for which the errors of CHOCO-SGD's messages are expected to decay.

    Derived for one eigenvector of W with 1 − λ = μ, along which workers differ by x, and for a
    compressor that sends an element with probability δ = 1 − α²: with a = γμ, x̂ ← x with
    probability δ, then x ← x − a·x̂. The second moments E[x², x·x̂, x̂²] follow a matrix whose
    largest eigenvalue exceeds 1 at a = 2δ/(2 − δ). If workers' random numbers are independent, or
    the errors smaller than α, a few times this γ still works.

    Args:
        mu: μ of the mixing matrix.
        alpha: α of the compressor.

    Returns:
        2δ/((2 − δ)μ), at most 1; 0 if α is not below 1.
    """
    if alpha >= 1:
        return 0.0
    delta = 1 - alpha**2
    return min(1.0, 2 * delta / ((2 - delta) * mu)) if mu > 0 else 1.0


def advised_consensus(mu: float, alpha: float) -> float:
    """The default γ of CHOCO-SGD: the limit, rounded down to two digits.

    A smaller γ makes workers agree more slowly, which costs accuracy if their data differ much; a
    larger γ may diverge. If α is not below 1, it is `CONSENSUS`.

    Args:
        mu: μ of the mixing matrix.
        alpha: α of the compressor for vectors as long as the parameters.

    >>> advised_consensus(4 / 3, 0.669)  # a ring of eight, 4 bits in blocks of 128
    0.57
    """
    return _in_two_digits(consensus_limit(mu, alpha))


def _in_two_digits(limit: float) -> float:
    """The limit, rounded down; `CONSENSUS` if there is no limit above 0."""
    if limit <= 0 or math.isinf(limit):
        return CONSENSUS
    digits = 10 ** (1 - math.floor(math.log10(limit)))
    return math.floor(limit * digits * (1 + 1e-12)) / digits


class Checked(Protocol):
    """The result of a check before training."""

    @property
    def method(self) -> str:
        """Name of the method."""
        ...

    @property
    def mixing(self) -> str:
        """Name of the mixing matrix."""
        ...

    @property
    def impossible(self) -> tuple[str, ...]:
        """Reasons why it cannot work."""
        ...

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons why it may not work."""
        ...


def enforce(validity: Checked, strictness: Strictness) -> None:
    """Refuses a choice, or warns of it.

    Raises:
        OptionError: it cannot work; or it is doubtful, and strictness is ``"refuse"``.
    """
    refused = validity.impossible + (validity.doubts if strictness == "refuse" else ())
    if refused:
        raise OptionError(f"{validity.method} on {validity.mixing}: {'; '.join(refused)}")
    if validity.doubts and strictness == "warn":
        text = f"{validity.method} on {validity.mixing}: {'; '.join(validity.doubts)}"
        warnings.warn(text, ValidityWarning, stacklevel=4)


def _number(value: float) -> str:
    return "(unbounded)" if math.isinf(value) else f"{value:.4g}"
