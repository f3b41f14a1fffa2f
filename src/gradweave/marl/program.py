"""Learners over devices and seeds: one compiled program that runs any number of updates.

Every device holds the complete state of a learner, including a copy of the parameters. The copies
are equal under an exact aggregation, and may differ under gossip. Arrays have leading axes [D, S]:
devices and seeds.
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

from gradweave.aggregate.finite import is_finite
from gradweave.execute.axis import AXIS
from gradweave.marl.games.own import check_actions
from gradweave.marl.games.parallel import game_errors
from gradweave.marl.learners.learner import Metrics, not_finite

AT_ONCE = 64
"""Maximum number of updates per call; the arrays of metrics have this length."""


def seed_keys(seed: Int[Array, ""] | np.int32, seeds: int, groups: int = 1) -> PRNGKeyArray:
    """[S] keys of the learners, the same in each of the groups."""
    key = jax.random.key(seed)
    # A training's seeds must give the same numbers whether it runs alone or within a sweep.
    numbers = jnp.arange(seeds) % (seeds // groups)
    return jax.vmap(functools.partial(jax.random.fold_in, key))(numbers)


def each_seed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Applies a function of one learner to each of several.

    Args:
        function: a function of one learner.
        arguments: its arguments, all with a leading axis [S] over seeds.
    """
    if jax.tree.leaves(arguments)[0].shape[0] > 1:
        return jax.vmap(function)(*arguments)
    first = jax.tree.map(lambda x: x[0], arguments)
    return jax.tree.map(lambda x: x[None], function(*first))


class Program:
    """The updates of a learner, compiled once."""

    def __init__(
        self, learner: Any, devices: Sequence[Any], seed: int, seeds: int, groups: int = 1
    ) -> None:
        """Places the work on the devices.

        Args:
            learner: a `Learner` of one seed on one device, or a `SweptLearner` of all groups.
            devices: at least one device; those of all processes, if there are several.
            seed: seed of every random choice.
            seeds: number of learners in parallel, over all groups.
            groups: number of groups of learners; all groups use the same seeds.
        """
        self.learner = learner
        self.mesh = Mesh(np.array(devices), (AXIS,))
        self.seed, self.seeds, self.groups = seed, seeds, groups
        self.sharding = NamedSharding(self.mesh, P(AXIS))
        """Placement of the states on the devices."""
        mapped = functools.partial(jax.shard_map, mesh=self.mesh, check_vma=False)
        # This program runs once and briefly, so optimizing it would take longer than it saves.
        quick = {"xla_backend_optimization_level": 0} if devices[0].platform == "cpu" else None
        self._initial = self._keyed(mapped(self._init, in_specs=P(), out_specs=P(AXIS)))
        self._start = jax.jit(self._initial, compiler_options=quick)
        self._run = jax.jit(
            mapped(self._updates, in_specs=(P(AXIS), P()), out_specs=(P(AXIS), P()))
        )

        self._replicated = NamedSharding(self.mesh, P())
        self._health = jax.jit(jax.vmap(self._healthy), out_shardings=self._replicated)

    def start(self) -> Any:
        """The states before the first update: [D, S, ...]."""
        return self._start(np.int32(self.seed))

    def shapes(self) -> Any:
        """The shapes of the states, without computing the states."""
        return jax.eval_shape(self._initial, np.int32(self.seed))

    def run(self, state: Any, updates: int) -> tuple[Any, Metrics]:
        """Runs updates.

        Args:
            state: the states, [D, S, ...].
            updates: number of updates, 1 to `AT_ONCE`.

        Returns:
            The states afterwards, and the metrics of each update and seed over all devices:
            [updates, S, ...].

        Raises:
            OptionError: a game's code raised an error, or left agents without any action.
        """
        with game_errors():
            state, metrics = self._run(state, np.int32(updates))
            metrics = jax.tree.map(lambda x: np.asarray(x)[:updates], metrics)
        check_actions(metrics.measures)
        return state, metrics

    def left_out(self, state: Any) -> tuple[int, ...]:
        """Number of gradients skipped so far as not finite, per device, over all its seeds."""
        return tuple(np.asarray(self._health(state)[0]).tolist())

    def is_finite(self, state: Any) -> bool:
        """Whether the parameters of all devices and seeds are finite."""
        return bool(np.asarray(self._health(state)[1]).all())

    def _healthy(self, state: Any) -> tuple[Array, Array]:
        """The number of gradients that a device skipped, and whether its parameters are finite."""
        return not_finite(state), is_finite(jax.vmap(self.learner.parameters)(state))

    def parameters(self, state: Any) -> Any:
        """Parameters of each seed, [S, ...]: the mean over devices, whose copies may differ."""

        def one(x: Array) -> Array:
            same = (x == x[:1]).all()
            return jnp.where(same, x[0], x.mean(0).astype(x.dtype))

        def all_devices(state: Any) -> Any:
            return jax.tree.map(one, jax.vmap(jax.vmap(self.learner.parameters))(state))

        return jax.jit(all_devices, out_shardings=self._replicated)(state)

    def _keyed(
        self, start: Callable[[PRNGKeyArray], Any]
    ) -> Callable[[Int[Array, ""] | np.int32], Any]:
        """Makes the seeds' keys within the program, so that every process has them."""
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

        @functools.partial(jax.jit, inline=True)  # traced once, for both the shapes and the loop
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
