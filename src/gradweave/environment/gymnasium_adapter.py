"""The environment behind Gymnasium's interface. Needs the extra ``learn``."""

from collections.abc import Sequence
from typing import Any, Final, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from numpy.typing import NDArray

from gradweave.common.lazy import missing
from gradweave.environment import flow_tree_selection
from gradweave.environment.numbered import NumberedEnvironment, NumberedState, NumberedStep, Options
from gradweave.environment.problem import Instance
from gradweave.errors import OptionError
from gradweave.schedules.schedule import Provenance, Schedule

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:
    raise missing(__name__, "gymnasium") from error


NAME: Final = "gradweave/Scheduling-v0"
"""Name for ``gymnasium.make``, once this module has been imported."""


class GymnasiumScheduling(gymnasium.Env):
    """The scheduling problem as a single-agent `gymnasium.Env`.

    One learner plays both agents in turn, or only one of them if the other has a policy. Its action
    is a number:

    - for both: 0 hands over, 1 + i adds tree i, 1 + Q + i sends workload i (``hop * Q + tree``);
    - for flow-tree selection: 0 hands over and 1 + i adds tree i, or with ``selection="multi_hot"``
      one 0 or 1 per tree;
    - for workload scheduling: i sends workload i.

    `action_masks` returns which of them have an effect now, in the form that ``MaskablePPO`` of
    sb3-contrib expects. An action without effect is allowed and wastes a step. The reward is the
    sum over the agents that the learner plays.

    >>> import gradweave as gw
    >>> from gradweave.environment.problem import Instance
    >>> from gradweave.environment.gymnasium_adapter import GymnasiumScheduling
    >>> from gradweave.environment.numbered import every_tree
    >>> env = GymnasiumScheduling(Instance(gw.topology.ring(4)), tree_policy=every_tree)
    >>> observation, info = env.reset(seed=0)
    >>> over = False
    >>> while not over:
    ...     action = env.action_masks().argmax()
    ...     observation, reward, terminated, truncated, info = env.step(action)
    ...     over = terminated or truncated
    >>> env.schedule().rounds == info["rounds"]
    True
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own form

    def __init__(
        self,
        instances: Instance | Sequence[Instance],
        **options: Unpack[Options],
    ) -> None:
        """Makes the environment.

        Args:
            instances: instances to play; `reset` selects one of several at random.
            options: options of `NumberedEnvironment`; ``multi_hot`` needs a `workload_policy`.
        """
        workload_policy = options.get("workload_policy")
        multi_hot = options.get("selection") == "multi_hot"
        if multi_hot and workload_policy is None:
            raise OptionError(
                "selection: multi_hot is for flow-tree selection only; give a workload_policy, or "
                "use one_by_one for both"
            )
        self._numbered = NumberedEnvironment(instances, **options)
        size = self._numbered.size
        workloads = size.hops * size.trees
        if multi_hot:
            self.action_space = spaces.MultiBinary(size.trees)
        elif workload_policy is not None:
            self.action_space = spaces.Discrete(1 + size.trees)
        elif self._numbered.tree_policy is not None:
            self.action_space = spaces.Discrete(workloads)
        else:
            self.action_space = spaces.Discrete(1 + size.trees + workloads)
        vector = eqx.filter_eval_shape(_reset, self._numbered, jax.random.key(0), jnp.asarray(0))[1]
        self.observation_space = spaces.Box(0.0, 1.0, vector.shape, np.float32)
        self._now: tuple[NumberedState, NDArray[np.bool_]] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: seed of the instances and of a partner, from here on.
            options: ``instance``: number of the instance to play; random by default.
        """
        super().reset(seed=seed)
        count = len(self._numbered.instances)
        drawn = int(self.np_random.integers(count))
        which = (options or {}).get("instance", drawn)
        if not 0 <= which < count:
            raise OptionError(f"options: expected an instance from 0 to {count - 1}, got {which}")
        state, vector, mask = _reset(self._numbered, self._key(), jnp.asarray(which))
        self._now = state, np.asarray(mask)
        return np.asarray(vector), _info(state)

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """One action of the learner, followed by the partner's actions.

        Args:
            action: see the class.
        """
        before, _ = self._episode("step")
        action = jnp.asarray(action, jnp.int32)
        step, vector, mask = _step(self._numbered, self._key(), before, action)
        self._now = step.state, np.asarray(mask)
        reward = float(_own_reward(self._numbered, step))
        truncated = bool(step.truncated)
        terminated = bool(step.done) and not truncated
        return np.asarray(vector), reward, terminated, truncated, _info(step.state)

    def action_masks(self) -> NDArray[np.bool_]:
        """[A] whether each action has an effect now; for a multi-hot selection [2Q], tree by tree.

        In the multi-hot form, the first of a tree's two entries is for 0 and the second for 1.
        """
        return self._episode("action_masks")[1]

    def schedule(self, scheduler: Provenance | None = None) -> Schedule:
        """The schedule that the finished episode represents.

        Args:
            scheduler: the schedule's provenance.

        Raises:
            ScheduleError: the episode is not finished.
        """
        return self._numbered.schedule(self._episode("schedule")[0], scheduler)

    def _episode(self, asked: str) -> tuple[NumberedState, NDArray[np.bool_]]:
        if self._now is None:
            raise OptionError(f"{asked}: there is no episode yet; call reset() first")
        return self._now

    def _key(self) -> PRNGKeyArray:
        return jax.random.key(int(self.np_random.integers(2**31)))


def _info(state: NumberedState) -> dict[str, Any]:
    return {"rounds": int(state.state.round), "instance": int(state.which)}


def _own_reward(numbered: NumberedEnvironment, step: NumberedStep) -> Array:
    """The sum over the agents that the learner plays."""
    trees = step.tree_reward if numbered.tree_policy is None else 0.0
    workloads = step.workload_reward if numbered.workload_policy is None else 0.0
    return jnp.asarray(trees + workloads)


def _seen(numbered: NumberedEnvironment, state: NumberedState) -> tuple[Array, Array]:
    """The learner's observation and mask."""
    trees, workloads = numbered.tree_mask(state), numbered.workload_mask(state)
    if numbered.workload_policy is not None:
        if numbered.selection == "multi_hot":
            trees = jnp.stack([jnp.ones_like(trees), trees], axis=-1).reshape(-1)
        return numbered.observe_trees(state), trees
    if numbered.tree_policy is not None:
        return numbered.observe_workloads(state), workloads[1:]
    vector = jnp.concatenate([numbered.observe_trees(state), numbered.observe_workloads(state)])
    hands_over = trees[:1] & flow_tree_selection.is_turn(state.state)
    return vector, jnp.concatenate([hands_over, trees[1:], workloads[1:]])


@eqx.filter_jit
def _reset(
    numbered: NumberedEnvironment, key: PRNGKeyArray, which: Array
) -> tuple[NumberedState, Array, Array]:
    state = numbered.reset(key, which)
    return state, *_seen(numbered, state)


@eqx.filter_jit
def _step(
    numbered: NumberedEnvironment, key: PRNGKeyArray, state: NumberedState, action: Array
) -> tuple[NumberedStep, Array, Array]:
    trees = numbered.size.trees
    if numbered.workload_policy is not None:
        step = numbered.step(key, state, action, jnp.asarray(0))
    elif numbered.tree_policy is not None:
        step = numbered.step(key, state, jnp.asarray(0), action + 1)
    else:
        # Outside of its range, either number has no effect in the other agent's turn.
        selects = jnp.where(action <= trees, action, trees + 1)
        step = numbered.step(key, state, selects, action - trees)
    return step, *_seen(numbered, step.state)


gymnasium.register(NAME, entry_point=f"{__name__}:GymnasiumScheduling")
