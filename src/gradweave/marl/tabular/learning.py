"""Tabular learning in many parallel trials, with tests during training."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.marl.tabular.learners import Learners, Learning, apart, explored, together
from gradweave.marl.tabular.tables import Tables, tables
from gradweave.marl.tabular.testing import tested
from gradweave.marl.worlds.grid import ACTIONS
from gradweave.marl.worlds.world import World

MOST_BYTES = 4 << 30
"""Limit on the total size of all trials' tables; larger requests are refused."""


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """How quickly teams completed their task, test by test."""

    steps: NDArray[np.int64]
    """[T] number of training steps before each test."""
    taken: NDArray[np.int64]
    """[T, N] steps that each trial's team took in the test; the maximum of an episode if it failed.
    """
    sent_bytes: int = 0
    """Total bytes that all teams sent for averaging."""

    def medians(self, over: int = 10) -> NDArray[np.float64]:
        """[T] medians over trials, each averaged with those of earlier tests, as in the paper.

        Args:
            over: maximum number of tests in an average.
        """
        middle = np.median(self.taken, 1)
        return np.array([middle[max(0, i + 1 - over) : i + 1].mean() for i in range(len(middle))])


def learn(
    world: World,
    *,
    steps: int,
    trials: int = 50,
    seed: int = 0,
    causal: bool = False,
    central: bool = False,
    settings: Learning | None = None,
    weights: NDArray[np.float64] | None = None,
    progress: Callable[[int, NDArray[np.int64]], None] = lambda *_: None,
) -> tuple[Curve, Float[Array, "N M S U n"]]:
    """Learns tables in many parallel trials, with a test after every `Learning.episode` steps.

    Args:
        world: the world and its task.
        steps: number of training steps.
        trials: N, the number of trials.
        seed: seed of all random numbers.
        causal: whether agents use the causal knowledge of the task.
        central: whether a single learner observes and controls all agents.
        settings: settings of the learning.
        weights: [W, W] weights with which W teams average the tables of agents in the same role;
            trials form consecutive groups of W teams.
        progress: called with the number of steps and the result of each test.

    Returns:
        The curve, and the tables.

    Raises:
        OptionError: the tables need more than `MOST_BYTES`, or the number of trials is not a
            multiple of the number of teams.
    """
    settings = settings or Learning()
    arrays = tables(world, causal=causal)
    shape = _shape(arrays, central, trials, world.name)
    if weights is not None and trials % len(weights):
        raise OptionError(f"trials: expected a multiple of {len(weights)} teams, got {trials}")
    key = jax.random.key(seed)
    learners = _begin(arrays, central, trials, shape)
    block = _block(settings, arrays, central, steps, weights)
    taken, at = [], []
    for number in range(steps // settings.episode):
        learners, test = block(learners, jax.random.fold_in(key, number), number)
        at.append((number + 1) * settings.episode)
        taken.append(np.asarray(test))
        progress(at[-1], taken[-1])
    sent = _sent(settings, weights, steps, trials, 4 * int(np.prod(shape)))
    return Curve(np.array(at), np.stack(taken), sent), learners.values


def _shape(arrays: Tables, central: bool, trials: int, name: str) -> tuple[int, ...]:
    """The shape [M, S, U, n] of one trial's tables."""
    agents, machines = arrays.num_agents, arrays.team if central else arrays.agents
    together = agents if central else 1
    learners, states = machines.ended.shape
    shape = (learners, arrays.cells**together, states, len(ACTIONS) ** together)
    size = 4 * trials * np.prod([float(number) for number in shape])
    if size > MOST_BYTES:
        raise OptionError(
            f"{name}: {trials} trials' tables need {size / 2**30:.3g} GiB, "
            f"{size / trials / 2**30:.3g} each; at most {MOST_BYTES >> 30} are allowed"
            + ("; use a learner per agent instead" if central else "; use fewer trials")
        )
    return shape


def _begin(arrays: Tables, central: bool, trials: int, shape: tuple[int, ...]) -> Learners:
    machines = arrays.team if central else arrays.agents
    starts = arrays.starts[None] if central else arrays.starts
    return Learners(
        jnp.zeros((trials, *shape)),
        jnp.broadcast_to(starts, (trials, *starts.shape)),
        jnp.broadcast_to(machines.start, (trials, *machines.start.shape)),
        jnp.zeros(trials, jnp.int32),
    )


def _block(
    settings: Learning,
    arrays: Tables,
    central: bool,
    steps: int,
    weights: NDArray[np.float64] | None,
) -> Callable[[Learners, PRNGKeyArray, int], tuple[Learners, Array]]:
    """`Learning.episode` steps for all trials, followed by a test; compiled once."""
    step, numbers = (together if central else apart)(settings, arrays)
    learners = 1 if central else arrays.num_agents
    averages = weights is not None and settings.average_every

    def advance(trials: Learners, now: tuple[Array, Array]) -> tuple[Learners, None]:
        noise, gone = now
        trials = step(trials, noise, explored(settings, gone, steps))
        return trials, None

    def side_by_side(trials: Learners, now: tuple[Array, Array]) -> tuple[Learners, None]:
        trials, _ = jax.vmap(advance, (0, (0, None)))(trials, now)
        if weights is None or not averages:
            return trials, None
        due = (now[1] + 1) % settings.average_every == 0
        values = jax.lax.cond(due, _averaged(weights), lambda x: x, trials.values)
        return dataclasses.replace(trials, values=values), None

    @functools.partial(jax.jit, donate_argnums=0)
    def block(trials: Learners, key: PRNGKeyArray, number: Array) -> tuple[Learners, Array]:
        training, testing = jax.random.split(key)
        many = trials.gone.shape[0]
        noise = jax.random.uniform(training, (settings.episode, many, learners, numbers))
        done = number * settings.episode + jnp.arange(settings.episode)
        # one trial after the other, since XLA would copy all large tables in every step
        if central:
            each = trials, jnp.moveaxis(noise, 1, 0)
            trials = jax.lax.map(lambda x: jax.lax.scan(advance, x[0], (x[1], done))[0], each)
        else:
            trials, _ = jax.lax.scan(side_by_side, trials, (noise, done))
        return trials, tested(settings, arrays, central, trials.values, testing)

    return block


def _averaged(weights: NDArray[np.float64]) -> Callable[[Array], Array]:
    """Averages [N, ...] tables among the W teams of each group, separately for each role."""
    mixing = jnp.asarray(weights, jnp.float32)

    def average(values: Array) -> Array:
        groups = values.reshape(-1, len(weights), *values.shape[1:])
        return jnp.einsum("ij,gj...->gi...", mixing, groups).reshape(values.shape)

    return average


def _sent(
    settings: Learning,
    weights: NDArray[np.float64] | None,
    steps: int,
    trials: int,
    team_bytes: int,
) -> int:
    """Total bytes that all teams send: at each average, their tables to each neighbour."""
    if weights is None or not settings.average_every:
        return 0
    neighbours = int((np.asarray(weights) != 0).sum()) - len(weights)
    times = steps // settings.episode * settings.episode // settings.average_every
    return times * neighbours * (trials // len(weights)) * team_bytes
