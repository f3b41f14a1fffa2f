"""Q-learning for several agents: independent, VDN and QMIX.

A replay buffer stores steps as rows of a few steps each; for a recurrent network, a row includes
the hidden state from which it began. The value of the next state is the target network's value of
the action that the learning network prefers.

Source: Mnih et al. 2015; van Hasselt et al. 2016 (double Q-learning); Kapturowski et al. 2019
(recurrent rows); Sunehag et al. 2018 (VDN); Rashid et al. 2018 (QMIX).
"""

import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from gradweave.marl.games.environment import Environment, View
from gradweave.marl.learners import distributions
from gradweave.marl.learners.algorithms import check_suits
from gradweave.marl.learners.counterfactual import doubled, ended
from gradweave.marl.learners.learner import (
    Metrics,
    RunningReturns,
    UpdatesDone,
    at_step,
    optimizer_step,
)
from gradweave.marl.learners.mixers import Mixer, MonotonicMixer, NoMixer, SumMixer
from gradweave.marl.learners.networks import AnyNetwork, Memory, Network, draw
from gradweave.marl.learners.own_network import Factory, OwnNetwork, Plan, draw_own
from gradweave.marl.learners.q_settings import QLearning
from gradweave.marl.learners.randomness import draw_each, game_keys, rollout_keys, split_each
from gradweave.marl.learners.sets import Sets, mean_of_each, number, sets_of

Kind = Literal["iql", "vdn", "qmix"]


class Values(eqx.Module):
    """All parameters."""

    agent: AnyNetwork | OwnNetwork
    """Maps an observation to the values of actions."""
    mixer: Mixer


class Rows(eqx.Module):
    """The replay buffer: [R] rows of T steps. Fields that no network needs are None."""

    memory: Memory
    """[R, A, H] memory before the first step."""
    observation: Float[Array, "R T+1 A O"]
    """Observations of the steps and after the last step."""
    available: Bool[Array, "R T+1 A U"] | None
    world: Float[Array, "R T+1 W"] | None
    start: Bool[Array, "R T+1"]
    action: Int[Array, "R T A"]
    reward: Float[Array, "R T A"]
    done: Bool[Array, "R T"]
    events: Bool[Array, "R T E"] | None = None
    """Whether each event occurred, if agents have reward machines."""
    ended: Bool[Array, "R T A"] | None = None
    """Whether each agent's part was done or had failed after the step, if agents have reward
    machines; not stored in the buffer."""


class QState(eqx.Module):
    """Everything that the next update depends on."""

    parameters: Values
    target: Values
    optimizer: Any
    games: Any
    """[E] states of the games."""
    view: View
    """[E] views of the games."""
    memory: Memory
    tally: RunningReturns
    keys: PRNGKeyArray
    """[E] random keys of the games."""
    key: PRNGKeyArray
    """Random key of the batches."""
    rows: Rows
    updates: Int[Array, ""]
    """Number of updates so far."""


@dataclasses.dataclass(frozen=True, eq=False)
class QLearner:
    """Independent Q-learning, VDN or QMIX.

    Raises:
        OptionError: actions are continuous, or the algorithm adds up the values of agents whose
            interests are opposed.
    """

    environment: Environment
    kind: Kind
    settings: QLearning
    optimizer: optax.GradientTransformation
    """Includes the aggregation over devices."""
    devices: int
    total_updates: int
    """Number of updates over which rates decay."""
    factory: Factory | None = None
    """Factory of user modules that replace the agents' networks."""

    def __post_init__(self) -> None:
        environment = self.environment
        plan = self.factory and Plan(
            *(self.factory, environment.shape, environment.actions, environment.num_agents),
            recurrent=self.settings.recurrent,
        )
        object.__setattr__(self, "_plan", plan)
        check_suits(
            self.kind,
            environment.id,
            continuous=environment.continuous,
            opposed=len(set(environment.teams)) > 1,
        )

    @property
    def games(self) -> int:
        """E, the number of games per device."""
        return self.settings.environments // self.devices

    @property
    def steps(self) -> int:
        """Environment steps per update on one device."""
        return self.games * self.settings.rollout

    @property
    def _sets(self) -> Sets:
        """[A] the set of parameters of each agent."""
        return sets_of(self.environment, self.settings.parameter_sharing)

    @property
    def _blocks(self) -> int:
        """Number of updates whose rows the replay buffer holds."""
        return max(1, self.settings.replay_size // self.settings.steps)

    def init(self, shared: PRNGKeyArray, first: Int[Array, ""] | int) -> QState:
        """See `Learner.init`."""
        environment = self.environment
        drawing, playing, learning = jax.random.split(shared, 3)
        parameters = self._draw(drawing)
        keys, beginning = split_each(game_keys(playing, first, self.games), 2)
        games, view = jax.vmap(environment.reset)(beginning)
        memory = parameters.agent.start(self.games)
        return QState(
            parameters=parameters,
            target=jax.tree.map(jnp.array, parameters),
            optimizer=self.optimizer.init(parameters),  # pyright: ignore[reportArgumentType]
            games=games,
            view=view,
            memory=memory,
            tally=RunningReturns.zero(
                self.games, environment.num_agents, environment.reading.measures
            ),
            keys=keys,
            key=jax.random.fold_in(learning, first),
            rows=self._empty_rows(memory),
            updates=jnp.zeros((), jnp.int32),
        )

    def parameters(self, state: QState) -> Values:
        """See `Learner.parameters`."""
        return state.parameters

    def with_parameters(self, state: QState, parameters: Values) -> QState:
        """See `PartedLearner.with_parameters`; the target network is unchanged."""
        return dataclasses.replace(state, parameters=parameters)

    def memory(self, parameters: Values, batch: int) -> Memory:
        """See `Learner.memory`."""
        return parameters.agent.start(batch)

    def act(
        self,
        parameters: Values,
        memory: Memory,
        view: View,
        keys: PRNGKeyArray,
        *,
        greedy: bool,
    ) -> tuple[Memory, Int[Array, "B A"]]:
        """See `Learner.act`; sampled actions explore as much as at the end of training."""
        explore = jnp.float32(0.0 if greedy else self.settings.epsilon_final)
        return self._act(parameters, memory, view, self._noise(keys), explore)

    def update(self, state: QState) -> tuple[QState, Metrics]:
        """See `Learner.update`."""
        state, rows, metrics = self.play(state)
        state, figures = self.learn(state, rows)
        return state, dataclasses.replace(metrics, figures=metrics.figures | figures)

    def learn(
        self, state: QState, experience: Rows, progress: UpdatesDone = None, *, stale: bool = False
    ) -> tuple[QState, dict[str, Array]]:
        """See `PartedLearner.learn`: stores the new rows, and learns from the buffer.

        All rows come from earlier policies, and nothing is corrected: the target of an action is
        its reward plus the value of the best next action, whichever policy took it. (With
        `td_lambda` above 0, returns of another policy enter uncorrected.)
        """
        blocks = jnp.minimum(state.updates + 1, self._blocks)
        at = (state.updates % self._blocks) * self.games
        rows = jax.tree.map(
            lambda all, x: jax.lax.dynamic_update_slice_in_dim(all, x, at, 0),
            state.rows,
            experience,
        )
        key, learning = jax.random.split(state.key)

        def learn(carry: Any, key: PRNGKeyArray) -> tuple[Any, dict[str, Array]]:
            batch = self.settings.batch_size // self.devices
            chosen = jax.random.randint(key, (batch,), 0, blocks * self.games)
            drawn = jax.tree.map(lambda x: x[chosen], rows)
            return self._learn(carry, self._with_machines(drawn, key))

        optimizer = state.optimizer
        if progress is not None:
            optimizer = at_step(optimizer, progress * self.settings.epochs)
        carry = state.parameters, state.target, optimizer
        keys = jax.random.split(learning, self.settings.epochs)
        (parameters, target, optimizer), figures = jax.lax.scan(learn, carry, keys)
        state = dataclasses.replace(
            state,
            parameters=parameters,
            target=target,
            optimizer=optimizer,
            key=key,
            rows=rows,
            updates=state.updates + 1,
        )
        return state, jax.tree.map(jnp.mean, figures)

    def _with_machines(self, rows: Rows, key: PRNGKeyArray) -> Rows:
        """Rows with the rewards and states of the agents' reward machines, if they have any."""
        guide = self.environment.guide
        if guide is None:
            return rows
        if not self.settings.counterfactual:
            return ended(guide, rows)
        return doubled(guide, rows, jax.random.fold_in(key, 1))

    def _draw(self, key: PRNGKeyArray) -> Values:
        environment, settings = self.environment, self.settings
        agent_key, mixer_key = jax.random.split(key)
        plan: Plan | None = self._plan  # pyright: ignore[reportAttributeAccessIssue]

        def one(key: PRNGKeyArray) -> Network:
            return Network(
                environment.observation,
                environment.actions,
                environment.num_agents,
                key,
                hidden=settings.hidden,
                recurrent=settings.recurrent,
                activation=settings.activation,
                scale=0.1,
            )

        agent = draw_own(plan, self._sets, agent_key) if plan else draw(self._sets, agent_key, one)
        if self.kind == "qmix":
            agents = environment.num_agents
            return Values(
                agent, MonotonicMixer(environment.world, agents, settings.mixing_width, mixer_key)
            )
        return Values(agent, SumMixer() if self.kind == "vdn" else NoMixer())

    def _empty_rows(self, memory: Memory) -> Rows:
        """An empty replay buffer."""
        environment, steps = self.environment, self.settings.rollout
        number, agents = self._blocks * self.games, environment.num_agents
        guide = environment.guide

        def room(*shape: int, dtype: Any = jnp.float32) -> Array:
            return jnp.zeros((number, *shape), dtype)

        masked = environment.masked or not environment.mask.all()
        shape = (steps + 1, agents, environment.actions)
        return Rows(
            memory=jax.tree.map(lambda x: room(*x.shape[1:], dtype=x.dtype), memory),
            observation=room(steps + 1, agents, environment.observation),
            available=room(*shape, dtype=bool) if masked else None,
            world=room(steps + 1, environment.world) if self.kind == "qmix" else None,
            start=room(steps + 1, dtype=bool),
            action=room(steps, agents, dtype=jnp.int32),
            reward=room(steps, agents),
            done=room(steps, dtype=bool),
            events=room(steps, len(guide.order), dtype=bool) if guide else None,
        )

    def _explore(self, updates: Num[Array, ""]) -> Float[Array, ""]:
        """ε, the share of random actions."""
        settings = self.settings
        gone = updates / max(settings.epsilon_fraction * self.total_updates, 1.0)
        return jnp.maximum(
            settings.epsilon_final,
            settings.epsilon + (settings.epsilon_final - settings.epsilon) * gone,
        ).astype(jnp.float32)

    def _act(
        self,
        parameters: Values,
        memory: Memory,
        view: View,
        noise: Float[Array, "E 2 A"],
        explore: Float[Array, ""],
    ) -> tuple[Memory, Int[Array, "E A"]]:
        """ε-greedy: the best action, or with probability `explore` a random available action."""
        memory, values = parameters.agent(memory, view.observation, view.start)
        best = _best(values, view.available)
        uniform = distributions.log_probabilities(jnp.zeros(values.shape), view.available)
        other = distributions.sample(noise[:, 0], uniform).astype(best.dtype)
        return memory, jnp.where(noise[:, 1] < explore, other, best)

    def _noise(self, keys: PRNGKeyArray) -> Float[Array, "*B 2 A"]:
        """Uniform numbers per agent: which random action it would take, and whether it does."""
        shape = 2, self.environment.num_agents
        return draw_each(keys, lambda key: jax.random.uniform(key, shape))

    def play(self, state: QState, progress: UpdatesDone = None) -> tuple[QState, Rows, Metrics]:
        """See `PartedLearner.play`: the next row of each game."""
        environment = self.environment
        explore = self._explore(state.updates if progress is None else progress)

        def step(carry: Any, now: tuple[Array, PRNGKeyArray]) -> tuple[Any, Any]:
            games, view, memory = carry
            noise, playing = now
            memory, action = self._act(state.parameters, memory, view, noise, explore)
            games, after, outcome = environment.steps(playing, games, action)
            kept = view, action, outcome.reward, outcome.done, outcome.events
            return (games, after, memory), (kept, outcome.measures)

        keys, (drawing, playing) = rollout_keys(state.keys, self.settings.rollout, 2)
        carry = state.games, state.view, state.memory
        carry, (kept, measures) = jax.lax.scan(step, carry, (self._noise(drawing), playing))
        games, last, memory = carry
        views, action, reward, done, events = kept
        views = jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]]), views, last)
        tally, metrics = state.tally.add(reward, done, measures)

        def by_game(x: Array) -> Array:
            return jnp.moveaxis(x, 1, 0)

        rows = Rows(
            memory=state.memory,
            observation=by_game(views.observation),
            available=None if state.rows.available is None else by_game(views.available),
            world=None if state.rows.world is None else by_game(views.world),
            start=by_game(views.start),
            action=by_game(action).astype(jnp.int32),
            reward=by_game(reward),
            done=by_game(done),
            events=None if events is None else by_game(events),
        )
        played = dataclasses.replace(
            state, games=games, view=last, memory=memory, tally=tally, keys=keys
        )
        return played, rows, dataclasses.replace(metrics, figures={"explore": explore})

    def _learn(self, carry: Any, rows: Rows) -> tuple[Any, dict[str, Array]]:
        """One optimizer step."""
        parameters, target, state = carry

        def loss(parameters: Any, rows: Rows) -> Any:
            return self._loss(parameters, target, rows)

        (parameters, state), figures = optimizer_step(
            loss, self.optimizer, (parameters, state), rows
        )
        moved = optax.incremental_update(parameters, target, self.settings.target_update_rate)
        return (parameters, moved, state), figures

    def _loss(
        self, parameters: Values, target: Values, rows: Rows
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Mean squared error of the values of the actions taken."""
        settings = self.settings
        memory = rows.memory
        steps = jax.tree.map(
            lambda x: jnp.moveaxis(x, 1, 0), dataclasses.replace(rows, memory=None)
        )

        def values(of: Values) -> Float[Array, "T+1 B A U"]:
            return of.agent.along(memory, steps.observation, steps.start)

        online, frozen = values(parameters), values(target)
        mask = jnp.asarray(self.environment.mask) if steps.available is None else steps.available
        best = _best(online, jnp.broadcast_to(mask, online.shape))
        world = jnp.zeros(()) if steps.world is None else steps.world
        now, after = (world, world) if steps.world is None else (world[:-1], world[1:])
        value = parameters.mixer(_of(online[:-1], steps.action), now)
        next_value = target.mixer(_of(frozen[1:], best[1:]), after)
        reward = steps.reward * settings.reward_scale
        done = steps.done[..., None] if steps.ended is None else steps.ended
        if self.kind != "iql":
            reward, done = reward.mean(-1, keepdims=True), steps.done[..., None]
        goal = jax.lax.stop_gradient(
            lambda_returns(reward, next_value, done, settings.discount, settings.td_lambda)
        )
        error = jnp.square(value - goal)
        if self.kind == "iql" and number(self._sets) > 1:  # each set learns independently
            error = 0.5 * mean_of_each(error, self._sets).sum()
        else:
            error = 0.5 * error.mean()
        return error, {"value_error": error, "value": value.mean()}


def lambda_returns(
    reward: Float[Array, "T B N"],
    next_value: Float[Array, "T B N"],
    done: Bool[Array, "T B *N"],
    discount: float,
    td_lambda: float,
) -> Float[Array, "T B N"]:
    """λ-returns: rewards, then a mixture of values and later returns.

    Args:
        reward: reward of each step.
        next_value: value of the state after each step.
        done: whether an episode ended with the step, after which nothing follows; for all agents or
            per agent.
        discount: discount per step.
        td_lambda: λ.
    """

    def step(later: Array, now: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        reward, next_value, done = now
        ahead = (1.0 - td_lambda) * next_value + td_lambda * later
        goal = reward + discount * jnp.where(done, 0.0, ahead)
        return goal, goal

    done = done.reshape(*done.shape[:2], -1)
    return jax.lax.scan(step, next_value[-1], (reward, next_value, done), reverse=True)[1]


def _best(values: Float[Array, "*B A U"], available: Bool[Array, "*B A U"]) -> Int[Array, "*B A"]:
    return jnp.where(available, values, -jnp.inf).argmax(-1).astype(jnp.int32)


def _of(values: Float[Array, "*B A U"], action: Int[Array, "*B A"]) -> Float[Array, "*B A"]:
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]
