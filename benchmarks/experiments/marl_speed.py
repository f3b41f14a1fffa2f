"""Speed of `gradweave train`, beside a minimal PPO and PPO as in JaxMARL.

    taskset -c 0 python benchmarks/experiments/marl_speed.py [--only NAME ...]

IPPO on simple_spread, one core, one device: the learner of `gradweave.marl` with its defaults;
`bare_ppo.py`, a minimal PPO; `jaxmarl_ppo.py`, written after JaxMARL's own script. All have the
same networks, batch, epochs, minibatches and optimizer. They take turns; ratios are taken within
each turn, by wall and by processor time, and medians count. Variants are three seeds in parallel,
MAPPO, and a recurrent policy, all against the same two. `--only` selects among the variants.
"""

import json
import os
import shlex
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

from benchmarks.command_line import parser_of
from benchmarks.peers import bare_ppo, jaxmarl_ppo
from benchmarks.record import record
from gradweave.marl.games.environments import make
from gradweave.marl.learners import algorithms
from gradweave.marl.program import Program

ENV, TURNS, UPDATES = "MPE_simple_spread_v3", 9, bare_ppo.UPDATES
OTHERS = {"bare": bare_ppo, "jaxmarl": jaxmarl_ppo}
VARIANTS: dict[str, dict[str, Any]] = {
    "ippo": {},
    "ippo, 3 seeds": {"seeds": 3},
    "mappo": {"algorithm": "mappo"},
    "ippo, recurrent": {"recurrent": True},
}


def ours(algorithm: str = "ippo", seeds: int = 1, **overrides: Any) -> Callable[[], int]:
    """A function that makes some updates and returns the number of environment steps."""
    environment = make(ENV)
    settings = algorithms.settings(algorithm, environment.family, overrides)
    learner = algorithms.algorithm(algorithm).build(
        environment, settings, 1, 10_000, lambda optimizer: optimizer
    )
    program = Program(learner, jax.devices()[:1], 0, seeds)
    state = program.run(program.start(), 1)[0]

    def run() -> int:
        nonlocal state
        state, _ = program.run(state, UPDATES)
        jax.block_until_ready(jax.tree.leaves(state.parameters))
        return seeds * UPDATES * settings.steps

    return run


def other(module: Any) -> Callable[[], int]:
    """The same for a script that we compare with."""
    state = module.train(module.start(), jax.random.key(1))[0]

    def run() -> int:
        nonlocal state
        state, _ = jax.block_until_ready(module.train(state, jax.random.key(2)))
        return UPDATES * bare_ppo.STEPS * bare_ppo.ENVS

    return run


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    names = parser.parse_args().only
    load = os.getloadavg()[0]
    cases = {name: other(module) for name, module in OTHERS.items()}
    cases |= {name: ours(**VARIANTS[name]) for name in names}
    wall: dict[str, list[float]] = {name: [] for name in cases}
    processor: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(TURNS):
        for name, run in cases.items():
            begin, spent = time.perf_counter(), time.process_time()
            steps = run()
            wall[name].append(steps / (time.perf_counter() - begin))
            processor[name].append(steps / (time.process_time() - spent))

    def ratio(rates: dict[str, list[float]], name: str, beside: str) -> float:
        pairs = zip(rates[name], rates[beside], strict=True)
        return statistics.median(one / other for one, other in pairs)

    rows = [
        {
            "learner": name,
            "steps_per_s": statistics.median(wall[name]),
            "steps_per_processor_s": statistics.median(processor[name]),
            **{
                f"of_{beside}{how}": ratio(rates, name, beside)
                for beside in OTHERS
                for how, rates in (("", wall), ("_by_processor", processor))
            },
        }
        for name in cases
    ]
    for row in rows:
        print(json.dumps(row), flush=True)
    record(
        "marl_speed",
        "taskset -c 0 python benchmarks/experiments/marl_speed.py"
        + (" --only " + shlex.join(names)) * (names != list(VARIANTS)),
        libraries=("jax", "jaxmarl", "equinox", "flax", "optax"),
        seeds=[0],
        env=ENV,
        turns=TURNS,
        updates_a_turn=UPDATES,
        load_at_start=load,
        cores=len(os.sched_getaffinity(0)),
        rows=rows,
    )


if __name__ == "__main__":
    main()
