"""Returns of a policy over whole episodes."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray
from numpy.typing import NDArray

from gradweave.marl.games.environment import Environment, View
from gradweave.marl.games.parallel import game_errors
from gradweave.marl.learners.learner import Learner
from gradweave.marl.learners.randomness import split_each

LIMIT = 10_000
"""Steps after which an episode is truncated; it then counts with its return so far."""
How = Literal["greedy", "sampled", "random"]
HOWS: tuple[How, ...] = get_args(How)
Act = Callable[[Any, View, PRNGKeyArray], tuple[Any, Num[Array, "B A *U"]]]
"""(memory, view, keys) -> (memory, actions), for a batch of games."""


@dataclasses.dataclass(frozen=True)
class Returns:
    """The returns of episodes."""

    by_agent: NDArray[np.float32]
    """Return of each agent, [episodes, A]."""
    lengths: NDArray[np.int32]
    """Number of steps, [episodes]."""
    measures: Mapping[str, NDArray[np.float32]] = dataclasses.field(default_factory=dict)
    """The game's own measures by name, each [episodes]; see `Reading.measures`."""

    @property
    def mean(self) -> float:
        """Mean over agents and episodes."""
        return float(self.by_agent.mean(dtype=np.float64))

    @property
    def error(self) -> float:
        """Standard error of the mean over episodes."""
        each = self.by_agent.mean(1, dtype=np.float64)
        return float(each.std(ddof=1) / len(each) ** 0.5) if len(each) > 1 else float("inf")


def random_action(environment: Environment, view: View, keys: PRNGKeyArray) -> Num[Array, "B A *U"]:
    """Actions of all agents, uniform over the available actions or over the range."""
    shape = view.available.shape[1:]

    def one(key: PRNGKeyArray, available: Bool[Array, "A U"]) -> Array:
        if environment.continuous:
            return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
        return jax.random.categorical(key, jnp.where(available, 0.0, -jnp.inf))

    return jax.vmap(one)(keys, view.available)


def play(
    environment: Environment, act: Act, memory: Any, keys: PRNGKeyArray
) -> tuple[Float[Array, "B A"], Int[Array, " B"], dict[str, Float[Array, " B"]]]:
    """Plays one episode of each game from beginning to end.

    Args:
        environment: the game.
        act: the policy.
        memory: the policy's memory at the beginning.
        keys: [B] random keys; each episode depends on its key only.

    Returns:
        Returns by agent, numbers of steps, and the game's own measures.
    """
    keys, beginning = split_each(keys, 2)
    games, view = jax.vmap(environment.reset)(beginning)
    number = keys.shape[0]

    def goes_on(carry: Any) -> Bool[Array, ""]:
        *_, over, step = carry
        return ~over.all() & (step < LIMIT)

    def step(carry: Any) -> Any:
        games, view, memory, keys, returns, lengths, measures, over, step = carry
        keys, drawing, playing = split_each(keys, 3)
        memory, action = act(memory, view, drawing)
        games, view, outcome = environment.steps(playing, games, action)
        returns = returns + jnp.where(over[:, None], 0.0, outcome.reward)
        lengths = lengths + ~over
        measures = {
            name: measures[name] + jnp.where(over, 0.0, x) for name, x in outcome.measures.items()
        }
        over = over | outcome.done
        return games, view, memory, keys, returns, lengths, measures, over, step + 1

    nothing = (
        jnp.zeros((number, environment.num_agents)),
        jnp.zeros(number, jnp.int32),
        {name: jnp.zeros(number) for name in environment.reading.measures},
    )
    start = (games, view, memory, keys, *nothing, jnp.zeros(number, bool), jnp.zeros((), jnp.int32))
    *_, returns, lengths, measures, _, _ = jax.lax.while_loop(goes_on, step, start)
    return returns, lengths, measures


def evaluate(
    learner: Learner,
    environment: Environment,
    parameters: Any,
    how: How,
    *,
    episodes: int,
    seed: int,
    same_episodes: bool = True,
) -> list[Returns]:
    """Evaluates the policies of several seeds.

    Args:
        learner: the learner whose policies are evaluated.
        environment: the game.
        parameters: the policies' parameters, [S, ...]; ignored for random play, and may be None
            then.
        how: whether the policies take their best action or sample one, or all agents act at random
            for comparison, which gives a single result.
        episodes: number of episodes per policy.
        seed: seed of the episodes.
        same_episodes: whether all policies play the same episodes. With separate episodes, luck in
            them is averaged out over the policies.
    """
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), _SALT), episodes)
    played = functools.partial(_player(learner, environment), np.int32(HOWS.index(how)))
    if how == "random":
        anyone = jax.tree.map(lambda x: x[0], parameters)
        return [_returns(lambda: played(anyone, keys))]
    seeds = jax.tree.leaves(parameters)[0].shape[0]

    def one(number: int) -> Returns:
        own = jax.tree.map(lambda x: x[number], parameters)
        drawn = keys if same_episodes else _others(keys, number)
        return _returns(lambda: played(own, drawn))

    return [one(number) for number in range(seeds)]


def _others(keys: PRNGKeyArray, number: int) -> PRNGKeyArray:
    """Keys of as many other episodes, different for each number."""
    return jax.vmap(functools.partial(jax.random.fold_in, data=number))(keys)


_SALT = 0x65_76_61_6C
"""Separates the random numbers of evaluation from those of training."""


@functools.lru_cache(maxsize=2)
def _player(learner: Learner, environment: Environment) -> Callable[..., tuple]:
    """(how, parameters or None, keys) -> the result of `play`.

    All ways to act share one program, because the game makes up most of it and of its compile time.
    """

    def at_random(_: Any, memory: Any, view: View, keys: PRNGKeyArray) -> tuple[Any, Array]:
        return memory, random_action(environment, view, keys)

    ways: dict[How, Callable[..., tuple[Any, Array]]] = {
        "greedy": functools.partial(learner.act, greedy=True),
        "sampled": functools.partial(learner.act, greedy=False),
        "random": at_random,
    }
    branches = [ways[how] for how in HOWS]

    def played(how: Int[Array, ""], parameters: Any, keys: PRNGKeyArray) -> tuple:
        def act(memory: Any, view: View, keys: PRNGKeyArray) -> tuple[Any, Array]:
            if parameters is None:
                return at_random(None, memory, view, keys)
            return jax.lax.switch(how, branches, parameters, memory, view, keys)

        memory = None if parameters is None else learner.memory(parameters, keys.shape[0])
        return play(environment, act, memory, keys)

    return jax.jit(played)


def _returns(play: Callable[[], tuple]) -> Returns:
    with game_errors():
        return Returns(*jax.tree.map(np.asarray, play()))
