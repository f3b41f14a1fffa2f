"""A learner as a worker of the parameter server: it pulls, plays, learns and pushes the difference.

A worker pushes the negated change of the parameters over a whole update, which servers apply as a
gradient at rate 1. Pushing gradients would not work well: an update of PPO takes many optimizer
steps, each of which clips the gradient over all parameters, while a server holds only a range of
them, and each step would cost a round trip. So the optimizer and its moments stay with the worker.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from gradweave.aggregate.asynchronous.layout import Layout, layout
from gradweave.aggregate.asynchronous.task import Pulled, Stepped
from gradweave.marl.config import Config
from gradweave.marl.games.environments import make
from gradweave.marl.learners.algorithms import algorithm
from gradweave.marl.learners.learner import Metrics, PartedLearner
from gradweave.marl.learners.own_network import named
from gradweave.marl.program import each_seed, seed_keys
from gradweave.processes.jax_start import start_jax

DIVIDED = ("environments", "batch_size", "replay_size")
"""Settings that are divided among the workers."""


SHARE = 0.5
"""Share of a step spent on playing, until `ready` measures it; the simulator keeps this value."""


class Told(NamedTuple):
    """Information about a step, for the log."""

    metrics: Metrics
    """Metrics of each seed, [S, ...]."""


@dataclasses.dataclass(frozen=True)
class Workers:
    """Makes the workers' computations; this object is sent to their processes."""

    config: Config
    correction: bool
    """Whether workers pull the parameters again between playing and learning."""
    together: bool
    """Whether a server update combines the gradients of all workers rather than of one."""

    def __call__(self, worker: int, clock: int) -> "LearnerSteps":
        """A worker's computation; numbering games by `clock` gives a replacement new games."""
        games = self.compiled.learner.games
        state = self.compiled.start(np.int32((clock * self.config.devices + worker) * games))
        return LearnerSteps(self, state)

    @functools.cached_property
    def compiled(self) -> "Compiled":
        """The compiled programs, shared by all workers in this process."""
        return Compiled(self.config, stale=self.correction)

    def updates_done(self, version: int) -> float:
        """Converts a number of server updates into updates of the training."""
        return version if self.together else version / self.config.devices


class Compiled:
    """A worker's learner and its compiled programs."""

    def __init__(self, config: Config, *, stale: bool) -> None:
        """Builds the learner of one worker.

        Args:
            config: configuration of the whole training.
            stale: whether parameters may change between playing and learning.
        """
        start_jax()  # enables its cache of compiled programs
        self._config, self._stale = config, stale
        environment = make(config.env, **config.options)
        made: Any = algorithm(config.algorithm).build(
            *(environment, _own(config), 1, config.updates, lambda optimizer: optimizer),
            network=None if config.network is None else named(config.network),
        )
        self.learner: PartedLearner = made
        self.start: Callable[[np.int32], Any] = jax.jit(self._start)
        shapes = jax.eval_shape(self._start, np.int32(0))
        self.layout: Layout = layout(self.learner.parameters(shapes))
        self.play = jax.jit(self._play)
        self.learn = jax.jit(self._learn)

    def _start(self, first: Any) -> Any:
        """The states [S, ...] before the first update, given the number of the first game."""
        keys = seed_keys(np.int32(self._config.seed), self._config.seeds)
        return each_seed(lambda key: self.learner.init(key, first), keys)

    def _play(
        self, state: Any, vector: Float[Array, " P"], done: Float[Array, ""]
    ) -> tuple[Any, Any, Metrics]:
        """Plays with the parameters that were pulled."""

        def one(state: Any, parameters: Any) -> tuple[Any, Any, Metrics]:
            return self.learner.play(self.learner.with_parameters(state, parameters), done)

        return each_seed(one, state, self.layout.tree(vector))

    def _learn(
        self, state: Any, experience: Any, vector: Float[Array, " P"], done: Float[Array, ""]
    ) -> tuple[Any, Float[Array, " P"], dict[str, Float[Array, " S"]]]:
        """Learns from the experience; returns the change as pulled minus learned parameters."""

        def one(state: Any, experience: Any, parameters: Any) -> tuple[Any, dict[str, Array]]:
            state = self.learner.with_parameters(state, parameters)
            return self.learner.learn(state, experience, done, stale=self._stale)

        state, figures = each_seed(one, state, experience, self.layout.tree(vector))
        return state, vector - self.layout.flat(self.learner.parameters(state)), figures


class LearnerSteps:
    """A `Computation` that runs a learner's updates while others change the parameters too."""

    def __init__(self, workers: Workers, state: Any) -> None:
        self.state, self.share = state, SHARE
        self._workers, self._compiled = workers, workers.compiled

    def ready(self, vector: NDArray[Any]) -> None:
        """See `Computation.ready`; also measures the share of a step spent on playing."""
        state, now = self.state, Pulled(0, vector)
        for _ in range(2):  # the first iteration compiles
            begin = time.perf_counter()
            played = self._played(now)
            middle = time.perf_counter()
            jax.block_until_ready(self._learned(played, now))
            end = time.perf_counter()
            self.share = (middle - begin) / (end - begin)
        self.state = state

    def step(self, clock: int, pull: Callable[[], Pulled]) -> Stepped:
        """See `Computation.step`."""
        pulled = pull()
        played = self._played(pulled)
        if self._workers.correction:
            pulled = pull()
        self.state, change, figures = self._learned(played, pulled)
        metrics = dataclasses.replace(played[2], figures=played[2].figures | figures)
        loss = float(np.mean(figures["value_error"]))
        return Stepped(loss, np.asarray(change), Told(jax.device_get(metrics)))

    def _played(self, pulled: Pulled) -> tuple[Any, Any, Metrics]:
        return jax.block_until_ready(
            self._compiled.play(self.state, pulled.vector, self._done(pulled))
        )

    def _learned(self, played: tuple[Any, Any, Metrics], pulled: Pulled) -> tuple[Any, Any, Any]:
        state, experience, _ = played
        return self._compiled.learn(state, experience, pulled.vector, self._done(pulled))

    def _done(self, pulled: Pulled) -> Float[Array, ""]:
        return jnp.float32(self._workers.updates_done(pulled.version))


def _own(config: Config) -> Any:
    """The settings of one worker, with its share of the divided settings."""
    settings = config.settings
    parts = {
        name: getattr(settings, name) // config.devices
        for name in DIVIDED
        if hasattr(settings, name)
    }
    return dataclasses.replace(settings, **parts)
