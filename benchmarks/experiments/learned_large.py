"""Best actions of `learned`, by its rule, on 64 to 1,024 servers: gap and time, as far as it goes.

    taskset -c 0 python benchmarks/experiments/learned_large.py

One stage, no network of more than 20 servers was tuned on. Each network in a process of its own;
an episode that is reckoned to take more than `LIMIT_S` is not played, and its reckoned time is
recorded. Episodes reckoned to take less than `REPAIR_S` are played again with their rounds
repaired, which may take several of them. Seconds are of a processor, after compilation.
"""

import resource
import time
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.timing import timed
from gradweave.environment.instance import Instance
from gradweave.learning.best_episode import _episode_s, _spread
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import Episode, play
from gradweave.learning.episodes.tuning import RULE
from gradweave.schedulers.learned import ROUTES

LIMIT_S, REPAIR_S = 600.0, 60.0
NETWORKS = (
    *("torus:8x8", "bcube:n=8,k=1", "fat_tree:k=6"),
    *("torus:16x16", "bcube:n=16,k=1", "fat_tree:k=10"),
    *("torus:32x32", "bcube:n=32,k=1", "fat_tree:k=16"),
)


def warm() -> None:
    small = Instance(gw.topology.from_spec("bcube:n=2,k=1"), "all_gather", "grown")
    for repair in (False, True):
        play(CompiledInstance.of(small), RULE, seed=(0, 0), temperature=0.0, repair=repair)


def measure(network: str) -> dict[str, Any]:
    topology = gw.topology.from_spec(network)
    instance = Instance(topology, "all_gather", "grown", routes=ROUTES, spread=_spread(topology))
    row: dict[str, Any] = {
        "servers": topology.num_servers,
        "hops": len(instance.hops.source),
        "bound": int(instance.bound),
        "reckoned_s": _episode_s(instance),
    }
    for repair, name, limit_s in ((False, "", LIMIT_S), (True, "repaired_", REPAIR_S)):
        if row["reckoned_s"] > limit_s:
            continue

        def played(repair: bool = repair) -> Episode:
            problem = CompiledInstance.of(instance)
            return play(problem, RULE, seed=(0, 0), temperature=0.0, repair=repair)

        played_s, episode = timed(played, time.process_time)
        row |= {f"{name}rounds": episode.rounds, f"{name}seconds": played_s}
        gap = episode.rounds / instance.bound - 1 if episode.rounds > 0 else None
        row[f"{name}gap"] = gap
    row["memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return row


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(network=NETWORKS), measure),
        warm=warm,
        alone=True,
        seeds=[0],
        limit_s=LIMIT_S,
    )
