"""Fairness by hierarchy: FEN and what it is compared with, in three worlds, by gossip.

    python benchmarks/experiments/fen.py [--only PART] [--variants NAME ...] [--seeds N] [--again]

`job`: job scheduling, 10 seeds of each variant: learning independently, the mean reward, the least
utility and inequity aversion, each of the last three with a hierarchy too, the fair-efficient
reward without one, and FEN, with the exact mean utility and by gossip on a ring; alpha-fair policy
gradients and a penalty on Jain's index. `matthew` and `plant`: the Matthew effect and the
manufacturing plant, 5 seeds. --seeds has fewer, where time is short. `gossip`: by how much
estimates of the mean utility differ from it, of the utilities of trained agents of the Matthew
effect, by network and exchanges a step.

All are judged in 16 new episodes a seed, actions drawn. A variant is written as soon as it is
measured; those that are there are kept, unless --again.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from record import RESULTS, record

EPISODES = 16
FLAT = {"hierarchy": False}
BASELINES: dict[str, dict[str, Any]] = {
    "independent": {"objective": "own", **FLAT},
    "average": {"objective": "average", **FLAT},
    "minimum": {"objective": "minimum", **FLAT},
    "inequity aversion": {"objective": "inequity_aversion", **FLAT},
    "average, hierarchy": {"objective": "average"},
    "minimum, hierarchy": {"objective": "minimum"},
    "inequity aversion, hierarchy": {"objective": "inequity_aversion"},
    "fair-efficient, no hierarchy": FLAT,
    "alpha-fair, 1": {"objective": "alpha_fair", **FLAT},
    "alpha-fair, 2": {"objective": "alpha_fair", "alpha": 2.0, **FLAT},
    "Jain's index": {"objective": "jain", **FLAT},
}
FEN: dict[str, dict[str, Any]] = {
    "FEN, exact mean": {"gossip": "exact"},
    "FEN, ring": {"gossip": "ring"},
}
"""By a variant's name, its settings; the mean utility is exact in all but the last."""
WORLDS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "job": ("job_scheduling", 10, 1_000_000, {}),
    "matthew": ("matthew_effect", 5, 1_000_000, {}),
    "plant": ("manufacturing_plant", 5, 1_000_000, {}),
}
"""By a part's name: world, seeds, steps, and settings of all variants."""


def trained(world: str, seeds: int, steps: int, settings: dict[str, Any]) -> Any:
    """A training of all seeds side by side, and how long it took."""
    from gradweave.marl.config import Config
    from gradweave.marl.learners import algorithms
    from gradweave.marl.training import train

    made = algorithms.settings("fen", world, settings)
    config = Config(world, "fen", made, steps, seeds=seeds)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        found = train(config, Path(folder), checkpoint_minutes=1e6)
        seconds = time.perf_counter() - begun
        lines = [json.loads(line) for line in (Path(folder) / "log.jsonl").open()]
    return found, seconds, lines


def variant(part: str, name: str, seeds: int | None) -> dict[str, Any]:
    """Trains and judges one."""
    from gradweave.marl.evaluation import evaluate
    from gradweave.marl.fairness.measures import summary

    world, most, steps, common = WORLDS[part]
    seeds = min(seeds or most, most)
    settings = {"gossip": "exact"} | common | (BASELINES | FEN)[name]
    found, seconds, lines = trained(world, seeds, steps, settings)
    judged = evaluate(
        *(found.learner, found.environment, found.parameters, "sampled"),
        episodes=EPISODES,
        seed=0,
    )
    by_seed = [summary(one.by_agent, one.lengths) for one in judged]
    mean = {key: float(np.mean([one[key] for one in by_seed])) for key in by_seed[0]}
    product = [one["utilisation"] * one["jain"] for one in by_seed]
    last = lines[-1]
    row = {
        "variant": name,
        "steps": lines[-1]["steps"],
        "seconds": seconds,
        "mean": mean,
        "by_seed": by_seed,
        "product": product,
        "gossip_bytes": float(np.mean(last["gossip_bytes"])),
        "gossip_error": float(np.mean(last["gossip_error"])),
    }
    brief = {key: round(value, 3) for key, value in mean.items()}
    worst = max(one["variation"] for one in by_seed)
    print(name, brief, f"worst {worst:.3f}, product {np.mean(product):.4f}, {seconds:.0f} s")
    return row


def gossip() -> list[dict[str, Any]]:
    """The error of estimates, over an episode of agents that learned independently."""
    import jax
    import jax.numpy as jnp

    from gradweave.marl.fairness.mean_utility import MeanUtility
    from gradweave.marl.fairness.settings import mixing_of

    settings = {"gossip": "exact"} | BASELINES["independent"]
    found, *_ = trained("matthew_effect", 1, 100_000, settings)
    utility = _utilities(found)
    rows = []
    agents = utility.shape[-1]
    for network in ("ring", "mixing=matchings", "torus:2x5", "complete"):
        for exchanges in (1, 2, 4, 8):
            mixing = mixing_of(network, agents)
            assert mixing is not None
            consensus = MeanUtility(mixing, exchanges)

            def step(estimates: Any, now: Any, consensus: MeanUtility = consensus) -> Any:
                estimates = consensus.after(estimates, now, jnp.zeros(len(now), bool))
                mean = now.mean(-1, keepdims=True)
                error = jnp.abs(estimates.mean - mean) / jnp.maximum(mean, 1e-9)
                return estimates, (error.mean(), estimates.sent_bytes.mean(), mean.min() > 0)

            start = consensus.start(*utility.shape[1:])
            _, (error, sent, known) = jax.jit(lambda s, u: jax.lax.scan(step, s, u))(start, utility)
            error, known = np.asarray(error), np.asarray(known)
            row = {
                "network": mixing.name,
                "exchanges": exchanges,
                "rho": mixing.rho,
                "bytes_a_step": float(sent.mean()),
                "error": float(error[known].mean()),
                "error_at_100": float(error[100]),
                "error_at_end": float(error[-1]),
            }
            print(row, flush=True)
            rows.append(row)
    return rows


def _utilities(found: Any) -> Any:
    """[steps, games, A] of 8 episodes."""
    import jax

    learner, environment = found.learner, found.environment
    parameters = jax.tree.map(lambda x: x[0], found.parameters)
    keys = jax.random.split(jax.random.key(1), 8)
    games, view = jax.vmap(environment.reset)(keys)

    def step(carry: Any, key: Any) -> Any:
        games, view, memory = carry
        acting, playing = jax.random.split(key)
        memory, action = learner.act(
            parameters, memory, view, jax.random.split(acting, 8), greedy=False
        )
        games, view, outcome = environment.steps(jax.random.split(playing, 8), games, action)
        return (games, view, memory), outcome.last.utility

    steps = jax.random.split(jax.random.key(2), environment.game.max_steps)
    carry = games, view, learner.memory(parameters, 8)
    return jax.jit(lambda carry: jax.lax.scan(step, carry, steps)[1])(carry)


def front(rows: list[dict[str, Any]]) -> None:
    """Utilisation against the coefficient of variation, a point a seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for number, row in enumerate(rows):
        points = [(one["variation"], one["utilisation"]) for one in row["by_seed"]]
        marker = "o" if row["variant"] in FEN else "^" if "hierarchy" in row["variant"] else "s"
        axes.scatter(
            *zip(*points, strict=True),
            label=row["variant"],
            marker=marker,
            color=f"C{number}" if number < 10 else ("black", "gold", "navy")[number - 10],
            s=28,
            alpha=0.8,
        )
    axes.axvline(0.2, color="grey", linewidth=0.8, linestyle=":")
    axes.axhline(0.85, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="coefficient of variation (fairer to the left)", ylabel="utilisation")
    axes.set(ylim=(0, 1.02), title="Job scheduling: a point for each seed")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(RESULTS / "fen.png", dpi=130)


def main() -> None:
    """Measures what is asked for, and lacking."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=(*WORLDS, "gossip"))
    parser.add_argument("--variants", nargs="*", choices=(*FEN, *BASELINES))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    for part in [asked.only] if asked.only else (*WORLDS, "gossip"):
        if part == "gossip":
            if part not in _done() or asked.again:
                _write(part, gossip())
            continue
        for name in asked.variants or (*FEN, *BASELINES):
            have = {row["variant"] for row in _done().get(part, [])}
            if name not in have or asked.again:
                row = variant(part, name, asked.seeds)
                others = [one for one in _done().get(part, []) if one["variant"] != name]
                _write(part, [*others, row])
    if "job" in _done():
        front(_done()["job"])


def _done() -> dict[str, Any]:
    """What is measured, by other calls of this script as well."""
    path = RESULTS / "fen.json"
    have = json.loads(path.read_text()) if path.exists() else {}
    return {part: have[part] for part in (*WORLDS, "gossip") if part in have}


def _write(part: str, rows: list[dict[str, Any]]) -> None:
    record("fen", libraries=("jax",), seeds=[0], **(_done() | {part: rows}))


if __name__ == "__main__":
    main()
