"""Every algorithm on every environment that it supports, for two updates.

    python benchmarks/experiments/marl_matrix.py
    python benchmarks/experiments/marl_matrix.py --only ant_4x2

The second form measures some environments, such as one with the extra `mabrax`, and replaces their
rows in the recorded result. Each cell makes two updates of a small learner and checks that
parameters changed and everything stayed finite. Seconds include compilation.
"""

import importlib.util
import time
from typing import Any

import jax
import numpy as np

from benchmarks.experiment import Rows, grid, run
from gradweave.errors import OptionError
from gradweave.marl.games.environments import make
from gradweave.marl.learners import algorithms
from gradweave.marl.program import Program

ENVIRONMENTS = (
    "MPE_simple_spread_v3",
    "MPE_simple_spread_v3:continuous=true",
    "MPE_simple_tag_v3",
    "MPE_simple_world_comm_v3",
    "MPE_simple_world_comm_v3:continuous=true",
    "MPE_simple_adversary_v3",
    "MPE_simple_push_v3",
    "MPE_simple_crypto_v3",
    "MPE_simple_v3",
    "MPE_simple_speaker_listener_v4",
    "MPE_simple_reference_v3",
    "MPE_simple_facmac_v1",
    "switch_riddle",
    "coin_game",
    "storm",
    "overcooked",
    "overcooked_v2",
    "jaxnav",
    "jaxnav:continuous=true",
    "hanabi",
    "SMAX",
    "HeuristicEnemySMAX",
    "ant_4x2",
    "gradweave:bcube:n=2,k=1",
)
SMALL: dict[str, dict[str, Any]] = {
    "ippo": {"environments": 4, "rollout": 8, "hidden": [16], "minibatches": 2, "epochs": 1},
    "mappo": {"environments": 4, "rollout": 8, "hidden": [16], "minibatches": 2, "epochs": 1},
    **{
        name: {"environments": 4, "rollout": 8, "hidden": [16], "batch_size": 8, "replay_size": 640}
        for name in ("iql", "vdn", "qmix")
    },
}


def cell(env: str, algorithm: str, recurrent: bool) -> dict[str, Any]:
    begin = time.perf_counter()
    try:
        environment = make(env)
        overrides = SMALL[algorithm] | {"recurrent": recurrent}
        settings = algorithms.settings(algorithm, environment.family, overrides)
        learner = algorithms.algorithm(algorithm).build(
            environment, settings, 1, 2, lambda optimizer: optimizer
        )
    except OptionError as error:
        return {"runs": False, "reason": str(error)}
    program = Program(learner, jax.devices()[:1], 0, 1)
    start = program.start()
    state, metrics = program.run(start, 2)
    before, after = (
        [np.asarray(x) for x in jax.tree.leaves(program.parameters(s))] for s in (start, state)
    )
    finite = all(np.isfinite(x).all() for x in (*after, *metrics.figures.values()))
    moved = sum(not np.array_equal(x, y) for x, y in zip(before, after, strict=True))
    seconds = round(time.perf_counter() - begin, 1)
    return {"runs": bool(finite and moved), "arrays_moved": moved, "seconds": seconds}


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is most of the work
    brax = ("brax",) if importlib.util.find_spec("brax") else ()
    run(
        __doc__,
        Rows(grid(env=ENVIRONMENTS, algorithm=SMALL, recurrent=(False, True)), cell),
        libraries=("jax", "jaxmarl", "equinox", "optax", *brax),
        seeds=[0],
    )
