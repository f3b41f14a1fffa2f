"""What a training depends on, checked at construction."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeVar, get_args

import msgspec

from gradweave.checks import (
    check_above_zero,
    check_at_least_one,
    check_not_below_zero,
    check_share,
)
from gradweave.errors import OptionError
from gradweave.training.config import OLD_NAMES, convert, new_names

T = TypeVar("T")
Activation = Literal["tanh", "relu"]
"""Of the hidden layers."""


Sharing = Literal["shared", "team", "agent"]
"""Which agents share parameters: all, those of a team, or none."""


class Settings(Protocol):
    """The settings of any algorithm."""

    environments: int
    """Games side by side, of all devices together."""

    @property
    def steps(self) -> int:
        """Steps of an update, of all games on all devices together."""
        ...


def check_network(hidden: tuple[int, ...], activation: str, sharing: str) -> None:
    """Refuses settings that no network can have."""
    if not hidden or min(hidden) < 1:
        raise OptionError(f"hidden: expected at least one width of 1 or more, got {list(hidden)}")
    known = get_args(Activation)
    if activation not in known:
        raise OptionError(f"activation: expected {', '.join(known)}, got {activation!r}")
    if sharing not in get_args(Sharing):
        raise OptionError(f"parameter_sharing: expected shared, team or agent, got {sharing!r}")


@dataclasses.dataclass(frozen=True)
class PPO:
    """How IPPO and MAPPO learn."""

    environments: int = 64
    """Games side by side, of all devices together."""
    rollout: int = 128
    """Steps of each game in an update."""
    epochs: int = 4
    """Times that an update goes over its steps."""
    minibatches: int = 4
    """Parts of an epoch, each a step of the optimizer, on every device."""
    learning_rate: float = 1e-3
    decay: bool = True
    """Whether the learning rate falls to 0, by as much with each step of the optimizer."""
    discount: float = 0.99
    gae_lambda: float = 0.95
    """λ of the generalised advantage estimate."""
    clip_ratio: float = 0.2
    """ε: how far the ratio of an action's probabilities may move from 1 in one update."""
    value_clip: float | None = None
    """How far a critic's value may move in one update; not given, as far as it will."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""
    value_coefficient: float = 0.5
    """Weight of the critic's loss."""
    max_gradient_norm: float = 0.5
    """Norm to which gradients are clipped, after devices have combined them."""
    normalise_advantages: bool = True
    """Whether advantages get mean 0 and deviation 1 in each minibatch of a device."""
    normalise_values: bool = False
    """Whether the critic learns returns normalised by their running mean and variance over all
    updates and devices (Yu et al. 2022)."""
    truncation: Literal["end", "bootstrap"] = "end"
    """The value after an episode that a time limit ended: 0, as in JaxMARL's baselines and as a
    return counts; or the critic's, at the price of evaluating every step twice."""
    shaping: float = 0.0
    """Weight of the game's shaped rewards at first."""
    shaping_fraction: float = 0.5
    """Share of the training over which it falls to 0."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of actor and critic each."""
    recurrent: bool = False
    """Whether a gated recurrent unit as wide as the last hidden layer follows it."""
    activation: Activation = "tanh"
    parameter_sharing: Sharing = "shared"
    """Whether all agents share parameters, those of a team, or none."""
    log_std: float = 0.0
    """Logarithm of the standard deviation of continuous actions at first."""

    def __post_init__(self) -> None:
        check_above_zero(self, "learning_rate", "clip_ratio", "max_gradient_norm")
        check_at_least_one(self, "environments", "rollout", "epochs", "minibatches")
        check_not_below_zero(self, "entropy_coefficient", "value_coefficient", "shaping")
        check_share(self, "discount", "gae_lambda", "shaping_fraction")
        check_network(self.hidden, self.activation, self.parameter_sharing)
        if self.value_clip is not None:
            check_above_zero(self, "value_clip")
        if self.truncation not in ("end", "bootstrap"):
            raise OptionError(f"truncation: expected end or bootstrap, got {self.truncation!r}")
        if not math.isfinite(self.log_std):
            raise OptionError(f"log_std: expected a finite number, got {self.log_std}")

    @property
    def steps(self) -> int:
        """Steps of an update, of all games on all devices together."""
        return self.environments * self.rollout

    def check_devices(self, devices: int) -> None:
        """Refuses settings that cannot be divided among devices.

        Raises:
            OptionError: where games or minibatches do not come out even.
        """
        if self.environments % devices:
            raise OptionError(
                f"environments: expected a multiple of the {devices} devices, "
                f"got {self.environments}"
            )
        games = self.environments // devices
        parts, what = (games, "games") if self.recurrent else (games * self.rollout, "steps")
        if parts % self.minibatches:
            raise OptionError(
                f"minibatches: expected a divisor of the {parts} {what} of an update on each "
                f"device, got {self.minibatches}"
            )


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
"""What differs from `PPO`'s own defaults, by family of games."""


_SETTINGS = "settings."
"""What the names of settings begin with in `Config.flat`."""
_UNSAID: dict[str, Any] = {
    "network": None,
    f"{_SETTINGS}counterfactual": True,
    f"{_SETTINGS}normalise_values": False,
    f"{_SETTINGS}parameter_sharing": "shared",
}
"""What trainings did before there was a setting for it."""


@dataclasses.dataclass(frozen=True)
class Config:
    """A training: the same one ends in the same result, bit for bit, on the same machine."""

    env: str
    """As `environments.make` reads it."""
    algorithm: str
    """A key of `algorithms.ALGORITHMS`."""
    settings: Any
    """Of the algorithm: an instance of what its row names."""
    steps: int
    """Steps of all games together, rounded up to whole updates."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """More options of the environment."""
    network: str | None = None
    """What makes the networks in place of ours, as `own_network.named` reads it, or is called."""
    aggregation: str = "mean"
    """As `aggregate.from_spec` reads it."""
    devices: int = 1
    seed: int = 0
    seeds: int = 1
    """Learners that are trained side by side, each for itself."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "steps", "devices", "seeds")
        if not 0 <= self.seed < 2**31:
            raise OptionError(f"seed: expected 0 to {2**31 - 1}, got {self.seed}")
        self.settings.check_devices(self.devices)

    @property
    def updates(self) -> int:
        """Updates of the whole training."""
        return -(-self.steps // self.settings.steps)

    def flat(self) -> dict[str, Any]:
        """All fields by name, as in JSON; settings as ``settings.NAME``."""
        metadata = msgspec.json.decode(msgspec.json.encode(self))
        settings = metadata.pop("settings")
        return metadata | {f"{_SETTINGS}{name}": value for name, value in settings.items()}


def current(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `Config.flat` with the current names of settings."""
    old = {f"{_SETTINGS}{name}": f"{_SETTINGS}{new}" for name, new in OLD_NAMES.items()}
    return {old.get(name, name): value for name, value in metadata.items()}


def from_flat(metadata: Mapping[str, Any], kind: Callable[[str], type]) -> Config:
    """The training of a `Config.flat`.

    Args:
        metadata: all of it.
        kind: an algorithm's name -> the class of its settings.

    Raises:
        OptionError: where a field is missing, unknown or out of range.
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
    """What differs between the `Config.flat` of two trainings, for a message.

    Where one is older than a setting, the setting counts as what the training did without it.
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
    """An algorithm's settings.

    Args:
        kind: their class.
        usual: what differs from its defaults for the family of games.
        given: what a user asks for.

    Raises:
        OptionError: where a name is unknown or a value is out of range.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # pyright: ignore[reportArgumentType]
    try:
        return convert({**usual, **new_names(given, names)}, kind)
    except OptionError as error:
        raise OptionError(f"settings: {error}") from error
