"""Actors and critics of all agents, and how they look at an environment."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num, PRNGKeyArray

from gradweave.marl.games.environment import Environment, View
from gradweave.marl.learners import distributions
from gradweave.marl.learners.networks import Activation, AnyNetwork, Memory, Network, draw
from gradweave.marl.learners.randomness import draw_each
from gradweave.marl.learners.sets import Sets, number


class ActorCritic(eqx.Module):
    """All parameters."""

    actor: AnyNetwork
    critic: AnyNetwork
    log_std: Float[Array, "*N U"] | None
    """Of continuous actions, whatever is seen; None for discrete ones. Of each set of parameters,
    where there are several."""


class Memories(eqx.Module):
    """What both networks remember."""

    actor: Memory
    critic: Memory


class Played(eqx.Module):
    """Steps that were played: [T, E], or any part of them. What nobody looks at is None."""

    observation: Float[Array, "T E A O"]
    available: Bool[Array, "T E A U"] | None
    world: Float[Array, "T E W"] | None
    start: Bool[Array, "T E"]
    action: Num[Array, "T E A *U"]
    log_odds: Float[Array, "T E A"]
    value: Float[Array, "T E A"]


@dataclasses.dataclass(frozen=True, eq=False)
class Players:
    """How the networks are made for an environment, and what they make of it."""

    environment: Environment
    central: bool
    """Whether critics see the state of the whole game rather than what their agent sees."""
    hidden: tuple[int, ...]
    recurrent: bool
    activation: Activation
    log_std: float
    """Of continuous actions at first."""
    sets: Sets
    """[A] which agents have parameters together."""

    def draw(self, key: PRNGKeyArray) -> ActorCritic:
        """Draws the parameters."""
        environment = self.environment
        actor, critic = jax.random.split(key)

        def network(inputs: int, outputs: int, key: PRNGKeyArray, scale: float) -> AnyNetwork:
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
            network(sees, 1, critic, 1.0),
            log_std if continuous else None,
        )

    def memory(self, parameters: ActorCritic, batch: int) -> Memories:
        """What is remembered at the start of episodes, of games side by side."""
        return Memories(parameters.actor.start(batch), parameters.critic.start(batch))

    def noise(self, keys: PRNGKeyArray) -> Float[Array, "..."]:
        """Numbers to draw actions by: normal where actions are continuous, else uniform.

        Args:
            keys: [*B].

        Returns:
            [*B, A, U], or [*B, A].
        """
        environment = self.environment
        shape = environment.num_agents, environment.actions
        if environment.continuous:
            return draw_each(keys, lambda key: jax.random.normal(key, shape))
        return draw_each(keys, lambda key: jax.random.uniform(key, shape[:1]))

    def look(
        self,
        parameters: ActorCritic,
        memories: Memories,
        view: View,
        noise: Float[Array, "E A *U"],
    ) -> tuple[Memories, Played]:
        """Draws an action for what is seen, and judges it.

        Args:
            parameters: of both networks.
            memories: [E, A, H] from the step before.
            view: [E].
            noise: as `noise` draws it.
        """
        seen = self._kept(view)
        actor, scores = parameters.actor(memories.actor, view.observation, view.start)
        critic, value = parameters.critic(memories.critic, self._judged(seen), view.start)
        log_std = self._log_std(parameters)
        if log_std is not None:
            action = distributions.gaussian_draw(noise, scores, log_std)
        else:
            odds = distributions.log_odds(scores, self._mask(seen))
            action = distributions.draw(noise, odds)
        log_odds = self._log_odds(parameters, scores, seen, action)[0]
        played = dataclasses.replace(seen, action=action, log_odds=log_odds, value=value[..., 0])
        return Memories(actor, critic), played

    def value(self, parameters: ActorCritic, memories: Memories, view: View) -> Float[Array, "E A"]:
        """What the critic gives a view that nobody acts on."""
        sees = self._judged(self._kept(view))
        return parameters.critic(memories.critic, sees, view.start)[1][..., 0]

    def judge(
        self, parameters: ActorCritic, memories: Memories, played: Played
    ) -> tuple[Float[Array, "T E A"], Float[Array, "T E A"], Float[Array, "T E A"]]:
        """Log odds of the actions that were taken, entropies and values, by these parameters.

        Args:
            parameters: of both networks.
            memories: [E, A, H] before the first step.
            played: [T, E] steps in their order; of networks without a memory in any order.
        """
        scores = parameters.actor.along(memories.actor, played.observation, played.start)
        value = parameters.critic.along(memories.critic, self._judged(played), played.start)
        log_odds, entropy = self._log_odds(parameters, scores, played, played.action)
        return log_odds, entropy, value[..., 0]

    def act(
        self,
        parameters: ActorCritic,
        memories: Memories,
        view: View,
        keys: PRNGKeyArray,
        *,
        greedy: bool,
    ) -> tuple[Memories, Num[Array, "B A *U"]]:
        """See `Learner.act`: the best is the likeliest action, or the mean of continuous ones."""
        if not greedy:
            memories, played = self.look(parameters, memories, view, self.noise(keys))
            return memories, played.action
        actor, scores = parameters.actor(memories.actor, view.observation, view.start)
        if parameters.log_std is None:
            scores = distributions.log_odds(scores, view.available).argmax(-1)
        return dataclasses.replace(memories, actor=actor), scores

    def _kept(self, view: View) -> Played:
        """What has to be kept of a view; its action is still to come."""
        nothing = jnp.zeros(view.start.shape)
        return Played(
            observation=view.observation,
            available=view.available if self.environment.masked else None,
            world=view.world if self.central else None,
            start=view.start,
            action=nothing,
            log_odds=nothing,
            value=nothing,
        )

    def _judged(self, seen: Played) -> Float[Array, "..."]:
        """What critics see, with an axis of agents."""
        return seen.observation if seen.world is None else seen.world[..., None, :]

    def _log_std(self, parameters: ActorCritic) -> Float[Array, "*A U"] | None:
        """Of each agent's actions; without that axis where all have parameters together."""
        log_std = parameters.log_std
        return log_std if log_std is None or log_std.ndim == 1 else log_std[np.array(self.sets)]

    def _mask(self, seen: Played) -> Array | None:
        """What is available; None if all agents always have all actions."""
        if seen.available is None and not self.environment.mask.all():
            return jnp.asarray(self.environment.mask)
        return seen.available

    def _log_odds(
        self,
        parameters: ActorCritic,
        scores: Float[Array, "*B A U"],
        seen: Played,
        action: Num[Array, "..."],
    ) -> tuple[Float[Array, "*B A"], Float[Array, "*B A"]]:
        """Log odds of actions, and the entropy of what they were drawn from."""
        log_std = self._log_std(parameters)
        if log_std is None:
            odds = distributions.log_odds(scores, self._mask(seen))
            return distributions.of_action(odds, action), distributions.entropy(odds)
        real = jnp.asarray(self.environment.mask)
        density = distributions.gaussian_of_action(scores, log_std, action, real)
        entropy = distributions.gaussian_entropy(log_std, real)
        return density, jnp.broadcast_to(entropy, density.shape)
