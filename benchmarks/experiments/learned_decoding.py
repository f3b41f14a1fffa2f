"""The learned scheduler on networks of its training and on others.

    taskset -c 0 python benchmarks/experiments/learned_decoding.py [--only rule|rows]

By the trained policies (`rows`), and by the rule of constants that is the default (`rule`). For
each network: the mean of 30 sampled episodes as drawn (of 5 beyond Table 2), the best actions
without repair and with it, the best of 64 repaired episodes; beside a random policy, repaired and
not, and the greedy rules with as many samples, and in the same time.
"""

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Case, Rows, run
from benchmarks.random_networks import random_network, well_connected_network
from benchmarks.timing import timed
from gradweave.environment.instance import Instance
from gradweave.learning.best_episode import best_of
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import play
from gradweave.learning.episodes.rule import RuleWeights
from gradweave.learning.episodes.tuning import RULE
from gradweave.learning.policies.policy import PolicyWeights, WorkloadWeights, read_weights
from gradweave.report import TABLE_2
from gradweave.report.paper import PAPER_LEARNED
from gradweave.schedulers.learned import ROUTES
from gradweave.schedulers.trees.growing_kernel import GrowingRule, grow
from gradweave.schedulers.trees.grown import GrowthSlots, hops_for

DRAWN, BEST_OF = 30, 64
RULES = {
    "rarest everywhere": GrowingRule(near=0, everywhere=1024, noise=512, passes=0, short=0),
    "rarest near": GrowingRule(near=1024, everywhere=0, noise=512, passes=0, short=0),
    "rarest near, swaps": GrowingRule(near=1024, everywhere=0, noise=512, passes=20, short=0),
}
"""One pass each; the last improves each round by swaps, as the repair does."""
HELD_OUT = (
    *("torus:4x4", "torus:6x6", "torus:3x3x3", "mesh:4x4", "mesh:5x5"),
    *("hypercube:3", "hypercube:4", "hypercube:5", "hypercube:6"),
    *("bcube:n=6,k=1", "bcube:n=3,k=2", "dcell:n=7,k=1", "complete:n=12"),
)
HETEROGENEOUS = (
    *("dgx1v", "mi250", "a100:boxes=2", "a100:boxes=4"),
    "leaf_spine:leaves=6,spines=3,servers_per_leaf=4",
    "dragonfly:groups=4,routers_per_group=3,servers_per_router=2,global_links=1",
    *("fat_tree:k=4", "jellyfish:switches=10,degree=3,servers_per_switch=2,seed=7"),
)
RANDOM = 100


WEIGHTS: dict[str, Callable[[], PolicyWeights | RuleWeights]] = {
    "rows": read_weights,
    "rule": lambda: RULE,
}
"""By the name of their rows in the record."""


@cache
def networks() -> dict[tuple[str, str], gw.Topology]:
    """By group and label."""
    found = {("table 2", case.label): case.network(0) for case in TABLE_2}
    for group, specs in (("held out", HELD_OUT), ("heterogeneous", HETEROGENEOUS)):
        found |= {(group, spec): gw.topology.from_spec(spec) for spec in specs}
    found |= {("random", f"random {seed}"): random_network(seed) for seed in range(RANDOM)}
    for seed in range(RANDOM // 5):
        found["well connected", f"well connected {seed}"] = well_connected_network(seed)
    return found


def cases() -> list[Case]:
    """All networks on grown trees, those of Table 2 on fixed ones too."""
    every = [{"group": group, "label": label} for group, label in networks()]
    fixed = [case for case in every if case["group"] == "table 2"]
    return [case | {"trees": "grown"} for case in every] + [
        case | {"trees": "fixed"} for case in fixed
    ]


def measure(weights: str, group: str, label: str, trees: str) -> dict[str, Any]:
    network = networks()[group, label]
    if trees == "fixed":
        return fixed_row(label, network, WEIGHTS[weights]())
    return grown_row(label, network, WEIGHTS[weights](), DRAWN if group == "table 2" else 5)


def silent(workload: WorkloadWeights) -> WorkloadWeights:
    """Workload scheduling whose features count nothing, wherever they are."""
    zero = {
        name: np.zeros_like(array)
        for name, array in workload._asdict().items()
        if isinstance(array, np.ndarray)
    }
    return workload._replace(**zero)


def uniform_policy(weights: PolicyWeights) -> PolicyWeights:
    """The uniform policy over hops and the trees on each, all trees selected."""
    tree = weights.tree._replace(score=np.zeros_like(weights.tree.score), bias=100.0)
    return PolicyWeights(tree, silent(weights.workload))


def rule_player(network: gw.Topology, rule: GrowingRule, bound: int) -> Callable[[int], int]:
    """Rounds of one pass of a rule, by seed."""
    servers = network.num_servers
    growth = GrowthSlots.of(network, np.arange(servers), hops_for(network, servers, ROUTES)).growth
    none, in_time = np.zeros((0, 3), np.int64), np.zeros(1, np.bool_)
    return lambda seed: (
        int(grow(growth, rule, none, 100_000, bound, seed, in_time, True)[-1, 0]) + 1
    )


def best_in(
    seconds: float,
    bound: int,
    player: Callable[[int], int],
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """The fewest rounds of as many passes as fit the time, at least one."""
    start, best, seed = clock(), player(0), 1
    while best > bound and clock() - start < seconds:
        best = min(best, player(seed))
        seed += 1
    return best


def grown_row(
    label: str, network: gw.Topology, weights: PolicyWeights | RuleWeights, drawn: int
) -> dict[str, Any]:
    """One network on grown trees."""
    instance = Instance(network, routes=ROUTES)
    bound, problem = instance.bound, CompiledInstance.of(instance)
    play(problem, weights, seed=0, repair=True)
    greedy_s, greedy = timed(lambda: best_of(problem, weights, range(1)))
    best_s, best = timed(lambda: best_of(problem, weights, range(BEST_OF + 1)))
    assert greedy is not None and best is not None
    alone = play(problem, weights, seed=(0, 0), temperature=0.0)
    rounds = [play(problem, weights, seed=(1, seed)).rounds for seed in range(drawn)]
    uniform = uniform_policy(read_weights())
    repaired = best_of(problem, uniform, range(1))
    assert repaired is not None
    at_random = [play(problem, uniform, seed=(1, seed)).rounds for seed in range(min(drawn, 20))]
    row = {
        "servers": network.num_servers,
        "bound": bound,
        "mean": sum(rounds) / len(rounds),
        "greedy": greedy.rounds,
        "greedy_not_repaired": alone.rounds,
        "best": best.rounds,
        "untrained_mean": sum(at_random) / len(at_random),
        "untrained_repaired": repaired.rounds,
        "greedy_s": round(greedy_s, 5),
        "best_s": round(best_s, 5),
        "paper": PAPER_LEARNED.get(label),
    }
    for name, rule in RULES.items():
        player = rule_player(network, rule, bound)
        many = [player(seed) for seed in range(max(drawn, BEST_OF))]
        row[f"{name}: mean"] = sum(many[:drawn]) / drawn
        row[f"{name}: best"] = min(many[:BEST_OF])
        row[f"{name}: best in the time of greedy"] = best_in(greedy_s, bound, player)
    return row


def fixed_row(
    label: str, network: gw.Topology, weights: PolicyWeights | RuleWeights
) -> dict[str, Any]:
    """One network on its shortest-path trees: a reduce-scatter."""
    instance = Instance(network, "reduce_scatter", "fixed")
    problem = CompiledInstance.of(instance)
    rounds = [play(problem, weights, seed=(1, seed)).rounds for seed in range(DRAWN)]
    greedy, best = (
        best_of(problem, weights, range(1)),
        best_of(problem, weights, range(BEST_OF + 1)),
    )
    assert greedy is not None and best is not None
    return {
        "servers": network.num_servers,
        "bound": instance.bound,
        "mean": sum(rounds) / len(rounds),
        "greedy": greedy.rounds,
        "best": best.rounds,
        "paper": PAPER_LEARNED.get(label),
    }


if __name__ == "__main__":
    run(__doc__, *(Rows(cases, partial(measure, name), name) for name in WEIGHTS))
