"""The learners' networks; they contain only arrays, so a whole learner can pass through `lax.scan`.

A set of parameters serves all agents that share it; the agent's number is part of the input, as a
one-hot vector next to the observation. A one-hot vector times a matrix is a row of the matrix, so
the code adds that row instead of concatenating and multiplying.
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
"""[*B, A, H] each agent's memory of the episode in a recurrent network, or None for other networks.
User networks may have any arrays [*B, A, …]."""


def _orthogonal(key: PRNGKeyArray, inputs: int, outputs: int, scale: float) -> Float[Array, "I O"]:
    """A random matrix with orthogonal rows or columns; under `jax.vmap` drawn one after the other.

    LAPACK's batched decomposition waits for threads of the pool that it runs on; with few cores and
    other work running it can hang (jaxlib 0.10.2).
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
        # Flattened to a matrix: with several axes, XLA first copies both factors of the weight's
        # gradient.
        rows = x.reshape(-1, x.shape[-1])
        if self.weight.shape[0] > self.weight.shape[1]:
            # The weight's gradient is a product with few columns, which takes a processor four
            # times as long as the transposed product with few rows. Without the barrier, XLA would
            # undo the transposition.
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
        """The next memory, which is also the output.

        Args:
            memory: memory from the preceding step.
            given: `of_input` applied to the step's input, which can be computed for many steps at
                once.
        """
        reset, update, new = jnp.split(given, 3, axis=-1)
        old_reset, old_update, old_new = jnp.split(self.of_memory(memory), 3, axis=-1)
        update = jax.nn.sigmoid(update + old_update)
        new = jnp.tanh(new + jax.nn.sigmoid(reset + old_reset) * old_new)
        return (1.0 - update) * new + update * memory


class Network(eqx.Module):
    """Hidden layers, an optional memory, and an output layer, for each agent.

    Serves as an actor, a critic or an action-value network. The input has an axis of agents, or is
    a single input that all agents see; the output has the axis.
    """

    layers: tuple[Dense, ...]
    agent: Float[Array, "A H"]
    """Rows of the first layer for the agents' numbers."""
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
        """Initialises the parameters.

        Args:
            inputs: length of the input, without the agent's number.
            outputs: length of the output.
            agents: A, the number of agents.
            key: random key of the parameters.
            hidden: widths of the hidden layers, at least one.
            recurrent: whether a memory as wide as the last hidden layer follows.
            activation: activation of the hidden layers.
            scale: scale of the output layer's weights.
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
            memory: [*B, A, H] memory from the preceding step.
            x: [*B, A, I], or [*B, 1, I] if all agents see the same.
            start: whether an episode begins, so that the memory is reset.
        """
        features = self._features(x)
        if self.cell is not None and memory is not None:
            memory = jnp.where(start[..., None, None], 0.0, memory)
            features = memory = self.cell(memory, self.cell.of_input(features))
        return memory, self.head(features)

    def along(
        self, memory: Memory, x: Float[Array, "..."], start: Bool[Array, "T *B"]
    ) -> Float[Array, "T *B A N"]:
        """Consecutive steps, each as in `__call__`.

        Args:
            memory: [*B, A, H] memory before the first step.
            x: [T, *B, A, I], or [T, *B, 1, I].
            start: whether episodes begin at each step.
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
    """Several networks of one shape, each for some of the agents; used like a single `Network`."""

    each: Network
    """[N, …] networks, one per set of parameters."""
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
        """Applies each agent's network to its input, all at once."""
        agents = np.arange(len(self.sets))
        own = jax.tree.map(lambda leaf: leaf[np.array(self.sets)], self.each)
        # Keep only the agent's row among those for the agents' numbers.
        own = eqx.tree_at(lambda network: network.agent, own, own.agent[agents, agents][:, None])
        if x.shape[-2] == 1:  # all agents see the same input
            return jax.vmap(one, (0, -2, None), -2)(own, memory, x[..., 0, :])
        return jax.vmap(one, (0, -2, -2), -2)(own, memory, x)


AnyNetwork = Network | Networks


def draw(sets: Sets, key: PRNGKeyArray, one: Callable[[PRNGKeyArray], Network]) -> AnyNetwork:
    """Draws one network per set of parameters.

    Args:
        sets: set of parameters of each agent.
        key: random key.
        one: draws one network; receives `key` itself if there is only one set.
    """
    if number(sets) == 1:
        return one(key)
    return Networks(jax.vmap(one)(jax.random.split(key, number(sets))), sets)


def _with_agent(memory: Memory) -> Memory:
    return None if memory is None else memory[..., None, :]
