"""Fairness by hierarchy: FEN and what it is compared with, in three worlds, by gossip.

    python benchmarks/experiments/fen.py [--only PART] [--variants NAME ...] [--seeds N] [--resume]

`job`: job scheduling: learning independently, the mean reward, the least utility and inequity
aversion, each of the last three with a hierarchy too, the fair-efficient reward without one, and
FEN, with the exact mean utility and by gossip on a ring; alpha-fair policy gradients, with the
exact mean and by gossip, and a penalty on Jain's index. `matthew` and `plant`: the Matthew effect
and the manufacturing plant. `scripted`: agents that learn nothing, see `fen_scripted.py`. `gossip`:
by how much estimates of the mean utility differ from it, of the utilities of trained agents of the
Matthew effect, by network and exchanges a step.

Seeds are trained one after the other, by a program that is compiled once, and judged in 16 new
episodes each, actions drawn. A seed is written as soon as it is measured; those that are there, of
the same settings and steps, are kept.
"""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.pictures import Picture, figure_with
from benchmarks.record import command_of, record, recorded, show, source_now
from gradweave.processes.jax_start import start_jax

EPISODES = 16
GOSSIP_STEPS = 400_000
"""Of the independent learners whose utilities are gossiped: as many as it takes to learn to eat."""
AT_ONCE = 50
"""Updates of a call of the program."""
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
    "alpha-fair, 1, ring": {"objective": "alpha_fair", "gossip": "ring", **FLAT},
    "alpha-fair, 1, ring, 8 exchanges": {
        "objective": "alpha_fair",
        "gossip": "ring",
        "exchanges": 8,
        **FLAT,
    },
    "alpha-fair, 2": {"objective": "alpha_fair", "alpha": 2.0, **FLAT},
    "Jain's index": {"objective": "jain", **FLAT},
}
FEN: dict[str, dict[str, Any]] = {
    "FEN, exact mean": {"gossip": "exact"},
    "FEN, ring": {"gossip": "ring"},
}
"""By a variant's name, its settings; means are exact where nothing else is said."""


class Part(NamedTuple):
    """A world, and how long and how often each variant is trained in it."""

    world: str
    steps: int
    seeds: int
    others: int
    """Seeds of each variant that is not FEN."""
    variants: tuple[str, ...]


WORLDS = {
    "job": Part("job_scheduling", 1_500_000, 10, 3, (*FEN, *BASELINES)),
    "matthew": Part("matthew_effect", 1_000_000, 5, 5, (*FEN, *BASELINES)),
    "plant": Part("manufacturing_plant", 1_000_000, 5, 5, (*FEN, *BASELINES)),
}


class Trainer:
    """Trains the seeds of one variant one after the other, by a program that is compiled once."""

    def __init__(self, world: str, settings: Any, steps: int) -> None:
        import jax

        from gradweave.marl.config import Config
        from gradweave.marl.games.environments import make
        from gradweave.marl.learners import algorithms
        from gradweave.marl.program import Program

        config = Config(world, "fen", settings, steps)
        self.updates, self.environment = config.updates, make(world)
        self.learner = algorithms.build(config, self.environment, lambda optimizer: optimizer)
        self.program = Program(self.learner, jax.devices()[:1], 0, 1)

    def train(self, seed: int) -> tuple[Any, dict[str, float]]:
        """A seed's parameters, and the figures of its last update."""
        self.program.seed = seed
        state, figures = self.program.start(), {}
        for done in range(0, self.updates, AT_ONCE):
            state, metrics = self.program.run(state, min(AT_ONCE, self.updates - done))
            figures = {name: float(x[-1, 0]) for name, x in metrics.figures.items()}
        return self.program.parameters(state), figures


def settings_of(world: str, name: str) -> Any:
    """A variant's settings in a world."""
    from gradweave.marl.learners import algorithms

    return algorithms.settings("fen", world, {"gossip": "exact"} | (BASELINES | FEN)[name])


def measured(trainer: Trainer, seed: int) -> dict[str, Any]:
    """Trains a seed, and judges it."""
    from gradweave.marl.evaluation import evaluate
    from gradweave.marl.fairness.measures import summary

    begin, begun = time.perf_counter(), time.process_time()
    parameters, last = trainer.train(seed)
    seconds, busy = time.perf_counter() - begin, time.process_time() - begun
    policy = trainer.learner, trainer.environment, parameters, "sampled"
    (judged,) = evaluate(*policy, episodes=EPISODES, seed=0)
    about = summary(judged.by_agent, judged.lengths)
    return about | {
        "seed": seed,
        "product": about["utilisation"] * about["jain"],
        "seconds": seconds,
        "processor_s": busy,
        "cores": len(os.sched_getaffinity(0)),
        "gossip_bytes": last["gossip_bytes"],
        "gossip_error": last["gossip_error"],
    }


def variant(name: str, where: str, seeds: int | None, resume: bool) -> None:
    """Trains the seeds of a variant, or those that are lacking, and writes each."""
    part = WORLDS[where]
    settings = settings_of(part.world, name)
    about = {
        "variant": name,
        "steps": part.steps,
        "settings": json.loads(json.dumps(dataclasses.asdict(settings))),
    }
    same = ("variant", "steps", "settings")
    wished = seeds or (part.seeds if name in FEN else part.others)
    have = [
        row
        for row in _done().get(where, [])
        if all(row.get(field) == about[field] for field in same)
    ]
    by_seed = have[0]["by_seed"] if have and resume else []
    trainer = Trainer(part.world, settings, part.steps)
    for seed in range(len(by_seed), wished):
        source = source_now(command_of("fen"), LIBRARIES)
        by_seed = [*by_seed, measured(trainer, seed) | {"source": source}]
        row = about | {"by_seed": by_seed} | _means(by_seed)
        others = [one for one in _done().get(where, []) if one["variant"] != name]
        rows = sorted([*others, row], key=lambda one: part.variants.index(one["variant"]))
        _write(where, rows)
        show({"variant": name, "seed": seed} | row["mean"])


def _means(by_seed: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all seeds that have it."""
    figures = by_seed[-1].keys() - {"seed", "source"}
    return {
        "mean": {
            name: float(np.mean([one[name] for one in by_seed if name in one]))
            for name in sorted(figures)
        }
    }


def gossip() -> list[dict[str, Any]]:
    """The error of estimates, over an episode of agents that learned independently."""
    import jax
    import jax.numpy as jnp

    from gradweave.marl.fairness.mean_utility import MeanUtility
    from gradweave.marl.fairness.settings import mixing_of

    settings = settings_of("matthew_effect", "independent")
    utility = _utilities(Trainer("matthew_effect", settings, GOSSIP_STEPS))
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
                error = jnp.abs(estimates.mean - mean) / mean  # not finite while the mean is 0
                error = jnp.nanmean(jnp.where(mean > 0, error, jnp.nan))
                return estimates, (error, estimates.sent_bytes.mean())

            start = consensus.start(*utility.shape[1:])
            _, (error, sent) = jax.jit(lambda s, u: jax.lax.scan(step, s, u))(start, utility)
            error = np.asarray(error)
            row = {
                "network": mixing.name,
                "exchanges": exchanges,
                "rho": mixing.rho,
                "bytes_a_step": float(sent.mean()),
                "error": float(np.nanmean(error)),
                "error_at_100": float(error[100]),
                "error_at_end": float(error[-1]),
            }
            print(row, flush=True)
            rows.append(row)
    return rows


def _utilities(trainer: Trainer) -> Any:
    """[steps, games, A] of 8 episodes."""
    import jax

    learner, environment = trainer.learner, trainer.environment
    parameters = jax.tree.map(lambda x: x[0], trainer.train(0)[0])
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


def scripted() -> list[dict[str, Any]]:
    """What agents come to that learn nothing."""
    from benchmarks.experiments import fen_scripted

    return fen_scripted.scripted()


def front(result: dict[str, Any], path: Path) -> None:
    """Utilisation against the coefficient of variation, a point a seed."""
    rows = result["job"]
    figure, axes = figure_with((8.4, 4.8), dpi=130, framed=True)
    for number, row in enumerate(rows):
        points = [(one["variation"], one["utilisation"]) for one in row["by_seed"]]
        marker = "o" if row["variant"] in FEN else "^" if "hierarchy" in row["variant"] else "s"
        axes.scatter(
            *zip(*points, strict=True),
            label=row["variant"],
            marker=marker,
            color=f"C{number}" if number < 10 else FURTHER[number - 10],
            s=28,
            alpha=0.8,
        )
    axes.axvline(0.2, color="grey", linewidth=0.8, linestyle=":")
    axes.axhline(0.85, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="coefficient of variation (fairer to the left)", ylabel="utilisation")
    axes.set(ylim=(0, 1.02), title="Job scheduling: a point for each seed")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path)


FURTHER = ("black", "gold", "navy", "lime", "crimson", "teal")
"""Colours of variants after the tenth."""
LIBRARIES = ("jax",)
BEFORE = ("matthew_before",)
"""Recorded before what agents see was changed, and not measured again."""
OTHERS: dict[str, Callable[[], list[dict[str, Any]]]] = {"scripted": scripted, "gossip": gossip}


def main() -> None:
    """Measures what is asked for; with `--resume`, what of that is lacking."""
    picture = Picture("fen", front, ("job",))
    parser = parser_of(__doc__, picture, resumes=True)
    parser.add_argument("--only", choices=(*WORLDS, *OTHERS), help="the others stay as recorded")
    parser.add_argument("--variants", nargs="*", choices=(*FEN, *BASELINES))
    parser.add_argument("--seeds", type=int)
    asked = parser.parse_args()
    start_jax(1)
    for part in [asked.only] if asked.only else (*WORLDS, *OTHERS):
        if part in OTHERS:
            _write(part, OTHERS[part]())
            continue
        for name in asked.variants or WORLDS[part].variants:
            variant(name, part, asked.seeds, asked.resume)
        if part == "job":
            picture.redraw()


def _done() -> dict[str, Any]:
    """What is measured, by other calls of this script as well."""
    return recorded("fen", (*WORLDS, *OTHERS, *BEFORE))[0]


def _write(part: str, rows: list[dict[str, Any]]) -> None:
    seeds = list(range(max(part.seeds for part in WORLDS.values())))
    record("fen", libraries=LIBRARIES, seeds=seeds, **(_done() | {part: rows}))


if __name__ == "__main__":
    main()
