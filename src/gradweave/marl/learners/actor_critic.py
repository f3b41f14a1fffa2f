"""Actors and critics for all agents of an environment."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num, PRNGKeyArray

from gradweave.marl.games.environment import Environment, View
from gradweave.marl.learners import distributions
from gradweave.marl.learners.networks import Activation, AnyNetwork, Memory, Network, draw
from gradweave.marl.learners.own_network import Factory, OwnNetwork, Plan, draw_own
from gradweave.marl.learners.randomness import draw_each
from gradweave.marl.learners.sets import Sets, number


class ActorCritic(eqx.Module):
    """All parameters."""

    actor: AnyNetwork | OwnNetwork
    critic: AnyNetwork | OwnNetwork
    log_std: Float[Array, "*N U"] | None
    """Logarithm of the standard deviation of continuous actions, in any state, or None for discrete
    actions. One row per set of parameters if there are several sets."""


class Memories(eqx.Module):
    """Memories of both networks."""

    actor: Memory
    critic: Memory


class Played(eqx.Module):
    """Steps of play, [T, E] or any part of them. Fields that no network needs are None."""

    observation: Float[Array, "T E A O"]
    available: Bool[Array, "T E A U"] | None
    world: Float[Array, "T E W"] | None
    start: Bool[Array, "T E"]
    action: Num[Array, "T E A *U"]
    log_probability: Float[Array, "T E A"]
    value: Float[Array, "T E A"]


@dataclasses.dataclass(frozen=True, eq=False)
class Players:
    """The networks for an environment, and how they act in it."""

    environment: Environment
    central: bool
    """Whether critics see the state of the whole game instead of their agent's observation."""
    hidden: tuple[int, ...]
    recurrent: bool
    activation: Activation
    log_std: float
    """Initial logarithm of the standard deviation of continuous actions."""
    sets: Sets
    """[A] the set of parameters of each agent; agents with the same number share a set."""
    factory: Factory | None = None
    """Factory of user modules for actors, and for critics that see their agent's observation."""

    def __post_init__(self) -> None:
        plans = {}
        if self.factory is not None:
            environment = self.environment
            for outputs in {environment.actions, *(() if self.central else (1,))}:
                plans[outputs] = Plan(
                    *(self.factory, environment.shape, outputs, environment.num_agents),
                    recurrent=self.recurrent,
                )
        object.__setattr__(self, "_plans", plans)

    def draw(self, key: PRNGKeyArray) -> ActorCritic:
        """Initialises the parameters."""
        environment = self.environment
        actor, critic = jax.random.split(key)

        def network(
            inputs: int, outputs: int, key: PRNGKeyArray, scale: float, *, own: bool = True
        ) -> AnyNetwork | OwnNetwork:
            if self.factory is not None and own:
                return draw_own(self._plans[outputs], self.sets, key)  # pyright: ignore[reportAttributeAccessIssue]

            def one(key: PRNGKeyArray) -> Network:
                return Network(
                    inputs,
                    outputs,
                    environment.num_agents,
                    key,
                    hidden=self.hidden,
                    recurrent=self.recurrent,
                    activation=self.activation,
                    scale=scale,
                )

            return draw(self.sets, key, one)

        sees = environment.world if self.central else environment.observation
        continuous = environment.continuous
        several = () if number(self.sets) == 1 else (number(self.sets),)
        log_std = jnp.full((*several, environment.actions), self.log_std, jnp.float32)
        return ActorCritic(
            network(environment.observation, environment.actions, actor, 0.01),
            network(sees, 1, critic, 1.0, own=not self.central),
            log_std if continuous else None,
        )

    def memory(self, parameters: ActorCritic, batch: int) -> Memories:
        """The memories at the start of episodes, for a batch of games."""
        return Memories(parameters.actor.start(batch), parameters.critic.start(batch))

    def noise(self, keys: PRNGKeyArray) -> Float[Array, "..."]:
        """Random numbers for sampling actions: normal for continuous actions, otherwise uniform.

        Args:
            keys: random keys, [*B].

        Returns:
            [*B, A, U] for continuous actions, otherwise [*B, A].
        """
        environment = self.environment
        shape = environment.num_agents, environment.actions
        if environment.continuous:
            return draw_each(keys, lambda key: jax.random.normal(key, shape))
        return draw_each(keys, lambda key: jax.random.uniform(key, shape[:1]))

    def step(
        self,
        parameters: ActorCritic,
        memories: Memories,
        view: View,
        noise: Float[Array, "E A *U"],
    ) -> tuple[Memories, Played]:
        """Samples actions for a view, with their log-probabilities and values.

        Args:
            parameters: parameters of both networks.
            memories: [E, A, H] memories from the preceding step.
            view: [E] views.
            noise: the result of `noise`.
        """
        seen = self._observed(view)
        actor, scores = parameters.actor(memories.actor, view.observation, view.start)
        critic, value = parameters.critic(memories.critic, self._critic_input(seen), view.start)
        log_std = self._log_std(parameters)
        if log_std is not None:
            action = distributions.gaussian_sample(noise, scores, log_std)
        else:
            log_p = distributions.log_probabilities(scores, self._mask(seen))
            action = distributions.sample(noise, log_p)
        log_probability = self._log_probability(parameters, scores, seen, action)[0]
        played = dataclasses.replace(
            seen, action=action, log_probability=log_probability, value=value[..., 0]
        )
        return Memories(actor, critic), played

    def value(self, parameters: ActorCritic, memories: Memories, view: View) -> Float[Array, "E A"]:
        """The critic's value of a view; no action is sampled."""
        sees = self._critic_input(self._observed(view))
        return parameters.critic(memories.critic, sees, view.start)[1][..., 0]

    def evaluate(
        self, parameters: ActorCritic, memories: Memories, played: Played
    ) -> tuple[Float[Array, "T E A"], Float[Array, "T E A"], Float[Array, "T E A"]]:
        """Log-probabilities of the actions taken, entropies and values.

        Args:
            parameters: parameters of both networks.
            memories: [E, A, H] memories before the first step.
            played: [T, E] steps in order; in any order for networks without a memory.
        """
        scores = parameters.actor.along(memories.actor, played.observation, played.start)
        value = parameters.critic.along(memories.critic, self._critic_input(played), played.start)
        log_probability, entropy = self._log_probability(parameters, scores, played, played.action)
        return log_probability, entropy, value[..., 0]

    def act(
        self,
        parameters: ActorCritic,
        memories: Memories,
        view: View,
        keys: PRNGKeyArray,
        *,
        greedy: bool,
    ) -> tuple[Memories, Num[Array, "B A *U"]]:
        """See `Learner.act`; the best action is the most likely, or the mean if continuous."""
        if not greedy:
            memories, played = self.step(parameters, memories, view, self.noise(keys))
            return memories, played.action
        actor, scores = parameters.actor(memories.actor, view.observation, view.start)
        if parameters.log_std is None:
            scores = distributions.log_probabilities(scores, view.available).argmax(-1)
        return dataclasses.replace(memories, actor=actor), scores

    def _observed(self, view: View) -> Played:
        """The parts of a view to keep, as a `Played` without an action."""
        nothing = jnp.zeros(view.start.shape)
        return Played(
            observation=view.observation,
            available=view.available if self.environment.masked else None,
            world=view.world if self.central else None,
            start=view.start,
            action=nothing,
            log_probability=nothing,
            value=nothing,
        )

    def _critic_input(self, seen: Played) -> Float[Array, "..."]:
        """The critics' input, with an axis of agents."""
        return seen.observation if seen.world is None else seen.world[..., None, :]

    def _log_std(self, parameters: ActorCritic) -> Float[Array, "*A U"] | None:
        """The logarithm per agent; without that axis if all agents share parameters."""
        log_std = parameters.log_std
        return log_std if log_std is None or log_std.ndim == 1 else log_std[np.array(self.sets)]

    def _mask(self, seen: Played) -> Array | None:
        """The available actions, or None if all agents always have all actions."""
        if seen.available is None and not self.environment.mask.all():
            return jnp.asarray(self.environment.mask)
        return seen.available

    def _log_probability(
        self,
        parameters: ActorCritic,
        scores: Float[Array, "*B A U"],
        seen: Played,
        action: Num[Array, "..."],
    ) -> tuple[Float[Array, "*B A"], Float[Array, "*B A"]]:
        """Log-probabilities of actions, and entropies of their distributions."""
        log_std = self._log_std(parameters)
        if log_std is None:
            log_p = distributions.log_probabilities(scores, self._mask(seen))
            return distributions.of_action(log_p, action), distributions.entropy(log_p)
        real = jnp.asarray(self.environment.mask)
        density = distributions.gaussian_log_density(scores, log_std, action, real)
        entropy = distributions.gaussian_entropy(log_std, real)
        return density, jnp.broadcast_to(entropy, density.shape)
