"""Learners over devices and seeds: one compiled program that makes any number of updates.

Every device holds the whole state of a learner, with parameters of its own: they are equal under an
exact aggregation, and may differ under gossip. Arrays have axes [D, S] in front: devices and seeds.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, PRNGKeyArray

from gradweave.execute.axis import AXIS
from gradweave.marl.learners.learner import Metrics, not_finite

AT_ONCE = 64
"""Updates that one call makes at most: as many metrics have room."""


def seed_keys(seed: Int[Array, ""] | np.int32, seeds: int, groups: int = 1) -> PRNGKeyArray:
    """[S] keys of the learners side by side, the same in every group of them."""
    key = jax.random.key(seed)
    # A learner of one training alone is the first one of a training of several.
    numbers = jnp.arange(seeds) % (seeds // groups)
    return jax.vmap(functools.partial(jax.random.fold_in, key))(numbers)


def each_seed(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of one learner makes of each of several.

    Args:
        function: of one.
        arguments: with an axis [S] in front, of seeds; all of them.
    """
    if jax.tree.leaves(arguments)[0].shape[0] > 1:
        return jax.vmap(function)(*arguments)
    first = jax.tree.map(lambda x: x[0], arguments)
    return jax.tree.map(lambda x: x[None], function(*first))


class Program:
    """A learner's updates, compiled once."""

    def __init__(
        self, learner: Any, devices: Sequence[Any], seed: int, seeds: int, groups: int = 1
    ) -> None:
        """Divides the work.

        Args:
            learner: a `Learner` of one seed on one device, or a `SweptLearner` of all groups.
            devices: at least one; of all processes, where there are several.
            seed: of every random choice.
            seeds: learners side by side, of all groups together.
            groups: of learners with the same seeds.
        """
        self.learner = learner
        self.mesh = Mesh(np.array(devices), (AXIS,))
        self.seed, self.seeds, self.groups = seed, seeds, groups
        self.sharding = NamedSharding(self.mesh, P(AXIS))
        """How states lie on the devices."""
        mapped = functools.partial(jax.shard_map, mesh=self.mesh, check_vma=False)
        # Runs once, for a moment: optimizing it would take longer than it saves.
        quick = {"xla_backend_optimization_level": 0} if devices[0].platform == "cpu" else None
        self._initial = self._keyed(mapped(self._init, in_specs=P(), out_specs=P(AXIS)))
        self._start = jax.jit(self._initial, compiler_options=quick)
        self._run = jax.jit(
            mapped(self._updates, in_specs=(P(AXIS), P()), out_specs=(P(AXIS), P()))
        )

        self._replicated = NamedSharding(self.mesh, P())
        self._not_finite = jax.jit(jax.vmap(not_finite), out_shardings=self._replicated)

    def start(self) -> Any:
        """The states before the first update: [D, S, ...]."""
        return self._start(np.int32(self.seed))

    def shapes(self) -> Any:
        """The states' shapes, without the work."""
        return jax.eval_shape(self._initial, np.int32(self.seed))

    def run(self, state: Any, updates: int) -> tuple[Any, Metrics]:
        """Makes updates.

        Args:
            state: [D, S, ...].
            updates: 1 to `AT_ONCE`.

        Returns:
            The states after them, and metrics of each update and seed, over all devices:
            [updates, S, ...].
        """
        state, metrics = self._run(state, np.int32(updates))
        return state, jax.tree.map(lambda x: np.asarray(x)[:updates], metrics)

    def not_finite(self, state: Any) -> tuple[int, ...]:
        """Of each device: its gradients so far, of all seeds, that were left out as not finite."""
        return tuple(np.asarray(self._not_finite(state)).tolist())

    def parameters(self, state: Any) -> Any:
        """Of each seed [S, ...]: the mean of all devices', which may differ."""

        def one(x: Array) -> Array:
            same = (x == x[:1]).all()
            return jnp.where(same, x[0], x.mean(0).astype(x.dtype))

        def all_devices(state: Any) -> Any:
            return jax.tree.map(one, jax.vmap(jax.vmap(self.learner.parameters))(state))

        return jax.jit(all_devices, out_shardings=self._replicated)(state)

    def _keyed(
        self, start: Callable[[PRNGKeyArray], Any]
    ) -> Callable[[Int[Array, ""] | np.int32], Any]:
        """Makes the seeds' keys within the program, so that all processes have them."""
        return lambda seed: start(seed_keys(seed, self.seeds, self.groups))

    def _init(self, keys: PRNGKeyArray) -> Any:
        games = self.learner.games
        first = jax.lax.axis_index(AXIS) * games
        if hasattr(self.learner, "init_numbered"):
            numbers = jnp.arange(self.seeds)
            state = each_seed(
                lambda key, number: self.learner.init_numbered(key, first, number), keys, numbers
            )
        else:
            state = each_seed(lambda key: self.learner.init(key, first), keys)
        return jax.tree.map(lambda x: x[None], state)

    def _updates(self, state: Any, number: Int[Array, ""]) -> tuple[Any, Metrics]:
        state = jax.tree.map(lambda x: x[0], state)

        @functools.partial(jax.jit, inline=True)  # traced once, for the shapes and for the loop
        def once(state: Any) -> tuple[Any, Metrics]:
            return each_seed(self.learner.update, state)

        shapes = jax.eval_shape(once, state)[1]
        room = jax.tree.map(lambda x: jnp.zeros((AT_ONCE, *x.shape), x.dtype), shapes)

        def update(i: Array, carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
            state, made = carry
            state, metrics = once(state)
            return state, jax.tree.map(lambda all, x: all.at[i].set(x), made, metrics)

        state, made = jax.lax.fori_loop(0, number, update, (state, room))
        figures = jax.lax.pmean(made.figures, AXIS)
        counts = (made.episodes, made.returns, made.lengths, made.measures)
        episodes, returns, lengths, measures = jax.lax.psum(counts, AXIS)
        pooled = Metrics(episodes, returns, lengths, figures, measures)
        return jax.tree.map(lambda x: x[None], state), pooled
