"""Several settings of one algorithm as one learner, so that one compiled program trains them all.

Settings that are numbers in formulas become an axis of the program, like seeds. Settings that
change shapes or the program itself cannot; each of their values is a separate training.
"""

import copy
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gradweave.common.checks import expected_one_of
from gradweave.errors import OptionError
from gradweave.marl.config import Config
from gradweave.marl.games.environment import Environment
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.algorithms import Aggregate
from gradweave.marl.learners.learner import Learner, Metrics

SWEPT = (
    "learning_rate",
    "discount",
    "gae_lambda",
    "clip_ratio",
    "entropy_coefficient",
    "value_coefficient",
    "max_gradient_norm",
    "td_lambda",
    "target_update_rate",
    "reward_scale",
)
"""Settings that can vary within a sweep, for algorithms that have them."""


class SweptState(eqx.Module):
    """The state of a learner, and the settings it learns with."""

    values: dict[str, Float[Array, ""]]
    state: Any


@dataclasses.dataclass(frozen=True, eq=False)
class SweptLearner:
    """A learner whose settings are part of its state; `Program` uses it as a `Learner`."""

    base: Learner
    """The learner that supplies every setting that does not vary."""
    remade: Callable[[Mapping[str, Array]], Learner]
    """Maps values to the learner with these values."""
    values: Mapping[str, np.ndarray]
    """[S] values of each setting, one per learner in the program."""

    @property
    def games(self) -> int:
        """See `Learner.games`."""
        return self.base.games

    def init_numbered(
        self, shared: PRNGKeyArray, first: Int[Array, ""] | int, number: Int[Array, ""]
    ) -> SweptState:
        """See `Learner.init`; `number` selects the learner's values."""
        values = {name: jnp.asarray(all)[number] for name, all in self.values.items()}
        return SweptState(values, self.remade(values).init(shared, first))

    def update(self, state: SweptState) -> tuple[SweptState, Metrics]:
        """See `Learner.update`."""
        after, metrics = self.remade(state.values).update(state.state)
        return SweptState(state.values, after), metrics

    def parameters(self, state: SweptState) -> Any:
        """See `Learner.parameters`."""
        return self.base.parameters(state.state)


def points(sweep: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Every combination of a sweep's values; the last setting changes fastest.

    >>> points({"learning_rate": [1e-3, 3e-3], "discount": [0.9]})
    [{'learning_rate': 0.001, 'discount': 0.9}, {'learning_rate': 0.003, 'discount': 0.9}]
    """
    return [dict(zip(sweep, each, strict=True)) for each in itertools.product(*sweep.values())]


def name_of_point(values: Mapping[str, float]) -> str:
    """The name of a combination's folder.

    >>> name_of_point({"learning_rate": 1e-3, "discount": 0.9})
    'learning_rate=0.001,discount=0.9'
    """
    return ",".join(f"{name}={value:g}" for name, value in values.items())


def configs(config: Config, sweep: Mapping[str, Sequence[float]]) -> dict[str, Config]:
    """The configuration of each combination, by folder, as `gradweave train` alone would have it.

    Raises:
        OptionError: a setting cannot vary within a sweep, or has a value out of its range.
    """
    if config.network is not None:
        raise OptionError("--sweep: not with --network; run a separate command per setting")
    if not sweep or not all(sweep.values()):
        raise OptionError("--sweep: expected NAME=VALUE,VALUE,…")
    known = [name for name in SWEPT if hasattr(config.settings, name)]
    for name in sweep:
        if name not in known:
            raise OptionError(expected_one_of("--sweep: setting", known, name))
    found = {}
    for values in points(sweep):
        settings = dataclasses.replace(config.settings, **values)
        found[name_of_point(values)] = dataclasses.replace(config, settings=settings)
    return found


def swept_learner(
    config: Config,
    several: Mapping[str, Config],
    swept: Sequence[str],
    environment: Environment,
    aggregate: Aggregate,
) -> SweptLearner:
    """A learner that contains every combination.

    Args:
        config: configuration of the sweep.
        several: the configuration of each combination; see `configs`.
        swept: the settings that vary.
        environment: the environment.
        aggregate: converts an optimizer to one that aggregates over all devices.
    """
    row = algorithms.algorithm(config.algorithm)

    def made(settings: Any) -> Learner:
        return row.build(environment, settings, config.devices, config.updates, aggregate)

    def remade(values: Mapping[str, Array]) -> Learner:
        settings = copy.copy(config.settings)
        # values are traced arrays here, so the checks at construction would fail
        for name, value in values.items():
            object.__setattr__(settings, name, value)
        return made(settings)

    each = [one.settings for one in several.values()]
    values = {
        name: np.repeat(np.array([getattr(one, name) for one in each], np.float32), config.seeds)
        for name in swept
    }
    return SweptLearner(made(config.settings), remade, values)
