"""The learned scheduler on networks of its training and on others.

taskset -c 0 python benchmarks/experiments/learned_decoding.py [--only rule|rows]

By the trained policies (`rows`), and by the rule of constants that is the default (`rule`). For
each network: the mean of 30 sampled episodes as drawn (of 5 beyond Table 2), the best actions
without repair and with it, the best of 64 repaired episodes; beside a random policy, repaired and
not, and the greedy rules with as many samples, and in the same time.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.random_networks import random_network, well_connected_network
from benchmarks.record import printed, record, recorded
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


def cases() -> Iterator[tuple[str, str, gw.Topology]]:
    """Group, label and network."""
    for case in TABLE_2:
        yield "table 2", case.label, case.network(0)
    for spec in HELD_OUT:
        yield "held out", spec, gw.topology.from_spec(spec)
    for spec in HETEROGENEOUS:
        yield "heterogeneous", spec, gw.topology.from_spec(spec)
    for seed in range(RANDOM):
        yield "random", f"random {seed}", random_network(seed)
    for seed in range(RANDOM // 5):
        yield "well connected", f"well connected {seed}", well_connected_network(seed)


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
    group: str, label: str, network: gw.Topology, weights: PolicyWeights | RuleWeights, drawn: int
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
        "group": group,
        "label": label,
        "trees": "grown",
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
        "group": "table 2",
        "label": label,
        "trees": "fixed",
        "servers": network.num_servers,
        "bound": instance.bound,
        "mean": sum(rounds) / len(rounds),
        "greedy": greedy.rounds,
        "best": best.rounds,
        "paper": PAPER_LEARNED.get(label),
    }


def rows_of(weights: PolicyWeights | RuleWeights) -> list[dict[str, Any]]:
    """All networks, on grown trees and on fixed ones."""
    grown = (
        grown_row(group, label, network, weights, DRAWN if group == "table 2" else 5)
        for group, label, network in cases()
    )
    fixed = (fixed_row(case.label, case.network(0), weights) for case in TABLE_2)
    return printed(itertools.chain(grown, fixed))


def main() -> None:
    parser = parser_of(__doc__)
    weights = {"rows": read_weights(), "rule": RULE}
    text = "decode by these weights; the other part stays as recorded"
    parser.add_argument("--only", choices=weights, help=text)
    only = parser.parse_args().only
    known, kept = recorded("learned_decoding", [part for part in weights if part != only])
    for part in [only] if only else weights:
        known[part] = rows_of(weights[part])
    record("learned_decoding", kept=kept, **known)


if __name__ == "__main__":
    main()
