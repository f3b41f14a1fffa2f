"""Q-learning in tables, each agent alone with its machine, or all together as one.

Every step updates the value of the action taken in every state of the machine (counterfactual
experience). With causal knowledge an episode ends as soon as the task cannot be done any more.
Tests play the whole team: an event that several hear moves them where all have a move for it.

Source: Neary et al. 2021 (2007.01962), algorithm 1; Corazza et al. 2025 (2506.07829); Toro Icarte
et al. 2022 (counterfactual experience).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from numpy.typing import NDArray

from gradweave.checks import check_above_zero, check_at_least_one, check_share
from gradweave.errors import OptionError
from gradweave.marl.tabular.tables import Moves, Tables, tables
from gradweave.marl.worlds.grid import ACTIONS, STAY
from gradweave.marl.worlds.world import SLIP, World

MOST_BYTES = 4 << 30
"""Of all trials' tables together; more are refused."""


@dataclasses.dataclass(frozen=True)
class Learning:
    """How tables are learned.

    Raises:
        OptionError: a field is out of its range.
    """

    rate: float = 0.8
    """α: how far a value moves to what was seen."""
    discount: float = 0.9
    sharpness: float = 50.0
    """Actions that are not random are drawn with probabilities e^(sharpness · value)."""
    explore: tuple[float, float] = (1.0, 0.1)
    """Share of random actions at the start, and that to which it falls exponentially; at the end of
    the training a tenth of the way is left."""
    episode: int = 1000
    """Most steps of an episode, and of a test."""
    counterfactual: bool = True
    """Whether every state of the machine learns from a step, or the present one alone."""
    average_every: int = 0
    """Steps after which teams average their tables, where a network is given; 0 for never."""

    def __post_init__(self) -> None:
        check_above_zero(self, "rate", "sharpness")
        check_share(self, "rate", "discount")
        check_at_least_one(self, "episode")


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """How quickly teams were at their task, test by test."""

    steps: NDArray[np.int64]
    """[T] training steps before each test."""
    taken: NDArray[np.int64]
    """[T, N] steps that each trial's team took in it; the most of an episode where it failed."""
    sent_bytes: int = 0
    """By all teams for averages, in all."""

    def medians(self, over: int = 10) -> NDArray[np.float64]:
        """[T] medians over trials, each averaged with those of the tests before, as published.

        Args:
            over: tests at most that an average is over.
        """
        middle = np.median(self.taken, 1)
        return np.array([middle[max(0, i + 1 - over) : i + 1].mean() for i in range(len(middle))])


def drawn(
    values: Float[Array, "*B N"], sharpness: float, number: Float[Array, "*B"]
) -> Int[Array, "*B"]:
    """An action by Boltzmann's probabilities, from a uniform number."""
    upto = jnp.cumsum(jax.nn.softmax(values * sharpness), -1)
    return jnp.minimum((upto < number[..., None]).sum(-1), values.shape[-1] - 1)


def astray(action: Int[Array, "*B"], number: Float[Array, "*B"]) -> Int[Array, "*B"]:
    """The action that is really taken, from a uniform number: now and then a quarter turn off."""
    turned = jnp.where(number < 1.0 - SLIP / 2, action + 1, action + 3) % 4
    return jnp.where((number < 1.0 - SLIP) | (action == STAY), action, turned)


def advanced(
    machine: Moves, events: tuple[int, ...], fired: list[Bool[Array, ""]]
) -> tuple[Int[Array, " U"], Float[Array, " U"]]:
    """Where each state of one machine is after a step's events, and what they were worth."""
    state = jnp.arange(machine.next.shape[0])
    worth = jnp.zeros(state.shape)
    for event, happened in zip(events, fired, strict=True):
        worth += jnp.where(happened, machine.reward[state, event], 0.0)
        state = jnp.where(happened, machine.next[state, event], state)
    return state, worth


class Learners(eqx.Module):
    """Where a trial's training is."""

    values: Float[Array, "M S U N"]
    """Of M learners: each agent, or the whole team as one."""
    cell: Int[Array, "M ..."]
    """Each agent's; the whole team's, of one learner."""
    state: Int[Array, " M"]
    """Of each learner's machine."""
    gone: Int[Array, ""]
    """Steps of this episode."""


def updated(
    settings: Learning,
    machine: Moves,
    values: Float[Array, "S U N"],
    here: tuple[Int[Array, ""], Int[Array, ""], Int[Array, ""]],
    there: Int[Array, ""],
    after: tuple[Int[Array, " U"], Float[Array, " U"]],
) -> Float[Array, "S U N"]:
    """One learner's values after a step.

    Args:
        settings: how to learn.
        machine: the learner's.
        values: before.
        here: place, state of the machine and action before the step.
        there: place after it.
        after: as `advanced` gave them.
    """
    place, now, action = here
    state, worth = after
    goal = worth + settings.discount * values[there].max(-1)[state]
    old = values[place, :, action]
    learns = ~machine.ended & ~machine.ended[now]
    if not settings.counterfactual:
        learns &= jnp.arange(len(old)) == now
    new = jnp.where(learns, old + settings.rate * (goal - old), old)
    return values.at[place, :, action].set(new)


def explored(settings: Learning, step: Int[Array, ""], steps: int) -> Float[Array, ""]:
    """Share of random actions after some of all steps."""
    first, last = settings.explore
    return last + (first - last) * jnp.exp(-jnp.log(10.0) * step / steps)


def restarted(
    settings: Learning, machines: Moves, starts: Int[Array, "M ..."], learners: Learners
) -> Learners:
    """New episodes: for all once all are at their end, else for those who failed."""
    ended = jnp.take_along_axis(machines.ended, learners.state[:, None], 1)[:, 0]
    failed = jnp.take_along_axis(machines.failed, learners.state[:, None], 1)[:, 0]
    gone = learners.gone + 1
    over = ended.all() | (gone >= settings.episode)
    again = over | failed
    mask = again.reshape(again.shape + (1,) * (starts.ndim - 1))
    return dataclasses.replace(
        learners,
        cell=jnp.where(mask, starts, learners.cell),
        state=jnp.where(again, machines.start, learners.state),
        gone=jnp.where(over, 0, gone),
    )


Noise = Float[Array, "..."]
Train = Callable[[Learners, Noise, Array], Learners]
"""(trial, uniform numbers, share of random actions) -> trial after a step."""


def apart(settings: Learning, world: Tables) -> tuple[Train, int]:
    """Each agent for itself: a step of a trial, and how many numbers each agent draws for it."""
    alone, rules = world.alone, len(world.alone.event)

    def one(
        machine: Moves, agent: Any, values: Array, cell: Array, state: Array, noise: Array, e: Array
    ) -> tuple[Array, Array, Array]:
        move, opened, at, before, chance = agent
        picked = drawn(values[cell, state], settings.sharpness, noise[2])
        at_random = (noise[1] * len(ACTIONS)).astype(jnp.int32)
        action = jnp.where(noise[0] < e, at_random, picked)
        there = move[opened[state], cell, astray(action, noise[3])]
        fired = [at[r, there] & before[r, cell] & (noise[4 + r] < chance[r]) for r in range(rules)]
        after = advanced(machine, alone.event, fired)
        idle = machine.ended[state]
        values = updated(settings, machine, values, (cell, state, action), there, after)
        return values, jnp.where(idle, cell, there), jnp.where(idle, state, after[0][state])

    def step(learners: Learners, noise: Noise, explore: Array) -> Learners:
        agent = world.move, world.local_open, alone.at, alone.before, alone.chance
        values, cell, state = jax.vmap(one, (0, 0, 0, 0, 0, 0, None))(
            world.agents, agent, learners.values, learners.cell, learners.state, noise, explore
        )
        after = Learners(values, cell, state, learners.gone)
        return restarted(settings, world.agents, world.starts, after)

    return step, 4 + rules


def happened(
    world: Tables, before: Int[Array, " A"], cells: Int[Array, " A"], coin: Array
) -> list[Bool[Array, ""]]:
    """[R] which of the rules' events a step of the whole team causes."""
    rules, agents = world.rules, jnp.arange(world.num_agents)
    fired = rules.at[:, agents, cells].all(1) & rules.before[:, agents, before].all(1)
    fired &= (rules.low <= coin) & (coin < rules.high)
    return [fired[rule] for rule in range(len(rules.event))]


def _team(world: Tables) -> Moves:
    return jax.tree.map(lambda x: x[0], world.team)


def joint(cells: Int[Array, "*B A"], base: int) -> Int[Array, "*B"]:
    """Several agents' cells or actions as one number."""
    number = jnp.zeros(cells.shape[:-1], jnp.int32)
    for agent in range(cells.shape[-1]):
        number = number * base + cells[..., agent]
    return number


def split(number: Int[Array, ""], base: int, agents: int) -> Int[Array, " A"]:
    """Several agents' actions from one number."""
    powers = np.array([base**place for place in reversed(range(agents))], np.int32)
    return number // powers % base


def together(settings: Learning, world: Tables) -> tuple[Train, int]:
    """The whole team as one learner: a step of a trial, and how many numbers it draws."""
    machine, agents, cells = _team(world), world.num_agents, world.cells

    def step(learners: Learners, noise: Noise, explore: Array) -> Learners:
        number, values = noise[0], learners.values[0]
        cell, state = learners.cell[0], learners.state[0]
        place = joint(cell, cells)
        picked = split(
            drawn(values[place, state], settings.sharpness, number[1]), len(ACTIONS), agents
        )
        at_random = (number[2 : 2 + agents] * len(ACTIONS)).astype(jnp.int32)
        actions = jnp.where(number[0] < explore, at_random, picked)
        taken = astray(actions, number[2 + agents : 2 + 2 * agents])
        there = world.move[jnp.arange(agents), world.team_open[:, state], cell, taken]
        fired = happened(world, cell, there, number[-1])
        after = advanced(machine, world.rules.event, fired)
        action = joint(actions, len(ACTIONS))
        values = updated(
            settings, machine, values, (place, state, action), joint(there, cells), after
        )
        now = Learners(values[None], there[None], after[0][state][None], learners.gone)
        return restarted(settings, world.team, world.starts[None], now)

    return step, 3 + 2 * agents


def tested(
    settings: Learning, world: Tables, central: bool, values: Array, key: PRNGKeyArray
) -> Int[Array, " N"]:
    """Steps that each trial's team takes to its end in a test; the most where it fails.

    Args:
        settings: how it learned.
        world: where.
        central: whether one learner plays for all.
        values: [N, M, S, U, n] of each trial's learners.
        key: of the draws.
    """
    trials, agents, team = values.shape[0], world.num_agents, _team(world)
    of_each = jnp.arange(agents)

    def acted(values: Array, cell: Array, state: Array, number: Array) -> Array:
        if central:
            one = values[0, joint(cell, world.cells), state[0]]
            return split(drawn(one, settings.sharpness, number[0]), len(ACTIONS), agents)
        return drawn(values[of_each, cell, state], settings.sharpness, number[:agents])

    def step(values: Array, carry: Any, number: Array) -> Any:
        cell, state, progress = carry
        action = astray(acted(values, cell, state, number), number[agents : 2 * agents])
        there = world.move[of_each, world.team_open[:, progress], cell, action]
        for event, now in zip(
            world.rules.event, happened(world, cell, there, number[-1]), strict=True
        ):
            progress = jnp.where(now, team.next[progress, event], progress)
            if not central:
                moved = now & moving(world.agents, state, event)
                state = jnp.where(moved, world.agents.next[of_each, state, event], state)
        return there, progress[None] if central else state, progress

    def over(carry: Any) -> tuple[Array, Array]:
        states = carry[1]
        machines = world.team if central else world.agents
        index = jnp.arange(states.shape[0])
        return machines.ended[index, states].all(), machines.failed[index, states].any()

    def going(loop: Any) -> Array:
        gone, open_, *_ = loop
        return (gone < settings.episode) & open_.any()

    def body(loop: Any) -> Any:
        gone, open_, taken, carry = loop
        numbers = jax.random.uniform(
            jax.random.fold_in(key, gone), (trials, 2 * agents + 1), jnp.float32
        )
        carry = jax.vmap(step)(values, carry, numbers)
        done, failed = jax.vmap(over)(carry)
        taken = jnp.where(open_ & done & ~failed, gone + 1, taken)
        return gone + 1, open_ & ~done & ~failed, taken, carry

    starts = jnp.broadcast_to(world.starts, (trials, agents))
    machines = world.team if central else world.agents
    states = jnp.broadcast_to(machines.start, (trials, *machines.start.shape))
    carry = starts, states, jnp.broadcast_to(team.start, (trials,))
    taken = jnp.full(trials, settings.episode)
    loop = jnp.zeros((), jnp.int32), jnp.ones(trials, bool), taken, carry
    return jax.lax.while_loop(going, body, loop)[2]


def moving(machines: Moves, state: Int[Array, " A"], event: int) -> Bool[Array, " A"]:
    """Whom an event moves: those who hear it, where all of these have a move for it."""
    index = jnp.arange(state.shape[0])
    hears = machines.hears[:, event]
    ready = machines.may[index, state, event] & ~machines.ended[index, state]
    return hears & (ready | ~hears).all()


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
    """Learns tables in many trials at once, and tests them after each episode's worth of steps.

    Args:
        world: where, with its task.
        steps: of training.
        trials: N, side by side.
        seed: of all draws.
        causal: whether agents use the causal knowledge of the task.
        central: whether one learner sees and moves all agents.
        settings: how to learn.
        weights: [W, W] by which W teams average the tables of agents of the same role; trials are
            groups of W teams, one after the other.
        progress: called with the steps done and each test's result.

    Returns:
        The curve, and the tables.

    Raises:
        OptionError: the tables need more than `MOST_BYTES`, or trials are no multiple of the teams.
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
    """[M, S, U, n] of a trial's tables."""
    agents, machines = arrays.num_agents, arrays.team if central else arrays.agents
    together = agents if central else 1
    learners, states = machines.ended.shape
    shape = (learners, arrays.cells**together, states, len(ACTIONS) ** together)
    size = 4 * trials * np.prod([float(number) for number in shape])
    if size > MOST_BYTES:
        raise OptionError(
            f"{name}: {trials} trials' tables need {size / 2**30:.3g} GiB, "
            f"{size / trials / 2**30:.3g} each; at most {MOST_BYTES >> 30} are allowed"
            + ("; learn apart instead" if central else "; take fewer trials")
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
    """One episode's worth of steps for all trials, then a test; compiled once."""
    step, numbers = (together if central else apart)(settings, arrays)
    learners = 1 if central else arrays.num_agents

    @functools.partial(jax.jit, donate_argnums=0)
    def block(trials: Learners, key: PRNGKeyArray, number: Array) -> tuple[Learners, Array]:
        training, testing = jax.random.split(key)
        many = trials.gone.shape[0]
        noise = jax.random.uniform(training, (settings.episode, many, learners, numbers))
        done = number * settings.episode + jnp.arange(settings.episode)

        def one(trials: Learners, now: tuple[Array, Array]) -> tuple[Learners, None]:
            noise, gone = now
            explore = explored(settings, gone, steps)
            trials = jax.vmap(step, (0, 0, None))(trials, noise, explore)
            if weights is None or not settings.average_every:
                return trials, None
            due = (gone + 1) % settings.average_every == 0
            values = jax.lax.cond(due, _averaged(weights), lambda x: x, trials.values)
            return dataclasses.replace(trials, values=values), None

        trials, _ = jax.lax.scan(one, trials, (noise, done))
        return trials, tested(settings, arrays, central, trials.values, testing)

    return block


def _averaged(weights: NDArray[np.float64]) -> Callable[[Array], Array]:
    """[N, ...] tables averaged among the W teams of each group, role by role."""
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
    """Bytes that all teams send to neighbours in all: their tables, once for each of these."""
    if weights is None or not settings.average_every:
        return 0
    neighbours = int((np.asarray(weights) != 0).sum()) - len(weights)
    times = steps // settings.episode * settings.episode // settings.average_every
    return times * neighbours * (trials // len(weights)) * team_bytes
