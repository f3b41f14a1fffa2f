"""Compressed gossip over dimensions: how much of the accuracy messages of few bits cost.

    python benchmarks/experiments/compressed_gossip.py [--only D ...] [--resume]

Eight workers in a ring, on one device. Logistic regression with D features, each of 20/D in square,
2,000 samples sorted by label so that each worker has one class only, a penalty of 0.01; batches of
16, 2,000 steps at a rate of 0.3, five seeds (of data, batches and rounding alike). Loss of the
workers' mean above the minimum (by L-BFGS), over that of D-PSGD, which compresses nothing; means of
the last tenth of steps, and bootstrap intervals of the ratio of means. CHOCO by several gammas.
Blocks are the default, 128 elements, where nothing else is said.
"""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from command_line import parser_of
from intervals import RESAMPLES, middle
from record import record
from unfinished import Unfinished

from gradweave import aggregate
from gradweave.aggregate.validity import consensus_limit

WORKERS, SEEDS, SAMPLES, BATCH, STEPS, RATE, PENALTY = 8, 5, 250, 16, 2000, 0.3, 1e-2
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
GAMMAS = (0.1, 0.3, 1.0)


def data_of(size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """[W, S, D] features and [W, S] labels ±1, sorted by label."""
    rng = np.random.default_rng([size, seed])
    x = rng.standard_normal((WORKERS * SAMPLES, size)) * np.sqrt(20 / size)
    slope = rng.standard_normal(size) * 2 / np.sqrt(20)
    y = np.where(rng.random(len(x)) < 1 / (1 + np.exp(-x @ slope)), 1.0, -1.0)
    order = np.argsort(y, kind="stable")
    return x[order].reshape(WORKERS, SAMPLES, size), y[order].reshape(WORKERS, SAMPLES)


def minimum(x: np.ndarray, y: np.ndarray) -> float:
    """The minimal loss, in double precision."""
    x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = y * (x @ w)
        slope = -((y / (1 + np.exp(margin))) @ x) / len(x) + PENALTY * w
        return float(np.logaddexp(0, -margin).mean() + PENALTY / 2 * w @ w), slope

    found = scipy.optimize.minimize(
        loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-9},
    )  # fmt: skip
    return float(found.fun)


def logistic(w: Any, x: Any, y: Any) -> Any:
    """Mean loss."""
    return jnp.logaddexp(0, -y * (x @ w)).mean() + PENALTY / 2 * (w**2).sum()


def losses(optimizer: optax.GradientTransformation, x: Any, y: Any) -> np.ndarray:
    """[seeds] loss of the workers' mean on all data, mean of the last ones.

    Args:
        optimizer: a worker's.
        x, y: [seeds, W, …].
    """

    def worker(x: Any, y: Any, key: Any, number: Any) -> Any:
        key = jax.random.fold_in(key, number)

        def step(carry: Any, t: Any) -> tuple[Any, None]:
            w, state = carry
            rows = jax.random.randint(jax.random.fold_in(key, t), (BATCH,), 0, SAMPLES)
            gradient = jax.grad(logistic)(w, x[rows], y[rows])
            updates, state = optimizer.update(gradient, state, w)
            return (optax.apply_updates(w, updates), state), None

        def measured(carry: Any, first: Any) -> tuple[Any, Any]:
            carry, _ = jax.lax.scan(step, carry, first + jnp.arange(EVERY))
            mean = jax.lax.pmean(carry[0], AXIS)
            return carry, jax.lax.pmean(logistic(mean, x, y), AXIS)

        begin = jnp.zeros(x.shape[-1])
        carry, _ = jax.lax.scan(
            step, (begin, optimizer.init(begin)), jnp.arange(STEPS - LAST * EVERY)
        )
        return jax.lax.scan(measured, carry, jnp.arange(STEPS - LAST * EVERY, STEPS, EVERY))[1]

    @jax.jit
    def run(x: Any, y: Any, key: Any) -> Any:
        each = jax.vmap(worker, in_axes=(0, 0, None, 0), axis_name=AXIS)
        return each(x, y, key, jnp.arange(WORKERS))[0].mean()

    keys = jax.random.split(jax.random.key(0), SEEDS)
    return np.array([float(run(*one)) for one in zip(x, y, keys, strict=True)])


def cases(size: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Names of what is tried, and its optimizer."""
    sgd = optax.sgd(RATE)
    yield {"method": "D-PSGD", "messages": "32 bits", "gamma": None}, aggregate.d_psgd(sgd, MIXING)
    for name, compressor in COMPRESSORS.items():
        alpha = compressor.relative_error(size)
        about = {"messages": name, "alpha": alpha}
        if name != "largest tenth":
            made = aggregate.dcd_psgd(sgd, MIXING, compressor, strictness="ignore")
            yield about | {"method": "DCD", "gamma": None}, made
        for gamma in GAMMAS:
            made = aggregate.choco_sgd(
                sgd, MIXING, compressor, strictness="ignore", consensus=gamma
            )
            limit = consensus_limit(MIXING.mu, alpha)
            yield about | {"method": "CHOCO", "gamma": gamma, "limit": limit}, made


def ratio(above: np.ndarray, plain: np.ndarray) -> dict[str, Any]:
    """Of means over the seeds, with its interval; nothing where a seed diverged."""
    if not np.isfinite(above).all() or above.mean() > 100 * plain.mean():
        return {"ratio": None, "interval": None}
    draws = np.random.default_rng(0).integers(SEEDS, size=(RESAMPLES, SEEDS))
    ratios = above[draws].mean(1) / plain[draws].mean(1)
    return {"ratio": float(above.mean() / plain.mean()), "interval": middle(ratios)}


def main() -> None:
    """Measures each dimension, from the smallest one on."""
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--only", nargs="*", type=int, default=DIMENSIONS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = Unfinished("compressed_gossip", resume=asked.resume, libraries=("jax", "optax"))
    for size in asked.only:
        drawn = [data_of(size, seed) for seed in range(SEEDS)]
        best = np.array([minimum(*one) for one in drawn])
        x, y = (jnp.asarray(np.stack(part), jnp.float32) for part in zip(*drawn, strict=True))
        for about, optimizer in cases(size):
            one = {"size": size} | about
            if any(row.items() >= one.items() for row in kept.rows()):
                continue
            above = losses(optimizer, x, y) - best
            plain = [row for row in kept.rows() if row["size"] == size][:1]
            of = np.array(plain[0]["above"]) if plain else above
            row = one | {"above": above.tolist()} | ratio(above, of)
            kept.add(row)
            print({name: row[name] for name in (*one, "ratio", "interval")}, flush=True)
    record(
        "compressed_gossip", libraries=("jax", "optax"), seeds=list(range(SEEDS)), rows=kept.rows()
    )
    kept.end()


if __name__ == "__main__":
    main()
