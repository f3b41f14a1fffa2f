"""The configuration of a training, checked at construction."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar, get_args

import msgspec

from gradweave.common.checks import (
    check_above_zero,
    check_at_least_one,
    check_not_below_zero,
    check_share,
)
from gradweave.errors import OptionError
from gradweave.training.config import OLD_NAMES, convert, new_names
from gradweave.training.proximal import Proximal

T = TypeVar("T")
Activation = Literal["tanh", "relu"]
"""Activation of the hidden layers."""


Sharing = Literal["shared", "team", "agent"]
"""Which agents share parameters: all of them, those of a team, or none."""


class Settings(Protocol):
    """The settings that every algorithm has."""

    environments: int
    """Number of games in parallel, over all devices."""

    @property
    def steps(self) -> int:
        """Environment steps per update, over all games and devices."""
        ...


def check_network(hidden: tuple[int, ...], activation: str, sharing: str = "shared") -> None:
    """Refuses settings that no network can have."""
    if not hidden or min(hidden) < 1:
        raise OptionError(f"hidden: expected at least one width of 1 or more, got {list(hidden)}")
    known = get_args(Activation)
    if activation not in known:
        raise OptionError(f"activation: expected {', '.join(known)}, got {activation!r}")
    if sharing not in get_args(Sharing):
        raise OptionError(f"parameter_sharing: expected shared, team or agent, got {sharing!r}")


@dataclasses.dataclass(frozen=True)
class OnPolicy(Proximal):
    """Settings of learners that play a roll-out, learn from it, and forget it."""

    environments: int = 64
    """Number of games in parallel, over all devices."""
    rollout: int = 128
    """Steps of each game per update."""
    decay: bool = True
    """Whether the learning rate decays linearly to 0 over the optimizer steps of the training."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, for every actor and critic."""
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least_one(self, "environments", "rollout")
        check_network(self.hidden, self.activation)

    @property
    def steps(self) -> int:
        """Environment steps per update, over all games and devices."""
        return self.environments * self.rollout

    def parts(self, games: int) -> tuple[int, str]:
        """The number of samples in an update of some games, and what they are."""
        return games * self.rollout, "steps"

    def check_devices(self, devices: int) -> None:
        """Refuses settings that cannot be divided evenly among the devices.

        Raises:
            OptionError: the games, or the minibatches of a device, cannot be divided evenly.
        """
        if self.environments % devices:
            raise OptionError(
                f"environments: expected a multiple of the {devices} devices, "
                f"got {self.environments}"
            )
        number, what = self.parts(self.environments // devices)
        if number % self.minibatches:
            raise OptionError(
                f"minibatches: expected a divisor of the {number} {what} in an update on each "
                f"device, got {self.minibatches}"
            )


@dataclasses.dataclass(frozen=True)
class PPO(OnPolicy):
    """The settings of IPPO and MAPPO."""

    value_clip: float | None = None
    """How far the critic's value may move in one update, or None for no limit."""
    normalise_advantages: bool = True
    """Whether advantages are normalised to mean 0 and deviation 1 in each minibatch of a device."""
    normalise_values: bool = False
    """Whether the critic learns returns that are normalised by their running mean and variance over
    all updates and devices (Yu et al. 2022)."""
    truncation: Literal["end", "bootstrap"] = "end"
    """The value after an episode that a time limit ended: 0 ("end"), as in JaxMARL's baselines and
    as returns are counted; or the critic's value ("bootstrap"), which evaluates every step twice.
    """
    shaping: float = 0.0
    """Initial weight of the game's shaped rewards."""
    shaping_fraction: float = 0.5
    """Share of the training after which that weight has reached 0."""
    recurrent: bool = False
    """Whether a gated recurrent unit of the same width follows the last hidden layer."""
    parameter_sharing: Sharing = "shared"
    """Which agents share parameters: all of them, those of a team, or none."""
    log_std: float = 0.0
    """Initial logarithm of the standard deviation of continuous actions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_below_zero(self, "shaping")
        check_share(self, "shaping_fraction")
        check_network(self.hidden, self.activation, self.parameter_sharing)
        if self.value_clip is not None:
            check_above_zero(self, "value_clip")
        if self.truncation not in ("end", "bootstrap"):
            raise OptionError(f"truncation: expected end or bootstrap, got {self.truncation!r}")
        if not math.isfinite(self.log_std):
            raise OptionError(f"log_std: expected a finite number, got {self.log_std}")

    def parts(self, games: int) -> tuple[int, str]:
        """See `OnPolicy.parts`; a network with a memory learns from whole games."""
        return (games, "games") if self.recurrent else super().parts(games)


_SOUPS = {"learning_rate": 1e-3, "rollout": 128, "shaping": 1.0, "activation": "relu"}
PPO_DEFAULTS: dict[str, dict[str, Any]] = {
    "spread": {"learning_rate": 3e-3, "discount": 0.95},
    "coin_game": {
        "learning_rate": 2e-3,
        "discount": 0.9,
        "hidden": (128, 128),
        "activation": "relu",
    },
    "overcooked": _SOUPS,
    "overcooked_v2": _SOUPS,
    "switch_riddle": {"recurrent": True, "discount": 1.0},
    "worlds": {"discount": 0.95},
    "hanabi": {"learning_rate": 5e-4, "hidden": (256, 256), "activation": "relu"},
}
"""Defaults that differ from those of `PPO`, per family of games."""


_SETTINGS = "settings."
"""Prefix of the names of settings in `Config.flat`."""
_UNSAID: dict[str, Any] = {
    "network": None,
    f"{_SETTINGS}counterfactual": True,
    f"{_SETTINGS}normalise_values": False,
    f"{_SETTINGS}parameter_sharing": "shared",
}
"""Values that older trainings used before the setting existed."""


@dataclasses.dataclass(frozen=True)
class Config:
    """A training; on one machine, equal configurations give bit-identical results."""

    env: str
    """The game, in the notation of `environments.make`."""
    algorithm: str
    """A key of `algorithms.ALGORITHMS`."""
    settings: Any
    """The algorithm's settings, of the class named in its row of `algorithms.ALGORITHMS`."""
    steps: int
    """Environment steps over all games, rounded up to whole updates."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further options of the environment."""
    network: str | None = None
    """The factory that replaces Gradweave's networks: its reference for `own_network.named`, or its
    name."""
    aggregation: str = "mean"
    """The aggregation, in the notation of `aggregate.aggregator`."""
    devices: int = 1
    seed: int = 0
    seeds: int = 1
    """Number of independent learners, trained in parallel."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "steps", "devices", "seeds")
        if not 0 <= self.seed < 2**31:
            raise OptionError(f"seed: expected 0 to {2**31 - 1}, got {self.seed}")
        self.settings.check_devices(self.devices)

    @property
    def updates(self) -> int:
        """Number of updates in the whole training."""
        return -(-self.steps // self.settings.steps)

    def flat(self) -> dict[str, Any]:
        """All fields by name, as JSON values; settings are named ``settings.NAME``."""
        metadata = msgspec.json.decode(msgspec.json.encode(self))
        settings = metadata.pop("settings")
        return metadata | {f"{_SETTINGS}{name}": value for name, value in settings.items()}


def current(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `Config.flat`, with renamed settings under their current names."""
    old = {f"{_SETTINGS}{name}": f"{_SETTINGS}{new}" for name, new in OLD_NAMES.items()}
    return {old.get(name, name): value for name, value in metadata.items()}


def from_flat(metadata: Mapping[str, Any], kind: Callable[[str], type]) -> Config:
    """The configuration of which `metadata` is the `Config.flat`.

    Args:
        metadata: all fields.
        kind: returns the class of an algorithm's settings, given its name.

    Raises:
        OptionError: a field is missing, unknown or out of range.
    """
    settings = {
        name.removeprefix(_SETTINGS): value
        for name, value in metadata.items()
        if name.startswith(_SETTINGS)
    }
    rest = {name: value for name, value in metadata.items() if not name.startswith(_SETTINGS)}
    made = settings_of(kind(str(rest.get("algorithm"))), {}, settings)
    return convert(rest | {"settings": made}, Config)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The differences between the `Config.flat` of two trainings, as text for a message.

    If a training is older than a setting, the comparison uses the value that it had in effect.
    """

    def both(name: str) -> tuple[Any, Any]:
        unsaid = _UNSAID.get(name)
        return one.get(name, unsaid), other.get(name, unsaid)

    return [
        f"{name} {there!r} there, {here!r} here"
        for name, (there, here) in ((name, both(name)) for name in sorted({*one, *other}))
        if there != here
    ]


def settings_of(kind: type[T], usual: Mapping[str, Any], given: Mapping[str, Any]) -> T:
    """An algorithm's settings, checked.

    Args:
        kind: class of the settings.
        usual: defaults of the family of games, which override those of the class.
        given: values that the user set, which override both.

    Raises:
        OptionError: a name is unknown, or a value is out of range.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # pyright: ignore[reportArgumentType]
    try:
        return convert({**usual, **new_names(given, names)}, kind)
    except OptionError as error:
        raise OptionError(f"settings: {error}") from error
