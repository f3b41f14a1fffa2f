"""A controller and its sub-policies, for all agents of an environment."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gradweave.marl.fairness.mean_utility import Estimates, MeanUtility
from gradweave.marl.fairness.objectives import apart, used
from gradweave.marl.fairness.settings import FEN
from gradweave.marl.games.environment import Environment, View
from gradweave.marl.learners import distributions
from gradweave.marl.learners.networks import Network

KNOWN = 2
"""Inputs that utilities add to the observation: the agent's deviation from the mean, and the mean.
"""

BLOCKS = 32
"""Approximate number of blocks that rows are divided into. With more blocks, weights are copied
more often; with fewer, more rows of incomplete blocks stay empty."""


class Parameters(eqx.Module):
    """All networks. The controller and its critic are None if there is a single policy."""

    actors: Network
    """Stacked networks of the Z sub-policies, [Z, …]."""
    critics: Network
    """Stacked critics of the Z sub-policies, [Z, …]."""
    controller: Network | None
    judge: Network | None
    """The controller's critic."""


@dataclasses.dataclass(frozen=True, eq=False)
class Hierarchy:
    """The networks for an environment, and how agents act with them.

    All agents share the networks, which receive the agent's identity as an input. Sub-policies see
    only the environment's observation; the controller also sees utilities. A policy without a
    controller sees utilities as well, unless it learns independently.
    """

    environment: Environment
    settings: FEN
    consensus: MeanUtility

    @property
    def policies(self) -> int:
        """Z, the number of sub-policies."""
        return self.settings.sub_policies if self.settings.hierarchy else 1

    def draw(self, key: PRNGKeyArray) -> Parameters:
        """Initialises the parameters."""
        environment, settings = self.environment, self.settings
        actor, critic, controller, judge = jax.random.split(key, 4)
        all_seen = environment.observation + (KNOWN if settings.informed else 0)
        shown = environment.observation if settings.hierarchy else all_seen

        def network(inputs: int, outputs: int, scale: float, key: PRNGKeyArray) -> Network:
            return Network(
                *(inputs, outputs, environment.num_agents, key),
                hidden=settings.hidden,
                activation=settings.activation,
                scale=scale,
            )

        def several(outputs: int, scale: float, key: PRNGKeyArray) -> Network:
            keys = jax.random.split(key, self.policies)
            return jax.vmap(lambda key: network(shown, outputs, scale, key))(keys)

        return Parameters(
            several(environment.actions, 0.01, actor),
            several(1, 1.0, critic),
            network(all_seen, self.policies, 0.01, controller) if settings.hierarchy else None,
            network(all_seen, 1, 1.0, judge) if settings.hierarchy else None,
        )

    def seen(self, view: View, estimates: Estimates) -> Float[Array, "*B A S"]:
        """An agent's input: its observation, and its knowledge of the utilities."""
        if not self.settings.informed:
            return view.observation
        assert view.utility is not None
        known = (
            apart(view.utility, estimates.mean),
            used(estimates.mean, self.settings.capacity),
        )
        return jnp.concatenate([view.observation, jnp.stack(known, -1)], -1)

    def choices(
        self, parameters: Parameters, seen: Float[Array, "*B A S"]
    ) -> Float[Array, "*B A Z"]:
        """Log-probabilities of the controller's choices; zeros if there is only one policy."""
        if parameters.controller is None:
            return jnp.zeros((*seen.shape[:-1], 1))
        return jax.nn.log_softmax(_of(parameters.controller, seen))

    def choice_value(
        self, parameters: Parameters, seen: Float[Array, "*B A S"]
    ) -> Float[Array, "*B A"]:
        """Values from the controller's critic; 0 if there is no controller."""
        if parameters.judge is None:
            return jnp.zeros(seen.shape[:-1])
        return _of(parameters.judge, seen)[..., 0]

    def actions(
        self,
        parameters: Parameters,
        chosen: Int[Array, "B A"],
        seen: Float[Array, "B A S"],
    ) -> Float[Array, "B A U"]:
        """Log-probabilities of each agent's actions under the sub-policy chosen for it."""
        shown = seen[..., : parameters.actors.layers[0].weight.shape[-2]]
        scores = jax.vmap(_of, (0, None))(parameters.actors, shown)
        own = jnp.take_along_axis(scores, chosen[None, ..., None], 0)[0]
        return distributions.log_probabilities(own, None)

    def sub_policy_outputs(
        self,
        parameters: Parameters,
        chosen: Int[Array, " N"],
        agent: Int[Array, " N"],
        seen: Float[Array, "N T S"],
    ) -> tuple[Float[Array, "N T U"], Float[Array, "N T"]]:
        """Log-probabilities of actions, and values, of rows of steps; each row has one sub-policy.

        Args:
            parameters: all parameters.
            chosen: sub-policy of each row.
            agent: agent of each row.
            seen: inputs of each row's steps.
        """
        shown = seen[..., : parameters.actors.layers[0].weight.shape[-2]]
        if self.policies == 1:
            actor, critic = jax.tree.map(lambda x: x[0], (parameters.actors, parameters.critics))
            return _outputs(actor, critic, agent, shown)
        size = max(1, chosen.shape[0] // BLOCKS)
        place, policy = in_blocks(chosen, self.policies, size)

        def placed(rows: Array) -> Array:
            room = jnp.zeros((policy.shape[0] * size, *rows.shape[1:]), rows.dtype)
            return room.at[place].set(rows).reshape(-1, size, *rows.shape[1:])

        def one(of: Array, agent: Array, shown: Array) -> tuple[Array, Array]:
            actor, critic = jax.tree.map(lambda x: x[of], (parameters.actors, parameters.critics))
            return _outputs(actor, critic, agent, shown)

        outputs = jax.vmap(one)(policy, placed(agent), placed(shown))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[place], outputs)

    def controller_outputs(
        self, parameters: Parameters, agent: Int[Array, " N"], seen: Float[Array, "N S"]
    ) -> tuple[Float[Array, "N Z"], Float[Array, " N"]]:
        """`choices` and `choice_value` for rows of one agent each."""
        controller, judge = parameters.controller, parameters.judge
        assert controller is not None and judge is not None

        def one(who: Array, seen: Array) -> tuple[Array, Array]:
            scores, value = (
                _of(_of_agent(network, who), seen[None])[0] for network in (controller, judge)
            )
            return jax.nn.log_softmax(scores), value[0]

        return jax.vmap(one)(agent, seen)

    def drawn_choice(
        self, parameters: Parameters, seen: Float[Array, "B A S"], uniform: Float[Array, "B A"]
    ) -> tuple[Int[Array, "B A"], Float[Array, "B A"]]:
        """Samples the controller's choices; returns them with their log-probabilities."""
        log_p = self.choices(parameters, seen)
        chosen = distributions.sample(uniform, log_p)
        return chosen, distributions.of_action(log_p, chosen)


def _of(network: Network, x: Float[Array, "*B A I"]) -> Float[Array, "*B A N"]:
    """The output of a network without memory."""
    return network(None, x, jnp.zeros(x.shape[:-2], bool))[1]


def in_blocks(
    chosen: Int[Array, " N"], policies: int, size: int
) -> tuple[Int[Array, " N"], Int[Array, " K"]]:
    """Groups rows into blocks of one policy each, so that its weights are fetched once per block.

    Args:
        chosen: policy of each row.
        policies: Z, the number of policies.
        size: rows per block. The last block of a policy may be incomplete, and the last blocks of
            all may be empty.

    Returns:
        Each row's position among the rows of all blocks, and the policy of each block.
    """
    of = (chosen[:, None] == jnp.arange(policies)).astype(jnp.int32)
    before = jnp.take_along_axis(jnp.cumsum(of, 0), chosen[:, None], 1)[:, 0] - 1
    blocks = -(-of.sum(0) // size)
    end = jnp.cumsum(blocks)
    number = jnp.arange(chosen.shape[0] // size + policies)
    policy = jnp.minimum((number[:, None] >= end).sum(1), policies - 1)
    return (end - blocks)[chosen] * size + before, policy


def _outputs(
    actor: Network, critic: Network, agent: Int[Array, " N"], shown: Float[Array, "N T I"]
) -> tuple[Float[Array, "N T U"], Float[Array, "N T"]]:
    """`Hierarchy.sub_policy_outputs` for rows that all use one policy."""

    def output(network: Network) -> Array:
        rows = eqx.tree_at(lambda n: n.agent, network, network.agent[agent][:, None, None])
        return _of(rows, shown[:, :, None])[:, :, 0]

    return distributions.log_probabilities(output(actor), None), output(critic)[..., 0]


def _of_agent(network: Network, agent: Int[Array, ""]) -> Network:
    """The network reduced to a single agent."""
    return eqx.tree_at(lambda n: n.agent, network, network.agent[agent][None])
