"""On which shortest-path trees the paper's rounds can hold: four ways to break ties between paths.

    taskset -c 0 python benchmarks/experiments/paper_trees.py

Where several shortest paths lead from a server towards a root, a tree takes one: by the lowest ids
(the pinned trees), at random, where the busiest link is least loaded so far, or so that the busiest
link of all trees is loaded least (by CP-SAT). The reduce-scatters of Table 2's networks on these
trees: their bound, and mean rounds over 20 seeds in each order. On Jellyfish each seed is another
graph; elsewhere it is another draw of what is random. The paper does not say how many stages its
figures count: beside the settled reading stands one stage for all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.experiments.learned_decoding import uniform_policy
from benchmarks.record import printed, record
from gradweave.bounds import fixed_trees
from gradweave.environment.even_trees import Choices, choices_of, even_trees, trees_of
from gradweave.environment.instance import Instance
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import play
from gradweave.learning.policies.policy import PolicyWeights, read_weights
from gradweave.report import TABLE_2
from gradweave.report.paper import PAPER_LEARNED
from gradweave.schedulers.ordering.list_scheduling_in_rounds import Rule, list_schedule
from gradweave.schedules.flow_tree import FlowTrees, Workloads

SEEDS = 20
PINNED, BALANCED = "lowest ids", "least load"


def at_random(network: gw.Topology, choices: Choices, rng: np.random.Generator) -> FlowTrees:
    """Each server takes any path in each tree."""
    return trees_of(
        network, {key: each[int(rng.integers(len(each)))] for key, each in choices.items()}
    )


def balanced_in_turn(network: gw.Topology, choices: Choices, rng: np.random.Generator) -> FlowTrees:
    """Servers without a choice first; then each, in random order, takes the least loaded path."""
    load = np.zeros((network.num_nodes, network.num_nodes), np.int64)
    keys = [list(choices)[place] for place in rng.permutation(len(choices))]
    chosen = {}
    for key in sorted(keys, key=lambda key: len(choices[key]) > 1):
        chosen[key] = min(
            choices[key], key=lambda route: sorted(load[route[:-1], route[1:]], reverse=True)
        )
        load[chosen[key][:-1], chosen[key][1:]] += 1
    return trees_of(network, chosen)


def on(trees: FlowTrees) -> CompiledInstance:
    """The scheduling problem on given trees."""
    instance = Instance(trees.topology, "reduce_scatter", "fixed")
    vars(instance)["flow_trees"] = trees  # in place of the pinned ones, before any is used
    return CompiledInstance.of(instance)


def orders() -> dict[str, Callable[[FlowTrees, int], int]]:
    """Rounds of trees by seed, in each order."""
    trained = read_weights()
    untrained = uniform_policy(trained)
    halves = untrained._replace(tree=untrained.tree._replace(bias=0.0))

    def by_rule(rule: Rule) -> Callable[[FlowTrees, int], int]:
        def rounds(trees: FlowTrees, seed: int) -> int:
            made = list_schedule(Workloads.of(trees, "reduce_scatter"), rule, seed)
            assert made is not None
            return int(made.max()) + 1

        return rounds

    def by_policy(weights: PolicyWeights) -> Callable[[FlowTrees, int], int]:
        return lambda trees, seed: play(on(trees), weights, seed=seed).rounds

    return {
        "random first fit": by_rule(Rule.RANDOM),
        "longest chain first": by_rule(Rule.DEEPEST),
        "trained policies": by_policy(trained),
        "half of the trees a round, at random": by_policy(halves),
    }


def rows() -> Iterator[dict[str, Any]]:
    """One network and one way to break ties after the other."""
    played = orders()
    for case in TABLE_2:
        networks = [case.network(seed) for seed in range(case.instances)]
        choices = [choices_of(network) for network in networks]
        several = fmean(len(each) > 1 for one in choices for each in one.values())

        def drawn(make: Callable[..., FlowTrees], own=networks, of=choices) -> list[FlowTrees]:
            places = (seed % len(own) for seed in range(SEEDS))
            generators = map(np.random.default_rng, range(SEEDS))
            return [make(own[at], of[at], rng) for at, rng in zip(places, generators, strict=True)]

        least = [even_trees(network) for network in networks]
        by_ties = {
            PINNED: drawn(lambda network, *_: FlowTrees.shortest_path(network)),
            "at random": drawn(at_random),
            "in turn": drawn(balanced_in_turn),
            BALANCED: [least[seed % len(least)] for seed in range(SEEDS)],
        }
        for ties, trees in by_ties.items():
            yield {
                "label": case.label,
                "ties": ties,
                "several_paths": several,
                "any_trees": fmean(
                    gw.bounds.free_trees(network, "reduce_scatter").rounds for network in networks
                ),
                "bound": fmean(fixed_trees(each).rounds for each in trees),
                "stages": 2 if case.stages == "all_reduce" else 1,
                "paper": PAPER_LEARNED[case.label],
                **{
                    name: fmean(player(each, seed) for seed, each in enumerate(trees))
                    for name, player in played.items()
                },
            }


def summaries(measured: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[Any]:
    """Each setting's rounds over the paper's, less one, by family: the least and the greatest."""
    for reading, ties, order in product(
        ("settled", "one stage"), dict.fromkeys(row["ties"] for row in measured), names
    ):
        beside: dict[str, list[float]] = {"bcube": [], "dcell": [], "jellyfish": []}
        families = {family[0].upper(): family for family in beside}
        for row in measured:
            if row["ties"] == ties:
                stages = row["stages"] if reading == "settled" else 1
                more = stages * row[order] / row["paper"] - 1
                beside[families[row["label"][0]]].append(more)
        everywhere = [abs(more) for each in beside.values() for more in each]
        yield {
            "reading": reading,
            "ties": ties,
            "order": order,
            **{family: [min(each), max(each)] for family, each in beside.items()},
            "mean": fmean(everywhere),
            "most": max(everywhere),
        }


def main() -> None:
    parser_of(__doc__).parse_args()
    measured = printed(rows())
    record(
        "paper_trees",
        seeds=list(range(SEEDS)),
        rows=measured,
        settings=list(summaries(measured, list(orders()))),
    )


if __name__ == "__main__":
    main()
