"""FEN: proximal policy optimisation of a controller and of the sub-policies it chooses from.

A choice lasts for T steps, and a roll-out is a whole number of choices. The T steps of a choice are
a trajectory of the chosen sub-policy, while the choice itself is one step of the controller. The
first sub-policy is rewarded with the environment's reward, or with the mean contribution of the
agents' steps; the others with the log-probability that the controller would choose them after the
step. The controller is rewarded with the objective, by default the fair-efficient reward. Without a
hierarchy, a single policy is rewarded with the objective in each step.

Critics estimate discounted sums times (1 − γ), so that values are as large as rewards.

Source: Jiang and Lu 2019 (1910.14472), algorithm 1.
"""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gradweave.marl.fairness.hierarchy import Hierarchy, Parameters
from gradweave.marl.fairness.mean_utility import Estimates, emptied
from gradweave.marl.fairness.measures import Fairness, fairness, figures
from gradweave.marl.fairness.objectives import OF_UTILITIES, contribution, objective
from gradweave.marl.fairness.settings import FEN
from gradweave.marl.games.environment import View
from gradweave.marl.learners import distributions
from gradweave.marl.learners.learner import Metrics, RunningReturns, learned
from gradweave.marl.learners.randomness import (
    draw_each,
    game_keys,
    permutation,
    rollout_keys,
    split_each,
)
from gradweave.training.advantages import advantages, clipped_objective

LEAST_INFORMATION = -5.0
"""Lower limit for the log-probability of being chosen, so that its reward stays bounded."""


class FENState(eqx.Module):
    """Everything that the next update depends on."""

    parameters: Parameters
    optimizer: Any
    games: Any
    """[E] states of the games."""
    view: View
    """[E] views of the games."""
    estimates: Estimates
    """[E, A] estimates of the mean utility."""
    worth: Estimates
    """[E, A] estimates of the mean contribution of the agents' steps."""
    tally: RunningReturns
    ended: Fairness
    """[E] fairness of each game's last complete episode; 0 before the first."""
    keys: PRNGKeyArray
    """[E] random keys of the games."""
    key: PRNGKeyArray
    """Random key of the minibatches."""


class Memory(eqx.Module):
    """The memory of acting agents."""

    estimates: Estimates
    chosen: Int[Array, "B A"]
    clock: Int[Array, " B"]
    """Number of steps in the current episode."""


class Steps(eqx.Module):
    """The steps of a roll-out, [S, T, E, A]: choices by steps."""

    seen: Float[Array, "S T E A F"]
    action: Int[Array, "S T E A"]
    log_probability: Float[Array, "S T E A"]
    reward: Float[Array, "S T E A"]
    first: Float[Array, "S T E A"]
    """Reward of the first sub-policy."""
    objective: Float[Array, "S T E A"]
    """Reward of the controller, or of the single policy."""
    seen_after: Float[Array, "S T E A F"]
    """Input after the step, before a new episode begins."""
    done: Array
    """[S, T, E] whether the episode ended with the step."""
    sent_bytes: Float[Array, "S T E A"]
    """Bytes that each agent sent to find the mean utility and, if required, the mean contribution.
    """
    error: Float[Array, "S T E A"]
    """Error of the agent's estimate of the mean utility, relative to the mean."""


class Samples(eqx.Module):
    """[N] choices to learn from, over all games and agents, each with its steps."""

    chosen: Int[Array, " N"]
    agent: Int[Array, " N"]
    seen: Float[Array, "N T F"]
    action: Int[Array, "N T"]
    log_probability: Float[Array, "N T"]
    advantage: Float[Array, "N T"]
    target: Float[Array, "N T"]
    choice_log_probability: Float[Array, " N"]
    choice_advantage: Float[Array, " N"]
    choice_target: Float[Array, " N"]


@dataclasses.dataclass(frozen=True, eq=False)
class FENLearner:
    """The learner that the module describes."""

    hierarchy: Hierarchy
    settings: FEN
    optimizer: optax.GradientTransformation
    """Includes the aggregation over devices."""
    games: int
    """E, the number of games per device."""

    @property
    def steps(self) -> int:
        """Environment steps per update on one device."""
        return self.games * self.settings.rollout

    @property
    def choices(self) -> int:
        """S, the number of choices per agent and update."""
        return self.settings.rollout // self.settings.choice_steps

    def init(self, shared: PRNGKeyArray, first: Int[Array, ""] | int) -> FENState:
        """See `Learner.init`."""
        environment = self.hierarchy.environment
        drawing, playing, learning = jax.random.split(shared, 3)
        parameters = self.hierarchy.draw(drawing)
        keys, beginning = split_each(game_keys(playing, first, self.games), 2)
        games, view = jax.vmap(environment.reset)(beginning)
        nothing = jnp.zeros((self.games, environment.num_agents))
        return FENState(
            parameters=parameters,
            optimizer=self.optimizer.init(parameters),  # pyright: ignore[reportArgumentType]
            games=games,
            view=view,
            estimates=self.hierarchy.consensus.start(*nothing.shape),
            worth=self.hierarchy.consensus.start(*nothing.shape),
            tally=RunningReturns.zero(self.games, environment.num_agents),
            ended=jax.tree.map(jnp.zeros_like, fairness(nothing)),
            keys=keys,
            key=jax.random.fold_in(learning, first),
        )

    def parameters(self, state: FENState) -> Parameters:
        """See `Learner.parameters`."""
        return state.parameters

    def memory(self, parameters: Parameters, batch: int) -> Memory:
        """See `Learner.memory`."""
        agents = self.hierarchy.environment.num_agents
        chosen = jnp.zeros((batch, agents), jnp.int32)
        estimates = self.hierarchy.consensus.start(batch, agents)
        return Memory(estimates, chosen, jnp.zeros(batch, jnp.int32))

    def act(
        self,
        parameters: Parameters,
        memory: Memory,
        view: View,
        keys: PRNGKeyArray,
        *,
        greedy: bool,
    ) -> tuple[Memory, Int[Array, "B A"]]:
        """See `Learner.act`; if greedy, takes the most likely choices and actions."""
        hierarchy = self.hierarchy
        assert view.utility is not None
        estimates = hierarchy.consensus.after(memory.estimates, view.utility, view.start)
        clock = jnp.where(view.start, 0, memory.clock)
        seen = hierarchy.seen(view, estimates)
        now = (clock % self.settings.choice_steps == 0)[:, None]
        shape = (2, hierarchy.environment.num_agents)
        noise = draw_each(keys, lambda key: jax.random.uniform(key, shape))

        def picked(log_p: Array, number: int) -> Array:
            return log_p.argmax(-1) if greedy else distributions.sample(noise[:, number], log_p)

        choice = picked(hierarchy.choices(parameters, seen), 0)
        chosen = jnp.where(now, choice, memory.chosen)
        action = picked(hierarchy.actions(parameters, chosen, seen), 1)
        return Memory(estimates, chosen, clock + 1), action

    def update(self, state: FENState) -> tuple[FENState, Metrics]:
        """See `Learner.update`."""
        state, samples, metrics = self._rollout(state)
        key, learning = jax.random.split(state.key)
        (parameters, optimizer), of_steps = learned(
            self._loss,
            self.optimizer,
            (state.parameters, state.optimizer),
            functools.partial(self._minibatches, samples),
            jax.random.split(learning, self.settings.epochs),
        )
        state = dataclasses.replace(state, parameters=parameters, optimizer=optimizer, key=key)
        reported = metrics.figures | jax.tree.map(jnp.mean, of_steps)
        return state, dataclasses.replace(metrics, figures=reported)

    def _rollout(self, state: FENState) -> tuple[FENState, Samples, Metrics]:
        """A roll-out, with its advantages."""
        choices, steps = self.choices, self.settings.choice_steps
        keys, (choosing, sampling, playing) = rollout_keys(state.keys, choices * steps, 3)
        agents = self.hierarchy.environment.num_agents

        def uniform(keys: PRNGKeyArray) -> Array:
            return draw_each(keys, lambda key: jax.random.uniform(key, (agents,)))

        def by_choice(x: Array) -> Array:
            return x.reshape(choices, steps, *x.shape[1:])

        carry = state.games, state.view, state.estimates, state.worth, state.ended
        carry, (chosen, log_p, played) = jax.lax.scan(
            functools.partial(self._choose, state.parameters),
            carry,
            (uniform(choosing[::steps]), by_choice(uniform(sampling)), by_choice(playing)),
        )
        games, view, estimates, worth, ended = carry
        samples = self._samples(state.parameters, chosen, log_p, played)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (played.reward, played.done))
        tally, metrics = state.tally.add(*flat)
        after = dataclasses.replace(
            state,
            games=games,
            view=view,
            estimates=estimates,
            worth=worth,
            ended=ended,
            tally=tally,
            keys=keys,
        )
        reported = jax.tree.map(jnp.mean, figures(ended)) | self._reported(chosen, played)
        return after, samples, dataclasses.replace(metrics, figures=reported)

    def _reported(self, chosen: Array, played: Steps) -> dict[str, Float[Array, ""]]:
        """Figures of a roll-out's gossip and choices."""
        reported = {"gossip_bytes": played.sent_bytes.mean(), "gossip_error": played.error.mean()}
        if self.settings.hierarchy:
            reported["first_policy"] = (chosen == 0).mean()
        return {"objective": played.objective.mean()} | reported

    def _choose(self, parameters: Parameters, carry: Any, now: Any) -> tuple[Any, Any]:
        """One choice of every agent, and its steps."""
        _, view, estimates, *_ = carry
        choosing, *noise = now
        seen = self.hierarchy.seen(view, estimates)
        chosen, log_p = self.hierarchy.drawn_choice(parameters, seen, choosing)
        step = functools.partial(self._step, parameters, chosen)
        carry, played = jax.lax.scan(step, carry, tuple(noise))
        return carry, (chosen, log_p, played)

    def _step(
        self, parameters: Parameters, chosen: Int[Array, "E A"], carry: Any, now: Any
    ) -> tuple[Any, Steps]:
        """One step of all games."""
        games, view, estimates, worth, ended = carry
        uniform, playing = now
        hierarchy = self.hierarchy
        seen = hierarchy.seen(view, estimates)
        log_p = hierarchy.actions(parameters, chosen, seen)
        action = distributions.sample(uniform, log_p)
        games, view, outcome = hierarchy.environment.steps(playing, games, action)
        last, utility = outcome.last, outcome.last.utility
        assert utility is not None
        estimates = hierarchy.consensus.after(estimates, utility, last.start)
        sent_bytes = estimates.sent_bytes
        if self.settings.worth is not None:
            added = contribution(self.settings, outcome.reward, utility)
            worth = hierarchy.consensus.after(worth, added, last.start)
            sent_bytes += worth.sent_bytes
        known = estimates.mean, worth.mean
        mean = utility.mean(-1, keepdims=True)
        played = Steps(
            seen=seen,
            action=action,
            log_probability=distributions.of_action(log_p, action),
            reward=outcome.reward,
            first=outcome.reward if self.settings.first_objective == "own" else worth.mean,
            objective=objective(self.settings, outcome.reward, utility, *known),
            seen_after=hierarchy.seen(last, estimates),
            done=outcome.done,
            sent_bytes=sent_bytes,
            error=jnp.abs(estimates.mean - mean) / jnp.where(mean > 0, mean, jnp.inf),
        )
        ended = jax.tree.map(
            lambda new, old: jnp.where(outcome.done, new, old), fairness(utility), ended
        )
        estimates, worth = emptied((estimates, worth), outcome.done)
        return (games, view, estimates, worth, ended), played

    def _samples(
        self, parameters: Parameters, chosen: Array, log_p: Array, played: Steps
    ) -> Samples:
        """The choices of a roll-out, with the advantages of the choices and of their steps."""
        choices, _, games, agents = played.reward.shape
        agent = jnp.broadcast_to(jnp.arange(agents), (choices, games, agents)).reshape(-1)

        def rows(x: Array) -> Array:  # [S, T, E, A, …] -> [N, T, …]
            return jnp.moveaxis(x, 1, 3).reshape(-1, x.shape[1], *x.shape[4:])

        one, seen = chosen.reshape(-1), rows(played.seen)
        both = jnp.concatenate([seen, rows(played.seen_after)[:, -1:]], 1)
        value = self.hierarchy.sub_policy_outputs(parameters, one, agent, both)[1]
        reward = rows(self._rewards(parameters, chosen, played))
        settings = self.settings
        advantage = advantages(
            (1.0 - settings.discount) * reward.T,
            value[:, :-1].T,
            value[:, 1:].T,
            jnp.zeros_like(reward.T, bool),
            *(settings.discount, settings.gae_lambda),
        ).T
        own, target = self._choice_advantages(parameters, played)
        return Samples(
            chosen=one,
            agent=agent,
            seen=seen,
            action=rows(played.action),
            log_probability=rows(played.log_probability),
            advantage=self._normalised(advantage, one),
            target=advantage + value[:, :-1],
            choice_log_probability=log_p.reshape(-1),
            choice_advantage=own.reshape(-1),
            choice_target=target.reshape(-1),
        )

    def _rewards(self, parameters: Parameters, chosen: Array, played: Steps) -> Array:
        """[S, T, E, A] reward of the chosen sub-policy in each step."""
        if not self.settings.hierarchy:
            return played.objective
        log_p = self.hierarchy.choices(parameters, played.seen_after)
        picked = jnp.broadcast_to(chosen[:, None], played.reward.shape)
        log_choice = jnp.maximum(distributions.of_action(log_p, picked), LEAST_INFORMATION)
        return jnp.where(picked == 0, played.first, self.settings.information * log_choice)

    def _choice_advantages(self, parameters: Parameters, played: Steps) -> tuple[Array, Array]:
        """[S, E, A] normalised advantages of choices, and the targets of the controller's critic.

        Values are bootstrapped at the end of an episode, because episodes end only by a time limit.
        """
        settings = self.settings
        of_end = settings.objective in OF_UTILITIES
        earned = played.objective[:, -1] if of_end else played.objective.mean(1)
        value = self.hierarchy.choice_value(parameters, played.seen[:, 0])
        after = self.hierarchy.choice_value(parameters, played.seen_after[:, -1])
        done = jnp.broadcast_to(played.done.any(1)[..., None], earned.shape)
        discount = settings.choice_discount
        own = advantages(
            (1.0 - discount) * earned, value, after, done, discount, settings.gae_lambda
        )
        return (own - own.mean()) / (own.std() + 1e-8), own + value

    def _normalised(self, advantage: Float[Array, "N T"], chosen: Int[Array, " N"]) -> Array:
        """Normalises advantages to mean 0 and deviation 1, per sub-policy."""
        of = (chosen[:, None] == jnp.arange(self.hierarchy.policies)).astype(jnp.float32)
        share = of / jnp.maximum(of.sum(0), 1.0)
        centred = advantage - (share.T @ advantage.mean(1))[chosen][:, None]
        deviation = jnp.sqrt(share.T @ jnp.square(centred).mean(1))
        return centred / (deviation[chosen][:, None] + 1e-8)

    def _minibatches(self, samples: Samples, key: PRNGKeyArray) -> Samples:
        """Splits the choices into random minibatches, [minibatches, …]."""
        order = permutation(key, samples.chosen.shape[0])
        parts = self.settings.minibatches
        return jax.tree.map(lambda x: x[order].reshape(parts, -1, *x.shape[1:]), samples)

    def _loss(
        self, parameters: Parameters, part: Samples
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The sum over both levels of clipped objective, critic loss and entropy bonus."""
        settings = self.settings
        log_p, value = self.hierarchy.sub_policy_outputs(
            parameters, part.chosen, part.agent, part.seen
        )
        change = distributions.of_action(log_p, part.action) - part.log_probability
        gain, error, entropy = self._terms(log_p, value, change, part.advantage, part.target)
        total = settings.value_coefficient * error - gain - settings.entropy_coefficient * entropy
        reported = {"gain": gain, "value_error": error, "entropy": entropy}
        if settings.hierarchy:
            loss, of_choices = self._choice_loss(parameters, part)
            total, reported = total + loss, reported | of_choices
        return total, reported

    def _choice_loss(
        self, parameters: Parameters, part: Samples
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The controller's part of the loss."""
        settings = self.settings
        log_p, value = self.hierarchy.controller_outputs(parameters, part.agent, part.seen[:, 0])
        change = distributions.of_action(log_p, part.chosen) - part.choice_log_probability
        advantage, target = part.choice_advantage, part.choice_target
        gain, error, entropy = self._terms(log_p, value, change, advantage, target)
        coefficient = settings.choice_entropy_coefficient
        return settings.value_coefficient * error - gain - coefficient * entropy, {
            "choice_gain": gain,
            "choice_value_error": error,
            "choice_entropy": entropy,
        }

    def _terms(
        self, log_p: Array, value: Array, change: Array, advantage: Array, target: Array
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """A level's clipped objective, the error of its critic, and its entropy."""
        gain = clipped_objective(jnp.exp(change), advantage, self.settings.clip_ratio).mean()
        error = 0.5 * jnp.square(value - target).mean()
        return gain, error, distributions.entropy(log_p).mean()
