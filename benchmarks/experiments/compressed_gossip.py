"""Compressed gossip over dimensions: how much of the accuracy messages of few bits cost.

    python benchmarks/experiments/compressed_gossip.py

Eight workers in a ring, on one device. Logistic regression with D features on 2,000 samples sorted
by label, so that each worker has one class only; 2,000 steps. Two kinds: samples of length 20^(1/2)
whatever D, a penalty of 0.01, batches of 16 at a rate of 0.3, five seeds; and features of variance
1 as in `decentralized.py`, so that samples get longer with D, a penalty of 0.001, batches of 64 at
a rate of 0.1, three seeds. Seeds are of data and batches, the same for all methods. Loss of the
workers' mean above the minimum (by L-BFGS), over that of D-PSGD, which compresses nothing; means of
the last tenth of steps, and bootstrap intervals of the ratio of means. CHOCO by several gammas.
Blocks are the default, 128 elements, where nothing else is said.
"""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize

from benchmarks.experiment import Rows, grid, run
from benchmarks.intervals import RESAMPLES, middle
from gradweave import aggregate
from gradweave.aggregate.rules import CONSENSUS
from gradweave.aggregate.validity import consensus_limit

WORKERS, SAMPLES, STEPS = 8, 250, 2000


class Kind(NamedTuple):
    """How long samples are, and how they are learned."""

    squared: float | None
    """Mean squared length of a sample; None: its number of features."""
    penalty: float
    batch: int
    rate: float
    seeds: int


KINDS = {"one length": Kind(20.0, 1e-2, 16, 0.3, 5), "longer": Kind(None, 1e-3, 64, 0.1, 3)}
LIBRARIES = ("jax", "optax")
LAST, EVERY = 10, 20
"""Losses that are averaged, and steps between two."""
DIMENSIONS = (20, 256, 1024, 4096)
AXIS = "server"
MIXING = aggregate.MixingMatrix.ring(WORKERS)
COMPRESSORS: dict[str, aggregate.Compressor] = {
    "8 bits": aggregate.MaxNorm(bits=8),
    "4 bits": aggregate.MaxNorm(bits=4),
    "4 bits, blocks of 32": aggregate.MaxNorm(bits=4, block=32),
    "4 bits, one block": aggregate.MaxNorm(bits=4, block=None),
    "largest tenth": aggregate.TopK(0.1),
}
GAMMAS = {"4 bits": (0.1, 0.3, 0.6, 1.0), "largest tenth": (0.08, 0.3)}
"""Of CHOCO, by messages; else only the default and 1."""


def data_of(kind: Kind, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """[W, S, D] features and [W, S] labels ±1, sorted by label."""
    rng = np.random.default_rng([size, seed])
    squared = kind.squared or size
    x = rng.standard_normal((WORKERS * SAMPLES, size)) * np.sqrt(squared / size)
    slope = rng.standard_normal(size) * 2 / np.sqrt(squared)
    y = np.where(rng.random(len(x)) < 1 / (1 + np.exp(-x @ slope)), 1.0, -1.0)
    order = np.argsort(y, kind="stable")
    return x[order].reshape(WORKERS, SAMPLES, size), y[order].reshape(WORKERS, SAMPLES)


def minimum(x: np.ndarray, y: np.ndarray, penalty: float) -> float:
    """The minimal loss, in double precision."""
    x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = y * (x @ w)
        slope = -((y / (1 + np.exp(margin))) @ x) / len(x) + penalty * w
        return float(np.logaddexp(0, -margin).mean() + penalty / 2 * w @ w), slope

    found = scipy.optimize.minimize(
        loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-9},
    )  # fmt: skip
    return float(found.fun)


def logistic(w: Any, x: Any, y: Any, penalty: float) -> Any:
    """Mean loss."""
    return jnp.logaddexp(0, -y * (x @ w)).mean() + penalty / 2 * (w**2).sum()


def losses(kind: Kind, optimizer: optax.GradientTransformation, x: Any, y: Any) -> np.ndarray:
    """[seeds] loss of the workers' mean on all data, mean of the last ones.

    Args:
        kind: of the problem.
        optimizer: a worker's.
        x, y: [seeds, W, …].
    """

    def worker(x: Any, y: Any, key: Any, number: Any) -> Any:
        key = jax.random.fold_in(key, number)

        def step(carry: Any, t: Any) -> tuple[Any, None]:
            w, state = carry
            rows = jax.random.randint(jax.random.fold_in(key, t), (kind.batch,), 0, SAMPLES)
            gradient = jax.grad(logistic)(w, x[rows], y[rows], kind.penalty)
            updates, state = optimizer.update(gradient, state, w)
            return (optax.apply_updates(w, updates), state), None

        def measured(carry: Any, first: Any) -> tuple[Any, Any]:
            carry, _ = jax.lax.scan(step, carry, first + jnp.arange(EVERY))
            mean = jax.lax.pmean(carry[0], AXIS)
            return carry, jax.lax.pmean(logistic(mean, x, y, kind.penalty), AXIS)

        begin = jnp.zeros(x.shape[-1])
        carry, _ = jax.lax.scan(
            step, (begin, optimizer.init(begin)), jnp.arange(STEPS - LAST * EVERY)
        )
        return jax.lax.scan(measured, carry, jnp.arange(STEPS - LAST * EVERY, STEPS, EVERY))[1]

    @jax.jit
    def run(x: Any, y: Any, key: Any) -> Any:
        each = jax.vmap(worker, in_axes=(0, 0, None, 0), axis_name=AXIS)
        return each(x, y, key, jnp.arange(WORKERS))[0].mean()

    keys = jax.random.split(jax.random.key(0), kind.seeds)
    return np.array([float(run(*one)) for one in zip(x, y, keys, strict=True)])


def measure(kind: str, size: int) -> list[dict[str, Any]]:
    """All methods; D-PSGD, which the others are compared with, is the first."""
    of = KINDS[kind]
    drawn = [data_of(of, size, seed) for seed in range(of.seeds)]
    best = np.array([minimum(*one, of.penalty) for one in drawn])
    x, y = (jnp.asarray(np.stack(part), jnp.float32) for part in zip(*drawn, strict=True))
    found = [(about, losses(of, optimizer, x, y) - best) for about, optimizer in tried(of, size)]
    plain = found[0][1]
    return [about | {"above": above.tolist()} | ratio(above, plain) for about, above in found]


def tried(kind: Kind, size: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Names of what is tried, and its optimizer."""
    sgd = optax.sgd(kind.rate)
    yield {"method": "D-PSGD", "messages": "32 bits", "gamma": None}, aggregate.d_psgd(sgd, MIXING)
    for name, compressor in COMPRESSORS.items():
        alpha = compressor.relative_error(size)
        about = {"messages": name, "alpha": alpha}
        if name != "largest tenth":
            made = aggregate.dcd_psgd(sgd, MIXING, compressor, strictness="ignore")
            yield about | {"method": "DCD", "gamma": None}, made
        for gamma in GAMMAS.get(name, (CONSENSUS, 1.0)):
            made = aggregate.choco_sgd(
                sgd, MIXING, compressor, strictness="ignore", consensus=gamma
            )
            limit = consensus_limit(MIXING.mu, alpha)
            yield about | {"method": "CHOCO", "gamma": gamma, "limit": limit}, made


def ratio(above: np.ndarray, plain: np.ndarray) -> dict[str, Any]:
    """Of means over the seeds, with its interval; nothing where a seed diverged."""
    if not np.isfinite(above).all() or above.mean() > 100 * plain.mean():
        return {"ratio": None, "interval": None}
    draws = np.random.default_rng(0).integers(len(above), size=(RESAMPLES, len(above)))
    ratios = above[draws].mean(1) / plain[draws].mean(1)
    return {"ratio": float(above.mean() / plain.mean()), "interval": middle(ratios)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(
        __doc__,
        Rows(grid(kind=KINDS, size=DIMENSIONS), measure),
        libraries=LIBRARIES,
        seeds=list(range(5)),
    )
