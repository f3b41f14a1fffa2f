"""A game as learners see it: arrays over its agents in a fixed order."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num, PRNGKeyArray

from gradweave.marl.games.guide import Guide
from gradweave.marl.games.reading import Game, State
from gradweave.marl.games.reading import Reading as Reading

UNBOUNDED = 1e30
"""A range of action values from this width on counts as infinite; such actions are not scaled."""
PARTS = 8
"""If at most an eighth of the games have ended, a batch of an eighth is reset, otherwise all games.
A larger batch would reset more games in vain; a smaller batch would suffice less often."""


class View(eqx.Module):
    """What agents observe before an action. ``*B`` are axes of parallel games."""

    observation: Float[Array, "*B A O"]
    """Each agent's observation, padded with zeros to the longest."""
    available: Bool[Array, "*B A U"]
    """Discrete actions that are available now, or components of a continuous action that exist."""
    world: Float[Array, "*B W"]
    """Input of centralised critics and mixers: the game's state vector, or all observations
    concatenated if the game has none."""
    start: Bool[Array, "*B"]
    """Whether an episode begins here, so that recurrent state must be reset."""
    utility: Float[Array, "*B A"] | None = None
    """Each agent's mean reward per step so far in the episode, for games about resources."""


class Outcome(eqx.Module):
    """The result of a step."""

    reward: Float[Array, "*B A"]
    shaped: Float[Array, "*B A"]
    """The game's shaped reward, which is not part of returns."""
    done: Bool[Array, "*B"]
    """Whether the episode ended, for all agents; the next view then belongs to a new episode."""
    truncated: Bool[Array, "*B"]
    """Whether only a time limit ended the episode, as far as the game reports it."""
    last: View
    """The view after the step, before a new episode replaces it."""
    events: Bool[Array, "*B R"] | None = None
    """The events that occurred, if agents have reward machines."""
    measures: dict[str, Float[Array, "*B"]] = eqx.field(default_factory=dict)
    """The step's contribution to the game's own measures; see `Reading.measures`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Environment:
    """A game behind the arrays above. Like JaxMARL's, `step` starts a new episode automatically.

    `reset` and `step` handle one game; `jax.vmap` runs many.
    """

    id: str
    """The name with its options, in the notation of `environments.make`."""
    family: str
    """The name by which algorithms choose their defaults."""
    meaning: str
    """What the reported return measures."""
    game: Game
    reading: Reading
    agents: tuple[str, ...]
    """Names of the [A] agents."""
    teams: tuple[int, ...]
    """[A] the team of each agent, counted from 0; agents of a team have common interests."""
    continuous: bool
    mask: np.ndarray
    """[A, U] the actions, or components, that each agent has; `View.available` is a subset."""
    low: np.ndarray
    """[A, U] lower bound of each component of a continuous action."""
    high: np.ndarray
    """[A, U] upper bound of each component."""
    observation: int
    """O, the length of an observation."""
    shape: tuple[int, ...]
    """Shape of each agent's observation in the game, before flattening; [O] if the shapes differ.
    """
    world: int
    """W, the length of the state vector."""
    stochastic: bool
    """Whether a step depends on its key; a reset always does."""
    guide: Guide | None = None
    """The agents' reward machines, if any."""

    @property
    def num_agents(self) -> int:
        """A, the number of agents."""
        return len(self.agents)

    @property
    def actions(self) -> int:
        """U, the maximum number of discrete actions, or of components of a continuous action."""
        return self.mask.shape[1]

    @property
    def masked(self) -> bool:
        """Whether the available actions depend on the state."""
        return self.reading.available is not None

    def reset(self, key: PRNGKeyArray) -> tuple[State, View]:
        """Starts an episode.

        Args:
            key: random key of the episode.
        """
        with warnings.catch_warnings():  # JaxMARL's code triggers dtype warnings while it is traced
            warnings.simplefilter("ignore")
            seen, state = self.game.reset(key)
            state = jax.tree.map(_strong, state)
            return state, self._view(seen, state, jnp.ones((), bool))

    def step(
        self, key: PRNGKeyArray, state: State, action: Num[Array, "A *U"]
    ) -> tuple[State, View, Outcome]:
        """One step of all agents, followed by a new episode if one ended.

        The keys are split as in `MultiAgentEnv.step`, so that both play the same game.

        Args:
            key: random key of the game's step and of the next episode.
            state: state of the game.
            action: [A] numbers of discrete actions, or [A, U] components. Components are in [−1, 1]
                for the whole range if the range is bounded, otherwise unscaled; values outside a
                range are clipped.
        """
        after, last, outcome = self._step_in_episode(key, state, action)
        return *self._reset_where_done(outcome.done, key, after, last), outcome

    def steps(
        self, keys: PRNGKeyArray, states: State, actions: Num[Array, "B A *U"]
    ) -> tuple[State, View, Outcome]:
        """`step` for parallel games, which resets only as many games as necessary.

        Args:
            keys: [B] random keys of the games.
            states: [B] states of the games.
            actions: see `step`.
        """
        after, last, outcome = jax.vmap(self._step_in_episode)(keys, states, actions)
        return *self._begin_anew(outcome.done, keys, (after, last)), outcome

    def _begin_anew(self, done: Bool[Array, " B"], keys: PRNGKeyArray, now: Any) -> Any:
        """Replaces the episodes that have ended by new ones, among [B] games.

        A reset may take longer than a step, and usually few games or none end at once. So this
        function resets none, a small batch, or all. Under `jax.vmap`, for instance over seeds, it
        decides once for all games together: JAX turns a vmapped condition into a select that would
        always reset every game.
        """

        @jax.custom_batching.custom_vmap
        def begin(done: Array, keys: Array, now: Any) -> Any:
            few = -(-len(done) // PARTS)

            def all_of_them(now: Any) -> Any:
                return jax.vmap(self._reset_where_done)(done, keys, *now)

            def few_of_them(now: Any) -> Any:
                which = jnp.argsort(~done, stable=True)[:few]
                each = jax.tree.map(lambda x: x[which], (done, keys, *now))
                made = jax.vmap(self._reset_where_done)(*each)
                return jax.tree.map(lambda x, y: x.at[which].set(y), now, made)

            ended = done.sum()
            number = (ended > 0).astype(int) + (ended > few)
            return jax.lax.switch(number, (lambda now: now, few_of_them, all_of_them), now)

        @begin.def_vmap
        def _(size: int, mapped: Any, *arguments: Any) -> Any:
            whole = jax.tree.map(
                lambda x, has: x if has else jnp.broadcast_to(x, (size, *x.shape)),
                arguments,
                tuple(mapped),
            )
            flat = begin(*jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), whole))
            made = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), flat)
            return made, jax.tree.map(lambda _: True, made)

        like = jax.eval_shape(lambda: jax.vmap(self._reset_where_done)(done, keys, *now))
        return begin(done, keys, jax.tree.map(_cast, now, like))

    def _step_in_episode(
        self, key: PRNGKeyArray, state: State, action: Num[Array, "A *U"]
    ) -> tuple[State, View, Outcome]:
        """A step without starting a new episode."""
        # A constant key for deterministic games lets XLA draw random numbers once instead of per
        # step.
        key = jax.random.split(key)[0] if self.stochastic else jax.random.key(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen, after, rewards, dones, info = self.game.step_env(
                key, state, self._by_agent(action)
            )
            done = jnp.asarray(dones["__all__"], bool)
            truncated = jnp.asarray(self.reading.truncated(self.game, after, info, done), bool)
            last = self._view(seen, after, jnp.zeros((), bool))
            shaped = self.reading.shaped
            outcome = Outcome(
                reward=_stack(self.reading.rewards(self.game, rewards)),
                shaped=_stack(shaped(self.game, info)) if shaped else jnp.zeros(self.num_agents),
                done=done,
                truncated=done & truncated,
                last=last,
                events=None if self.guide is None else info["events"],
                measures={
                    name: jnp.asarray(measure(self.game, after, rewards, info, done), jnp.float32)
                    for name, measure in self.reading.measures.items()
                },
            )
        return after, last, outcome

    def _reset_where_done(
        self, done: Bool[Array, ""], key: PRNGKeyArray, state: State, view: View
    ) -> tuple[State, View]:
        """Replaces an episode that has ended by a new one."""
        first = self.reset(jax.random.split(key)[1])
        return jax.tree.map(
            lambda new, old: jnp.where(done, new, _cast(old, new)), first, (state, view)
        )

    def _by_agent(self, action: Num[Array, "A *U"]) -> dict[Any, Array]:
        if not self.continuous:
            return {agent: action[i] for i, agent in enumerate(self.game.agents)}
        share = (jnp.clip(action, -1.0, 1.0) + 1.0) / 2.0
        with np.errstate(over="ignore"):
            spread = self.high - self.low
        bounded = spread < UNBOUNDED
        scaled = jnp.asarray(self.low) + share * np.where(bounded, spread, 0.0)
        value = jnp.where(bounded, scaled, jnp.clip(action, self.low, self.high))
        counts = self.mask.sum(1)
        return {agent: value[i, : counts[i]] for i, agent in enumerate(self.game.agents)}

    def _view(self, seen: Any, state: State, start: Bool[Array, ""]) -> View:
        rows, world = _sizes(self.game, self.reading, seen)
        available, utility = self.reading.available, self.reading.utility
        return View(
            observation=jnp.stack([_padded(row, self.observation) for row in rows]),
            available=jnp.asarray(self.mask)
            if available is None
            else jnp.stack(
                [_padded(_flat(row), self.actions) > 0 for row in available(self.game, state)]
            ),
            world=world,
            start=start,
            utility=None if utility is None else utility(self.game, state),
        )


def wrap(
    game: Any,
    reading: Reading,
    *,
    id: str,
    family: str,
    meaning: str,
    teams: Sequence[int] | None = None,
) -> Environment:
    """The environment of a game; the sizes of its arrays are those that a reset returns.

    Some of JaxMARL's spaces disagree with what its steps return, so only the number of actions is
    taken from them.

    Args:
        game: a `MultiAgentEnv`, or an object with its interface.
        reading: how to read its dictionaries.
        id: name of the game.
        family: name by which algorithms choose their defaults.
        meaning: what the return measures.
        teams: see `Environment`; by default one team of all agents.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = jax.eval_shape(game.reset, jax.random.key(0))[0]
        sizes = jax.eval_shape(lambda seen: _sizes(game, reading, seen), seen)
        views = jax.eval_shape(lambda seen: reading.observations(game, seen), seen)
        shapes = {row.shape for row in views}
    lengths, world = [row.size for row in sizes[0]], sizes[1].size
    spaces = [game.action_space(agent) for agent in game.agents]
    continuous = hasattr(spaces[0], "low")
    counts = [int(space.shape[0]) if continuous else int(space.n) for space in spaces]
    mask = np.arange(max(counts))[None] < np.array(counts)[:, None]
    low, high = np.zeros(mask.shape, np.float32), np.zeros(mask.shape, np.float32)
    for i, space in enumerate(spaces if continuous else ()):
        low[i, : counts[i]], high[i, : counts[i]] = space.low, space.high
    return Environment(
        id=id,
        family=family,
        meaning=meaning,
        game=game,
        reading=reading,
        agents=tuple(str(agent) for agent in game.agents),
        teams=tuple(teams or (0 for _ in game.agents)),
        continuous=continuous,
        mask=mask,
        low=low,
        high=high,
        observation=max(lengths),
        shape=shapes.pop() if len(shapes) == 1 else (max(lengths),),
        world=world,
        stochastic=reading.stochastic(game),
        guide=getattr(game, "guide", None),
    )


def _sizes(game: Any, reading: Reading, seen: Any) -> tuple[list[Array], Array]:
    rows = [_flat(row) for row in reading.observations(game, seen)]
    world = reading.world
    return rows, jnp.concatenate(rows) if world is None else _flat(world(game, seen))


def _strong(x: Any) -> Array:
    """An array of a strong dtype, since JAX gives Python numbers weak dtypes."""
    x = jnp.asarray(x)
    return jax.lax.convert_element_type(x, x.dtype)


def _cast(x: Any, like: Any) -> Array:
    """An array with the dtype of another."""
    return jnp.asarray(x, like.dtype)


def _flat(x: Any) -> Float[Array, " N"]:
    return jnp.asarray(x).astype(jnp.float32).reshape(-1)


def _padded(row: Float[Array, " N"], length: int) -> Float[Array, " M"]:
    return jnp.pad(row, (0, length - row.shape[0]))


def _stack(numbers: Sequence[Any]) -> Float[Array, " A"]:
    return jnp.stack([jnp.asarray(number, jnp.float32).reshape(()) for number in numbers])
