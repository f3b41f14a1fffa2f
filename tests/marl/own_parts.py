"""A game and networks as somebody else would write them: see `test_marl_own`."""

from types import SimpleNamespace

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

CELLS = 4
CORRIDOR = """
start: away
final: done
moves: {away: {end0: waiting}, waiting: {end1: done}}
agents: {"0": [end0], "1": [end0, end1]}
"""


class Corridor:
    """Agents step ahead or back, and get 1 at the end, which puts them back to the beginning."""

    meaning = "times at the end"

    def __init__(self, agents: int = 2, max_steps: int = 8) -> None:
        self.agents = [str(agent) for agent in range(agents)]
        self.max_steps = max_steps
        self.events = {f"end{agent}": [agent] for agent in self.agents}

    def action_space(self, agent):
        return SimpleNamespace(n=2)

    def reset(self, key):
        none = jnp.zeros(len(self.agents), jnp.int32)
        return self.seen(none), {"at": none, "earned": 1.0 * none, "time": jnp.int32(0)}

    def step_env(self, key, state, actions):
        moved = 2 * jnp.stack([actions[agent] for agent in self.agents]) - 1
        at = jnp.clip(state["at"] + moved, 0, CELLS - 1)
        end = at == CELLS - 1
        time = state["time"] + 1
        state = {"at": jnp.where(end, 0, at), "earned": state["earned"] + end, "time": time}
        over = time >= self.max_steps
        rewards = {agent: 1.0 * end[i] for i, agent in enumerate(self.agents)}
        return (
            *(self.seen(state["at"]), state, rewards, {"__all__": over}),
            {"events": end, "truncated": over},
        )

    def seen(self, at):
        rows = jax.nn.one_hot(at, CELLS).reshape(-1, 2, 2)
        return {agent: rows[i] for i, agent in enumerate(self.agents)}

    def utility(self, state):
        return state["earned"] / jnp.maximum(state["time"], 1)


class Counted(Corridor):
    """Says how often each agent was at the end, besides."""

    measures = ("first", "second")

    def step_env(self, key, state, actions):
        seen, state, rewards, dones, info = super().step_env(key, state, actions)
        first, second = info["events"]
        info |= {"measures": {"first": first, "second": 1.0 * second}}
        return seen, state, rewards, dones, info


class Well:
    """A `ResourceWorld`: whoever stays gets 1."""

    agents = 3

    def begin(self, key):
        return jnp.zeros(())

    def advance(self, key, state, action):
        return state, 1.0 * (action == 0)

    def observe(self, state):
        return jnp.ones((3, 2))


class Rooms:
    """PettingZoo's parallel interface: an agent leaves with action 2, or after five steps."""

    possible_agents = ("a", "b")
    made = 0

    def __init__(self, masked: bool = False) -> None:
        self.masked = masked
        type(self).made += 1

    def action_space(self, agent):
        return SimpleNamespace(n=np.int64(3 if agent == "a" else 2), start=0)

    def observation_space(self, agent):
        box = SimpleNamespace(low=np.zeros(2), high=np.ones(2), shape=(2,))
        mask = SimpleNamespace(shape=(int(self.action_space(agent).n),))
        return (
            SimpleNamespace(spaces={"observation": box, "action_mask": mask})
            if self.masked
            else box
        )

    def reset(self, seed=None, options=None):
        self.agents, self.time = list(self.possible_agents), 0
        self.random = np.random.default_rng(seed)
        return self._seen(), {}

    def step(self, actions):
        assert set(actions) == set(self.agents), "who has left does not act"
        self.time += 1
        rewards = {agent: float(action) for agent, action in actions.items()}
        left = {agent: action == 2 for agent, action in actions.items()}
        late = dict.fromkeys(actions, self.time == 5)
        self.agents = [agent for agent in self.agents if not left[agent] and not late[agent]]
        return self._seen(), rewards, left, late, {}

    def _seen(self):
        rows = {agent: self.random.random(2) for agent in self.agents}
        if not self.masked:
            return rows
        masks = {agent: np.arange(int(self.action_space(agent).n)) < 2 for agent in self.agents}
        return {a: {"observation": rows[a], "action_mask": masks[a]} for a in self.agents}


class Dense(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, seen, agent):
        return nn.Dense(self.outputs)(jnp.concatenate([seen.reshape(-1), agent]))


class Affine(nnx.Module):
    def __init__(self, inputs, outputs, rngs):
        self.map = nnx.Linear(inputs, outputs, rngs=rngs)

    def __call__(self, seen):
        return self.map(seen.reshape(-1))


class Recurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, shape, outputs, key):
        self.cell = eqx.nn.GRUCell(4, 3, key=key)
        self.head = eqx.nn.Linear(3, outputs, key=key)

    def start(self):
        return jnp.zeros(3)

    def __call__(self, memory, seen):
        memory = self.cell(seen.reshape(-1), memory)
        return memory, self.head(memory)


def equinox(shape, outputs, key, extra=0):
    layers = [eqx.nn.Lambda(jnp.ravel), eqx.nn.Linear(4, outputs + extra, key=key)]
    return eqx.nn.Sequential(layers)


def linen(shape, outputs, key):
    return Dense(outputs)


def of_nnx(shape, outputs, key):
    return Affine(4, outputs, nnx.Rngs(key))
