"""The rule of `learned` beside the trained policies on networks as clusters have them.

    taskset -c 0 python benchmarks/experiments/learned_clusters.py

Those of up to 48 servers among the first 80 of benchmarks/cluster_networks.py, on which neither
was trained or tuned: one all-gather by best actions, with repair and without, mean of two seeds
that break ties. Seconds are of a processor, after compilation.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.cluster_networks import cluster_network
from benchmarks.command_line import parser_of
from benchmarks.intervals import RESAMPLES, middle
from benchmarks.record import printed, record
from benchmarks.timing import timed
from gradweave.environment.instance import Instance
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import play
from gradweave.learning.episodes.tuning import RULE
from gradweave.learning.policies.policy import read_weights
from gradweave.schedulers.learned import ROUTES

NETWORKS, MOST_SERVERS, SEEDS = 80, 48, 2
Row = dict[str, Any]


def rows() -> Iterator[Row]:
    """One network after the other."""
    weights = {"rule": RULE, "trained": read_weights()}
    for number in range(NETWORKS):
        kind, network = cluster_network(number)[:2]
        if network.num_servers > MOST_SERVERS:
            continue
        instance = Instance(network, routes=ROUTES)
        problem = CompiledInstance.of(instance)
        row: Row = {
            "number": number,
            "kind": kind,
            "network": network.name,
            "servers": network.num_servers,
            "bound": instance.bound,
        }
        for name, own in weights.items():
            for repair, suffix in ((True, ""), (False, "_not_repaired")):

                def played(own=own, repair=repair, problem=problem) -> float:
                    how: Row = {"temperature": 0.0, "repair": repair}
                    return float(
                        np.mean([play(problem, own, seed=s, **how).rounds for s in range(SEEDS)])
                    )

                seconds, rounds = timed(played, time.process_time)
                row |= {f"{name}{suffix}": rounds, f"{name}{suffix}_s": seconds / SEEDS}
        yield row


def summaries(measured: list[Row]) -> Iterator[Row]:
    """Mean gaps of each kind and of all, with intervals over networks."""
    rng = np.random.default_rng(2040)
    kinds = [[row for row in measured if row["kind"] == kind] for kind in _kinds(measured)]
    for own in (*kinds, measured):
        bound = np.array([row["bound"] for row in own])
        gaps = {name: np.array([row[name] for row in own]) / bound - 1 for name in _columns()}
        more = gaps["trained"] - gaps["rule"]
        again = rng.integers(len(own), size=(RESAMPLES, len(own)))
        yield {
            "kind": own[0]["kind"] if own is not measured else "all",
            "networks": len(own),
            **{name: float(gap.mean()) for name, gap in gaps.items()},
            **{f"{name}_at_bound": int((gap == 0).sum()) for name, gap in gaps.items()},
            **{f"{name}_s": float(np.mean([row[f"{name}_s"] for row in own])) for name in gaps},
            "more": float(more.mean()),
            "more_interval": middle(more[again].mean(1)),
        }


def _kinds(measured: list[Row]) -> list[str]:
    return sorted({row["kind"] for row in measured})


def _columns() -> list[str]:
    return [name + suffix for name in ("rule", "trained") for suffix in ("", "_not_repaired")]


def main() -> None:
    parser_of(__doc__).parse_args()
    small = CompiledInstance.of(Instance(cluster_network(7)[1], routes=ROUTES))
    for weights in (RULE, read_weights()):
        play(small, weights, seed=0, repair=True)  # compiles
    measured = printed(rows())
    record(
        "learned_clusters",
        seeds=list(range(SEEDS)),
        rows=measured,
        summaries=list(summaries(measured)),
    )


if __name__ == "__main__":
    main()
