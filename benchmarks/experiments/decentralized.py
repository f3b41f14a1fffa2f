"""Decentralized training with compression on eight workers in a ring: what converges.

    python benchmarks/experiments/decentralized.py

Logistic regression on data sorted by label, so that each worker has one class only: 4,000 steps,
and how far the loss of the workers' mean is above the minimum (from Newton's method). Batches of 64
and of 4: compression matters more with noisier gradients, since its error is in proportion to the
messages. Messages have one scale for all parameters, 2 to 8 bits.

Then a noisy quadratic, 20,000 steps with step size in proportion to 1/√t, where messages are
rounded to a fixed absolute grid.

The methods are those of `gradweave.aggregate`, on eight devices. No value means divergence in at
least one seed.
"""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

from benchmarks.experiment import Rows, grid, run
from benchmarks.pictures import Picture, figure_with
from gradweave import aggregate
from gradweave.aggregate.decentralized import naive_psgd

WORKERS, SEEDS = 8, tuple(range(10))
FEATURES, SAMPLES, STEPS, RATE, PENALTY = 20, 250, 4000, 0.1, 1e-3
BATCHES = (64, 4)
BITS = (8, 6, 4, 3, 2)
GRID_FEATURES, GRID_STEPS, GRID_RATE, GRID_STEP, NOISE = 50, 20_000, 0.5, 0.1, 0.5
CONSENSUS = 0.3
AXIS = "server"
MIXING = aggregate.MixingMatrix.ring(WORKERS)
METHODS = {
    "naive": naive_psgd,
    "DCD": partial(aggregate.dcd_psgd, strictness="ignore"),
    "ECD": partial(aggregate.ecd_psgd, strictness="ignore"),
    "CHOCO": partial(aggregate.choco_sgd, strictness="ignore", consensus=CONSENSUS),
}
POINTS = 200
"""Points of a curve."""


def classes(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """[W, S, F] features and [W, S] labels ±1, sorted by label."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((WORKERS * SAMPLES, FEATURES))
    slope = rng.standard_normal(FEATURES) * 2 / np.sqrt(FEATURES)
    y = np.where(rng.random(len(x)) < 1 / (1 + np.exp(-x @ slope)), 1.0, -1.0)
    order = np.argsort(y, kind="stable")
    return x[order].reshape(WORKERS, SAMPLES, FEATURES), y[order].reshape(WORKERS, SAMPLES)


def logistic(w, x, y):
    """Mean loss."""
    return jnp.logaddexp(0, -y * (x @ w)).mean() + PENALTY / 2 * (w**2).sum()


def minimum(x: np.ndarray, y: np.ndarray) -> float:
    """The minimal loss, in double precision."""
    x, y = x.reshape(-1, FEATURES), y.reshape(-1)
    w = np.zeros(FEATURES)
    for _ in range(50):
        p = 1 / (1 + np.exp(y * (x @ w)))
        slope = -(x * (y * p)[:, None]).mean(0) + PENALTY * w
        curve = (x * (p * (1 - p))[:, None]).T @ x / len(x) + PENALTY * np.eye(FEATURES)
        w -= np.linalg.solve(curve, slope)
    assert np.abs(slope).max() < 1e-12
    return float(np.logaddexp(0, -y * (x @ w)).mean() + PENALTY / 2 * (w**2).sum())


def on_devices(run, *data: np.ndarray) -> np.ndarray:
    """Results [seeds, …] of a run on data [W, seeds, …]; the same at all workers."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:WORKERS]), (AXIS,))

    def worker(*shards):
        return jax.vmap(run)(*(shard[0] for shard in shards))[None]

    spec = {"mesh": mesh, "in_specs": P(AXIS), "out_specs": P(AXIS), "check_vma": False}
    arguments = [jnp.asarray(part, jnp.float32) for part in data]
    return np.asarray(jax.jit(jax.shard_map(worker, **spec))(*arguments)[0], np.float64)


def losses(optimizer: optax.GradientTransformation, data: list[tuple], batch: int) -> np.ndarray:
    """[seeds, POINTS] loss of the workers' mean on all data, while training."""

    def run(x, y, seed):
        key = jax.random.fold_in(jax.random.key(seed.astype(int)), jax.lax.axis_index(AXIS))

        def step(carry, number):
            w, state = carry
            rows = jax.random.randint(jax.random.fold_in(key, number), (batch,), 0, SAMPLES)
            gradient = jax.grad(logistic)(w, x[rows], y[rows])
            updates, state = optimizer.update(gradient, state, w)
            return (optax.apply_updates(w, updates), state), None

        def segment(carry, first):
            carry, _ = jax.lax.scan(step, carry, first + jnp.arange(STEPS // POINTS))
            mean = jax.lax.pmean(carry[0], AXIS)
            return carry, jax.lax.pmean(logistic(mean, x, y), AXIS)

        begin = jnp.zeros(FEATURES)
        return jax.lax.scan(
            segment, (begin, optimizer.init(begin)), jnp.arange(0, STEPS, STEPS // POINTS)
        )[1]

    x, y = (np.stack(part, axis=1) for part in zip(*data, strict=True))
    return on_devices(run, x, y, np.tile(np.array(SEEDS), (WORKERS, 1)))


def quadratic(optimizer: optax.GradientTransformation) -> np.ndarray:
    """[seeds, POINTS] half the squared distance of the workers' mean from the optimum."""

    def run(target, seed):
        best = jax.lax.pmean(target, AXIS)
        key = jax.random.fold_in(jax.random.key(seed.astype(int)), jax.lax.axis_index(AXIS))

        def step(carry, number):
            w, state = carry
            noise = NOISE * jax.random.normal(jax.random.fold_in(key, number), w.shape)
            updates, state = optimizer.update(w - target + noise, state, w)
            return (optax.apply_updates(w, updates), state), None

        def segment(carry, first):
            carry, _ = jax.lax.scan(step, carry, first + jnp.arange(GRID_STEPS // POINTS))
            return carry, ((jax.lax.pmean(carry[0], AXIS) - best) ** 2).sum() / 2

        begin = jnp.zeros(GRID_FEATURES)
        return jax.lax.scan(
            segment, (begin, optimizer.init(begin)), jnp.arange(0, GRID_STEPS, GRID_STEPS // POINTS)
        )[1]

    seeds = np.tile(np.array(SEEDS), (WORKERS, 1))
    targets = np.stack(
        [np.random.default_rng(seed).standard_normal((WORKERS, GRID_FEATURES)) for seed in SEEDS],
        axis=1,
    )
    return on_devices(run, targets, seeds)


def row(
    method: str, compressor: str, bits: int | None, above: np.ndarray, **more: int
) -> dict[str, Any]:
    """A method's result.

    Args:
        above: [seeds, POINTS] loss above the minimum.
    """
    ends = above[:, -1]
    converged = bool(np.isfinite(ends).all())
    result = {
        "method": method,
        "compressor": compressor,
        "bits": bits,
        **more,
        "above_best": float(ends.mean()) if converged else None,
        "spread": float(ends.std()) if converged else None,
        "curve": [float(v) if np.isfinite(v) else None for v in above.mean(0)],
    }
    print(method, compressor, bits, more, result["above_best"], flush=True)
    return result


def logistic_rows(batch: int) -> list[dict[str, Any]]:
    data = [classes(seed) for seed in SEEDS]
    best = np.array([minimum(*one) for one in data])[:, None]
    sgd = optax.sgd(RATE)

    def run(method: str, bits: int | None, optimizer: optax.GradientTransformation) -> dict:
        above = losses(optimizer, data, batch) - best
        return row(method, "max_norm" if bits else "none", bits, above, batch=batch)

    rows = [
        run("all-reduce", None, optax.chain(aggregate.ring_mean(), sgd)),
        run("D-PSGD", None, aggregate.d_psgd(sgd, MIXING)),
    ]
    for bits in BITS:
        compressor = aggregate.MaxNorm(bits=bits, block=None)
        for name, make in METHODS.items():
            rows.append(run(name, bits, make(sgd, MIXING, compressor)))
    return rows


def quadratic_rows() -> list[dict[str, Any]]:
    sgd = optax.sgd(lambda step: GRID_RATE / jnp.sqrt(step + 1.0))
    compressor = aggregate.Grid(step=GRID_STEP)
    rows = [row("D-PSGD", "none", None, quadratic(aggregate.d_psgd(sgd, MIXING)))]
    for name, make in METHODS.items():
        rows.append(row(name, "grid", None, quadratic(make(sgd, MIXING, compressor))))
    return rows


def draw(result: dict[str, Any], path: Path) -> None:
    figure, (left, right) = figure_with((11, 4.2), 1, 2, dpi=140)
    colours = {"D-PSGD": "black", "all-reduce": "grey", "naive": "tab:red", "DCD": "tab:blue",
               "ECD": "tab:orange", "CHOCO": "tab:green"}  # fmt: skip
    rows = [one for one in result["logistic"] if one["batch"] == BATCHES[0]]
    top = 30.0
    for method in METHODS:
        by_bits = {one["bits"]: one["above_best"] for one in rows if one["method"] == method}
        values = [top if by_bits[b] is None else min(top, by_bits[b]) for b in BITS]
        left.plot(range(len(BITS)), values, "o-", color=colours[method], label=method)
    for method in ("D-PSGD", "all-reduce"):
        (one,) = [one for one in rows if one["method"] == method]
        left.axhline(one["above_best"], color=colours[method], ls="--", lw=1, label=method)
    left.axhline(top, color="lightgrey", lw=6, zorder=0)
    left.text(0, top, "diverged, or more", va="center", fontsize=8)
    left.set(
        yscale="log", xticks=range(len(BITS)), xticklabels=BITS, xlabel="bits an element",
        ylabel="loss above the least one",
        title=f"Logistic regression, labels sorted: {STEPS:,} steps",
    )  # fmt: skip
    for one in sorted(result["quadratic"], key=lambda one: one["method"] == "D-PSGD"):
        steps = np.linspace(0, GRID_STEPS, POINTS + 1)[1:]
        right.plot(
            steps, [np.nan if v is None else v for v in one["curve"]],
            color=colours[one["method"]], label=one["method"],
            **({"ls": "--", "lw": 1} if one["method"] == "D-PSGD" else {"lw": 1.5}),
        )  # fmt: skip
    right.set(
        yscale="log", xscale="log", xlabel="step", ylabel="loss above the least one",
        title=f"Noisy quadratic, messages on an absolute grid of {GRID_STEP}",
    )  # fmt: skip
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", WORKERS)
    warnings.simplefilter("error")
    run(
        __doc__,
        Rows(grid(batch=BATCHES), logistic_rows, "logistic"),
        Rows([{}], quadratic_rows, "quadratic"),
        picture=Picture("decentralized", draw, ("logistic", "quadratic")),
        libraries=("jax", "jaxlib", "optax"),
        problem={
            "features": FEATURES, "samples_per_worker": SAMPLES, "steps": STEPS,
            "rate": RATE, "penalty": PENALTY, "consensus": CONSENSUS, "grid_step": GRID_STEP,
            "grid_steps": GRID_STEPS, "grid_rate": GRID_RATE, "noise": NOISE,
        },
        seeds=list(SEEDS),
        workers=WORKERS,
    )  # fmt: skip
