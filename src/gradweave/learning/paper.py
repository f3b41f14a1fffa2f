"""The paper's training of one network, and its rounds next to those of the constants and the bound.

Source: sections 4.2 to 4.4 of the paper for the observations, rewards and Algorithm 1. It states
neither I, J and K nor the settings of its learners, so these are ours.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gradweave.environment.instance import Instance, Trees
from gradweave.environment.rewards import Rewards
from gradweave.learning.config import Config, Exercise, Group
from gradweave.learning.settings import PPO
from gradweave.topology.spec import from_spec
from gradweave.training.log import read_log

SETTINGS: Mapping[str, Any] = {
    "rewards": Rewards(),
    "workload": PPO(discount=0.0),  # its workload scheduling ends with the round
    "tree": PPO(learning_rate=6e-3, minibatches=2, discount=0.99),
}
"""The paper's rewards and episodes; shared with trainings on several networks."""
ITERATIONS, TREE_UPDATES, WORKLOAD_UPDATES, EPISODES = 24, 1, 4, 64
"""I, J, K, and the number of episodes per update."""
LAST = 10
"""Number of updates of which the final rounds are the mean."""
DRAWN = 64
"""Number of episodes drawn by the constants, as many as in an update."""


def config(network: str, trees: Trees, seed: int = 0) -> Config:
    """The paper's training on one network.

    At first, each tree is selected with probability 1/2 and workloads are drawn uniformly.

    Args:
        network: specification of the network.
        trees: the reading of the paper's trees: ``even`` shortest paths, ``fixed`` shortest paths
            with ties by lowest ids, or ``grown``. Grown trees play the all-gather, whose reverse is
            the reduce-scatter with as many rounds.
        seed: the seed of every random choice.
    """
    exercise = Exercise(network, "all_gather" if trees == "grown" else "reduce_scatter", trees)
    return Config(
        groups=(Group((exercise,), at_once=1, episodes=EPISODES),),
        iterations=ITERATIONS,
        tree_updates=TREE_UPDATES,
        workload_updates=WORKLOAD_UPDATES,
        seed=seed,
        **SETTINGS,
    )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The rounds of one stage in a training."""

    rounds: Sequence[float]
    """[U] mean over the `EPISODES` drawn episodes of each update."""
    selected: Sequence[float]
    """[U] share of the trees with ready workloads that flow-tree selection selected."""

    @property
    def first(self) -> float:
        """The rounds before any training: those of the first update's episodes."""
        return self.rounds[0]

    @property
    def last(self) -> float:
        """The final rounds: the mean over the last `LAST` updates."""
        return sum(self.rounds[-LAST:]) / len(self.rounds[-LAST:])


def outcome(folder: Path) -> Outcome:
    """The outcome of a training.

    Args:
        folder: folder of the log, of at least one update.
    """
    figures = [figure for row in read_log(folder) for figure in row["problems"].values()]
    return Outcome(
        [figure["rounds"] for figure in figures], [figure["selected"] for figure in figures]
    )


class Others(NamedTuple):
    """Rounds without any training, on the same trees."""

    bound: int
    """Lower bound on the rounds of any schedule."""
    constants: float
    """Mean over `DRAWN` episodes drawn by the rule of 19 constants, without repair."""


def others(config: Config) -> Others:
    """The bound, and the rounds of the constants, for the exercise of a training."""
    # Imported here: importing compiled modules takes seconds.
    from gradweave.learning.episodes.compiled_instance import CompiledInstance
    from gradweave.learning.episodes.episode import play
    from gradweave.learning.episodes.tuning import RULE

    exercise = config.groups[0].exercises[0]
    instance = Instance(from_spec(exercise.topology), exercise.collective, exercise.trees)
    problem = CompiledInstance.of(instance)
    drawn = [play(problem, RULE, seed=(config.seed, number)).rounds for number in range(DRAWN)]
    return Others(instance.bound, sum(drawn) / len(drawn))
