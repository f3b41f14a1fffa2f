"""The environment behind JaxMARL's interface. Needs the extra ``marl``."""

import functools
from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gradweave.common.lazy import missing
from gradweave.environment.numbered import NumberedEnvironment, NumberedState, Options
from gradweave.environment.problem import Instance
from gradweave.schedules.schedule import Provenance, Schedule

try:
    from jaxmarl.environments.multi_agent_env import MultiAgentEnv
    from jaxmarl.environments.spaces import Box, Discrete, MultiDiscrete, Space
except ImportError as error:
    raise missing(__name__, "jaxmarl") from error

TREES = "flow_tree_selection"
WORKLOADS = "workload_scheduling"


class JaxMARLScheduling(MultiAgentEnv):
    """The scheduling problem as a `MultiAgentEnv` of JaxMARL.

    Both agents act at every step; the agent whose turn it is not can only wait, with action 0.
    `NumberedEnvironment` documents the numbers. `step` resets automatically, like JaxMARL's
    environments; `step_env` does not, so its last state gives the `schedule`.

    An episode is truncated after `Problem.limit` rounds. ``info`` has, for each agent, ``rounds``
    so far and whether the episode was ``truncated``.

    >>> import jax, gradweave as gw
    >>> from gradweave.environment.problem import Instance
    >>> from gradweave.environment.jaxmarl_adapter import JaxMARLScheduling
    >>> env = JaxMARLScheduling(Instance(gw.topology.ring(4)))
    >>> observations, state = env.reset(jax.random.key(0))
    >>> {
    ...     agent: mask.astype(int).nonzero()[0].tolist()
    ...     for agent, mask in env.get_avail_actions(state).items()
    ... }
    {'flow_tree_selection': [1, 2, 3, 4], 'workload_scheduling': [0]}
    """

    def __init__(
        self,
        instances: Instance | Sequence[Instance],
        *,
        alike: bool = True,
        team: bool = False,
        **options: Unpack[Options],
    ) -> None:
        """Makes the environment.

        Args:
            instances: instances to play; `reset` selects one of several at random.
            alike: whether both agents' observations, and both `Discrete` spaces, have the same
                length, as learners with a shared network expect; padded with zeros and with actions
                that are never available.
            team: whether both get the sum of both rewards.
            options: options of `NumberedEnvironment`; flow-tree selection's space is `Discrete`
                with ``one_by_one`` and a `MultiDiscrete` of twos with ``multi_hot``.
        """
        self.numbered = NumberedEnvironment(instances, **options)
        policies = {TREES: self.numbered.tree_policy, WORKLOADS: self.numbered.workload_policy}
        agents = [agent for agent, policy in policies.items() if policy is None]
        super().__init__(num_agents=len(agents))
        self.agents = agents
        self.alike = alike
        self.team = team
        size = self.numbered.size
        self._actions = {TREES: 1 + size.trees, WORKLOADS: 1 + size.hops * size.trees}
        if self.numbered.selection == "multi_hot":
            self._actions[TREES] = 0
        most = max(self._actions[agent] for agent in agents)
        self._filled = {agent: most if alike else self._actions[agent] for agent in agents}
        seen = jax.eval_shape(
            lambda key: self._vectors(self.numbered.reset(key)), jax.random.key(0)
        )
        lengths = {agent: vector.shape[0] for agent, vector in seen.items()}
        self._length = {
            agent: max(lengths.values()) if alike else lengths[agent] for agent in agents
        }
        self.observation_spaces = {
            agent: Box(0.0, 1.0, (self._length[agent],), jnp.float32) for agent in agents
        }
        self.action_spaces: dict[str, Space] = {
            agent: Discrete(self._filled[agent]) for agent in agents
        }
        if self.numbered.selection == "multi_hot" and TREES in agents:
            self.action_spaces[TREES] = MultiDiscrete([2] * size.trees)

    @functools.partial(jax.jit, static_argnums=(0,))
    def reset(self, key: PRNGKeyArray) -> tuple[dict[str, Array], NumberedState]:
        """Starts an episode.

        Args:
            key: random key of the instance, and of a partner's actions.
        """
        state = self.numbered.reset(key)
        return self.get_obs(state), state

    def step_env(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, key: PRNGKeyArray, state: NumberedState, actions: dict[str, Array]
    ) -> tuple[dict, NumberedState, dict, dict, dict[str, Any]]:
        """A step without a reset.

        Args:
            key: random key of a partner's policy.
            state: the state.
            actions: an action per agent; only that of the agent whose turn it is matters.
        """
        wait = jnp.zeros((), jnp.int32)
        step = self.numbered.step(
            key, state, actions.get(TREES, wait), actions.get(WORKLOADS, wait)
        )
        rewards = {TREES: step.tree_reward, WORKLOADS: step.workload_reward}
        if self.team:
            rewards = dict.fromkeys(rewards, step.tree_reward + step.workload_reward)
        info = {
            "rounds": jnp.full(self.num_agents, step.state.state.round),
            "truncated": jnp.full(self.num_agents, step.truncated),
        }
        return (
            self.get_obs(step.state),
            step.state,
            {agent: rewards[agent] for agent in self.agents},
            dict.fromkeys([*self.agents, "__all__"], step.done),
            info,
        )

    def get_obs(  # pyright: ignore[reportIncompatibleMethodOverride] - each has its own state
        self, state: NumberedState
    ) -> dict[str, Float[Array, " D"]]:
        """Each agent's observation: `NumberedEnvironment.observe_trees` and `observe_workloads`.

        The first entry is 1 for flow-tree selection and 0 for workload scheduling, the second
        whether it is the agent's turn.
        """
        return {
            agent: jnp.pad(vector, (0, self._length[agent] - vector.shape[0]))
            for agent, vector in self._vectors(state).items()
        }

    @functools.partial(jax.jit, static_argnums=(0,))
    def get_avail_actions(self, state: NumberedState) -> dict[str, Bool[Array, "..."]]:
        """The available actions of each agent: [A], or [Q, 2] for a multi-hot selection."""
        masks = {}
        if TREES in self.agents:
            mask = self.numbered.tree_mask(state)
            if self.numbered.selection == "multi_hot":
                masks[TREES] = jnp.stack([jnp.ones_like(mask), mask], axis=-1)
            else:
                masks[TREES] = jnp.pad(mask, (0, self._filled[TREES] - mask.shape[0]))
        if WORKLOADS in self.agents:
            mask = self.numbered.workload_mask(state)
            masks[WORKLOADS] = jnp.pad(mask, (0, self._filled[WORKLOADS] - mask.shape[0]))
        return masks

    def schedule(self, state: NumberedState, scheduler: Provenance | None = None) -> Schedule:
        """The schedule that a finished episode represents.

        Args:
            state: the episode's last state, as `step_env` returns it.
            scheduler: the schedule's provenance.

        Raises:
            ScheduleError: the episode is not finished.
        """
        return self.numbered.schedule(state, scheduler)

    @property
    def name(self) -> str:
        """The environment's name."""
        return "GradweaveScheduling"

    @property
    def agent_classes(self) -> dict[str, list[str]]:
        """Each agent forms a separate class."""
        return {agent: [agent] for agent in self.agents}

    def _vectors(self, state: NumberedState) -> dict[str, Float[Array, " D"]]:
        vectors = {
            TREES: self.numbered.observe_trees,
            WORKLOADS: self.numbered.observe_workloads,
        }
        return {
            agent: jnp.concatenate([jnp.full(1, float(agent == TREES)), vectors[agent](state)])
            for agent in self.agents
        }
