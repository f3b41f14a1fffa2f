"""Checks, without playing a game, that its functions return what JaxMARL's interface requires."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gradweave.common import plugins
from gradweave.errors import OptionError


def check_game(game: Any, label: str) -> None:
    """Refuses a game that learners could not play.

    Args:
        game: a game with the parts of JaxMARL's interface.
        label: name of the game for messages.

    Raises:
        OptionError: one line that names the function, the expected result and the actual result.
    """
    agents = list(game.agents)
    if not agents:
        raise OptionError(f"{label}: agents: expected at least one")
    actions = {agent: _action(game, agent, label) for agent in agents}
    key = jax.eval_shape(jax.random.key, 0)
    seen, state = _parts(label, "reset(key)", 2, "observations, state", game.reset, key)
    _check_agents(seen, agents, label, "reset(key): observations")
    after, later, rewards, dones, info = _parts(
        label,
        "step_env(key, state, actions)",
        5,
        "observations, state, rewards, dones, info",
        game.step_env,
        *(key, state, actions),
    )
    where = "step_env(key, state, actions)"
    _check_agents(after, agents, label, f"{where}: observations")
    _check_alike(seen, after, label, f"{where}: observations")
    _check_alike(state, later, label, f"{where}: state")
    _check_agents(rewards, agents, label, f"{where}: rewards")
    for agent in agents:
        _check_shape(rewards[agent], (), label, f"{where}: reward of {agent!r}")
    if not isinstance(dones, Mapping) or "__all__" not in dones:
        raise OptionError(f'{label}: {where}: dones: expected an entry "__all__"')
    _check_shape(dones["__all__"], (), label, f'{where}: dones["__all__"]')
    if getattr(game, "events", ()):
        if not isinstance(info, Mapping) or "events" not in info:
            raise OptionError(f'{label}: {where}: info: expected an entry "events"')
        _check_shape(info["events"], (len(game.events),), label, f'{where}: info["events"]')
    for name in getattr(game, "measures", ()):
        told = info.get("measures", {}) if isinstance(info, Mapping) else {}
        if name not in told:
            raise OptionError(f'{label}: {where}: info: expected {name!r} in an entry "measures"')
        _check_shape(told[name], (), label, f'{where}: info["measures"][{name!r}]')
    if hasattr(game, "utility"):
        utility = plugins.called(
            label, "utility(state)", lambda: jax.eval_shape(game.utility, state)
        )
        _check_shape(utility, (len(agents),), label, "utility(state)")


def _action(game: Any, agent: Any, label: str) -> jax.ShapeDtypeStruct:
    """The shape of an agent's action."""
    where = f"action_space({agent!r})"
    space = plugins.called(label, where, lambda: game.action_space(agent))
    if hasattr(space, "n"):
        return jax.ShapeDtypeStruct((), jnp.int32)
    if all(hasattr(space, name) for name in ("low", "high", "shape")) and len(space.shape) == 1:
        return jax.ShapeDtypeStruct(space.shape, jnp.float32)
    raise OptionError(
        f"{label}: {where}: expected n, the number of actions, or low, high and a shape of one "
        f"axis; got {space!r:.60}"
    )


def _parts(
    label: str, where: str, number: int, what: str, function: Any, *arguments: Any
) -> tuple[Any, ...]:
    """The shapes of a function's results."""
    parts = plugins.called(label, where, lambda: jax.eval_shape(function, *arguments))
    if not isinstance(parts, tuple) or len(parts) != number:
        got = f"{len(parts)} parts" if isinstance(parts, tuple | list) else type(parts).__name__
        raise OptionError(f"{label}: {where}: expected ({what}), got {got}")
    return parts


def _check_agents(by_agent: Any, agents: Sequence[Any], label: str, where: str) -> None:
    if not isinstance(by_agent, Mapping):
        raise OptionError(
            f"{label}: {where}: expected a dictionary by agent, got {type(by_agent).__name__}"
        )
    for agent in agents:
        if agent not in by_agent:
            raise OptionError(f"{label}: {where}: no entry for agent {agent!r}")


def _check_shape(array: Any, shape: tuple[int, ...], label: str, where: str) -> None:
    if getattr(array, "shape", None) != shape:
        got = getattr(array, "shape", type(array).__name__)
        raise OptionError(f"{label}: {where}: expected shape {shape}, got {got}")


def _check_alike(one: Any, other: Any, label: str, where: str) -> None:
    """Refuses a step whose arrays differ in shape or structure from those before it."""
    before, after = (
        {
            jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        }
        for tree in (one, other)
    )
    for name in (*before, *after):
        if before.get(name) != after.get(name):
            then, now = (shapes.get(name, "none") for shapes in (before, after))
            raise OptionError(
                f"{label}: {where}: {name or 'array'} has shape {now}, after reset(key) {then}"
            )
    if jax.tree.structure(one) != jax.tree.structure(other):
        raise OptionError(f"{label}: {where}: another structure than after reset(key)")
