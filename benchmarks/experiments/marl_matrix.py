"""One step of training runs on every environment by every algorithm that fits it.

    python benchmarks/experiments/marl_matrix.py
    python benchmarks/experiments/marl_matrix.py --only ant_4x2

The second is for some environments, such as one with the extra `mabrax`: it puts their rows into
what the first recorded. Each cell makes two updates of a small learner and looks whether parameters
moved and everything stayed finite. Seconds are those of compilation and both updates.
"""

import argparse
import contextlib
import itertools
import json
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import numpy as np
from record import RESULTS, record, versions

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
        name: {"environments": 4, "rollout": 8, "hidden": [16], "batch": 8, "remembered": 640}
        for name in ("iql", "vdn", "qmix")
    },
}


def cell(env: str, algorithm: str, recurrent: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"env": env, "algorithm": algorithm, "recurrent": recurrent}
    begun = time.perf_counter()
    try:
        environment = make(env)
        given = SMALL[algorithm] | {"recurrent": recurrent}
        settings = algorithms.settings(algorithm, environment.family, given)
        row_of = algorithms.algorithm(algorithm)
        learner = row_of.build(environment, settings, 1, 2, lambda optimizer: optimizer)
    except OptionError as error:
        return row | {"runs": False, "reason": str(error)}
    program = Program(learner, jax.devices()[:1], 0, 1)
    start = program.start()
    state, metrics = program.run(start, 2)
    before, after = (
        [np.asarray(x) for x in jax.tree.leaves(program.parameters(s))] for s in (start, state)
    )
    finite = all(np.isfinite(x).all() for x in (*after, *metrics.figures.values()))
    moved = sum(not np.array_equal(x, y) for x, y in zip(before, after, strict=True))
    seconds = round(time.perf_counter() - begun, 1)
    return row | {"runs": bool(finite and moved), "arrays_moved": moved, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=ENVIRONMENTS, metavar="ENV", nargs="+")
    only = parser.parse_args().only
    jax.config.update("jax_disable_most_optimizations", True)  # compiling is most of the work
    made = []
    for env in only or ENVIRONMENTS:
        for algorithm, recurrent in itertools.product(SMALL, (False, True)):
            made.append(cell(env, algorithm, recurrent))
            print(json.dumps(made[-1]), flush=True)
    rows = made
    if only:
        known = json.loads((RESULTS / "marl_matrix.json").read_text())["rows"]
        others = [row for row in known if row["env"] not in only]
        rows = sorted([*others, *made], key=lambda row: ENVIRONMENTS.index(row["env"]))
    libraries = {name: version(name) for name in ("jax", "jaxmarl", "equinox", "optax")}
    with contextlib.suppress(PackageNotFoundError):
        libraries["brax"] = version("brax")
    record(
        "marl_matrix",
        "python benchmarks/experiments/marl_matrix.py",
        versions=versions() | libraries,
        seeds=[0],
        rows=rows,
    )


if __name__ == "__main__":
    main()
