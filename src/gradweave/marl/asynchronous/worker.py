"""A learner as a worker of the parameter server: it pulls, plays, learns and pushes what changed.

What is pushed is the difference that a whole update makes to the parameters, negated, which servers
apply as a gradient at rate 1. An update of PPO takes many steps of an optimizer that looks at all
parameters at once, to clip their gradient; a server has a range of them, and each step would cost a
round trip. So the update is the learner's own, optimizer included, and its moments stay here.
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
"""Settings of which each worker has its part."""


SHARE = 0.5
"""Of a step that is play, before it was measured; the simulator's, which measures nothing."""


class Told(NamedTuple):
    """Of a step, for the log."""

    metrics: Metrics
    """[S, ...] of each seed."""


@dataclasses.dataclass(frozen=True)
class Workers:
    """Makes the workers' computations; it is sent to their processes."""

    config: Config
    correction: bool
    """Whether they pull again once they have played."""
    together: bool
    """Whether an update is of all workers' gradients, rather than of one."""

    def __call__(self, worker: int, clock: int) -> "LearnerSteps":
        """A worker's computation; of one that was replaced, in games that nobody has played."""
        games = self.compiled.learner.games
        state = self.compiled.start(np.int32((clock * self.config.devices + worker) * games))
        return LearnerSteps(self, state)

    @functools.cached_property
    def compiled(self) -> "Compiled":
        """The programs, of all workers in this process."""
        return Compiled(self.config, stale=self.correction)

    def updates_done(self, version: int) -> float:
        """Updates of the training after so many of the server."""
        return version if self.together else version / self.config.devices


class Compiled:
    """A worker's learner, and the programs that it runs."""

    def __init__(self, config: Config, *, stale: bool) -> None:
        """Builds the learner of one worker.

        Args:
            config: of the whole training.
            stale: whether parameters may change between playing and learning.
        """
        start_jax()  # for its cache of compiled programs
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
        """The states [S, ...] before the first update, by the number of the first game."""
        keys = seed_keys(np.int32(self._config.seed), self._config.seeds)
        return each_seed(lambda key: self.learner.init(key, first), keys)

    def _play(
        self, state: Any, vector: Float[Array, " P"], done: Float[Array, ""]
    ) -> tuple[Any, Any, Metrics]:
        """Plays by parameters that were pulled."""

        def one(state: Any, parameters: Any) -> tuple[Any, Any, Metrics]:
            return self.learner.play(self.learner.with_parameters(state, parameters), done)

        return each_seed(one, state, self.layout.tree(vector))

    def _learn(
        self, state: Any, experience: Any, vector: Float[Array, " P"], done: Float[Array, ""]
    ) -> tuple[Any, Float[Array, " P"], dict[str, Float[Array, " S"]]]:
        """Learns from there; the difference is that between what was pulled and what it led to."""

        def one(state: Any, experience: Any, parameters: Any) -> tuple[Any, dict[str, Array]]:
            state = self.learner.with_parameters(state, parameters)
            return self.learner.learn(state, experience, done, stale=self._stale)

        state, figures = each_seed(one, state, experience, self.layout.tree(vector))
        return state, vector - self.layout.flat(self.learner.parameters(state)), figures


class LearnerSteps:
    """A `Computation`: a learner's updates of parameters that others change too."""

    def __init__(self, workers: Workers, state: Any) -> None:
        self.state, self.share = state, SHARE
        self._workers, self._compiled = workers, workers.compiled

    def ready(self, vector: NDArray[Any]) -> None:
        """See `Computation.ready`; finds out which share of a step is play."""
        state, now = self.state, Pulled(0, vector)
        for _ in range(2):  # the first time compiles
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
    """A worker's part of the settings."""
    settings = config.settings
    parts = {
        name: getattr(settings, name) // config.devices
        for name in DIVIDED
        if hasattr(settings, name)
    }
    return dataclasses.replace(settings, **parts)
