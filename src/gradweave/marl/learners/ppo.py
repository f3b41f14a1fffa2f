"""Proximal policy optimisation for several agents: IPPO and MAPPO.

IPPO's critic sees what its agent sees, MAPPO's the state of the whole game; both tell agents apart
by their numbers. Either can have a memory. Where agents do not all have their parameters together,
each set of parameters learns as if it were alone: the loss is the sum of the sets' own ones.
Episodes that reach over an update's end go on in the next one.

Source: Schulman et al. 2017; de Witt et al. 2020 (IPPO); Yu et al. 2022 (MAPPO).
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray

from gradweave.execute.axis import AXIS
from gradweave.marl.config import PPO
from gradweave.marl.games.environment import View
from gradweave.marl.learners.actor_critic import ActorCritic, Memories, Played, Players
from gradweave.marl.learners.learner import Metrics, Tally, norm, sent
from gradweave.marl.learners.randomness import game_keys, permutation, rollout_keys, split_each
from gradweave.marl.learners.sets import mean_of_each, number
from gradweave.marl.learners.value_norm import ValueNorm
from gradweave.training.advantages import advantages


class PPOState(eqx.Module):
    """A learner: all that its next update depends on."""

    parameters: ActorCritic
    optimizer: Any
    games: Any
    """[E] games' own states."""
    view: View
    """[E]."""
    memories: Memories
    tally: Tally
    keys: PRNGKeyArray
    """[E] each game's own."""
    key: PRNGKeyArray
    """Orders what is learned from."""
    updates: Int[Array, ""]
    """Done so far."""
    returns: ValueNorm | None
    """Moments of what critics learn; None where they learn it as it is."""


class Lesson(eqx.Module):
    """Steps with what is to be learned from them; [T, E], or any part of them."""

    memories: Memories
    """[E, A, H] before the first step."""
    played: Played
    advantage: Float[Array, "T E A"]
    target: Float[Array, "T E A"]
    """What the critic is to say."""


@dataclasses.dataclass(frozen=True, eq=False)
class PPOLearner:
    """IPPO, or MAPPO where the players' critics are central."""

    players: Players
    settings: PPO
    optimizer: optax.GradientTransformation
    """With its aggregation over the devices."""
    devices: int
    games: int
    """E: on one device."""
    total_updates: int
    """Over which what decays decays."""

    @property
    def steps(self) -> int:
        """Steps that an update makes on one device."""
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
            tally=Tally.zero(self.games, environment.num_agents),
            keys=keys,
            key=jax.random.fold_in(learning, first),
            updates=jnp.zeros((), jnp.int32),
            returns=ValueNorm.zero(self.players.sets) if self.settings.normalise_values else None,
        )

    def parameters(self, state: PPOState) -> ActorCritic:
        """See `Learner.parameters`."""
        return state.parameters

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
        state, lesson, metrics = self._play(state)
        key, learning = jax.random.split(state.key)

        def epoch(carry: Any, key: PRNGKeyArray) -> tuple[Any, dict[str, Array]]:
            return jax.lax.scan(self._learn, carry, self._parts(lesson, key))

        keys = jax.random.split(learning, self.settings.epochs)
        carry = state.parameters, state.optimizer
        (parameters, optimizer), figures = jax.lax.scan(epoch, carry, keys)
        state = dataclasses.replace(
            state,
            parameters=parameters,
            optimizer=optimizer,
            key=key,
            updates=state.updates + 1,
        )
        return state, dataclasses.replace(metrics, figures=jax.tree.map(jnp.mean, figures))

    def _play(self, state: PPOState) -> tuple[PPOState, Lesson, Metrics]:
        """One roll-out, judged."""
        players, settings, parameters = self.players, self.settings, state.parameters
        bootstrap, moments = settings.truncation == "bootstrap", state.returns

        def paid(value: Array) -> Array:
            return value if moments is None else moments.denormalise(value)

        def step(carry: Any, now: tuple[Array, PRNGKeyArray]) -> tuple[Any, Any]:
            games, view, memories = carry
            noise, playing = now
            memories, played = players.look(parameters, memories, view, noise)
            games, view, outcome = players.environment.steps(playing, games, played.action)
            after = jnp.zeros_like(played.value)
            if bootstrap:
                after = paid(players.value(parameters, memories, outcome.last))
                after = jnp.where(outcome.truncated[:, None], after, 0.0)
            kept = outcome.reward, outcome.shaped, outcome.done, after
            return (games, view, memories), (played, kept)

        keys, (drawing, playing) = rollout_keys(state.keys, settings.rollout, 2)
        carry = state.games, state.view, state.memories
        carry, (played, kept) = jax.lax.scan(step, carry, (players.noise(drawing), playing))
        games, view, memories = carry
        reward, shaped, done, after = kept
        value = paid(played.value)
        last = paid(players.value(parameters, memories, view))
        following = jnp.concatenate([value[1:], last[None]])
        following = jnp.where(done[..., None], after, following)
        advantage = advantages(
            reward + self._help(state.updates) * shaped,
            value,
            following,
            done[..., None],
            settings.discount,
            settings.gae_lambda,
        )
        tally, metrics = state.tally.add(reward, done)
        target = advantage + value
        if moments is not None:
            moments = moments.add(target, AXIS if self.devices > 1 else None)
            target = moments.normalise(target)
        lesson = Lesson(state.memories, played, advantage, target)
        after_play = dataclasses.replace(
            state,
            games=games,
            view=view,
            memories=memories,
            tally=tally,
            keys=keys,
            returns=moments,
        )
        return after_play, lesson, metrics

    def _help(self, updates: Int[Array, ""]) -> Float[Array, ""]:
        """What the game's own help counts for: less and less, then nothing."""
        settings = self.settings
        over = max(settings.shaping_fraction * self.total_updates, 1.0)
        return settings.shaping * jnp.maximum(0.0, 1.0 - updates / over)

    def _parts(self, lesson: Lesson, key: PRNGKeyArray) -> Lesson:
        """The lesson in random parts, [minibatches, …]: whole games where there is a memory."""
        minibatches = self.settings.minibatches

        def parts(x: Array, order: Array) -> Array:
            return x[order].reshape(minibatches, -1, *x.shape[1:])

        if not self.settings.recurrent:
            rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), lesson)
            order = permutation(key, rows.advantage.shape[0])
            return jax.tree.map(lambda x: parts(x, order), rows)
        order = permutation(key, self.games)

        def by_game(x: Array) -> Array:
            return jnp.moveaxis(parts(jnp.moveaxis(x, 1, 0), order), 2, 1)

        return Lesson(
            jax.tree.map(lambda x: parts(x, order), lesson.memories),
            *jax.tree.map(by_game, (lesson.played, lesson.advantage, lesson.target)),
        )

    def _learn(self, carry: Any, part: Lesson) -> tuple[Any, dict[str, Array]]:
        """One step of the optimizer."""
        parameters, state = carry
        (_, figures), gradient = jax.value_and_grad(self._loss, has_aux=True)(parameters, part)
        change, state = self.optimizer.update(gradient, state, parameters)
        figures |= {"gradient_norm": norm(gradient)} | sent(state)
        return (optax.apply_updates(parameters, change), state), figures

    def _loss(
        self, parameters: ActorCritic, part: Lesson
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """The clipped objective, the critic's error and the entropy."""
        settings, played = self.settings, part.played
        log_odds, entropy, value = self.players.judge(parameters, part.memories, played)
        advantage = part.advantage
        if settings.normalise_advantages:
            advantage = self._alike(advantage)
        change = log_odds - played.log_odds
        ratio = jnp.exp(change)
        clipped = jnp.clip(ratio, 1.0 - settings.clip_ratio, 1.0 + settings.clip_ratio)
        gain = self._mean(jnp.minimum(ratio * advantage, clipped * advantage))
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

    def _alike(self, advantage: Float[Array, "*B A"]) -> Float[Array, "*B A"]:
        """Brought to mean 0 and deviation 1, for each set of parameters."""
        sets = self.players.sets
        if number(sets) == 1:
            return (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        own = np.array(sets)
        away = advantage - mean_of_each(advantage, sets)[own]
        return away / (jnp.sqrt(mean_of_each(jnp.square(away), sets))[own] + 1e-8)

    def _mean(self, x: Float[Array, "*B A"]) -> Float[Array, ""]:
        """Over all agents; where there are several sets of parameters, over their means."""
        sets = self.players.sets
        return x.mean() if number(sets) == 1 else mean_of_each(x, sets).mean()
