"""The promises of every environment, one function for each promise of a game.

Imports JAX.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradweave.conformance.finding import Findings, attempt, expect
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.environments import made
from gradweave.marl.games.family import Family

GAMES = 3
"""Number of games played in parallel."""
STEPS = 2_000
"""Steps within which an episode of random actions must end, since learners see only the returns of
finished episodes."""


def _actions(environment: Environment, key: jax.Array, available: jax.Array) -> jax.Array:
    if environment.continuous:
        return jax.random.uniform(key, environment.mask.shape, minval=-1.0, maxval=1.0)
    return jax.random.categorical(key, jnp.where(available, 0.0, -jnp.inf))


def has_sound_arrays(environment: Environment) -> None:
    """Observations, masks and rewards have the stated shapes, and are finite."""
    agents, key = environment.num_agents, jax.random.key(0)
    state, view = environment.reset(key)
    shape = (agents, environment.observation)
    expect(view.observation.shape == shape, f"observations {view.observation.shape}, not {shape}")
    expect(view.available.any(axis=1).all(), "an agent has no action at the beginning")
    action = _actions(environment, key, view.available)
    _, after, outcome = environment.step(key, state, action)
    expect(after.observation.shape == shape, "observations change their shape")
    expect(outcome.reward.shape == (agents,), f"rewards {outcome.reward.shape}, not ({agents},)")
    for name, numbers in (("observation", after.observation), ("reward", outcome.reward)):
        expect(jnp.isfinite(numbers).all(), f"{name}: not finite")
    expect(not bool(outcome.truncated & ~outcome.done), "a time limit ended what did not end")


def is_determined_by_its_key(environment: Environment) -> None:
    """The same key gives the same episode and the same step."""
    key = jax.random.key(1)

    def play() -> object:
        state, view = environment.reset(key)
        return environment.step(key, state, _actions(environment, key, view.available))

    _are_equal(play(), play(), "two plays with one key differ")


def plays_side_by_side(environment: Environment) -> None:
    """Games under `jax.vmap` behave as they do alone, without influence on each other."""
    keys = jax.random.split(jax.random.key(2), GAMES)
    states, views = jax.vmap(environment.reset)(keys)
    actions = jax.vmap(partial(_actions, environment))(keys, views.available)
    together = jax.vmap(environment.step)(keys, states, actions)
    for game in range(GAMES):
        state, view = environment.reset(keys[game])
        action = _actions(environment, keys[game], view.available)
        alone = environment.step(keys[game], state, action)
        apart = jax.tree.map(lambda x, game=game: x[game], together)
        _are_equal(alone, apart, "side by side, games differ from those alone")


def ends(environment: Environment) -> None:
    """Episodes of random actions end, and the compiled step starts new ones automatically."""

    def step(carry, key):
        state, view = carry
        state, view, outcome = environment.step(
            key, state, _actions(environment, key, view.available)
        )
        finite = jnp.isfinite(outcome.reward).all() & jnp.isfinite(view.observation).all()
        lacks = ~view.available.any(axis=-1).all()
        return (state, view), (outcome.done, view.start, finite, lacks)

    begun = environment.reset(jax.random.key(3))
    keys = jax.random.split(jax.random.key(4), STEPS)
    _, (done, start, finite, lacks) = jax.jit(lambda: jax.lax.scan(step, begun, keys))()
    expect(finite.all(), "rewards or observations are not finite later on")
    expect(not lacks.any(), "an agent has no action later on")
    expect(done.any(), f"no episode of random actions ended within {STEPS:,} steps")
    expect(np.array_equal(done, start), "no new episode begins where one has ended")


def says_what_it_measures(environment: Environment) -> None:
    """It explains its return, and has a team for each agent."""
    expect(environment.meaning.strip(), "meaning: expected what the return measures")
    expect(len(environment.teams) == environment.num_agents, "teams: expected one for each agent")


_PROMISES: dict[str, Callable[[Environment], None]] = {
    "arrays": has_sound_arrays,
    "same key, same step": is_determined_by_its_key,
    "side by side": plays_side_by_side,
    "episodes end": ends,
    "meaning": says_what_it_measures,
}


def check_environment(family: Family, options: Mapping[str, Any] | None = None) -> Findings:
    """Checks every promise for each game of a family.

    Args:
        family: the family of games.
        options: options of each game; missing options have their defaults.
    """
    for id in family.ids:
        game: list[Environment] = []
        yield attempt("made", id, partial(_make, family, id, options or {}, game))
        for environment in game:
            for check, promise in _PROMISES.items():
                yield attempt(check, id, partial(promise, environment))


def _make(family: Family, id: str, options: Mapping[str, Any], game: list[Environment]) -> None:
    game.append(made(id, family, id, options))


def _are_equal(one: object, other: object, fault: str) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        # XLA may fuse batched games differently, which changes rounding.
        expect(np.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True), fault)
