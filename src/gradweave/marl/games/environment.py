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

PARTS = 8
"""Where at most an eighth of the games have ended, an eighth begins anew, else all do. A larger
part begins more episodes in vain, a smaller one suffices less often."""


class View(eqx.Module):
    """What is observed before an action. ``*B`` are axes of parallel games."""

    observation: Float[Array, "*B A O"]
    """Each agent's, padded with zeros to the longest."""
    available: Bool[Array, "*B A U"]
    """Discrete actions that may be taken now; components of a continuous action that exist."""
    world: Float[Array, "*B W"]
    """For centralised critics and mixers: the game's own state vector where it has one, and all
    observations one after the other where not."""
    start: Bool[Array, "*B"]
    """Whether an episode begins here, so that recurrent state is reset."""
    utility: Float[Array, "*B A"] | None = None
    """Each agent's mean reward a step so far in the episode, in games of resources."""


class Outcome(eqx.Module):
    """The result of a step."""

    reward: Float[Array, "*B A"]
    shaped: Float[Array, "*B A"]
    """The game's shaped reward, which counts in no return."""
    done: Bool[Array, "*B"]
    """Whether the episode ended, for all agents; the next view is then of a new one."""
    truncated: Bool[Array, "*B"]
    """Whether a time limit alone ended it, as far as the game tells."""
    last: View
    """The view after the step, before a new episode replaced it."""
    events: Bool[Array, "*B R"] | None = None
    """What happened, where agents have reward machines."""
    measures: dict[str, Float[Array, "*B"]] = eqx.field(default_factory=dict)
    """What the step adds to the game's own measures; see `Reading.measures`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Environment:
    """A game behind the arrays above. `step` starts a new episode by itself, as JaxMARL's does.

    `reset` and `step` are of one game; `jax.vmap` runs many.
    """

    id: str
    """With its options, as `environments.make` read it."""
    family: str
    """By which algorithms choose their defaults."""
    meaning: str
    """What the reported return measures."""
    game: Game
    reading: Reading
    agents: tuple[str, ...]
    """[A]."""
    teams: tuple[int, ...]
    """[A] each agent's, from 0 on: agents of a team have common interests."""
    continuous: bool
    mask: np.ndarray
    """[A, U] the actions, or components, that each agent has: `View.available` is a subset."""
    low: np.ndarray
    """[A, U] least value of each component of a continuous action."""
    high: np.ndarray
    """[A, U] greatest value."""
    observation: int
    """O: numbers in an observation."""
    shape: tuple[int, ...]
    """Of each agent's observation in the game, before it is one row; [O] where they differ."""
    world: int
    """W: numbers in the state vector."""
    stochastic: bool
    """Whether a step depends on its key; a reset always does."""
    guide: Guide | None = None
    """The reward machines beside the agents, if any."""

    @property
    def num_agents(self) -> int:
        """A."""
        return len(self.agents)

    @property
    def actions(self) -> int:
        """U: the most discrete actions, or components of a continuous one, of any agent."""
        return self.mask.shape[1]

    @property
    def masked(self) -> bool:
        """Whether what is available depends on the state."""
        return self.reading.available is not None

    def reset(self, key: PRNGKeyArray) -> tuple[State, View]:
        """A new episode.

        Args:
            key: draws it.
        """
        with warnings.catch_warnings():  # tracing JaxMARL's code warns of dtypes
            warnings.simplefilter("ignore")
            seen, state = self.game.reset(key)
            state = jax.tree.map(_strong, state)
            return state, self._view(seen, state, jnp.ones((), bool))

    def step(
        self, key: PRNGKeyArray, state: State, action: Num[Array, "A *U"]
    ) -> tuple[State, View, Outcome]:
        """One step of all agents, and a new episode where one ended.

        The keys are divided as `MultiAgentEnv.step` divides them, so that both play the same game.

        Args:
            key: for the game's own draws, and those of the next episode.
            state: the game's.
            action: [A] numbers of discrete actions, or [A, U] components, each in [−1, 1] for the
                whole of its range; values beyond count as the nearest within.
        """
        after, last, outcome = self._step_in_episode(key, state, action)
        return *self._reset_where_done(outcome.done, key, after, last), outcome

    def steps(
        self, keys: PRNGKeyArray, states: State, actions: Num[Array, "B A *U"]
    ) -> tuple[State, View, Outcome]:
        """`step` for parallel games; where none or few have ended, none or few episodes are drawn.

        Args:
            keys: [B] each game's.
            states: [B].
            actions: see `step`.
        """
        after, last, outcome = jax.vmap(self._step_in_episode)(keys, states, actions)
        return *self._begin_anew(outcome.done, keys, (after, last)), outcome

    def _begin_anew(self, done: Bool[Array, " B"], keys: PRNGKeyArray, now: Any) -> Any:
        """New episodes in place of those that have ended, [B] in all.

        To begin an episode may take longer than a step, and mostly none or few end at once. Then
        few are begun, or none. Under `jax.vmap`, of seeds say, that is decided for all games
        together, where a condition of each seed's would begin all games of all always.
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
        """A step in the same episode."""
        # A constant key where it does not matter: XLA then draws once, not in each step.
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
        """A new episode in place of one that has ended."""
        first = self.reset(jax.random.split(key)[1])
        return jax.tree.map(
            lambda new, old: jnp.where(done, new, _cast(old, new)), first, (state, view)
        )

    def _by_agent(self, action: Num[Array, "A *U"]) -> dict[Any, Array]:
        if not self.continuous:
            return {agent: action[i] for i, agent in enumerate(self.game.agents)}
        share = (jnp.clip(action, -1.0, 1.0) + 1.0) / 2.0
        value = jnp.asarray(self.low) + share * (self.high - self.low)
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
    """An environment of a game; the sizes of its arrays are those of a reset.

    Some of JaxMARL's spaces differ from what its steps return, so only the number of actions
    is taken from them.

    Args:
        game: a `MultiAgentEnv`, or what has that interface.
        reading: how its dictionaries are read.
        id: its name.
        family: by which algorithms choose their defaults.
        meaning: what its return measures.
        teams: see `Environment`; one for all agents if not given.
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
    """An array of a strong dtype: JAX gives Python's numbers weak ones."""
    x = jnp.asarray(x)
    return jax.lax.convert_element_type(x, x.dtype)


def _cast(x: Any, like: Any) -> Array:
    """An array of another's dtype."""
    return jnp.asarray(x, like.dtype)


def _flat(x: Any) -> Float[Array, " N"]:
    return jnp.asarray(x).astype(jnp.float32).reshape(-1)


def _padded(row: Float[Array, " N"], length: int) -> Float[Array, " M"]:
    return jnp.pad(row, (0, length - row.shape[0]))


def _stack(numbers: Sequence[Any]) -> Float[Array, " A"]:
    return jnp.stack([jnp.asarray(number, jnp.float32).reshape(()) for number in numbers])
