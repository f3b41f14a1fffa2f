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


class Stuck(Corridor):
    """Agent 1 has no action in its third step, nor at the end, when it needs none."""

    def get_avail_actions(self, state):
        has = (state["time"] != 2) & (state["time"] < self.max_steps)
        return {"0": jnp.ones(2, bool), "1": jnp.full(2, has)}


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
        if not self.masked:
            return box
        mask = SimpleNamespace(shape=(int(self.action_space(agent).n),))
        return SimpleNamespace(spaces={"observation": box, "action_mask": mask})

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


class Lasting(Rooms):
    """An environment that keeps the names of those who are done, as many do.

    Agent a is done after two steps, b after five; both are paid 1 per step for ever.
    """

    def step(self, actions):
        assert set(actions) == {"a", "b"}, "an action of whoever is listed"
        self.time += 1
        done = {"a": self.time >= 2, "b": self.time >= 5}
        return self._seen(), dict.fromkeys(done, 1.0), done, dict.fromkeys(done, False), {}


class Informed(Rooms):
    """An environment whose `infos` allow only action 1 before odd steps."""

    def __init__(self, late=False, none=False):
        super().__init__()
        self.late, self.none = late, none

    def reset(self, seed=None, options=None):
        seen, _ = super().reset(seed)
        return seen, {} if self.late else self._infos()

    def step(self, actions):
        odd = self.time % 2
        assert not odd or set(actions.values()) == {1}, "not available"
        return *super().step(actions)[:4], self._infos()

    def _infos(self):
        odd = self.time % 2
        masks = {"a": [not odd, True, not odd], "b": [not odd and not self.none, True]}
        masks["b"][1] = not (self.none and odd)
        return {agent: {"action_mask": np.array(masks[agent], np.int8)} for agent in self.agents}


class Steered(Rooms):
    """Continuous actions: bounded for agent a, unbounded and half-bounded for agent b."""

    def action_space(self, agent):
        low, high = ([-2.0, 0.0], [2.0, 1.0]) if agent == "a" else ([-np.inf, 0], [np.inf, np.inf])
        low, high = np.array(low, np.float32), np.array(high, np.float32)
        return SimpleNamespace(low=low, high=high, shape=(2,), dtype=np.float32)

    def step(self, actions):
        self.time += 1
        self.agents = list(self.possible_agents) if self.time < 5 else []
        rewards = {agent: float(taken.sum()) for agent, taken in actions.items()}
        over = dict.fromkeys(actions, self.time == 5)
        return self._seen(), rewards, over, dict.fromkeys(actions, False), {}


class Breaks(Rooms):
    def step(self, actions):
        if self.time == 2:
            return self.read_sensor()
        return super().step(actions)

    def read_sensor(self):
        raise ValueError("sensor lost")


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
