"""Proximal policy optimisation for several agents: IPPO and MAPPO.

IPPO's critic sees its agent's observation, MAPPO's the state of the whole game; both receive the
agent's number. Either can have a memory. If agents do not all share parameters, each set of
parameters learns independently: the loss is the sum of the sets' losses. Episodes that an update
does not complete continue in the next update.

Source: Schulman et al. 2017; de Witt et al. 2020 (IPPO); Yu et al. 2022 (MAPPO).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from gradweave.execute.axis import AXIS
from gradweave.marl.config import PPO
from gradweave.marl.games.environment import View
from gradweave.marl.learners.actor_critic import ActorCritic, Memories, Played, Players
from gradweave.marl.learners.learner import (
    Metrics,
    RunningReturns,
    UpdatesDone,
    at_step,
    learned,
)
from gradweave.marl.learners.randomness import game_keys, permutation, rollout_keys, split_each
from gradweave.marl.learners.sets import mean_of_each, number
from gradweave.marl.learners.value_norm import ValueNorm
from gradweave.training.advantages import advantages, clipped_objective


class PPOState(eqx.Module):
    """Everything that the next update depends on."""

    parameters: ActorCritic
    optimizer: Any
    games: Any
    """[E] states of the games."""
    view: View
    """[E] views of the games."""
    memories: Memories
    tally: RunningReturns
    keys: PRNGKeyArray
    """[E] random keys of the games."""
    key: PRNGKeyArray
    """Random key of the minibatches."""
    updates: Int[Array, ""]
    """Number of updates so far."""
    returns: ValueNorm | None
    """Moments of returns, or None if critics learn unnormalised returns."""


class Samples(eqx.Module):
    """Steps to learn from, [T, E] or any part of them."""

    memories: Memories
    """[E, A, H] memories before the first step."""
    played: Played
    advantage: Float[Array, "T E A"]
    target: Float[Array, "T E A"]
    """Target of the critic."""


class _Outcome(NamedTuple):
    """The fields of `Outcome` that are kept."""

    reward: Float[Array, "E A"]
    shaped: Float[Array, "E A"]
    done: Bool[Array, " E"]
    measures: dict[str, Float[Array, " E"]]


class Experience(NamedTuple):
    """A roll-out, before its advantages are computed."""

    memories: Memories
    """[E, A, H] memories before the first step."""
    played: Played
    outcome: _Outcome
    last_value: Float[Array, "T E A"]
    """Value after each step that ended an episode by its time limit, by the critic that played;
    else 0."""


@dataclasses.dataclass(frozen=True, eq=False)
class PPOLearner:
    """IPPO, or MAPPO if the players' critics are central."""

    players: Players
    settings: PPO
    optimizer: optax.GradientTransformation
    """Includes the aggregation over devices."""
    devices: int
    games: int
    """E, the number of games per device."""
    total_updates: int
    """Number of updates over which learning rates and weights decay."""

    @property
    def steps(self) -> int:
        """Environment steps per update on one device."""
        return self.games * self.settings.rollout

    def init(self, shared: PRNGKeyArray, first: Int[Array, ""] | int) -> PPOState:
        """See `Learner.init`."""
        environment = self.players.environment
        drawing, playing, learning = jax.random.split(shared, 3)
        parameters = self.players.draw(drawing)
        keys, beginning = split_each(game_keys(playing, first, self.games), 2)
        games, view = jax.vmap(environment.reset)(beginning)
        return PPOState(
            parameters=parameters,
            optimizer=self.optimizer.init(parameters),  # pyright: ignore[reportArgumentType]
            games=games,
            view=view,
            memories=self.memory(parameters, self.games),
            tally=RunningReturns.zero(
                self.games, environment.num_agents, environment.reading.measures
            ),
            keys=keys,
            key=jax.random.fold_in(learning, first),
            updates=jnp.zeros((), jnp.int32),
            returns=ValueNorm.zero(self.players.sets) if self.settings.normalise_values else None,
        )

    def parameters(self, state: PPOState) -> ActorCritic:
        """See `Learner.parameters`."""
        return state.parameters

    def with_parameters(self, state: PPOState, parameters: ActorCritic) -> PPOState:
        """See `PartedLearner.with_parameters`."""
        return dataclasses.replace(state, parameters=parameters)

    def memory(self, parameters: ActorCritic, batch: int) -> Memories:
        """See `Learner.memory`."""
        return self.players.memory(parameters, batch)

    def act(
        self,
        parameters: ActorCritic,
        memory: Memories,
        view: View,
        keys: PRNGKeyArray,
        *,
        greedy: bool,
    ) -> tuple[Memories, Num[Array, "B A *U"]]:
        """See `Learner.act`."""
        return self.players.act(parameters, memory, view, keys, greedy=greedy)

    def update(self, state: PPOState) -> tuple[PPOState, Metrics]:
        """See `Learner.update`."""
        state, experience, metrics = self.play(state)
        state, figures = self.learn(state, experience)
        return state, dataclasses.replace(metrics, figures=figures)

    def learn(
        self,
        state: PPOState,
        experience: Experience,
        progress: UpdatesDone = None,
        *,
        stale: bool = False,
    ) -> tuple[PPOState, dict[str, Array]]:
        """See `PartedLearner.learn`; V-trace corrects stale experience.

        An action is then weighted by the ratio of its probability now to that when it was taken, at
        most 1. The clipped objective keeps policies close to the policy with which learning starts,
        rather than to the policy that played (Hilton et al. 2021).
        """
        state, samples, evaluated = self._evaluated(state, experience, progress, stale=stale)
        key, learning = jax.random.split(state.key)
        settings, optimizer = self.settings, state.optimizer
        if progress is not None:
            optimizer = at_step(optimizer, progress * settings.epochs * settings.minibatches)
        (parameters, optimizer), figures = learned(
            self._loss,
            self.optimizer,
            (state.parameters, optimizer),
            functools.partial(self._minibatches, samples),
            jax.random.split(learning, settings.epochs),
        )
        state = dataclasses.replace(
            state,
            parameters=parameters,
            optimizer=optimizer,
            key=key,
            updates=state.updates + 1,
        )
        return state, jax.tree.map(jnp.mean, figures) | evaluated

    def play(
        self, state: PPOState, progress: UpdatesDone = None
    ) -> tuple[PPOState, Experience, Metrics]:
        """See `PartedLearner.play`: one roll-out."""
        keys, (sampling, playing) = rollout_keys(state.keys, self.settings.rollout, 2)
        noise = self.players.noise(sampling)
        step = functools.partial(self._step, state)
        carry = state.games, state.view, state.memories
        carry, (played, outcome, last_value) = jax.lax.scan(step, carry, (noise, playing))
        games, view, memories = carry
        tally, metrics = state.tally.add(outcome.reward, outcome.done, outcome.measures)
        after = dataclasses.replace(
            state, games=games, view=view, memories=memories, tally=tally, keys=keys
        )
        return after, Experience(state.memories, played, outcome, last_value), metrics

    def _step(self, state: PPOState, carry: Any, now: tuple[Array, PRNGKeyArray]) -> tuple:
        """One step of all games, with the value after it if a time limit ended the episode."""
        games, view, memories = carry
        noise, playing = now
        memories, played = self.players.step(state.parameters, memories, view, noise)
        games, view, outcome = self.players.environment.steps(playing, games, played.action)
        last_value = jnp.zeros_like(played.value)
        if self.settings.truncation == "bootstrap":
            last_value = self._returns(
                state, self.players.value(state.parameters, memories, outcome.last)
            )
            last_value = jnp.where(outcome.truncated[:, None], last_value, 0.0)
        kept = _Outcome(outcome.reward, outcome.shaped, outcome.done, outcome.measures)
        return (games, view, memories), (played, kept, last_value)

    def _returns(self, state: PPOState, value: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
        """The returns that correspond to a critic's values."""
        return value if state.returns is None else state.returns.denormalise(value)

    def _evaluated(
        self,
        state: PPOState,
        experience: Experience,
        progress: UpdatesDone = None,
        *,
        stale: bool = False,
    ) -> tuple[PPOState, Samples, dict[str, Array]]:
        """Experience with its advantages, and the state with updated moments of returns."""
        weight = None
        if stale:
            experience, weight = self._as_now(state, experience)
        advantage, target, moments = self._advantages(state, experience, weight, progress)
        samples = Samples(experience.memories, experience.played, advantage, target)
        figures = {} if weight is None else {"weight": weight.mean()}
        return dataclasses.replace(state, returns=moments), samples, figures

    def _as_now(
        self, state: PPOState, experience: Experience
    ) -> tuple[Experience, Float[Array, "T E A"]]:
        """Experience re-evaluated with a state's parameters, and the weight of each action."""
        played = experience.played
        log_probability, _, value = self.players.evaluate(
            state.parameters, experience.memories, played
        )
        weight = jnp.minimum(1.0, jnp.exp(log_probability - played.log_probability))
        played = dataclasses.replace(played, log_probability=log_probability, value=value)
        return experience._replace(played=played), weight

    def _advantages(
        self,
        state: PPOState,
        experience: Experience,
        weight: Float[Array, "T E A"] | None,
        progress: UpdatesDone,
    ) -> tuple[Float[Array, "T E A"], Float[Array, "T E A"], ValueNorm | None]:
        """Advantages, the critic's targets, and the updated moments of returns."""
        settings, moments, outcome = self.settings, state.returns, experience.outcome
        value = self._returns(state, experience.played.value)
        final = self._returns(
            state, self.players.value(state.parameters, state.memories, state.view)
        )
        next_value = jnp.concatenate([value[1:], final[None]])
        done = outcome.done[..., None]
        shaping = self._shaping(state.updates if progress is None else progress)
        advantage = advantages(
            outcome.reward + shaping * outcome.shaped,
            value,
            jnp.where(done, experience.last_value, next_value),
            done,
            settings.discount,
            settings.gae_lambda,
            weight,
        )
        target = advantage + value
        if moments is not None:
            moments = moments.add(target, AXIS if self.devices > 1 else None)
            target = moments.normalise(target)
        return advantage, target, moments

    def _shaping(self, updates: Num[Array, ""]) -> Float[Array, ""]:
        """Weight of shaped rewards, which decays to 0."""
        settings = self.settings
        over = max(settings.shaping_fraction * self.total_updates, 1.0)
        return settings.shaping * jnp.maximum(0.0, 1.0 - updates / over)

    def _minibatches(self, samples: Samples, key: PRNGKeyArray) -> Samples:
        """Random [minibatches, …] of the samples; of whole games if the networks have a memory."""
        minibatches = self.settings.minibatches

        def parts(x: Array, order: Array) -> Array:
            return x[order].reshape(minibatches, -1, *x.shape[1:])

        if not self.settings.recurrent:
            rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), samples)
            order = permutation(key, rows.advantage.shape[0])
            return jax.tree.map(lambda x: parts(x, order), rows)
        order = permutation(key, self.games)

        def by_game(x: Array) -> Array:
            return jnp.moveaxis(parts(jnp.moveaxis(x, 1, 0), order), 2, 1)

        return Samples(
            jax.tree.map(lambda x: parts(x, order), samples.memories),
            *jax.tree.map(by_game, (samples.played, samples.advantage, samples.target)),
        )

    def _loss(
        self, parameters: ActorCritic, part: Samples
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The loss of the clipped objective, the critic's error and the entropy."""
        settings, played = self.settings, part.played
        log_probability, entropy, value = self.players.evaluate(parameters, part.memories, played)
        advantage = part.advantage
        if settings.normalise_advantages:
            advantage = self._normalised(advantage)
        change = log_probability - played.log_probability
        ratio = jnp.exp(change)
        gain = self._mean(clipped_objective(ratio, advantage, settings.clip_ratio))
        error = jnp.square(value - part.target)
        if settings.value_clip is not None:
            near = played.value + jnp.clip(
                value - played.value, -settings.value_clip, settings.value_clip
            )
            error = jnp.maximum(error, jnp.square(near - part.target))
        error, entropy = 0.5 * self._mean(error), self._mean(entropy)
        total = -gain + settings.value_coefficient * error - settings.entropy_coefficient * entropy
        return total * number(self.players.sets), {
            "gain": gain,
            "value_error": error,
            "entropy": entropy,
            "divergence": (ratio - 1.0 - change).mean(),
            "clipped": (jnp.abs(ratio - 1.0) > settings.clip_ratio).mean(),
        }

    def _normalised(self, advantage: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
        """Normalises advantages to mean 0 and deviation 1, per set of parameters."""
        sets = self.players.sets
        if number(sets) == 1:
            return (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        of_agent = np.array(sets)
        centred = advantage - mean_of_each(advantage, sets)[of_agent]
        return centred / (jnp.sqrt(mean_of_each(jnp.square(centred), sets))[of_agent] + 1e-8)

    def _mean(self, x: Float[Array, "*B A"]) -> Float[Array, ""]:
        """Mean over all agents; with several sets of parameters, the mean of the sets' means."""
        sets = self.players.sets
        return x.mean() if number(sets) == 1 else mean_of_each(x, sets).mean()
