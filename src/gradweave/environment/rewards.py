"""The rewards of each agent; every term can be switched off or weighted."""

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from gradweave.environment.problem import Problem
    from gradweave.environment.state import State


@dataclasses.dataclass(frozen=True)
class Rewards:
    """Weights of the terms: by default those of the paper; 0 switches a term off.

    Source: section 4.4 of the paper; `rounds` is an addition.
    """

    sent: float = 1.0
    """Flow-tree selection, at a round's end: transfers of the round divided by all transfers."""
    selected: float = 0.1
    """Flow-tree selection, at a round's end: selected trees divided by all trees."""
    done: float = 10.0
    """Flow-tree selection, when the episode is done."""
    unfinished: float = 1.0
    """Flow-tree selection, at the end of any other round: minus all trees over all transfers."""
    workload: float = 1.0
    """Workload scheduling, for each workload: one divided by all transfers."""
    rounds: float = 0.0
    """Both agents, at a round's end: minus one divided by the lower bound on all rounds."""

    @staticmethod
    def ours() -> "Rewards":
        """Only rounds, by which schedules are judged."""
        return Rewards(sent=0, selected=0, done=0, unfinished=0, workload=0, rounds=1)

    def flow_tree_selection(
        self, problem: "Problem", before: "State", after: "State"
    ) -> "Float[Array, '']":
        """Reward for a step; 0 except for steps that end a round.

        Args:
            problem: the problem.
            before: the state in which either agent acted.
            after: the state after the step.
        """
        import jax
        import jax.numpy as jnp

        ended = after.round > before.round
        trees, workloads = problem.trees, problem.workloads
        selected = jax.lax.population_count(after.chosen).sum(0)
        sent = before.sent + before.left - after.left
        dense = self.sent * sent / workloads + self.selected * selected / trees
        stage = jnp.where(after.done, self.done, -self.unfinished * trees / workloads)
        return jnp.where(ended, dense + stage, 0.0) + self._rounds(problem, before, after)

    def workload_scheduling(
        self, problem: "Problem", before: "State", after: "State"
    ) -> "Float[Array, '']":
        """Reward for a step: for the workload that it sent, if any."""
        sent = before.left - after.left
        return self.workload * sent / problem.workloads + self._rounds(problem, before, after)

    def _rounds(self, problem: "Problem", before: "State", after: "State") -> "Float[Array, '']":
        import jax.numpy as jnp

        ended = after.round > before.round
        return jnp.where(ended, -self.rounds / problem.bound.sum(), 0.0)
