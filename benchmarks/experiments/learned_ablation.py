"""What decides in `learned` on equal links: its parts left out, on networks of no earlier choice.

    taskset -c 0 python benchmarks/experiments/learned_ablation.py [--resume]

Both policies are trained by the shipped configuration with fewer iterations. From three seeds 19
constants, the rule of `RuleWeights`, are looked for by CMA-ES: on the same exercises, drawn with
the same odds, by the same loss, rounds over the bound of drawn episodes without repair, and for no
more processor time. Compiling counts for neither. The shipped weights had the whole configuration's
updates. Then each agent acts alone, above or below what says nothing; zeros and random constants
take the place of both; the swaps of `grown` search for as long as an episode takes.

The networks are those of `random_networks.unseen_network`, written down before anything was
measured on them, and Table 2's. Intervals are of 95%, by a bootstrap over networks of the mean over
seeds. Weights are kept in build/learned_ablation while the experiment is under way.
"""

import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.evolution import EvolutionStrategy, Numbers
from benchmarks.experiments.learned_decoding import RULES, best_in, rule_player, silent
from benchmarks.intervals import RESAMPLES, middle
from benchmarks.random_networks import unseen_network
from benchmarks.record import record, show
from benchmarks.timing import timed
from benchmarks.unfinished import Unfinished
from gradweave.environment.instance import Instance
from gradweave.learning.config import Config, read_config
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import play
from gradweave.learning.episodes.features import HOP_FEATURES, PIECE_FEATURES
from gradweave.learning.episodes.rule import RuleWeights
from gradweave.learning.policies.policy import PolicyWeights, read_weights
from gradweave.processes.jax_start import start_jax
from gradweave.report import TABLE_2
from gradweave.schedulers.learned import ROUTES

NAME = "learned_ablation"
FOLDER = Path("build") / NAME
SEEDS, POLICY_SEEDS = (0, 1, 2), (0,)
"""Of the constants' trainings, and of the policies': one, as it takes them far longer to learn."""
UNSEEN = range(24)
ITERATIONS = 4
"""Of 50 in the shipped configuration: about two minutes on one core."""
RULE_S = 100.0
"""Processor seconds of a search for constants: no more than the policies' training takes."""
POPULATION, STEP = 24, 1.0
"""Draws of a generation, and the standard deviation of the first."""
EPISODES, DRAWN = 3, 8
"""Of each network: best actions, which seeds break ties of, with repair and without; drawn ones."""
SHIPPED, CONSTANTS = "full policies, shipped weights", "constants"
"""Of which `grown` has the time; the others are compared with the second."""
METRICS = ("best", "drawn", "repaired")
GIVEN_UP = 8.0
"""Loss of an episode that was given up: about that of the rounds after which it is."""
Row = dict[str, Any]


class Variant(NamedTuple):
    """What decodes."""

    name: str
    seed: int
    """Of its training."""
    weights: PolicyWeights | RuleWeights
    select: bool = True
    """Whether flow-tree selection acts."""


def train_policies(seed: int, iterations: int) -> Row:
    """The full policies: what their training took, without the first update of each program."""
    from gradweave.learning.training import Report, train

    config = dataclasses.replace(
        read_config(None), seed=seed, iterations=iterations, checkpoint_minutes=1e6
    )
    shutil.rmtree(FOLDER / f"{seed}", ignore_errors=True)
    programs: set[tuple[str, int]] = set()
    spent, losses, before = [], [], time.process_time()

    def note(report: Report) -> None:
        nonlocal before
        now = time.process_time()
        if (report.agent, report.group) in programs:
            spent.append(now - before)
        programs.add((report.agent, report.group))
        losses.append(report.over_bound)
        before = time.process_time()

    train(config, FOLDER / f"{seed}", report=note, devices=1)
    return {
        "part": "training",
        "policy": "full",
        "training": seed,
        "updates": config.updates,
        "processor_s": round(sum(spent), 1),
        "exercises": on_exercises(policies(seed)),
        "losses": np.round(losses, 4).tolist(),
    }


def policies(seed: int) -> PolicyWeights:
    """The full policies of a training."""
    return read_weights(str(FOLDER / f"{seed}" / "weights.safetensors"))


@functools.cache
def exercises(config: Config) -> list[list[CompiledInstance]]:
    """The problems of each group of a configuration."""
    return [
        [
            CompiledInstance.of(
                Instance(gw.topology.from_spec(each.topology), each.collective, each.trees)
            )
            for each in group.exercises
        ]
        for group in config.groups
    ]


def loss(
    problem: CompiledInstance, weights: PolicyWeights | RuleWeights, seed: tuple[int, ...]
) -> float:
    """Rounds over the bound, less one, of a drawn episode."""
    rounds = play(problem, weights, seed=seed).rounds
    return rounds / problem.instance.bound - 1 if rounds >= 0 else GIVEN_UP


def on_exercises(weights: PolicyWeights | RuleWeights) -> float:
    """The mean loss of drawn episodes on all exercises."""
    problems = [problem for group in exercises(read_config(None)) for problem in group]
    return float(np.mean([loss(each, weights, (3, s)) for each in problems for s in range(DRAWN)]))


def rule_of(numbers: Numbers) -> RuleWeights:
    """A rule of 19 numbers."""
    return RuleWeights(*np.split(numbers.astype(np.float32), [HOP_FEATURES]))


def train_rule(seed: int) -> Row:
    """The constants that CMA-ES comes to in some processor time: means of its last quarter."""
    config, rng = read_config(None), np.random.default_rng([2028, seed])
    groups = exercises(config)
    shares = np.array([group.share for group in config.groups])
    search = EvolutionStrategy(HOP_FEATURES + PIECE_FEATURES, POPULATION, STEP, rng)
    means, losses, episodes, begin = [], [], 0, time.process_time()
    while time.process_time() - begin < RULE_S:
        index = int(rng.choice(len(groups), p=shares / shares.sum()))
        problems = [
            groups[index][place]
            for place in rng.choice(len(groups[index]), config.groups[index].at_once, replace=False)
        ]
        drawn = [rule_of(numbers) for numbers in search.draw()]
        came_to = np.array(
            [[loss(each, rule, (seed, len(means))) for each in problems] for rule in drawn]
        ).mean(1)
        search.learn(came_to)
        means.append(search.mean)
        losses.append(float(came_to.mean()))
        episodes += len(drawn) * len(problems)
    spent = time.process_time() - begin
    rule = rule_of(np.mean(means[-max(1, len(means) // 4) :], axis=0))
    return {
        "part": "training",
        "policy": "constants",
        "training": seed,
        "updates": len(means),
        "episodes": episodes,
        "processor_s": round(spent, 1),
        "exercises": on_exercises(rule),
        "hop": rule.hop.tolist(),
        "piece": rule.piece.tolist(),
        "losses": np.round(losses[:: max(1, len(losses) // 100)], 4).tolist(),
    }


def above(weights: PolicyWeights, rule: RuleWeights) -> PolicyWeights:
    """The upper agent alone, above a rule."""
    below = silent(weights.workload)
    below = below._replace(common=np.float32(1), hop=rule.hop, piece=rule.piece)
    return PolicyWeights(weights.tree, below)


def variants(trainings: Sequence[Row]) -> Iterator[Variant]:
    """What is compared, by the trainings of both kinds."""
    shipped, zeros = read_weights(None), rule_of(np.zeros(HOP_FEATURES + PIECE_FEATURES))
    constants = {
        row["training"]: rule_of(np.array([*row["hop"], *row["piece"]]))
        for row in trainings
        if row["policy"] == "constants"
    }
    yield Variant(SHIPPED, 0, shipped)
    yield Variant("lower agent alone, shipped weights", 0, shipped, select=False)
    for seed, rule in constants.items():
        size = np.sqrt(np.mean(np.square([*rule.hop, *rule.piece])))
        rng = np.random.default_rng([2029, seed])
        yield Variant(CONSTANTS, seed, rule)
        random = rng.normal(scale=size, size=HOP_FEATURES + PIECE_FEATURES)
        yield Variant("random constants", seed, rule_of(random))
        yield Variant("upper agent, shipped weights, above constants", seed, above(shipped, rule))
    yield Variant("upper agent, shipped weights, above zeros", 0, above(shipped, zeros))
    yield Variant("zeros", 0, zeros)
    for seed in POLICY_SEEDS:
        full = policies(seed)
        yield Variant("full policies", seed, full)
        yield Variant("lower agent alone", seed, full, select=False)


def networks() -> Iterator[tuple[str, str, gw.Topology]]:
    """Group, label and network."""
    for seed in UNSEEN:
        network = unseen_network(seed)
        yield "unseen", f"{seed}: {network.name}", network
    for case in TABLE_2:
        yield "table 2", case.label, case.network(0)


def decoded(variant: Variant, problem: CompiledInstance) -> Row:
    """Mean rounds on one network, and processor seconds of an episode of best actions."""

    def each(number: int, **how: Any) -> tuple[float, float]:
        seconds, rounds = timed(
            lambda: [
                play(problem, variant.weights, seed=(4, s), select=variant.select, **how).rounds
                for s in range(number)
            ],
            time.process_time,
        )
        assert min(rounds) > 0, f"{variant.name}: an episode was given up"
        return seconds / number, float(np.mean(rounds))

    seconds, best = each(EPISODES, temperature=0.0)
    _, drawn = each(DRAWN)
    repaired_s, repaired = each(EPISODES, temperature=0.0, repair=True)
    rounds = {"best": best, "drawn": drawn, "repaired": repaired}
    return rounds | {"best_s": seconds, "repaired_s": repaired_s}


def searched(network: gw.Topology, bound: int, seconds: float) -> Row:
    """Mean rounds of one pass without swaps, and of the swaps' best in the time of an episode."""
    plain, swaps = (
        rule_player(network, RULES[rule], bound) for rule in ("rarest near", "rarest near, swaps")
    )
    drawn = [plain(s) for s in range(DRAWN)]
    found = [
        best_in(seconds, bound, _from(swaps, 1000 * s), time.process_time) for s in range(EPISODES)
    ]
    return {
        "drawn": float(np.mean(drawn)),
        "repaired": float(np.mean(found)),
        "repaired_s": seconds,
    }


def _from(player: Callable[[int], int], first: int) -> Callable[[int], int]:
    """The player, its seeds from some number on."""
    return lambda seed: player(first + seed)


def rows_of(group: str, label: str, network: gw.Topology, tried: Sequence[Variant]) -> list[Row]:
    """All variants on one network."""
    instance = Instance(network, routes=ROUTES)
    problem, bound, servers = CompiledInstance.of(instance), instance.bound, network.num_servers
    rows = [
        {"variant": variant.name, "training": variant.seed} | decoded(variant, problem)
        for variant in tried
    ]
    for name in (CONSTANTS, SHIPPED):
        seconds = np.mean([row["repaired_s"] for row in rows if row["variant"] == name])
        row = searched(network, bound, float(seconds))
        rows.append({"variant": f"`grown`, in the time of the {name}", "training": 0} | row)
    here = {"part": "decoded", "group": group, "label": label, "servers": servers, "bound": bound}
    return [here | row for row in rows]


def summaries(rows: Sequence[Row]) -> Iterator[Row]:
    """Mean gaps of each variant by group, with intervals, and beside the constants'."""
    for group in dict.fromkeys(row["group"] for row in rows):
        inside = [row for row in rows if row["group"] == group]
        labels = list(dict.fromkeys(row["label"] for row in inside))
        rng = np.random.default_rng(2028)
        again = rng.integers(len(labels), size=(RESAMPLES, len(labels)))
        names = list(dict.fromkeys(row["variant"] for row in inside))
        gaps = {
            (name, metric): _gaps([row for row in inside if row["variant"] == name], metric)
            for name in names
            for metric in METRICS
        }
        for name in names:
            own = [row for row in inside if row["variant"] == name]
            found = {
                "group": group,
                "variant": name,
                "networks": len(labels),
                "trainings": len({row["training"] for row in own}),
                "seconds": float(np.mean([row["repaired_s"] for row in own])),
            }
            if "best_s" in own[0]:
                found["best_seconds"] = float(np.mean([row["best_s"] for row in own]))
            for metric in METRICS:
                gap, constants = gaps[name, metric], gaps[CONSTANTS, metric]
                if gap is None:
                    continue
                of_networks = gap.mean(0)
                beside = of_networks - constants.mean(0)
                found |= {
                    f"{metric}_gap": float(gap.mean()),
                    f"{metric}_interval": middle(of_networks[again].mean(1)),
                    f"{metric}_trainings": [float(gap.mean(1).min()), float(gap.mean(1).max())],
                    f"{metric}_more": float(beside.mean()),
                    f"{metric}_more_interval": middle(beside[again].mean(1)),
                }
            yield found


def _gaps(rows: Sequence[Row], metric: str) -> Any:
    """[trainings, networks] the gaps to the bound; None where the metric is not theirs."""
    if metric not in rows[0]:
        return None
    trainings = dict.fromkeys(row["training"] for row in rows)
    return np.array(
        [
            [row[metric] / row["bound"] - 1 for row in rows if row["training"] == t]
            for t in trainings
        ]
    )


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="(default: %(default)s)")
    asked = parser.parse_args()
    unfinished = Unfinished(NAME, resume=asked.resume, libraries=("jax", "optax"))

    def rows(part: str) -> list[Row]:
        return [row for row in unfinished.rows() if row["part"] == part]

    def kept(row: Row) -> Row:
        unfinished.add(row)
        show({key: value for key, value in row.items() if key != "losses"})
        return row

    start_jax(1)
    for problems in exercises(read_config(None)):  # what is compiled once is not timed
        play(problems[0], read_weights(None), seed=0, repair=True)
    trained = {(row["policy"], row["training"]) for row in rows("training")}
    for seed in POLICY_SEEDS:
        if ("full", seed) not in trained:
            kept(train_policies(seed, asked.iterations))
    for seed in SEEDS:
        if ("constants", seed) not in trained:
            kept(train_rule(seed))
    tried, there = list(variants(rows("training"))), {row["label"] for row in rows("decoded")}
    for group, label, network in networks():
        if label not in there:
            for row in rows_of(group, label, network, tried):
                kept(row)
    record(
        NAME,
        libraries=("jax", "optax"),
        seeds=SEEDS,
        iterations=asked.iterations,
        trainings=rows("training"),
        rows=rows("decoded"),
        summaries=list(summaries(rows("decoded"))),
    )
    unfinished.end()


if __name__ == "__main__":
    main()
