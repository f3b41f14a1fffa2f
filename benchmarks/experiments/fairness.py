"""Fairness with equal searches: every method with the best of the same rates and entropies.

    python benchmarks/experiments/fairness.py [--only WORLD ...] [--methods NAME ...] [--seeds N]
        [--resume]

Job scheduling, the Matthew effect and the manufacturing plant, each with its own defaults but for
narrower networks, the learning rate and the policies' entropy bonus. The last two are searched
alike for every method: two rates by three entropies, a third of the steps, one seed that is not
used again, the largest product of utilisation and Jain's index. What runs by gossip on a ring has
the settings of the same method with the exact mean. Each seed is written as soon as it is measured;
seeds go round all methods of the worlds, so that all have about as many. With `--resume` what is
lacking is measured, also beside another call for other worlds or methods.

FEN over alpha-fair was chosen among variants of FEN by seeds 0 to 2 of all worlds. So its own seeds
are from 10 on, where the others' are from 0 on.

Compiling takes longer than training, so that all methods of a world without a hierarchy are one
program, and so are those with one and the same first sub-policy: objective, alpha, epsilon, and the
matrix by which means are found are its arguments, as rate and entropy are. Independent agents find
no means: they see their own utility, where the others see how it differs from the mean.
"""

import copy
import dataclasses
import functools
import itertools
import time
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.experiments.fen import EPISODES
from benchmarks.record import record, recorded, show, source_now
from gradweave.processes.jax_start import start_jax

STEPS = {"job_scheduling": 600_000, "matthew_effect": 500_000, "manufacturing_plant": 400_000}
"""Of every method in a world."""
HIDDEN = (32, 32)
"""Widths of all networks: half of the default, so that so many trainings are to be had."""
SEARCHED, SEARCH_SEED = 3, 1000
"""Into how many parts steps are divided, of which a trial of the search has one, and its seed."""
RATES, ENTROPIES = (1e-3, 3e-3), (0.01, 0.03, 0.1)
ROUNDS = (2, 3, 5, 10)
"""Seeds that all methods have before any has more."""


class Method(NamedTuple):
    """What agents maximise, and how they find means."""

    objective: str
    alpha: float = 1.0
    epsilon: float = 0.1
    """Of the fair-efficient reward: the default."""
    hierarchy: bool = False
    first: str = "own"
    """What the first sub-policy maximises."""
    network: str = "exact"
    """`exact`, `ring`, or `alone`."""
    exchanges: int = 1


METHODS = {
    "independent": Method("own", network="alone"),
    "average": Method("alpha_fair", 0.0),
    "alpha-fair": Method("alpha_fair"),
    "FEN": Method("fair_efficient", hierarchy=True),
    "alpha-fair, 2": Method("alpha_fair", 2.0),
    "minimum": Method("minimum"),
    "inequity aversion": Method("inequity_aversion"),
    "Jain's index": Method("jain"),
    "fair-efficient, no hierarchy": Method("fair_efficient"),
    "minimum, hierarchy": Method("minimum", hierarchy=True),
    "alpha-fair, hierarchy": Method("alpha_fair", hierarchy=True),
    "FEN over alpha-fair": Method("fair_efficient", hierarchy=True, first="alpha_fair"),
    "FEN, epsilon 0.3": Method("fair_efficient", epsilon=0.3, hierarchy=True),
    "FEN, epsilon 1": Method("fair_efficient", epsilon=1.0, hierarchy=True),
}
"""Searched. With an alpha of 0 the alpha-fair objective is the mean reward."""
BY_GOSSIP = {
    f"{method}, ring{more}": (method, METHODS[method]._replace(network="ring", exchanges=exchanges))
    for exchanges, more in {1: "", 8: ", 8 exchanges"}.items()
    for method in ("alpha-fair", "FEN", "FEN over alpha-fair")
}
"""With the settings of which method they run."""
OTHER_SEEDS = dict.fromkeys(("FEN over alpha-fair", "FEN over alpha-fair, ring"), 10)
"""The first seed of what was chosen by seeds from 0 on."""
SHARED = ("alpha_fair",)
"""Objectives that are means, for which agents send a second number."""
OBJECTIVES = ("own", "alpha_fair", "minimum", "inequity_aversion", "jain", "fair_efficient")
"""By their numbers in a program."""
FIGURES = ("utilisation", "variation", "least", "greatest", "jain", "product", "gossip_bytes")
COMMAND, LIBRARIES = "python benchmarks/experiments/fairness.py", ("jax",)


class ByMatrix(NamedTuple):
    """`MeanUtility`, with the weights of all exchanges of a step as an argument."""

    weights: Any
    """[A, A]."""
    sent_bytes: Any
    """By an agent in a step."""

    def start(self, *shape: int) -> Any:
        """See `MeanUtility.start`."""
        from gradweave.marl.fairness.mean_utility import MeanUtility

        return MeanUtility(None, 1).start(*shape)

    def after(self, before: Any, utility: Any, start: Any) -> Any:
        """See `MeanUtility.after`."""
        import jax.numpy as jnp

        from gradweave.marl.fairness.mean_utility import Estimates, emptied

        mean = (before.mean + utility - before.last_sent) @ self.weights.T
        sent = jnp.broadcast_to(self.sent_bytes, utility.shape)
        return emptied(Estimates(mean, utility, before.turn, sent), start)


def messages(method: Method, agents: int) -> tuple[np.ndarray, np.float32]:
    """The weights of all exchanges of a step, and the bytes that an agent sends for one mean."""
    from gradweave.aggregate.mixing import MixingMatrix

    if method.network != "ring":
        exact = np.full((agents, agents), 1 / agents)
        return (np.eye(agents) if method.network == "alone" else exact), np.float32(0)
    ring = MixingMatrix.ring(agents)
    (once,) = ring.weights
    sent = 4 * ((once > 0).sum(1).max() - 1) * method.exchanges
    return np.linalg.matrix_power(once, method.exchanges), np.float32(sent)


def varied(settings: Any, **values: Any) -> Any:
    """Settings with values that are being traced, which no check can compare."""
    made = copy.copy(settings)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


class Trainer:
    """Methods of one world, with or without a hierarchy: one compiled program."""

    def __init__(self, world: str, hierarchy: bool, objective: str, first: str) -> None:
        """Builds the program.

        Args:
            world: its name.
            hierarchy: whether there is one.
            objective: one that is found from utilities or by gossip as the method's.
            first: what the first sub-policy maximises.
        """
        import jax
        import jax.numpy as jnp
        import optax

        from gradweave.marl.config import Config
        from gradweave.marl.evaluation import play
        from gradweave.marl.fairness import learner as module
        from gradweave.marl.games.environments import make
        from gradweave.marl.learners import algorithms

        # The optimizer's own rate is 1: what it makes of a gradient is scaled by that of the call.
        options = {"learning_rate": 1.0, "decay": False, "hidden": HIDDEN, "gossip": "exact"}
        options |= {"hierarchy": hierarchy, "objective": objective, "first_objective": first}
        settings = algorithms.settings("fen", world, options)
        environment = make(world)
        config = Config(world, "fen", settings, STEPS[world])
        learner: Any = algorithms.build(config, environment, lambda optimizer: optimizer)
        self.steps, self.agents = settings.steps, environment.num_agents
        plain = module.objective

        def by(consensus: ByMatrix, now: Any) -> Any:
            levels = dataclasses.replace(learner.hierarchy, consensus=consensus)
            return dataclasses.replace(learner, hierarchy=levels, settings=now)

        def trained(state: Any, numbers: dict[str, Any], consensus: ByMatrix, number: Any) -> Any:
            given = {name: numbers[name] for name in ("alpha", "epsilon")}
            now = varied(settings, entropy_coefficient=numbers["entropy"], **given)

            def switched(_: Any, *known: Any) -> Any:
                each = [plain(varied(now, objective=name), *known) for name in OBJECTIVES]
                return jnp.stack(each)[numbers["objective"]]

            def update(i: Any, carry: Any) -> Any:
                def scaled(updates: Any, state: Any, params: Any = None) -> Any:
                    change, state = learner.optimizer.update(updates, state, params)
                    rate = numbers["rate"] * (1 - i / number)
                    return jax.tree.map(lambda x: rate * x, change), state

                optimizer = optax.GradientTransformation(learner.optimizer.init, scaled)
                with mock.patch.object(module, "objective", switched):
                    one = dataclasses.replace(by(consensus, now), optimizer=optimizer)
                    state, metrics = one.update(carry[0])
                return state, metrics.figures["gossip_bytes"]

            state, sent = jax.lax.fori_loop(0, number, update, (state, jnp.zeros(())))
            return learner.parameters(state), sent

        def judged(parameters: Any, keys: Any, consensus: ByMatrix) -> Any:
            def act(memory: Any, view: Any, keys: Any) -> Any:
                return by(consensus, settings).act(parameters, memory, view, keys, greedy=False)

            return play(environment, act, learner.memory(parameters, EPISODES), keys)

        # Runs once: optimizing it would take longer than it saves.
        quick = {"xla_backend_optimization_level": 0}
        self.start = jax.jit(lambda key: learner.init(key, 0), compiler_options=quick)
        self.trained, self.judged = jax.jit(trained), jax.jit(judged)

    def measured(
        self, method: Method, steps: int, seed: int, rate: float, entropy: float
    ) -> dict[str, Any]:
        """Trains a seed, and judges it in new episodes."""
        import jax

        from gradweave.marl.fairness.measures import summary

        begun = time.process_time()
        weights, sent_bytes = messages(method, self.agents)
        consensus = ByMatrix(weights.astype(np.float32), sent_bytes)
        given = {"rate": rate, "entropy": entropy}
        given |= {"alpha": method.alpha, "epsilon": method.epsilon}
        numbers: dict[str, Any] = {name: np.float32(value) for name, value in given.items()}
        numbers["objective"] = np.int32(OBJECTIVES.index(method.objective))
        updates = np.int32(-(-steps // self.steps))
        start = self.start(jax.random.key(seed))
        parameters, sent = self.trained(start, numbers, consensus, updates)
        keys = jax.random.split(jax.random.key(1_000_000 + seed), EPISODES)
        returns, lengths, _ = self.judged(parameters, keys, consensus)
        about = summary(np.asarray(returns), np.asarray(lengths))
        return about | {
            "seed": seed,
            "rate": rate,
            "entropy": entropy,
            "product": about["utilisation"] * about["jain"],
            "gossip_bytes": float(sent),
            "processor_s": time.process_time() - begun,
        }


trainer_of = functools.cache(Trainer)
"""One of each, compiled when it is first used."""


def measured(world: str, name: str, steps: int, seed: int, **tried: float) -> dict[str, Any]:
    """Trains and judges a seed of a method in a world."""
    _, method = BY_GOSSIP.get(name, (name, METHODS.get(name)))
    assert method is not None
    of_utilities = method.hierarchy and method.objective not in SHARED
    objective = "fair_efficient" if of_utilities else SHARED[0]
    trainer = trainer_of(world, method.hierarchy, objective, method.first)
    row = trainer.measured(method, steps, seed, **tried)
    return {"world": world, "method": name, "steps": steps} | row


def search(world: str, method: str) -> None:
    """Tries the settings that are not tried yet."""
    for rate, entropy in itertools.product(RATES, ENTROPIES):
        one = {"world": world, "method": method, "rate": rate, "entropy": entropy}
        if not any(row.items() >= one.items() for row in done()["search"]):
            steps = STEPS[world] // SEARCHED
            write("search", measured(world, method, steps, SEARCH_SEED, rate=rate, entropy=entropy))


def best(world: str, method: str) -> dict[str, float]:
    """The settings with the largest product."""
    parent, _ = BY_GOSSIP.get(method, (method, None))
    row = max(rows_of("search", world, parent), key=lambda row: row["product"])
    return {name: row[name] for name in ("rate", "entropy")}


def rows_of(part: str, world: str, method: str) -> list[dict[str, Any]]:
    """What is measured so far of a method in a world."""
    return [row for row in done()[part] if (row["world"], row["method"]) == (world, method)]


def done() -> dict[str, Any]:
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
    """Of each world's methods, means over the seeds."""
    rows = []
    for world, method in itertools.product(STEPS, [*METHODS, *BY_GOSSIP]):
        seeds = [r for r in seeds_of if (r["world"], r["method"]) == (world, method)]
        if not seeds:
            continue
        products = [one["product"] for one in seeds]
        names = (*FIGURES, "processor_s")
        rows.append(
            {"world": world, "method": method, "seeds": len(seeds)}
            | {name: seeds[0][name] for name in ("steps", "rate", "entropy")}
            | {name: float(np.mean([one[name] for one in seeds])) for name in names}
            | {"worst_variation": max(one["variation"] for one in seeds)}
            | {"least_product": min(products), "greatest_product": max(products)}
            | {"source": seeds[-1]["source"]}
        )
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
                search(world, BY_GOSSIP.get(method, (method, None))[0])
            first = OTHER_SEEDS.get(method, 0)
            for seed in range(first, first + until):
                if all(row["seed"] != seed for row in rows_of("seeds_of", world, method)):
                    row = measured(world, method, STEPS[world], seed, **best(world, method))
                    write("seeds_of", row)


if __name__ == "__main__":
    main()
