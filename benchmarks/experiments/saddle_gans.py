"""GANs over gossip where each worker sees one mode: 8 Gaussians on a ring, 25 on a torus.

    python benchmarks/experiments/saddle_gans.py

Modes at distance 1 of the centre, or on a grid of half that distance, standard deviation 0.04.
Generator and discriminator have two hidden layers of 64; logistic loss, and a penalty of 0.05 times
the squared slope of the discriminator at real samples. A worker draws 64 samples of its own mode in
each operator call. One communication an iteration. Rates fall to a twentieth along a cosine, from
0.002 with Adam's steps and 0.05 without.

Judged by 2,000 samples of the workers' mean generator: a mode is covered where 1 % of them come
within four standard deviations, and precision is the share of samples that come so near any mode.
"""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from record import RESULTS, record, show

from gradweave import aggregate, saddle, topology
from gradweave.aggregate import MixingMatrix

SEEDS, FEW_SEEDS = tuple(range(10)), (0, 1)
DEVIATION, HIDDEN, LATENT, BATCH, PENALTY = 0.04, 64, 2, 64, 0.05
ITERATIONS, SHOWN = 4000, (400, 1200, 4000)
SAMPLES, NEAR, LEAST = 2000, 4, 0.01
"""Standard deviations, and the share of samples, for a mode to be covered."""

ANGLES = 2 * np.pi * np.arange(8) / 8
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
GRID = np.stack(np.meshgrid(np.arange(-2, 3), np.arange(-2, 3)), -1).reshape(-1, 2) / 2


def falling(rate: float) -> optax.Schedule:
    """To a twentieth, along a cosine."""
    return optax.cosine_decay_schedule(rate, ITERATIONS, 0.05)


METHODS = {
    "gradient descent–ascent": saddle.GradientDescentAscent(falling(0.05)),
    "extra-gradient, as published": saddle.ExtraGradient(falling(0.05)),
    "its Adam form": saddle.ExtraAdam(falling(2e-3)),
    "tracked, Adam's steps": saddle.TrackedAdam(falling(2e-3)),
}
Layers = list[tuple[jax.Array, jax.Array]]


def layers(key: jax.Array, sizes: tuple[int, ...]) -> Layers:
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [(jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, jnp.zeros(b)) for k, a, b in shapes]


def applied(network: Layers, x: jax.Array) -> jax.Array:
    for weight, bias in network[:-1]:
        x = jax.nn.leaky_relu(x @ weight + bias)
    weight, bias = network[-1]
    return x @ weight + bias


def generated(generator: Layers, key: jax.Array, number: int) -> jax.Array:
    return applied(generator, jax.random.normal(key, (number, LATENT)))


def loss(mode: jax.Array, generator: Layers, discriminator: Layers, key: jax.Array) -> jax.Array:
    """What the generator makes small and the discriminator large."""
    real_key, fake_key = jax.random.split(key)
    real = mode + DEVIATION * jax.random.normal(real_key, (BATCH, 2))
    fake = generated(generator, fake_key, BATCH)

    def score(x: jax.Array) -> jax.Array:
        return applied(discriminator, 2 * x)[..., 0]

    slope = (jax.vmap(jax.grad(score))(real) ** 2).sum(1).mean()
    said = jax.nn.softplus(-score(real)).mean() + jax.nn.softplus(score(fake)).mean()
    return -said - PENALTY * slope


def start(seed: int) -> dict[str, Layers]:
    keys = jax.random.split(jax.random.key(seed))
    inner = (HIDDEN, HIDDEN)
    return {"min": layers(keys[0], (LATENT, *inner, 2)), "max": layers(keys[1], (2, *inner, 1))}


def judged(generator: Layers, modes: np.ndarray) -> tuple[int, float, np.ndarray]:
    """Modes covered, precision, and the samples."""
    samples = np.asarray(generated(generator, jax.random.key(99), SAMPLES))
    distance = np.linalg.norm(samples[:, None] - modes, axis=-1)
    near = distance.min(1) < NEAR * DEVIATION
    counts = np.bincount(distance.argmin(1)[near], minlength=len(modes))
    return int((counts >= LEAST * SAMPLES).sum()), float(near.mean()), samples


def trained(
    name: str, modes: np.ndarray, mixing: MixingMatrix, seeds: tuple[int, ...]
) -> dict[str, Any]:
    z = start(0)
    problem = saddle.Problem.of_loss(loss, jnp.asarray(modes, jnp.float32), z["min"], z["max"])
    solver = saddle.Solver(problem, METHODS[name], mixing)
    began, rows, shown = time.perf_counter(), [], []
    for seed in seeds:
        state = solver.init(jax.random.key(1000 + seed))
        state = state._replace(z=aggregate.replicate(start(seed), problem.workers))
        for iterations in SHOWN:
            state = solver.run(state, iterations - int(state.step))
            covered, precision, samples = judged(aggregate.consensus(state.z)["min"], modes)
            if seed == seeds[0]:
                shown.append(samples[:500].round(3).tolist())
        left_out = int(state.not_finite.sum())
        rows.append({"seed": seed, "covered": covered, "precision": precision, "bad": left_out})
        show({"method": name, **rows[-1]})
    minutes = (time.perf_counter() - began) / 60
    sent = int(solver.sent_bytes(ITERATIONS).max())
    return {
        "method": name, "modes": len(modes), "network": mixing.name, "rows": rows,
        "minutes": round(minutes, 1), "bytes": sent, "shown": shown,
    }  # fmt: skip


def main() -> None:
    ring = MixingMatrix.ring(8)
    torus = MixingMatrix.metropolis_hastings(topology.from_spec("torus:5x5"))
    runs = [trained(name, CIRCLE, ring, SEEDS) for name in METHODS]
    runs += [trained("tracked, Adam's steps", GRID, torus, FEW_SEEDS)]
    draw(runs, RESULTS / "saddle_gans.png")
    for run in runs:
        del run["shown"]
    record(
        "saddle_gans",
        libraries=("jax", "jaxlib", "optax"),
        seeds=list(SEEDS),
        iterations=ITERATIONS,
        runs=runs,
    )


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.3 * len(runs), 2.4 * len(SHOWN)), layout="constrained")
    panels = figure.subplots(len(SHOWN), len(runs))
    for column, run in enumerate(runs):
        modes = CIRCLE if run["modes"] == len(CIRCLE) else GRID
        for panel, samples, count in zip(panels[:, column], run["shown"], SHOWN, strict=True):
            x = np.array(samples)
            panel.scatter(*modes.T, s=90, facecolors="none", edgecolors="tab:red", lw=0.8)
            panel.scatter(*x.T, s=2, color="tab:blue", alpha=0.5)
            panel.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=[], yticks=[], aspect="equal")
            if not column:
                panel.set_ylabel(f"{count:,} iterations")
        panels[0, column].set_title(f"{run['method']},\n{run['network']}", fontsize=9)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
