"""Parts of a step that training, tests and games share: actions, events and machines.

Source: Neary et al. 2021 (2007.01962).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gradweave.marl.tabular.tables import Moves, Tables
from gradweave.marl.worlds.grid import STAY
from gradweave.marl.worlds.world import SLIP


def drawn(
    values: Float[Array, "*B N"], sharpness: float, number: Float[Array, "*B"]
) -> Int[Array, "*B"]:
    """An action drawn with Boltzmann probabilities, given a uniform number."""
    upto = jnp.cumsum(jax.nn.softmax(values * sharpness), -1)
    return jnp.minimum((upto < number[..., None]).sum(-1), values.shape[-1] - 1)


def slipped(action: Int[Array, "*B"], number: Float[Array, "*B"]) -> Int[Array, "*B"]:
    """The executed action: with probability `SLIP`, a quarter turn from the intended action."""
    turned = jnp.where(number < 1.0 - SLIP / 2, action + 1, action + 3) % 4
    return jnp.where((number < 1.0 - SLIP) | (action == STAY), action, turned)


def advanced(
    machine: Moves, events: tuple[int, ...], fired: list[Bool[Array, ""]]
) -> tuple[Int[Array, " U"], Float[Array, " U"]]:
    """The successor of each of a machine's states after a step's events, and their rewards."""
    state = jnp.arange(machine.next.shape[0])
    worth = jnp.zeros(state.shape)
    for event, happened in zip(events, fired, strict=True):
        worth += jnp.where(happened, machine.reward[state, event], 0.0)
        state = jnp.where(happened, machine.next[state, event], state)
    return state, worth


def happened(
    world: Tables, before: Int[Array, " A"], cells: Int[Array, " A"], coin: Array
) -> list[Bool[Array, ""]]:
    """[R] whether a step of the whole team triggers each rule's event."""
    rules, agents = world.rules, jnp.arange(world.num_agents)
    fired = rules.at[:, agents, cells].all(1) & rules.before[:, agents, before].all(1)
    fired &= (rules.low <= coin) & (coin < rules.high)
    return [fired[rule] for rule in range(len(rules.event))]


def moving(machines: Moves, state: Int[Array, " A"], event: int) -> Bool[Array, " A"]:
    """The agents that an event moves: all that observe it, provided that all have a move."""
    index = jnp.arange(state.shape[0])
    hears = machines.hears[:, event]
    ready = machines.may[index, state, event] & ~machines.ended[index, state]
    return hears & (ready | ~hears).all()


def joint(cells: Int[Array, "*B A"], base: int) -> Int[Array, "*B"]:
    """Combines several agents' cells or actions into one number."""
    number = jnp.zeros(cells.shape[:-1], jnp.int32)
    for agent in range(cells.shape[-1]):
        number = number * base + cells[..., agent]
    return number


def split(number: Int[Array, ""], base: int, agents: int) -> Int[Array, " A"]:
    """Splits one number into several agents' actions; the inverse of `joint`."""
    powers = np.array([base**place for place in reversed(range(agents))], np.int32)
    return number // powers % base
