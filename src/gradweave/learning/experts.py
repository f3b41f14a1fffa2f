"""Episodes for the policies to imitate: their own episodes after repair, the shortest of many."""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradweave.common import pytrees
from gradweave.environment.instance import NEVER, Instance, Size
from gradweave.learning.episodes.compiled_instance import CompiledInstance
from gradweave.learning.episodes.episode import play
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.policies.policy import COMMON, PolicyWeights, weights_of
from gradweave.learning.rollout import Expert

EPISODES, KEPT = 8, 4
"""Number of episodes played per problem, and of those imitated. The first takes the best actions,
the others sample."""


@dataclasses.dataclass(frozen=True)
class Experts:
    """Plays the episodes of a group's problems with the compiled decoder, on the host.

    Rounds of all-gathers on grown trees are repaired, so that nearly all episodes meet the lower
    bound, which proves them optimal. For other problems they are the shortest of many.
    """

    problems: tuple[CompiledInstance, ...]
    size: Size

    @staticmethod
    def of(instances: Sequence[Instance], size: Size) -> "Experts":
        """Args: the problems, and the lengths of the axes that they are padded to."""
        return Experts(tuple(CompiledInstance.of(instance) for instance in instances), size)

    def play(
        self, policy: HierarchicalPolicy, which: Sequence[int], seed: tuple[int, ...]
    ) -> Expert:
        """Episodes of some of the problems.

        Args:
            policy: the current policies.
            which: the problems, G of them.
            seed: seed of every random choice.

        Returns:
            [G, KEPT, N, Q] episodes.
        """
        weights = weights_of(pytrees.by_name(policy), COMMON, "policies in training")
        each = [self._best(self.problems[number], weights, (*seed, number)) for number in which]
        return Expert(*(jnp.asarray(np.stack(x)) for x in zip(*each, strict=True)))

    def _best(
        self, problem: CompiledInstance, weights: PolicyWeights, seed: tuple[int, ...]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """[KEPT, N, Q] rounds and hops of the shortest episodes, padded."""
        played = [
            play(problem, weights, seed=(*seed, number), temperature=float(number > 0), repair=True)
            for number in range(EPISODES)
        ]
        done = [episode for episode in played if episode.rounds >= 0]
        done.sort(key=lambda episode: episode.rounds)
        shape = KEPT, self.size.servers, self.size.trees
        rounds, hops = np.full(shape, NEVER, np.int32), np.full(shape, NEVER, np.int32)
        for place in range(KEPT if done else 0):
            episode = done[place % len(done)]
            servers, trees = episode.sent_hop.shape
            rounds[place, :servers, :trees] = episode.sent_round
            hops[place, :servers, :trees] = episode.sent_hop
        return rounds, hops
