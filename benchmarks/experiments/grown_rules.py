"""Ablation of the grown search: one run, 100 seeds, nine networks, all-gather.

python benchmarks/experiments/grown_rules.py
"""

from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import record
from gradweave.report import TABLE_2
from gradweave.schedulers.trees.growing_kernel import GrowingRule, grow
from gradweave.schedulers.trees.grown import GrowthSlots, hops_for

SEEDS = 100
RULES = {
    "rarest near, swaps": GrowingRule(near=1024, everywhere=0, noise=512, passes=20, short=0),
    "rarest near, no swaps": GrowingRule(near=1024, everywhere=0, noise=512, passes=0, short=0),
    "rarest everywhere, swaps": GrowingRule(near=0, everywhere=1024, noise=512, passes=20, short=0),
    "rarest everywhere, no swaps": GrowingRule(
        near=0, everywhere=1024, noise=512, passes=0, short=0
    ),
    "any piece, swaps": GrowingRule(near=0, everywhere=0, noise=512, passes=20, short=0),
    "any piece, no swaps": GrowingRule(near=0, everywhere=0, noise=512, passes=0, short=0),
}


def runs(network: gw.Topology, rule: GrowingRule, bound: int) -> list[int]:
    """Rounds of one all-gather for each seed."""
    servers = network.num_servers
    growth = GrowthSlots.of(network, np.arange(servers), hops_for(network, servers, 4)).growth
    none, in_time = np.zeros((0, 3), np.int64), np.zeros(1, np.bool_)
    schedules = (
        grow(growth, rule, none, 10_000, bound, seed, in_time, True) for seed in range(SEEDS)
    )
    return [int(rows[-1, 0]) + 1 for rows in schedules]


def main() -> None:
    parser_of(__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    for case in TABLE_2:
        network = case.network(0)
        bound = gw.bounds.free_trees(network, "all_gather").rounds
        for name, rule in RULES.items():
            rounds = runs(network, rule, bound)
            rows.append(
                {
                    "label": case.label,
                    "topology": network.name,
                    "rule": name,
                    "bound": bound,
                    "mean": sum(rounds) / SEEDS,
                    "min": min(rounds),
                    "share_at_bound": rounds.count(bound) / SEEDS,
                }
            )
            print(rows[-1])
    record("grown_rules", seeds=SEEDS, rows=rows)


if __name__ == "__main__":
    main()
