"""A convolutional GAN on 8×8 digits, whose 16 workers average in several ways, beside a single one.

    python benchmarks/experiments/saddle_digits.py [--iterations K] [--seeds S]

scikit-learn's digits, 1,792 of them dealt to the workers at random, 112 each. In an operator call a
worker draws 8 of its images; the single worker draws 128 of all. Generator: 16 normal numbers, a
dense layer to 4 × 4 × 16, twice the size, two convolutions. Discriminator: two convolutions of
stride 2 and a dense layer. Logistic loss, and a penalty of 0.1 times the squared slope of the
discriminator at images. Extra-gradient with Adam's steps, rates falling to a twentieth along a
cosine; *tracked*, with an estimate of the mean operator, at twice the bytes.

Judged by 8,985 samples of the mean generator in the 32 features of a classifier that was trained
on the digits: Fréchet distance to all 1,797 of them; precision and recall by third nearest
neighbours of 1,797 samples (Kynkäänniemi et al. 2019). Needs scikit-learn. The first seed tries
more rates than the others. Runs that are recorded with these settings are
not repeated.
"""

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from benchmarks.command_line import parser_of
from benchmarks.experiments.saddle_gans import Layers, applied, layers
from benchmarks.pictures import figure_with, stamp_samples
from benchmarks.record import RESULTS, record, recorded, show
from gradweave import aggregate, saddle
from gradweave.aggregate import MixingMatrix

N, EACH, BATCH, LATENT, CHANNELS, PENALTY = 16, 112, 128, 16, 16, 0.1
FEATURES, NEIGHBOURS, SHOWN = 32, 3, 32

Network = dict[str, Layers]


def convolved(x: jax.Array, layer: tuple[jax.Array, jax.Array], stride: int = 1) -> jax.Array:
    """3 × 3, as a product of matrices, which batches of workers' own weights keep quick.

    Args:
        x: [B, H, W, C].
        layer: [9·C, O] and [O].
        stride: of the window.
    """
    size = x.shape[1]
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = [
        padded[:, row : row + size : stride, column : column + size : stride]
        for row in range(3)
        for column in range(3)
    ]
    return jnp.concatenate(windows, -1) @ layer[0] + layer[1]


def generated(generator: Network, key: jax.Array, number: int) -> jax.Array:
    """[number, 8, 8, 1] images, of −1 to 1."""
    latent = jax.random.normal(key, (number, LATENT))
    x = jax.nn.leaky_relu(applied(generator["dense"], latent)).reshape(number, 4, 4, CHANNELS)
    x = x.repeat(2, 1).repeat(2, 2)
    x = jax.nn.leaky_relu(convolved(x, generator["wide"][0]))
    return jnp.tanh(convolved(x, generator["narrow"][0]))


def scored(discriminator: Network, x: jax.Array) -> jax.Array:
    """[B, 8, 8, 1] → [B]."""
    x = jax.nn.leaky_relu(convolved(x, discriminator["first"][0], 2))
    x = jax.nn.leaky_relu(convolved(x, discriminator["second"][0], 2))
    return applied(discriminator["dense"], x.reshape(len(x), -1))[:, 0]


def loss(
    batch: int, mine: jax.Array, generator: Network, discriminator: Network, key: jax.Array
) -> jax.Array:
    """What the generator makes small and the discriminator large."""
    real_key, fake_key = jax.random.split(key)
    real = mine[jax.random.randint(real_key, (batch,), 0, len(mine))]
    fake = generated(generator, fake_key, batch)
    slope = jax.grad(lambda x: scored(discriminator, x).sum())(real)
    said = jax.nn.softplus(-scored(discriminator, real)) + jax.nn.softplus(
        scored(discriminator, fake)
    )
    return -said.mean() - PENALTY * (slope**2).sum((1, 2, 3)).mean()


def start(seed: int) -> dict[str, Network]:
    keys = jax.random.split(jax.random.key(seed), 6)
    generator = {
        "dense": layers(keys[0], (LATENT, 16 * CHANNELS)),
        "wide": layers(keys[1], (9 * CHANNELS, CHANNELS)),
        "narrow": layers(keys[2], (9 * CHANNELS, 1)),
    }
    discriminator = {
        "first": layers(keys[3], (9, CHANNELS)),
        "second": layers(keys[4], (9 * CHANNELS, 2 * CHANNELS)),
        "dense": layers(keys[5], (8 * CHANNELS, 1)),
    }
    return {"min": generator, "max": discriminator}


class Judge:
    """A classifier of the digits, and what images are worth in its features."""

    def __init__(self, images: NDArray, labels: NDArray) -> None:
        order = np.random.default_rng(0).permutation(len(images))
        train, test = order[:1437], order[1437:]
        self.network = self._trained(images[train], labels[train])
        right = applied(self.network, self._flat(images[test])).argmax(1) == labels[test]
        self.accuracy = float(right.mean())
        """On a fifth that it was not trained on."""
        self.real = self.features(images)
        halves = np.array_split(order, 2)
        self.between_halves = frechet(self.real[halves[0]], self.real[halves[1]])

    @staticmethod
    def _flat(images: Any) -> jax.Array:
        return jnp.asarray(images).reshape(len(images), -1)

    def _trained(self, images: NDArray, labels: NDArray) -> Layers:
        network, adam = layers(jax.random.key(0), (64, 64, FEATURES, 10)), optax.adam(2e-3)
        x, y = self._flat(images), jnp.asarray(labels)

        def error(network: Layers, chosen: jax.Array) -> jax.Array:
            scores = applied(network, x[chosen])
            return optax.softmax_cross_entropy_with_integer_labels(scores, y[chosen]).mean()

        def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
            network, state = carry
            gradient = jax.grad(error)(network, jax.random.randint(key, (128,), 0, len(x)))
            change, state = adam.update(gradient, state)
            return (optax.apply_updates(network, change), state), None

        keys = jax.random.split(jax.random.key(1), 1500)
        return jax.jit(lambda s: jax.lax.scan(step, s, keys))((network, adam.init(network)))[0][0]

    def features(self, images: Any) -> NDArray[np.float64]:
        """[B, 32] of the last hidden layer."""
        *hidden, _ = self.network
        x = self._flat(images)
        for weight, bias in hidden:
            x = jax.nn.leaky_relu(x @ weight + bias)
        return np.asarray(x, np.float64)

    def __call__(self, images: Any) -> dict[str, float]:
        found = self.features(images)
        few = found[: len(self.real)]
        return {
            "frechet": frechet(found, self.real),
            "precision": within(few, self.real),
            "recall": within(self.real, few),
        }


def frechet(one: NDArray, other: NDArray) -> float:
    """‖μ₁ − μ₂‖² + tr(S₁ + S₂ − 2(S₁S₂)^{1/2}).

    Source: Heusel et al. 2017, with other features.
    """
    first, second = np.cov(one.T), np.cov(other.T)
    values, vectors = np.linalg.eigh(first)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    both = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ second @ root), 0)).sum()
    apart = ((one.mean(0) - other.mean(0)) ** 2).sum()
    return float(apart + np.trace(first) + np.trace(second) - 2 * both)


def within(these: NDArray, those: NDArray) -> float:
    """The share of these that are nearer to one of those than its third nearest neighbour is."""

    def distances(a: NDArray, b: NDArray) -> NDArray:
        return (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T

    reach = np.partition(distances(those, those), NEIGHBOURS, axis=1)[:, NEIGHBOURS]
    return float((distances(these, those) <= reach).any(1).mean())


def changing() -> MixingMatrix:
    return aggregate.changing_clusters(N, 4, 1000)


def everybody() -> MixingMatrix:
    return MixingMatrix.complete(N)


@dataclasses.dataclass(frozen=True)
class Run:
    """Who trains, and how."""

    name: str
    make: Callable[[], MixingMatrix]
    rate: float
    local_steps: int = 1
    method: type[saddle.ExtraAdam] | type[saddle.TrackedAdam] = saddle.ExtraAdam


ALONE = partial(MixingMatrix.complete, 1)
LOW, HIGH = 2e-3, 6e-3
OWN = HIGH * N**0.5
"""A worker's own: Adam makes steps of one size of its 16 times fewer images, whose noise is 4 times
as large, and so the part that workers agree on is 4 times smaller."""
WAYS: tuple[tuple[str, Callable[[], MixingMatrix], int], ...] = (
    ("full graph", everybody, 1),
    ("four changing clusters", changing, 1),
    ("full graph, H = 5", everybody, 5),
)
RUNS = [
    *(Run("one worker", ALONE, rate) for rate in (LOW, HIGH, 2 * HIGH, OWN, 2 * OWN)),
    *(Run(name, make, OWN, steps) for name, make, steps in WAYS),
    Run("full graph", everybody, LOW),
    Run("four changing clusters", changing, LOW),
    Run("full graph", everybody, HIGH),
    *(Run(name, make, rate, steps) for rate in (2 * OWN, 4 * OWN) for name, make, steps in WAYS),
    *(Run(f"{name}, tracked", make, OWN, steps, saddle.TrackedAdam) for name, make, steps in WAYS),
]


PROMISING = {"one worker": (2 * HIGH, OWN, 2 * OWN)} | {name: (OWN, 2 * OWN) for name, *_ in WAYS}
"""Rates that were best with the first seed, or near it: those that other seeds try."""


def trained(
    run: Run, seed: int, iterations: int, images: NDArray, judge: Judge
) -> tuple[dict[str, Any], list[NDArray]]:
    mixing = run.make()
    order = np.random.default_rng(seed).permutation(len(images))[: N * EACH]
    data = jnp.asarray(images[order].reshape(mixing.workers, -1, 8, 8, 1))
    z = start(seed)
    of = saddle.Problem.of_loss(partial(loss, BATCH // mixing.workers), data, z["min"], z["max"])
    rate = optax.cosine_decay_schedule(run.rate, iterations, 0.05)
    solver = saddle.Solver(of, run.method(rate), mixing, local_steps=run.local_steps)
    state, began = solver.init(jax.random.key(1000 + seed)), time.perf_counter()
    curve, shown = [], []
    draw = partial(generated, number=len(images))
    draw_all = jax.jit(lambda z, keys: jax.lax.map(lambda key: draw(z, key), keys))
    for done in points(iterations):
        state = solver.run(state, done - int(state.step))
        keys = jax.random.split(jax.random.key(99), 5)
        samples = draw_all(aggregate.consensus(state.z)["min"], keys).reshape(-1, 8, 8, 1)
        curve.append({"iterations": done} | judge(samples))
        shown.append(np.asarray(samples[:SHOWN, :, :, 0]))
    row = {
        "run": run.name, "rate": run.rate, "seed": seed, "iterations": iterations, **curve[-1],
        "curve": curve,
        "minutes": (time.perf_counter() - began) / 60,
        "bytes": int(solver.sent_bytes(iterations).max()),
        "not_finite": int(state.not_finite.sum()),
    }  # fmt: skip
    show({key: row[key] for key in row if key != "curve"})
    return row, shown


def points(iterations: int) -> list[int]:
    """At which samples are drawn."""
    return [iterations * part // 20 for part in (1, 4, 10, 20)]


def load_digits() -> Any:
    """scikit-learn's, which nothing else here needs.

    Raises:
        SystemExit: it is not installed.
    """
    try:
        from sklearn import datasets
    except ModuleNotFoundError:
        sys.exit("the digits are scikit-learn's: .venv/bin/python -m pip install scikit-learn")
    return datasets.load_digits()


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    digits = load_digits()
    images = (digits.images / 8 - 1).astype(np.float32)[..., None]
    judge = Judge(images, digits.target)
    known, _ = recorded("saddle_digits", ["rows"]) if given.resume else ({}, {})
    rows = [row for row in known.get("rows", []) if row["iterations"] == given.iterations]
    there = {(row["run"], row["rate"], row["seed"]) for row in rows}
    pictures, from_start = {}, not rows
    path = RESULTS / "saddle_digits.png"
    for seed, run in itertools.product(range(given.seeds), RUNS):
        if (run.name, run.rate, seed) in there or (
            seed and run.rate not in PROMISING.get(run.name, ())
        ):
            continue
        row, shown = trained(run, seed, given.iterations, images, judge)
        rows.append(row)
        record(
            "saddle_digits",
            libraries=("jax", "jaxlib", "optax", "scikit-learn"),
            seeds=list(range(given.seeds)),
            classifier_accuracy=judge.accuracy,
            frechet_between_halves=judge.between_halves,
            rows=rows,
        )
        if seed == 0 and from_start:  # else it would lack those that are not repeated
            pictures[f"{run.name}, rate {run.rate:g}"] = shown
            draw(pictures, images, given.iterations, path)
            stamp_samples(path, rows)


def draw(pictures: dict[str, list[NDArray]], images: NDArray, iterations: int, path: Path) -> None:
    counts = points(iterations)
    figure, panels = figure_with(
        (2.6 * len(counts), 1.45 * (len(pictures) + 1)),
        len(pictures) + 1,
        len(counts),
        dpi=110,
        framed=True,
    )
    rows = pictures | {"digits": [images[:SHOWN, :, :, 0]] * len(counts)}
    for line, (name, shown) in zip(panels, rows.items(), strict=True):
        for panel, samples, count in zip(line, shown, counts, strict=True):
            tiles = samples.reshape(4, SHOWN // 4, 8, 8).transpose(0, 2, 1, 3)
            panel.imshow(tiles.reshape(32, -1), cmap="gray_r", vmin=-1, vmax=1)
            panel.set(xticks=[], yticks=[])
            if name != "digits":
                panel.set_title(f"{name}, {count:,}", fontsize=7)
    panels[-1, 0].set_title("the digits themselves", fontsize=7)
    figure.savefig(path)


if __name__ == "__main__":
    main()
