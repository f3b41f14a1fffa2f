"""Fairness with equal searches: every method with the best of the same rates and entropies.

    python benchmarks/experiments/fairness.py [--only WORLD ...] [--methods NAME ...] [--seeds N]
        [--resume]

Job scheduling, the Matthew effect and the manufacturing plant, each with its own defaults but for
narrower networks, the learning rate and the policies' entropy bonus. The last two are searched
alike for every method: two rates by three entropies, a fifth of the steps, one seed that is not
used again, the largest product of utilisation and Jain's index. What runs by gossip on a ring has
the settings of the same method with the exact mean. Each seed is written as soon as it is measured;
seeds go round all methods of the worlds, so that all have about as many. With `--resume` what is
lacking is measured, also beside another call for other worlds or methods.
"""

import copy
import dataclasses
import functools
import itertools
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from command_line import parser_of
from fen import EPISODES
from record import record, recorded, show, source_now

from gradweave.processes.jax_start import start_jax

STEPS = {"job_scheduling": 600_000, "matthew_effect": 500_000, "manufacturing_plant": 400_000}
"""Of every method in a world."""
HIDDEN = (32, 32)
"""Widths of all networks: half of the default, so that so many trainings are to be had."""
SEARCHED, SEARCH_SEED = 5, 1000
"""Into how many parts steps are divided, of which a trial of the search has one, and its seed."""
RATES, ENTROPIES = (1e-3, 3e-3), (0.01, 0.03, 0.1)
ROUNDS = (2, 3, 5, 10)
"""Seeds that all methods have before any has more."""
FLAT = {"hierarchy": False}
METHODS: dict[str, dict[str, Any]] = {
    "independent": {"objective": "own", **FLAT},
    "average": {"objective": "alpha_fair", "alpha": 0.0, **FLAT},
    "alpha-fair": {"objective": "alpha_fair", **FLAT},
    "FEN": {},
    "alpha-fair, 2": {"objective": "alpha_fair", "alpha": 2.0, **FLAT},
    "minimum": {"objective": "minimum", **FLAT},
    "inequity aversion": {"objective": "inequity_aversion", **FLAT},
    "Jain's index": {"objective": "jain", **FLAT},
    "fair-efficient, no hierarchy": FLAT,
    "minimum, hierarchy": {"objective": "minimum"},
    "alpha-fair, hierarchy": {"objective": "alpha_fair"},
}
"""Searched, with the exact mean. With an alpha of 0 the alpha-fair objective is the mean reward."""
RING = {"gossip": "ring"}
BY_GOSSIP: dict[str, tuple[str, dict[str, Any]]] = {
    "alpha-fair, ring": ("alpha-fair", RING),
    "FEN, ring": ("FEN", RING),
    "alpha-fair, ring, 8 exchanges": ("alpha-fair", RING | {"exchanges": 8}),
    "FEN, ring, 8 exchanges": ("FEN", RING | {"exchanges": 8}),
}
"""With the settings of which method they run, and by which messages."""
FIGURES = ("utilisation", "variation", "least", "greatest", "jain", "product", "gossip_bytes")
COMMAND, LIBRARIES = "python benchmarks/experiments/fairness.py", ("jax",)


class Trainer:
    """Methods in one world that differ in alpha alone: a program compiled once for all of them.

    Rate, entropy and alpha are its arguments.
    """

    def __init__(self, world: str, options: dict[str, Any]) -> None:
        import jax
        import optax

        from gradweave.marl.config import Config
        from gradweave.marl.evaluation import play
        from gradweave.marl.games.environments import make
        from gradweave.marl.learners import algorithms

        # The optimizer's own rate is 1: what it makes of a gradient is scaled by that of the call.
        options = options | {"learning_rate": 1.0, "decay": False, "hidden": HIDDEN}
        settings = algorithms.settings("fen", world, options)
        environment = make(world)
        learner: Any = algorithms.build(
            Config(world, "fen", settings, STEPS[world]), environment, lambda optimizer: optimizer
        )
        self.steps = settings.steps

        def trained(key: Any, rate: Any, entropy: Any, alpha: Any, updates: Any) -> Any:
            varied = copy.copy(settings)
            object.__setattr__(varied, "entropy_coefficient", entropy)
            object.__setattr__(varied, "alpha", alpha)

            def update(i: Any, carry: Any) -> Any:
                def scaled(gradient: Any, state: Any, parameters: Any = None) -> Any:
                    change, state = learner.optimizer.update(gradient, state, parameters)
                    return jax.tree.map(lambda x: rate * (1 - i / updates) * x, change), state

                optimizer = optax.GradientTransformation(learner.optimizer.init, scaled)
                one = dataclasses.replace(learner, settings=varied, optimizer=optimizer)
                state, metrics = one.update(carry[0])
                return state, metrics.figures["gossip_bytes"]

            start = learner.init(key, 0), jax.numpy.zeros(())
            state, sent = jax.lax.fori_loop(0, updates, update, start)
            return learner.parameters(state), sent

        def judged(parameters: Any, keys: Any) -> Any:
            def act(memory: Any, view: Any, keys: Any) -> Any:
                return learner.act(parameters, memory, view, keys, greedy=False)

            return play(environment, act, learner.memory(parameters, EPISODES), keys)

        self.trained, self.judged = jax.jit(trained), jax.jit(judged)

    def measured(
        self, alpha: float, steps: int, seed: int, rate: float, entropy: float
    ) -> dict[str, Any]:
        """Trains a seed, and judges it in new episodes."""
        import jax

        from gradweave.marl.fairness.measures import summary

        begun = time.process_time()
        updates = np.int32(-(-steps // self.steps))
        numbers = np.float32(rate), np.float32(entropy), np.float32(alpha), updates
        parameters, sent = self.trained(jax.random.key(seed), *numbers)
        keys = jax.random.split(jax.random.key(1_000_000 + seed), EPISODES)
        returns, lengths = map(np.asarray, self.judged(parameters, keys))
        about = summary(returns, lengths)
        return about | {
            "seed": seed,
            "rate": rate,
            "entropy": entropy,
            "product": about["utilisation"] * about["jain"],
            "gossip_bytes": float(sent),
            "processor_s": time.process_time() - begun,
        }


@functools.cache
def trainer_of(world: str, options: tuple[tuple[str, Any], ...]) -> Trainer:
    """One of each, compiled when it is first used."""
    return Trainer(world, dict(options))


def measured(world: str, method: str, steps: int, seed: int, **tried: float) -> dict[str, Any]:
    """Trains and judges a seed of a method in a world."""
    parent, gossip = BY_GOSSIP.get(method, (method, {"gossip": "exact"}))
    options = METHODS[parent] | gossip
    alpha = options.pop("alpha", 1.0)
    trainer = trainer_of(world, tuple(options.items()))
    row = trainer.measured(alpha, steps, seed, **tried)
    return {"world": world, "method": method, "steps": steps} | row


def search(world: str, method: str) -> None:
    """Tries the settings that are not tried yet."""
    for rate, entropy in itertools.product(RATES, ENTROPIES):
        one = {"world": world, "method": method, "rate": rate, "entropy": entropy}
        if not any(row.items() >= one.items() for row in done()["search"]):
            steps = STEPS[world] // SEARCHED
            write("search", measured(world, method, steps, SEARCH_SEED, rate=rate, entropy=entropy))


def best(world: str, method: str) -> dict[str, float]:
    """The settings with the largest product."""
    parent, _ = BY_GOSSIP.get(method, (method, {}))
    row = max(rows_of("search", world, parent), key=lambda row: row["product"])
    return {name: row[name] for name in ("rate", "entropy")}


def rows_of(part: str, world: str, method: str) -> list[dict[str, Any]]:
    """What is measured so far of a method in a world."""
    return [row for row in done()[part] if (row["world"], row["method"]) == (world, method)]


def done() -> dict[str, list[dict[str, Any]]]:
    """What is measured so far."""
    return {"search": [], "seeds_of": []} | recorded("fairness", ("search", "seeds_of"))[0]


def write(part: str, row: dict[str, Any]) -> None:
    """Adds a row."""
    show(row)
    there = done()
    there[part] = [*there[part], row | {"source": source_now(COMMAND, LIBRARIES)}]
    summary = summaries(there["seeds_of"])
    record("fairness", COMMAND, LIBRARIES, steps=STEPS, rows=summary, **there)


def summaries(seeds_of: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each world's methods, means over the seeds, and which of them are on the front."""
    rows = []
    for world in STEPS:
        group = []
        for method in [*METHODS, *BY_GOSSIP]:
            seeds = [r for r in seeds_of if (r["world"], r["method"]) == (world, method)]
            if not seeds:
                continue
            mean = {
                name: float(np.mean([one[name] for one in seeds]))
                for name in (*FIGURES, "processor_s")
            }
            products = [one["product"] for one in seeds]
            group.append(
                {"world": world, "method": method, "seeds": len(seeds)}
                | {name: seeds[0][name] for name in ("steps", "rate", "entropy")}
                | mean
                | {"worst_variation": max(one["variation"] for one in seeds)}
                | {"least_product": min(products), "greatest_product": max(products)}
                | {"source": seeds[-1]["source"]}
            )
        for row in group:
            row["front"] = not any(
                other["utilisation"] > row["utilisation"] and other["variation"] < row["variation"]
                for other in group
            )
        rows += group
    return rows


def main() -> None:
    """Measures what is asked for; with `--resume`, what of that is lacking."""
    parser = parser_of(__doc__, resumes=True)
    everything = [*METHODS, *BY_GOSSIP]
    parser.add_argument("--only", nargs="*", choices=STEPS, default=list(STEPS))
    parser.add_argument("--methods", nargs="*", choices=everything, default=everything)
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    if not asked.resume:
        record("fairness", COMMAND, LIBRARIES, steps=STEPS, rows=[], search=[], seeds_of=[])
    start_jax(1)
    for until in [number for number in ROUNDS if number < asked.seeds] + [asked.seeds]:
        for world, method in itertools.product(asked.only, asked.methods):
            if until:
                search(world, BY_GOSSIP.get(method, (method, {}))[0])
            for seed in range(until):
                if all(row["seed"] != seed for row in rows_of("seeds_of", world, method)):
                    row = measured(world, method, STEPS[world], seed, **best(world, method))
                    write("seeds_of", row)


if __name__ == "__main__":
    main()
