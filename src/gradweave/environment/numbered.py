"""The environment with numbers as actions and vectors as observations, as learners expect them.

The adapters to JaxMARL and Gymnasium are thin layers over it.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from gradweave.environment import flow_tree_selection, workload_scheduling
from gradweave.environment.environment import SchedulingEnvironment
from gradweave.environment.problem import Instance, Problem, Size, stack
from gradweave.environment.rewards import Rewards
from gradweave.environment.state import State
from gradweave.errors import OptionError
from gradweave.schedules.schedule import Provenance, Schedule

Selection = Literal["one_by_one", "multi_hot"]
"""How flow-tree selection acts. ``multi_hot``: one action, with a 0 or 1 per tree. ``one_by_one``:
each action is a number that adds a tree to the selection, until 0 hands over; a round then takes
one step per selected tree, and one more."""

TreePolicy = Callable[[SchedulingEnvironment, Problem, State, PRNGKeyArray], Bool[Array, " Q"]]
WorkloadPolicy = Callable[[SchedulingEnvironment, Problem, State, PRNGKeyArray], Int[Array, ""]]


class Options(TypedDict, total=False):
    """Arguments of `NumberedEnvironment` apart from the instances; the adapters pass them on."""

    rewards: Rewards | None
    selection: Selection
    tree_policy: TreePolicy | None
    workload_policy: WorkloadPolicy | None
    size: Size | None


def every_tree(
    environment: SchedulingEnvironment, problem: Problem, state: State, key: PRNGKeyArray
) -> Bool[Array, " Q"]:
    """Selects every tree with a ready workload, which leaves all choices to workload scheduling."""
    return environment.tree_mask(problem, state)


def random_workload(
    environment: SchedulingEnvironment, problem: Problem, state: State, key: PRNGKeyArray
) -> Int[Array, ""]:
    """Sends one of the available workloads, chosen uniformly."""
    mask = environment.workload_mask(problem, state)
    place = jax.random.randint(key, (), 0, mask.sum(dtype=jnp.int32).clip(1))
    return jnp.argmax(jnp.cumsum(mask) > place)


class NumberedState(eqx.Module):
    """The state of an episode."""

    which: Int[Array, ""]
    """Number of the instance being played."""
    state: State
    chosen: Bool[Array, " Q"]
    """Trees added to the selection so far."""
    step: Int[Array, ""]
    """Number of steps so far, including those of a partner."""
    done: Bool[Array, ""]


class NumberedStep(NamedTuple):
    """The result of a step."""

    state: NumberedState
    tree_reward: Float[Array, ""]
    workload_reward: Float[Array, ""]
    done: Bool[Array, ""]
    truncated: Bool[Array, ""]


class NumberedEnvironment(eqx.Module):
    """Instances of one size; each episode plays one of them.

    Action 0 of either agent is to wait, for use when it is not its turn. In its turn, flow-tree
    selection hands over with 0 and adds tree i with 1 + i; workload scheduling sends workload i
    (``hop * Q + tree``) with 1 + i. Masks exclude actions without effect, and the empty selection,
    which would waste a round. Every other set of trees with ready workloads can be selected in both
    forms.

    With ``one_by_one`` the reward for selected trees counts those with a ready workload, since no
    others can be added.

    An agent with a given policy is the learner's partner: its turns pass within the learner's step,
    and their rewards are added up.

    An episode is also truncated after more steps than any episode that respects the masks can take.
    """

    problems: Problem
    """Problems, stacked along the first axis."""
    instances: tuple[Instance, ...] = eqx.field(static=True)
    environment: SchedulingEnvironment = eqx.field(static=True)
    selection: Selection = eqx.field(static=True)
    tree_policy: TreePolicy | None = eqx.field(static=True)
    """Flow-tree selection's policy, if it does not learn."""
    workload_policy: WorkloadPolicy | None = eqx.field(static=True)
    """Workload scheduling's policy, if it does not learn."""

    def __init__(
        self,
        instances: Instance | Sequence[Instance],
        *,
        rewards: Rewards | None = None,
        selection: Selection = "one_by_one",
        tree_policy: TreePolicy | None = None,
        workload_policy: WorkloadPolicy | None = None,
        size: Size | None = None,
    ) -> None:
        """Pads the instances to one size.

        Args:
            instances: instances to play; one of several is selected at random for each episode.
            rewards: weights of the rewards; by default those of the paper.
            selection: form of flow-tree selection's action.
            tree_policy: policy of flow-tree selection, for a learner of workload scheduling.
            workload_policy: policy of workload scheduling, for a learner of flow-tree selection.
            size: lengths of the axes; by default the smallest that hold all instances.
        """
        self.instances = (instances,) if isinstance(instances, Instance) else tuple(instances)
        if not self.instances:
            raise OptionError("instances: expected at least one, got none")
        if selection not in ("one_by_one", "multi_hot"):
            raise OptionError(f"selection: expected one_by_one or multi_hot, got {selection!r}")
        if tree_policy is not None and workload_policy is not None:
            raise OptionError(
                "tree_policy, workload_policy: with both given no agent is left to learn; give one"
            )
        size = size or Size.covering(instance.size for instance in self.instances)
        self.problems = stack([Problem.of(instance, size) for instance in self.instances])
        self.environment = SchedulingEnvironment(rewards or Rewards())
        self.selection = selection
        self.tree_policy = tree_policy
        self.workload_policy = workload_policy

    @property
    def size(self) -> Size:
        """The common size."""
        return self.problems.size

    def problem(self, state: NumberedState) -> Problem:
        """The problem that an episode plays."""
        return self._problem(state.which)

    def reset(self, key: PRNGKeyArray, which: Int[Array, ""] | None = None) -> NumberedState:
        """The first state in which a learner acts.

        Args:
            key: random key of the instance, and of a partner's actions.
            which: number of the instance; random by default.
        """
        draw, key = jax.random.split(key)
        if which is None:
            which = jax.random.randint(draw, (), 0, len(self.instances))
        which = jnp.asarray(which, jnp.int32)
        problem = self._problem(which)
        begin = NumberedState(
            which=which,
            state=self.environment.reset(problem),
            chosen=jnp.zeros(self.size.trees, bool),
            step=jnp.zeros((), jnp.int32),
            done=jnp.zeros((), bool),
        )
        return self._until_learner(problem, self._no_step(begin), key).state

    def step(
        self,
        key: PRNGKeyArray,
        state: NumberedState,
        trees: Int[Array, "..."],
        workload: Int[Array, ""],
    ) -> NumberedStep:
        """The step of the agent whose turn it is, followed by the partner's steps.

        Args:
            key: random key of a partner's policy.
            state: the state; not reset here when done.
            trees: action of flow-tree selection: a number, or [Q] zeros and ones with
                ``multi_hot``.
            workload: action of workload scheduling.
        """
        problem = self.problem(state)
        if self.selection == "multi_hot":
            step = self._act(problem, state, trees.astype(bool), workload - 1)
        else:
            step = self._one_by_one(problem, state, trees, workload - 1)
        return self._until_learner(problem, step, key)

    def tree_mask(self, state: NumberedState) -> Bool[Array, "..."]:
        """[1 + Q], or [Q] if multi-hot: actions of flow-tree selection that have an effect."""
        mask = self.environment.tree_mask(self.problem(state), state.state) & ~state.chosen
        if self.selection == "multi_hot":
            return mask
        wait = ~flow_tree_selection.is_turn(state.state) | state.chosen.any() | ~mask.any()
        return jnp.concatenate([wait[None], mask])

    def workload_mask(self, state: NumberedState) -> Bool[Array, " 1+HQ"]:
        """[1 + HQ]: actions of workload scheduling that have an effect."""
        mask = self.environment.workload_mask(self.problem(state), state.state)
        return jnp.concatenate([~mask.any(keepdims=True), mask])

    def observe_trees(self, state: NumberedState) -> Float[Array, " 1+5Q+L"]:
        """The observation of flow-tree selection, from 0 to 1; its first entry is 1 in its turn."""
        seen = flow_tree_selection.observe(self.problem(state), state.state)
        parts = (seen.sent, seen.available, seen.remaining, seen.pressure, seen.selected_before)
        turn = flow_tree_selection.is_turn(state.state)
        return _vector(turn, *parts, state.chosen)

    def observe_workloads(self, state: NumberedState) -> Float[Array, " 1+HQ+L+2NQ"]:
        """The observation of workload scheduling, from 0 to 1; its first entry is 1 in its turn."""
        seen = workload_scheduling.observe(self.problem(state), state.state)
        turn = workload_scheduling.is_turn(state.state)
        return _vector(turn, seen.available, seen.room, seen.held, seen.pending)

    def schedule(self, state: NumberedState, scheduler: Provenance | None = None) -> Schedule:
        """The schedule that a finished episode represents.

        Args:
            state: the episode's last state: a result of `step`, before any reset.
            scheduler: the schedule's provenance.

        Raises:
            ScheduleError: the episode is not finished.
        """
        instance = self.instances[int(state.which)]
        return instance.schedule(state.state.sent_round, state.state.sent_hop, scheduler)

    def _problem(self, which: Int[Array, ""]) -> Problem:
        # With a single instance, all environments of a batch share its tables.
        only = 0 if len(self.instances) == 1 else which
        return jax.tree.map(lambda leaf: leaf[only], self.problems)

    def _no_step(self, state: NumberedState) -> NumberedStep:
        zero, no = jnp.zeros(()), jnp.zeros((), bool)
        return NumberedStep(state, zero, zero, no, no)

    def _act(
        self,
        problem: Problem,
        state: NumberedState,
        trees: Bool[Array, " Q"],
        workload: Int[Array, ""],
    ) -> NumberedStep:
        """The environment's step."""
        step = self.environment.step(problem, state.state, trees, workload)
        steps = state.step + 1
        truncated = step.truncated | (~step.done & (steps >= _most_steps(problem)))
        done = step.done | truncated
        after = NumberedState(state.which, step.state, jnp.zeros_like(state.chosen), steps, done)
        return NumberedStep(after, step.tree_reward, step.workload_reward, done, truncated)

    def _one_by_one(
        self,
        problem: Problem,
        state: NumberedState,
        number: Int[Array, ""],
        workload: Int[Array, ""],
    ) -> NumberedStep:
        """Adds a tree to the selection, or takes the environment's step with the trees chosen."""
        step = self._act(problem, state, state.chosen, workload)
        adds = flow_tree_selection.is_turn(state.state) & (number > 0)
        tree = jnp.arange(self.size.trees) == number - 1
        chosen = state.chosen | (tree & self.environment.tree_mask(problem, state.state))
        truncated = step.state.step >= _most_steps(problem)
        after = NumberedState(state.which, state.state, chosen, step.state.step, truncated)
        added = self._no_step(after)._replace(done=truncated, truncated=truncated)
        return jax.tree.map(lambda one, other: jnp.where(adds, one, other), added, step)

    def _until_learner(
        self, problem: Problem, step: NumberedStep, key: PRNGKeyArray
    ) -> NumberedStep:
        """The steps of a partner until it is the learner's turn or the episode's end."""
        if self.tree_policy is None and self.workload_policy is None:
            return step
        partner = workload_scheduling if self.tree_policy is None else flow_tree_selection

        def is_partners_turn(carry: tuple[NumberedStep, PRNGKeyArray]) -> Bool[Array, ""]:
            return ~carry[0].done & partner.is_turn(carry[0].state.state)

        def act(carry: tuple[NumberedStep, PRNGKeyArray]) -> tuple[NumberedStep, PRNGKeyArray]:
            so_far, key = carry
            key, drawing = jax.random.split(key)
            state = so_far.state
            trees, workload = jnp.zeros_like(state.chosen), jnp.full((), -1, jnp.int32)
            if self.tree_policy is not None:
                trees = self.tree_policy(self.environment, problem, state.state, drawing)
            if self.workload_policy is not None:
                workload = self.workload_policy(self.environment, problem, state.state, drawing)
            after = self._act(problem, state, trees, workload)
            return after._replace(
                tree_reward=so_far.tree_reward + after.tree_reward,
                workload_reward=so_far.workload_reward + after.workload_reward,
            ), key

        return jax.lax.while_loop(is_partners_turn, act, (step, key))[0]


def _most_steps(problem: Problem) -> Float[Array, ""]:
    """An upper bound on the steps of an episode in which every action has an effect."""
    return problem.workloads + problem.limit * (problem.trees + 1)


def _vector(*parts: Array) -> Float[Array, " D"]:
    return jnp.concatenate([part.reshape(-1).astype(jnp.float32) for part in parts])
