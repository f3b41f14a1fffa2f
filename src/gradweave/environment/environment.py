"""The environment: both agents' steps behind one pure `reset` and `step`."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gradweave.environment import flow_tree_selection, workload_scheduling
from gradweave.environment import state as states
from gradweave.environment.batch import apart, batched
from gradweave.environment.problem import Problem
from gradweave.environment.rewards import Rewards
from gradweave.environment.state import WORKLOAD_SCHEDULING, State


class Step(NamedTuple):
    """The result of a step."""

    state: State
    tree_reward: Float[Array, ""]
    """Reward of flow-tree selection."""
    workload_reward: Float[Array, ""]
    """Reward of workload scheduling."""
    done: Bool[Array, ""]
    """Whether the episode ended, by its last transfer or by truncation."""
    truncated: Bool[Array, ""]
    """Whether it was truncated: `Problem.limit` rounds passed."""


@dataclasses.dataclass(frozen=True)
class SchedulingEnvironment:
    """The scheduling problem as two agents' turns; pure, for jit and vmap, for any `Problem`.

    Flow-tree selection acts once per round. Workload scheduling then sends one workload per step,
    and the round ends automatically when no workload is left that fits. A finished episode is a
    schedule: ``instance.schedule(state.sent_round, state.sent_hop)``.

    >>> import jax, gradweave as gw
    >>> from gradweave.environment import SchedulingEnvironment
    >>> from gradweave.environment.problem import Instance, Problem
    >>> instance = Instance(gw.topology.ring(4))
    >>> environment, problem = SchedulingEnvironment(), Problem.of(instance)
    >>> state, step = environment.reset(problem), jax.jit(environment.step)
    >>> while not state.done:
    ...     workload = environment.workload_mask(problem, state).argmax()
    ...     state = step(problem, state, environment.tree_mask(problem, state), workload).state
    >>> instance.schedule(state.sent_round, state.sent_hop).rounds
    2
    """

    rewards: Rewards = dataclasses.field(default_factory=Rewards)
    auto_reset: bool = False
    """Whether a step that ends an episode returns the first state of the next episode."""

    def reset(self, problem: Problem) -> State:
        """The first state."""
        return states.reset(problem)

    def step(
        self,
        problem: Problem,
        state: State,
        trees: Bool[Array, " Q"],
        workload: Int[Array, ""],
    ) -> Step:
        """The step of the agent whose turn it is; the action of the other agent is ignored.

        Args:
            problem: the problem.
            state: the state.
            trees: action of flow-tree selection: multi-hot over trees.
            workload: action of workload scheduling: ``hop * Q + tree``. An unavailable workload is
                not sent; at the turn of workload scheduling some workload is always available.
        """
        # Weights may be arrays that depend on a traced value of the caller, which an inner function
        # must not capture.
        shared = problem, dataclasses.astuple(self.rewards)
        return batched(self._step)(shared, state, trees, workload)

    def _step(self, shared: tuple, state: State, trees: Array, workload: Array) -> Step:
        """`step` for many environments."""
        problem, rewards = shared[0], Rewards(*shared[1])
        asked = workload_scheduling.asked(problem, state, workload)
        after = workload_scheduling.sent(problem, state, *asked)
        # Environments that select sent no workload, so a selection may read the old `state`; only
        # the tables that it writes must be the new ones.
        before = dataclasses.replace(state, count=after.count, used=after.used)
        begun = flow_tree_selection.selected_some(problem, before, trees)
        turn = jnp.full_like(state.turn, WORKLOAD_SCHEDULING)
        after = dataclasses.replace(after, turn=turn, **begun)
        over = apart(state.round, lambda count: ~states.any_available(count), after)
        after = states.end_round(after, over)
        truncated = ~after.done & (after.round >= problem.limit)
        done = after.done | truncated
        tree_reward = rewards.flow_tree_selection(problem, state, after)
        workload_reward = rewards.workload_scheduling(problem, state, after)
        if self.auto_reset:
            after = states.restarted(
                problem, after, apart(state.round, jnp.logical_and, done, done)
            )
        return Step(after, tree_reward, workload_reward, done, truncated)

    def tree_mask(self, problem: Problem, state: State) -> Bool[Array, " Q"]:
        """Trees with a ready workload; none at the other agent's turn."""
        turn = flow_tree_selection.is_turn(state)
        return flow_tree_selection.mask(problem, state) & turn

    def workload_mask(self, problem: Problem, state: State) -> Bool[Array, " HQ"]:
        """Workloads that can be sent; none at the other agent's turn."""
        turn = workload_scheduling.is_turn(state)
        return workload_scheduling.mask(problem, state) & turn

    def observe(
        self, problem: Problem, state: State
    ) -> tuple[flow_tree_selection.TreeObservation, workload_scheduling.WorkloadObservation]:
        """The observation of each agent."""
        return (
            flow_tree_selection.observe(problem, state),
            workload_scheduling.observe(problem, state),
        )


def rounds(state: State) -> Int[Array, ""]:
    """Number of rounds of the transfers so far."""
    return (state.sent_round.max((-2, -1)) + 1).astype(jnp.int32)
