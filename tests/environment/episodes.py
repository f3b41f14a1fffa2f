"""Random episodes of the compiled environment, many at once, with all that it said on the way."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from gradweave.environment import Rewards, SchedulingEnvironment, Size, State
from gradweave.environment.problem import Instance, Problem

SMALL = Size(servers=6, trees=12, hops=96, links=48, route=4)
"""Holds every small network, so that one compilation serves them all."""

STEPS = 250
"""Enough for nearly every random episode on a small network."""
DENSITIES = (0.15, 0.6, 1.0)
"""Chance that a tree is selected; drawn once an episode. The first leaves many rounds empty."""
INVALID = 0.1
"""Chance that a workload is drawn from all numbers, and a few that do not exist."""


@dataclasses.dataclass(frozen=True)
class Episodes:
    """What happened; T steps of B episodes, of which those after an episode's end do not count."""

    turn: np.ndarray
    """[T, B] whose turn it was."""
    round: np.ndarray
    """[T, B] the round, before the step."""
    trees: np.ndarray
    """[T, B, Q] action of flow-tree selection."""
    workload: np.ndarray
    """[T, B] action of workload scheduling."""
    tree_mask: np.ndarray
    """[T, B, Q]"""
    workload_mask: np.ndarray
    """[T, B, HQ]"""
    tree_reward: np.ndarray
    """[T, B]"""
    workload_reward: np.ndarray
    """[T, B]"""
    ended: np.ndarray
    """[T, B] whether the step ended the episode."""
    truncated: np.ndarray
    """[T, B] whether it did so by the limit on rounds."""
    last: State
    """[B, …] the state after the last step."""


def drawn_actions(
    environment: SchedulingEnvironment, problem: Problem, state: State, key: jax.Array, density
) -> tuple[jax.Array, jax.Array]:
    """Trees at random, and mostly an available workload."""
    select, pick, stray, number = jax.random.split(key, 4)
    trees = jax.random.bernoulli(select, density, problem.root.shape)
    mask = environment.workload_mask(problem, state)
    rank = jax.random.uniform(pick) * mask.sum()
    workload = jnp.argmax(jnp.cumsum(mask) > rank)
    anything = jax.random.randint(number, (), -20, mask.size + 20)
    return trees, jnp.where(jax.random.bernoulli(stray, INVALID), anything, workload)


def draw(environment: SchedulingEnvironment, problem: Problem, key: jax.Array, steps: int) -> tuple:
    """One episode; it stands still once it ended."""
    begin, key = jax.random.split(key)
    density = jax.random.choice(begin, jnp.array(DENSITIES))

    def step(carry: tuple, key: jax.Array) -> tuple:
        state, over = carry
        trees, workload = drawn_actions(environment, problem, state, key, density)
        made = environment.step(problem, state, trees, workload)
        said = (
            *(state.turn, state.round, trees, workload),
            environment.tree_mask(problem, state),
            environment.workload_mask(problem, state),
            *(made.tree_reward, made.workload_reward),
            *(made.done & ~over, made.truncated & ~over),
        )
        after = jax.tree.map(lambda old, new: jnp.where(over, old, new), state, made.state)
        return (after, over | made.done), said

    start = environment.reset(problem), jnp.zeros((), bool)
    (last, _), said = jax.lax.scan(step, start, jax.random.split(key, steps))
    return (*said, last)


@functools.partial(jax.jit, static_argnums=3)
def _episodes(weights: jax.Array, problem: Problem, keys: jax.Array, steps: int) -> tuple:
    # Weights are data here, so that every choice of them is the same program.
    environment = SchedulingEnvironment(Rewards(*weights))
    along = (1,) * 10 + (0,)
    return jax.vmap(lambda key: draw(environment, problem, key, steps), out_axes=along)(keys)


def episodes(
    problem: Problem,
    count: int = 8,
    *,
    seed: int = 0,
    steps: int = STEPS,
    rewards: Rewards | None = None,
) -> Episodes:
    """Plays `count` random episodes of at most `steps` steps."""
    keys = jax.random.split(jax.random.key(seed), count)
    weights = jnp.array(dataclasses.astuple(rewards or Rewards()), jnp.float32)
    *said, last = _episodes(weights, problem, keys, steps)
    return Episodes(*(np.asarray(column) for column in said), last=last)


def compilations() -> int:
    """How many times the episodes' program was compiled in this process."""
    return _episodes._cache_size()


def without_limit(problem: Problem) -> Problem:
    """The same problem, whose episodes are cut off a thousand rounds later."""
    return dataclasses.replace(problem, limit=problem.limit + 1000)


def padded(instance: Instance, size: Size = SMALL) -> Problem:
    """The instance's problem at the common size."""
    return Problem.of(instance, size)


def length(played: Episodes, episode: int) -> int:
    """Steps of one episode; all of them where it did not end."""
    ended = np.flatnonzero(played.ended[:, episode])
    return int(ended[0]) + 1 if len(ended) else len(played.ended)
