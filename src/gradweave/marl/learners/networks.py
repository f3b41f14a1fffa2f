"""The learners' networks: arrays alone, so that a whole learner is carried through `lax.scan`.

One set of parameters serves all agents that share it; who an agent is, is part of what it sees: its
number as a one-hot vector beside its observation. A one-hot vector times a matrix is one of its
rows, so the row is added, and nothing is joined or multiplied.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from gradweave.marl.config import Activation
from gradweave.marl.learners.sets import Sets, number

ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu}
Memory = Any
"""[*B, A, H] what a recurrent network remembers of the episode, for each agent; None of one that
does not. Of networks of others any arrays [*B, A, …]."""


def _orthogonal(key: PRNGKeyArray, inputs: int, outputs: int, scale: float) -> Float[Array, "I O"]:
    """A random matrix with orthogonal rows or columns; under `jax.vmap` drawn one after the other.

    LAPACK's decomposition of several matrices waits for threads of the pool that it runs on, and on
    few cores forever where anything else runs beside it (jaxlib 0.10.2).
    """
    shape = inputs, outputs
    draw = jax.nn.initializers.orthogonal(scale)
    return sequential_vmap(lambda key: draw(key, shape, jnp.float32))(key)


class Dense(eqx.Module):
    """An affine map of the last axis."""

    weight: Float[Array, "I O"]
    bias: Float[Array, " O"]

    def __init__(self, inputs: int, outputs: int, scale: float, key: PRNGKeyArray) -> None:
        self.weight = _orthogonal(key, inputs, outputs, scale)
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        """The map."""
        # As one matrix: over several axes XLA copies both factors of a weight's gradient first.
        rows = x.reshape(-1, x.shape[-1])
        if self.weight.shape[0] > self.weight.shape[1]:
            # The gradient of few columns is a product with few columns, which takes a processor
            # four times as long as one with few rows: that of the transposed matrix. XLA would
            # turn it back but for the barrier.
            turned = jax.lax.optimization_barrier(self.weight.T)
            out = jax.lax.dot_general(rows, turned, (((1,), (1,)), ((), ())))
        else:
            out = rows @ self.weight
        return (out + self.bias).reshape(*x.shape[:-1], out.shape[-1])


class Cell(eqx.Module):
    """A gated recurrent unit. Source: Cho et al. 2014, in cuDNN's form."""

    of_input: Dense
    of_memory: Dense

    def __init__(self, inputs: int, width: int, key: PRNGKeyArray) -> None:
        one, two = jax.random.split(key)
        self.of_input = Dense(inputs, 3 * width, 1.0, one)
        self.of_memory = Dense(width, 3 * width, 1.0, two)

    def __call__(
        self, memory: Float[Array, "*B H"], given: Float[Array, "*B G"]
    ) -> Float[Array, "*B H"]:
        """The next memory, which is the output too.

        Args:
            memory: from the step before.
            given: what `of_input` makes of the step's input; of many steps it is made at once.
        """
        reset, update, new = jnp.split(given, 3, axis=-1)
        old_reset, old_update, old_new = jnp.split(self.of_memory(memory), 3, axis=-1)
        update = jax.nn.sigmoid(update + old_update)
        new = jnp.tanh(new + jax.nn.sigmoid(reset + old_reset) * old_new)
        return (1.0 - update) * new + update * memory


class Network(eqx.Module):
    """Hidden layers, a memory after them if asked for, and an output, for each agent.

    Serves as actor, critic or value of actions. The input either has the axis of agents, or is one
    that all of them see; the output has it.
    """

    layers: tuple[Dense, ...]
    agent: Float[Array, "A H"]
    """The rows of the first layer that stand for who the agent is."""
    cell: Cell | None
    head: Dense
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        agents: int,
        key: PRNGKeyArray,
        *,
        hidden: Sequence[int] = (64, 64),
        recurrent: bool = False,
        activation: Activation = "tanh",
        scale: float = 1.0,
    ) -> None:
        """Draws the parameters.

        Args:
            inputs: length of the input, the agent's number aside.
            outputs: length of the output.
            agents: A.
            key: draws.
            hidden: widths of the hidden layers, at least one.
            recurrent: whether a memory as wide as the last hidden layer follows.
            activation: of the hidden layers.
            scale: of the output's weights.
        """
        keys = jax.random.split(key, len(hidden) + 2)
        gain = 2**0.5
        first = Dense(inputs + agents, hidden[0], gain, keys[0])
        widths = zip(hidden, hidden[1:], keys[1:], strict=False)
        rest = tuple(Dense(before, after, gain, each) for before, after, each in widths)
        own = eqx.tree_at(lambda layer: layer.weight, first, first.weight[:inputs])
        self.layers = (own, *rest)
        self.agent = first.weight[inputs:]
        self.cell = Cell(hidden[-1], hidden[-1], keys[-2]) if recurrent else None
        self.head = Dense(hidden[-1], outputs, scale, keys[-1])
        self.activation = activation

    def start(self, *batch: int) -> Memory:
        """The memory at the start of an episode: [*batch, A, H], or None."""
        if self.cell is None:
            return None
        return jnp.zeros((*batch, self.agent.shape[0], self.head.weight.shape[0]))

    def __call__(
        self, memory: Memory, x: Float[Array, "..."], start: Bool[Array, "*B"]
    ) -> tuple[Memory, Float[Array, "*B A N"]]:
        """One step.

        Args:
            memory: [*B, A, H] from the step before.
            x: [*B, A, I], or [*B, 1, I] what all agents see.
            start: where an episode begins, and the memory is empty.
        """
        features = self._features(x)
        if self.cell is not None and memory is not None:
            memory = jnp.where(start[..., None, None], 0.0, memory)
            features = memory = self.cell(memory, self.cell.of_input(features))
        return memory, self.head(features)

    def along(
        self, memory: Memory, x: Float[Array, "..."], start: Bool[Array, "T *B"]
    ) -> Float[Array, "T *B A N"]:
        """Steps one after the other, as `__call__` makes each.

        Args:
            memory: [*B, A, H] before the first.
            x: [T, *B, A, I], or [T, *B, 1, I].
            start: where episodes begin.
        """
        features = self._features(x)
        cell = self.cell
        if cell is None or memory is None:
            return self.head(features)

        def step(memory: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            given, start = now
            memory = cell(jnp.where(start[..., None, None], 0.0, memory), given)
            return memory, memory

        return self.head(jax.lax.scan(step, memory, (cell.of_input(features), start))[1])

    def _features(self, x: Float[Array, "..."]) -> Float[Array, "*B A H"]:
        activation = ACTIVATIONS[self.activation]
        first, *rest = self.layers
        x = activation(first(x) + self.agent)
        for layer in rest:
            x = activation(layer(x))
        return x


class Networks(eqx.Module):
    """Several networks of one shape, each of them some agents' own: seen from without, one."""

    each: Network
    """[N, …] of each set of parameters."""
    sets: Sets = eqx.field(static=True)

    def start(self, *batch: int) -> Memory:
        """See `Network.start`."""
        if self.each.cell is None:
            return None
        return jnp.zeros((*batch, len(self.sets), self.each.head.weight.shape[-2]))

    def __call__(
        self, memory: Memory, x: Float[Array, "..."], start: Bool[Array, "*B"]
    ) -> tuple[Memory, Float[Array, "*B A N"]]:
        """See `Network.__call__`."""

        def one(network: Network, memory: Memory, x: Array) -> tuple[Memory, Array]:
            memory, answer = network(_with_agent(memory), x[..., None, :], start)
            return None if memory is None else memory[..., 0, :], answer[..., 0, :]

        return self._by_agent(one, memory, x)

    def along(
        self, memory: Memory, x: Float[Array, "..."], start: Bool[Array, "T *B"]
    ) -> Float[Array, "T *B A N"]:
        """See `Network.along`."""

        def one(network: Network, memory: Memory, x: Array) -> Array:
            return network.along(_with_agent(memory), x[..., None, :], start)[..., 0, :]

        return self._by_agent(one, memory, x)

    def _by_agent(self, one: Callable[..., Any], memory: Memory, x: Float[Array, "..."]) -> Any:
        """What each agent's own network makes of it, all at once."""
        agents = np.arange(len(self.sets))
        own = jax.tree.map(lambda leaf: leaf[np.array(self.sets)], self.each)
        # Of the rows that say who an agent is, its own.
        own = eqx.tree_at(lambda network: network.agent, own, own.agent[agents, agents][:, None])
        if x.shape[-2] == 1:  # what all agents see
            return jax.vmap(one, (0, -2, None), -2)(own, memory, x[..., 0, :])
        return jax.vmap(one, (0, -2, -2), -2)(own, memory, x)


AnyNetwork = Network | Networks


def draw(sets: Sets, key: PRNGKeyArray, one: Callable[[PRNGKeyArray], Network]) -> AnyNetwork:
    """Draws as many networks as there are sets of parameters.

    Args:
        sets: of the agents.
        key: draws.
        one: draws one network; where there is one set, by this key itself.
    """
    if number(sets) == 1:
        return one(key)
    return Networks(jax.vmap(one)(jax.random.split(key, number(sets))), sets)


def _with_agent(memory: Memory) -> Memory:
    return None if memory is None else memory[..., None, :]
