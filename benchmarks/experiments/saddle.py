"""Saddle points over gossip: floors, methods without them, messages of four bits, and theory.

    python benchmarks/experiments/saddle.py [--part NAME ...]

`networks`: min over x, max over y of the mean of xᵀA_m y + b_mᵀx + c_mᵀy, 16 workers, 10 + 10
numbers, A_m = I + 0.1·G_m with standard normal G_m, ‖z⁰ − z*‖² = 0.8. 8,000 iterations of the
published method, and ‖z̄ − z*‖² after them, for two rates, several networks and numbers of local
steps: of the instances of the first eight seeds, which nobody chose, each, and least, median and
greatest. Beside them the figures that an earlier prototype had on an instance that was not kept,
and the instance of seed `LIKE`, found by search among seeds as the one that comes nearest to these.
What is drawn of a network is drawn eight times.

`methods`: the same on a ring with a strongly monotone part, for each method. `messages`: 256 + 256
numbers in single precision, messages of 4 bits beside whole ones. `slopes`: the floor of the
published method, one of rate, p, local steps and noise varied at a time, and the exponents fitted;
averages of a monotone problem, and the operator's size on one of Minty's kind, against iterations,
and their floors with one of p, local steps and noise varied at a time. `many`: 256 workers on one
device and one core. Parts that are not named are kept as they were recorded.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture, figure_with
from benchmarks.processes import printed_json
from benchmarks.record import Source, record, recorded, show
from benchmarks.timing import timed
from gradweave import aggregate, saddle
from gradweave.aggregate import MixingMatrix

N, SIZE, ITERATIONS, DISTANCE = 16, 10, 8000, 0.8**0.5
HETEROGENEITY = 0.1 * SIZE**0.5
LIKE, SEEDS = 27495, tuple(range(8))
RATES = (0.2, 0.05)
"""In 1/L."""
NEAR = 0.2
"""By how much a figure may differ from the prototype's to count as reproduced: `within` has the
number of figures that each instance reproduces."""
STRENGTH = 0.1
BIG, BITS = 256, 4

RING = MixingMatrix.ring(N)
STAR = MixingMatrix.metropolis_hastings(nx.star_graph(N - 1), name="star")


def clusters(seed: int = 0) -> MixingMatrix:
    return aggregate.changing_clusters(N, 4, 1000, seed)


def matchings(seed: int = 0) -> MixingMatrix:
    return aggregate.changing_matchings(nx.complete_graph(N), 1000, seed)


NETWORKS: dict[str, Callable[[int], MixingMatrix]] = {
    "all": lambda seed: MixingMatrix.complete(N),
    "four changing clusters": clusters,
    "changing matchings": matchings,
    "ring": lambda seed: RING,
    "star": lambda seed: STAR,
    "none": lambda seed: MixingMatrix.of(np.eye(N), "none"),
}
"""By the seed of what is drawn."""
REFERENCE = {
    0.2: (2.8e-3, 4.7e-3, 1.3e-2, 2.3e-2, 6.8e-2, 9.9e-2),
    0.05: (1.9e-4, 3.1e-4, 6.8e-4, 7.9e-3, 2.4e-2, 9.2e-2),
}
LOCAL_STEPS = {1: 0.008, 2: 0.015, 4: 0.022, 8: 0.030}
"""H on the ring, and the reference's error, at the lower rate."""


def problem(seed: int, heterogeneity: float = HETEROGENEITY, **more: float) -> saddle.Problem:
    return saddle.bilinear(N, SIZE, heterogeneity, distance=DISTANCE, seed=seed, **more)


def lipschitz(of: saddle.Problem) -> float:
    """L, the largest norm of a worker's matrix."""
    return float(np.linalg.norm(np.asarray(of.data[0]), 2, axis=(1, 2)).max())


def block_diag(*blocks: np.ndarray) -> np.ndarray:
    """Square matrices of one size on a diagonal."""
    size = len(blocks[0])
    whole = np.zeros((len(blocks) * size,) * 2)
    for number, block in enumerate(blocks):
        place = slice(number * size, (number + 1) * size)
        whole[place, place] = block
    return whole


def side_by_side(
    problems: list[saddle.Problem], rates: list[float], mixings: list[MixingMatrix]
) -> tuple[saddle.Problem, MixingMatrix]:
    """Several problems as one of all their workers, who do not hear of each other's problem.

    Operators and offsets are multiplied by the rates, so that the method's own may be 1.
    """
    data = [
        (rate * matrix, rate * offset)
        for rate, (matrix, offset) in ((r, p.data) for r, p in zip(rates, problems, strict=True))
    ]
    matrices, offsets = (jnp.concatenate(part) for part in zip(*data, strict=True))
    whole = dataclasses.replace(problems[0], data=(matrices, offsets))
    steps = zip(*(mixing.weights for mixing in mixings), strict=True)
    return whole, MixingMatrix.of([block_diag(*step) for step in steps], mixings[0].name)


def errors(
    problems: list[saddle.Problem],
    rate: float,
    mixing: MixingMatrix | list[MixingMatrix],
    iterations: int = ITERATIONS,
    method: Callable[[float], saddle.Method] = saddle.ExtraGradient,
    **options: Any,
) -> np.ndarray:
    """‖z̄ − z*‖² of each problem, at a rate in 1/L."""
    rates = [rate / lipschitz(each) for each in problems]
    mixings = mixing if isinstance(mixing, list) else [mixing] * len(problems)
    whole, apart = side_by_side(problems, rates, mixings)
    solver = saddle.Solver(whole, method(1.0), apart, **options)
    state = solver.run(solver.init(jax.random.key(0)), iterations)
    means = np.asarray(state.z).reshape(len(problems), N, -1).mean(1)
    aims = np.stack([np.asarray(each.solution) for each in problems])
    return ((means - aims) ** 2).sum(1)


def networks() -> dict[str, Any]:
    like, others = [problem(LIKE)] * len(SEEDS), [problem(seed) for seed in SEEDS]

    def row(what: str, rate: float, reference: float, **options: int) -> dict[str, Any]:
        make = NETWORKS.get(what, NETWORKS["ring"])
        mixings = [make(seed) for seed in SEEDS] * 2
        found = errors(like + others, rate, mixings, **options)
        one = {"what": what, "rate": rate, "reference": reference}
        for name, part in (("like", found[: len(like)]), ("others", found[len(like) :])):
            one[name] = [float(value) for value in np.quantile(part, (0, 0.5, 1))]
        one["each"] = found[len(like) :].tolist()
        print(one, flush=True)
        return one

    rows = [
        row(name, rate, reference)
        for rate in RATES
        for name, reference in zip(NETWORKS, REFERENCE[rate], strict=True)
    ]
    local = [
        row(f"H = {h}", RATES[1], reference, local_steps=h) for h, reference in LOCAL_STEPS.items()
    ]
    alike = [problem(seed, 0.0) for seed in SEEDS]
    found = errors(alike, 0.2, RING)
    away = errors(alike, 0.05, RING, method=saddle.GradientDescentAscent)
    near = np.array([np.array(row["each"]) / row["reference"] - 1 for row in rows + local])
    return {
        "rows": rows,
        "local_steps": local,
        "within": (abs(near) < NEAR).sum(0).tolist(),
        "p": {
            name: dataclasses.asdict(aggregate.best_contraction(make(0)))
            for name, make in NETWORKS.items()
        },
        "alike": {"extra_gradient": float(found.max()), "descent_ascent": float(away.min())},
    }


METHODS = {
    "gradient descent–ascent": saddle.GradientDescentAscent,
    "extra-gradient, as published": saddle.ExtraGradient,
    "past gradient": saddle.PastGradient,
    "optimistic": saddle.Optimistic,
    "tracked": saddle.Tracked,
    "prox-skip": saddle.ProxSkip,
}
POINTS = 100


def methods() -> list[dict[str, Any]]:
    """On a ring, one communication an iteration; and with clusters that change, and local steps."""
    of = problem(LIKE, strength=STRENGTH)
    rate = 0.1 / lipschitz(of)
    rows = []
    for name, method in METHODS.items():
        plain = saddle.Solver(of, method(rate), RING)
        found = saddle.find_saddle_point(plain, 4000, every=40, strictness="ignore")
        others = {
            "changing clusters": {"mixing": clusters()},
            "four local steps": {"local_steps": 4},
        }
        errors = {
            what: float(
                saddle.find_saddle_point(
                    dataclasses.replace(plain, **change), 8000, every=8000, strictness="ignore"
                ).curve[-1]
            )
            for what, change in others.items()
        }
        rows.append({
            "method": name, "calls": method.calls, "error": float(found.curve[-1]),
            "bytes_per_iteration": int(found.sent_bytes[0]) // 4000,
            "curve": found.curve.tolist(), **errors,
        })  # fmt: skip
        show(rows[-1])
    return rows


def in_single_precision(of: saddle.Problem) -> saddle.Problem:
    data, start = jax.tree.map(lambda x: x.astype(jnp.float32), (of.data, of.start))
    return dataclasses.replace(of, data=data, start=start)


def messages() -> list[dict[str, Any]]:
    whole = saddle.bilinear(N, BIG, 0.3, strength=STRENGTH)
    of, rate = in_single_precision(whole), 0.1 / lipschitz(whole)
    few = aggregate.MaxNorm(bits=BITS, block=None)
    ways = {"32 bits": {}, "4 bits": {"rule": aggregate.ChocoSGD(0.6), "compressor": few}}
    rows = []
    for name in ("extra-gradient, as published", "tracked", "prox-skip"):
        for bits, options in ways.items():
            solver = saddle.Solver(of, METHODS[name](rate), RING, **options)
            found = saddle.find_saddle_point(solver, 2000, every=20, strictness="ignore")
            rows.append({
                "method": name, "messages": bits, "message_bytes": solver.message_bytes,
                "after": {k: float(found.curve[k // 20 - 1]) for k in (200, 500, 2000)},
                "curve": found.curve.tolist(),
            })  # fmt: skip
            show(rows[-1])
    return rows


def exponent(x: list[float], y: list[float]) -> float:
    """Of y ~ x^e, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def lazy(share: float) -> MixingMatrix:
    """The ring, of which only a share is done in each step."""
    return MixingMatrix.of((1 - share) * np.eye(N) + share * RING.weights[0], f"ring, {share}")


def floors() -> list[dict[str, Any]]:
    """Of a strongly monotone problem at constant rates; means over seeds."""
    unequal = [problem(seed, strength=STRENGTH) for seed in SEEDS]

    def noisy(sigma: float) -> list[saddle.Problem]:
        # Scaled by the rate in the matrices, so that noise of the same scale must be, too.
        return [problem(seed, 0.0, strength=STRENGTH, noise=sigma * 0.05) for seed in range(32)]

    cases: dict[str, tuple[float, list[float], Callable[[float], np.ndarray]]] = {
        "rate, unequal operators": (
            2, [0.02, 0.01, 0.005], lambda rate: errors(unequal, rate, RING, 40_000)),
        "p, unequal operators": (
            -2, [1.0, 0.5, 0.25], lambda share: errors(unequal, 0.005, lazy(share), 40_000)),
        "local steps H, unequal operators": (
            2, [1, 2, 4], lambda h: errors(unequal, 0.005, RING, 40_000, local_steps=int(h))),
        "noise σ, equal operators": (
            2, [0.5, 1.0, 2.0], lambda sigma: errors(noisy(sigma), 0.05, RING, 4000)),
    }  # fmt: skip
    rows = []
    for what, (bound, values, measure) in cases.items():
        found = [float(measure(value).mean()) for value in values]
        shown = [aggregate.contraction(lazy(x), 1).p for x in values] if what[0] == "p" else values
        rows.append(fitted(what, shown, found, bound))
    return rows


def gap(of: saddle.Problem, rate: float, iterations: int) -> float:
    """Over the ball of radius 1 around z*: ‖F(average)‖, for an F that only turns; of 4 runs."""
    solver = saddle.Solver(of, saddle.ExtraGradient(rate), RING)
    averages = [
        aggregate.consensus(solver.run(solver.init(jax.random.key(seed)), iterations).average)
        for seed in range(4)
    ]
    matrix, offset = (part.mean(0) for part in of.data)
    return float(np.mean([jnp.linalg.norm(matrix @ each + offset) for each in averages]))


def against_iterations() -> list[dict[str, Any]]:
    """The quantities that theory bounds on problems that are not strongly monotone."""
    counts = [1000, 4000, 16_000]
    equal, noisy = problem(0, 0.0), problem(0, 0.0, noise=1.0)
    minty = saddle.minty(N, 20, 0.0)

    def operator(rate: float, iterations: int) -> float:
        """Mean of ‖F(z̄)‖² over the iterations."""
        solver = saddle.Solver(minty, saddle.ExtraGradient(rate), RING)

        def step(state, _):
            return solver.step(state), saddle.residual(minty, aggregate.consensus(state.z))

        start = solver.init(jax.random.key(0))
        return float(jax.jit(lambda s: jax.lax.scan(step, s, None, iterations))(start)[1].mean())

    cases = {
        "monotone: gap of the average": (-1, lambda k: gap(equal, 0.2, k)),
        "the same, noisy, rate 3/√K": (-0.5, lambda k: gap(noisy, 3 / k**0.5, k)),
        "Minty: mean of ‖F(z̄)‖²": (-1, lambda k: operator(0.1, k)),
    }
    rows = []
    for what, (bound, measure) in cases.items():
        found = [measure(count) for count in counts]
        rows.append(fitted(what, counts, found, bound))
    return rows


RATE, TWIST, LATE = 0.0025, 0.3, 40_000
"""Of the floors of problems that are not strongly monotone: the rate; how much Minty operators
differ; iterations from the solution on, of which the second half is looked at."""


def from_solution(
    of: saddle.Problem, rate: float, mixing: MixingMatrix, h: int
) -> tuple[saddle.Solver, saddle.SolverState]:
    """A solver, and its state after half of the iterations, of which nothing is the start's."""
    near = dataclasses.replace(of, start=of.solution)
    solver = saddle.Solver(near, saddle.ExtraGradient(rate), mixing, local_steps=h)
    return solver, solver.run(solver.init(jax.random.key(0)), LATE // 2)


def gap_late(of: saddle.Problem, rate: float, mixing: MixingMatrix, h: int = 1) -> float:
    """‖F(average)‖, as in `against_iterations`, of the second half of the iterations."""
    solver, half = from_solution(of, rate, mixing, h)
    whole = solver.run(half, LATE // 2)
    average = jax.tree.map(lambda a, b: (2 * a - b).mean(0), whole.average, half.average)
    return float(jnp.sqrt(saddle.residual(of, average)))


def operator_late(of: saddle.Problem, rate: float, mixing: MixingMatrix, h: int = 1) -> float:
    """Mean of ‖F(z̄)‖² over the second half of the iterations."""
    solver, half = from_solution(of, rate, mixing, h)
    exact = saddle.minty(N, 20, 0.0)

    def step(state: saddle.SolverState, _: None) -> tuple[saddle.SolverState, jax.Array]:
        return solver.step(state), saddle.residual(exact, aggregate.consensus(state.z))

    return float(jax.jit(lambda s: jax.lax.scan(step, s, None, LATE // 2))(half)[1].mean())


def weaker_slopes() -> list[dict[str, Any]]:
    """Of a monotone problem and one of Minty's kind; p, H and σ varied one at a time.

    Noise of a monotone problem is seen at the rate that theory has for it, which falls with it.
    """
    few = [problem(seed) for seed in SEEDS[:2]]
    minty = saddle.minty(N, 20, 1.0, twist=TWIST)
    kinds: dict[str, tuple[float, Callable[..., float]]] = {
        "monotone: gap": (1, lambda *case: float(np.mean([gap_late(of, *case) for of in few]))),
        "Minty: mean of ‖F(z̄)‖²": (2, lambda *case: operator_late(minty, *case)),
    }
    shares, local, noises = [1.0, 0.5, 0.25], [1, 2, 4], [0.5, 1.0, 2.0]
    p = [aggregate.contraction(lazy(share), 1).p for share in shares]
    rows = []
    for kind, (power, measure) in kinds.items():
        found = [measure(RATE, lazy(share)) for share in shares]
        rows.append(fitted(f"{kind}, p", p, found, -power))
        found = [measure(RATE, RING, h) for h in local]
        rows.append(fitted(f"{kind}, local steps H", local, found, power))
    found = [gap(problem(0, 0.0, noise=x), 3 / (x * 16_000**0.5), 16_000) for x in noises]
    rows.append(fitted("monotone: gap, noise σ, rate in proportion to 1/σ", noises, found, 1))
    found = [operator_late(saddle.minty(N, 20, 0.0, noise=x), RATE, RING) for x in noises]
    rows.append(fitted("Minty: mean of ‖F(z̄)‖², noise σ", noises, found, 2))
    return rows


def fitted(what: str, values: Sequence[float], found: list[float], bound: float) -> dict[str, Any]:
    """A row of the table of slopes."""
    row = {
        "what": what, "values": list(values), "errors": found,
        "exponent": exponent(list(values), found), "bound": bound,
    }  # fmt: skip
    print(row, flush=True)
    return row


def many() -> dict[str, Any]:
    """256 workers on one device and one core: the least time of an iteration, and memory."""
    of = saddle.bilinear(256, 100, 0.3, strength=STRENGTH)
    solver = saddle.Solver(of, saddle.Tracked(0.1), MixingMatrix.ring(256))
    state = solver.init(jax.random.key(0))
    compiled = jax.jit(solver.step).lower(state).compile()
    data = sum(leaf.nbytes for leaf in jax.tree.leaves((of.data, state)))
    seconds = []
    for _ in range(21):  # the first warms up
        taken, state = timed(lambda before=state: jax.block_until_ready(compiled(before)))
        seconds.append(taken)
    return {
        "size": 200,
        "cores": len(os.sched_getaffinity(0)),
        "iterations_per_s": 1 / min(seconds[1:]),
        "temporary_mib": compiled.memory_analysis().temp_size_in_bytes / 2**20,
        "data_and_state_mib": data / 2**20,
    }


PARTS: dict[str, Callable[[], Any]] = {
    "networks": networks,
    "methods": methods,
    "messages": messages,
    "slopes": lambda: floors() + against_iterations(),
    "weaker_slopes": weaker_slopes,
    "many": lambda: printed_json([sys.executable, __file__, ONE_CORE]),
}
ONE_CORE = "--many-on-one-core"


def main() -> None:
    picture = Picture("saddle", draw, ("networks", "methods", "messages"))
    parser = parser_of(__doc__, picture)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(ONE_CORE, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if given.many_on_one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps(many()))
        return
    whole = set(given.part) == set(PARTS)
    result, kept = ({}, {}) if whole else recorded("saddle", PARTS)
    for name in given.part:
        result[name] = PARTS[name]()
        kept.pop(name, None)
        if set(PARTS) <= set(result):
            write(result, kept)
            picture.redraw()


def write(result: dict[str, Any], kept: dict[str, Source]) -> None:
    """Records all parts."""
    record(
        "saddle",
        kept=kept,
        libraries=("jax", "jaxlib", "optax"),
        seeds=[LIKE, *SEEDS],
        problem={
            "workers": N, "size": SIZE, "iterations": ITERATIONS, "heterogeneity": HETEROGENEITY,
            "strength": STRENGTH, "big": BIG,
        },
        **result,
    )  # fmt: skip


def draw(result: dict[str, Any], path: Path) -> None:
    figure, (left, middle, right) = figure_with((12, 3.9), 1, 3, dpi=140)
    colours = dict(
        zip(
            METHODS, ("grey", "tab:red", "tab:orange", "gold", "tab:blue", "tab:green"), strict=True
        )
    )
    for row in result["methods"]:
        steps = np.arange(1, POINTS + 1) * 40
        left.plot(steps, row["curve"], color=colours[row["method"]], label=row["method"])
    left.set(
        xlabel="iterations", title="Ring of 16, unequal workers, rate 0.1/L", yscale="log",
        ylabel="‖z̄ − z*‖²", ylim=(1e-27, 3),
    )  # fmt: skip
    for row in result["messages"]:
        sent = np.arange(1, POINTS + 1) * 20 * 2 * row["message_bytes"] / 2**20
        dashed = "--" if row["messages"] == "4 bits" else "-"
        name = f"{row['method'].partition(',')[0]}, {row['messages']}"
        middle.plot(sent, row["curve"], dashed, color=colours[row["method"]], label=name)
    middle.set(
        xlabel="MiB sent by each worker", xscale="log", yscale="log", ylabel="‖z̄ − z*‖²",
        title="Messages of 4 and 32 bits, 512 numbers",
    )  # fmt: skip
    names = list(NETWORKS)
    for rate, colour in zip(RATES, ("tab:red", "tab:orange"), strict=True):
        rows = [row for row in result["networks"]["rows"] if row["rate"] == rate]
        right.plot(names, [row["others"][1] for row in rows], "o-", color=colour, label=f"{rate}/L")
        right.fill_between(
            names, *zip(*((row["others"][0], row["others"][2]) for row in rows), strict=True),
            color=colour, alpha=0.2, lw=0,
        )  # fmt: skip
    right.set(yscale="log", ylabel="‖z̄ − z*‖²", title="What the published method leaves")
    right.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    for axes in (left, middle, right):
        axes.legend(frameon=False, fontsize=7)
    figure.savefig(path)


if __name__ == "__main__":
    main()
