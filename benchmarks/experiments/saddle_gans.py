"""GANs over gossip where each worker sees one mode: 8 Gaussians on a ring, 25 on a torus.

    python benchmarks/experiments/saddle_gans.py [--part NAME ...] [--resume]

Modes at distance 1 of the centre, or on a grid of half that distance, standard deviation 0.04.
Generator and discriminator have two hidden layers of 64; logistic loss, and a penalty of 0.05 times
the squared slope of the discriminator at real samples. A worker draws 64 samples of its own mode in
each operator call. One communication an iteration. Rates fall to a twentieth along a cosine, from
0.002 with Adam's steps and 0.05 without.

`circle` is the 8 Gaussians. `grid` is the 25: as above with two seeds, and with what `GRIDS`
changes with one, beside a single worker that sees all modes and draws as many samples. Parts
that are not named are kept as they were recorded; with `--resume` so are runs of `grid`.

Judged by 2,000 samples of the workers' mean generator: a mode is covered where 1 % of them come
within four standard deviations, and precision is the share of samples that come so near any mode.
"""

import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.command_line import parser_of
from benchmarks.pictures import figure_with, stamp_samples
from benchmarks.record import RESULTS, record, recorded, show
from gradweave import aggregate, saddle, topology
from gradweave.aggregate import MixingMatrix

SEEDS, FEW_SEEDS = tuple(range(10)), (0, 1)
DEVIATION, BATCH = 0.04, 64
SAMPLES, NEAR, LEAST = 2000, 4, 0.01
"""Standard deviations, and the share of samples, for a mode to be covered."""

ANGLES = 2 * np.pi * np.arange(8) / 8
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
GRID = np.stack(np.meshgrid(np.arange(-2, 3), np.arange(-2, 3)), -1).reshape(-1, 2) / 2


@dataclasses.dataclass(frozen=True)
class Setting:
    """Networks, losses and how long."""

    hidden: int = 64
    latent: int = 2
    iterations: int = 4000
    scale: float = 2.0
    """Of the discriminator's input."""
    penalty: float = 0.05

    @property
    def shown(self) -> tuple[int, ...]:
        """Iterations after which samples are looked at."""
        return self.iterations // 10, self.iterations * 3 // 10, self.iterations


PLAIN = Setting()
GRIDS = {
    "as above": PLAIN,
    "sharper discriminator": Setting(scale=4.0, penalty=0.01),
    "wider, 8 latent numbers": Setting(hidden=128, latent=8),
    "sharper, and 2.5 times as long": Setting(scale=4.0, penalty=0.01, iterations=10_000),
}
METHODS = {
    "gradient descent–ascent": (saddle.GradientDescentAscent, 0.05),
    "extra-gradient, as published": (saddle.ExtraGradient, 0.05),
    "its Adam form": (saddle.ExtraAdam, 2e-3),
    "tracked, Adam's steps": (saddle.TrackedAdam, 2e-3),
}
"""With their rates."""
TRACKED = "tracked, Adam's steps"
PARTS = ("circle", "grid")
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
    latent = generator[0][0].shape[0]
    return applied(generator, jax.random.normal(key, (number, latent)))


def loss(
    setting: Setting, modes: jax.Array, generator: Layers, discriminator: Layers, key: jax.Array
) -> jax.Array:
    """What the generator makes small and the discriminator large, with [modes, 2] seen."""
    real_key, fake_key = jax.random.split(key)
    real = modes.repeat(BATCH, 0)
    real = real + DEVIATION * jax.random.normal(real_key, real.shape)
    fake = generated(generator, fake_key, len(real))

    def score(x: jax.Array) -> jax.Array:
        return applied(discriminator, setting.scale * x)[..., 0]

    slope = (jax.vmap(jax.grad(score))(real) ** 2).sum(1).mean()
    said = jax.nn.softplus(-score(real)).mean() + jax.nn.softplus(score(fake)).mean()
    return -said - setting.penalty * slope


def start(setting: Setting, seed: int) -> dict[str, Layers]:
    keys = jax.random.split(jax.random.key(seed))
    inner = (setting.hidden, setting.hidden)
    generator = layers(keys[0], (setting.latent, *inner, 2))
    return {"min": generator, "max": layers(keys[1], (2, *inner, 1))}


def judged(generator: Layers, modes: np.ndarray) -> tuple[int, float, np.ndarray]:
    """Modes covered, precision, and the samples."""
    samples = np.asarray(generated(generator, jax.random.key(99), SAMPLES))
    distance = np.linalg.norm(samples[:, None] - modes, axis=-1)
    near = distance.min(1) < NEAR * DEVIATION
    counts = np.bincount(distance.argmin(1)[near], minlength=len(modes))
    return int((counts >= LEAST * SAMPLES).sum()), float(near.mean()), samples


def trained(
    name: str,
    modes: np.ndarray,
    mixing: MixingMatrix,
    seeds: tuple[int, ...],
    setting: Setting = PLAIN,
) -> dict[str, Any]:
    z, (method, rate) = start(setting, 0), METHODS[name]
    data = jnp.asarray(modes, jnp.float32).reshape(mixing.workers, -1, 2)
    problem = saddle.Problem.of_loss(partial(loss, setting), data, z["min"], z["max"])
    falling = optax.cosine_decay_schedule(rate, setting.iterations, 0.05)
    solver = saddle.Solver(problem, method(falling), mixing)
    began, rows, shown = time.perf_counter(), [], []
    for seed in seeds:
        state = solver.init(jax.random.key(1000 + seed))
        state = state._replace(z=aggregate.replicate(start(setting, seed), problem.workers))
        for iterations in setting.shown:
            state = solver.run(state, iterations - int(state.step))
            covered, precision, samples = judged(aggregate.consensus(state.z)["min"], modes)
            if seed == seeds[0]:
                shown.append(samples[:500].round(3).tolist())
        left_out = int(state.not_finite.sum())
        rows.append({"seed": seed, "covered": covered, "precision": precision, "bad": left_out})
        show({"method": name, **rows[-1]})
    minutes = (time.perf_counter() - began) / 60
    sent = int(solver.sent_bytes(setting.iterations).max())
    return {
        "method": name, "modes": len(modes), "network": mixing.name, "rows": rows,
        "minutes": round(minutes, 1), "bytes": sent, "iterations": setting.iterations,
        "shown": shown,
    }  # fmt: skip


def circle() -> list[dict[str, Any]]:
    ring = MixingMatrix.ring(8)
    runs = [trained(name, CIRCLE, ring, SEEDS) for name in METHODS]
    path, rows = RESULTS / "saddle_gans.png", [without_samples(run) for run in runs]
    draw(runs, CIRCLE, path)
    stamp_samples(path, rows)
    return rows


def grid(result: dict[str, Any]) -> None:
    torus = MixingMatrix.metropolis_hastings(topology.from_spec("torus:5x5"))
    alone = MixingMatrix.complete(1)
    cases = {what: (setting, torus) for what, setting in GRIDS.items()}
    cases["as above, one worker with all modes"] = (PLAIN, alone)
    there = {run["what"] for run in result["grid"]}
    for what, (setting, mixing) in cases.items():
        if what in there:
            continue
        seeds = FEW_SEEDS if setting == PLAIN else FEW_SEEDS[:1]
        run = {"what": what, **trained(TRACKED, GRID, mixing, seeds, setting)}
        result["grid"].append(without_samples(run))
        write(result)


def without_samples(run: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key != "shown"}


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    asked = parser.parse_args()
    known, _ = recorded("saddle_gans", PARTS)
    result = {part: known.get(part, []) for part in PARTS}
    if "circle" in asked.part:
        result["circle"] = circle()
        write(result)
    if "grid" in asked.part:
        if not asked.resume:
            result["grid"] = []
        grid(result)


def write(result: dict[str, Any]) -> None:
    record(
        "saddle_gans",
        libraries=("jax", "jaxlib", "optax"),
        seeds=list(SEEDS),
        **result,
    )


def draw(runs: list[dict[str, Any]], modes: np.ndarray, path: Path) -> None:
    shares = PLAIN.shown
    figure, panels = figure_with(
        (2.3 * len(runs), 2.4 * len(shares)), len(shares), len(runs), dpi=110, framed=True
    )
    for column, run in enumerate(runs):
        for panel, samples, count in zip(panels[:, column], run["shown"], shares, strict=True):
            x = np.array(samples)
            panel.scatter(*modes.T, s=90, facecolors="none", edgecolors="tab:red", lw=0.8)
            panel.scatter(*x.T, s=2, color="tab:blue", alpha=0.5)
            panel.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=[], yticks=[], aspect="equal")
            if not column:
                panel.set_ylabel(f"{100 * count // PLAIN.iterations} % of the iterations")
        panels[0, column].set_title(f"{run['method']},\n{run['network']}", fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    main()
