"""What a training depends on: checked where it is made, and read from a TOML file."""

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
from gradweave.training.config import convert, new_names

T = TypeVar("T")
Activation = Literal["tanh", "relu"]
"""Of the hidden layers."""


Sharing = Literal["shared", "team", "agent"]
"""Who has parameters together: all agents, those of a team, or each agent has its own."""


class Settings(Protocol):
    """What every algorithm's settings have."""

    environments: int
    """Games side by side, of all devices together."""

    @property
    def steps(self) -> int:
        """Steps of an update, of all games on all devices together."""
        ...


def check_network(hidden: tuple[int, ...], activation: str, sharing: str) -> None:
    """Refuses networks that cannot be made."""
    if not hidden or min(hidden) < 1:
        raise OptionError(f"hidden: expected at least one width of 1 or more, got {list(hidden)}")
    known = get_args(Activation)
    if activation not in known:
        raise OptionError(f"activation: expected {', '.join(known)}, got {activation!r}")
    if sharing not in get_args(Sharing):
        raise OptionError(f"parameters: expected shared, team or agent, got {sharing!r}")


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
    smoothing: float = 0.95
    """λ of the generalised advantage estimate."""
    clip: float = 0.2
    """How far the odds of an action may move in one update, as a share."""
    value_clip: float | None = None
    """How far a critic's value may move in one update; not given, as far as it will."""
    entropy: float = 0.01
    """Weight of the entropy of actions."""
    value: float = 0.5
    """Weight of the critic's error."""
    gradient_norm: float = 0.5
    """What gradients are cut off at, after devices have combined them."""
    normalise: bool = True
    """Whether advantages are brought to mean 0 and deviation 1 in each minibatch of a device."""
    normalise_values: bool = False
    """Whether the critic learns returns brought to mean 0 and deviation 1, by their running mean
    and variance over all updates and devices (Yu et al. 2022)."""
    truncation: Literal["end", "bootstrap"] = "end"
    """What follows when time alone ended an episode: nothing, as in JaxMARL's baselines and as a
    return counts; or what the critic expects, at the price of judging every step twice."""
    shaping: float = 0.0
    """Weight of the game's own help at first."""
    shaping_until: float = 0.5
    """Share of the training over which that falls to 0."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of actor and critic each."""
    recurrent: bool = False
    """Whether a gated recurrent unit as wide as the last hidden layer follows it."""
    activation: Activation = "tanh"
    parameters: Sharing = "shared"
    """Whether all agents have one set of parameters, those of a team have, or each agent has."""
    log_spread: float = 0.0
    """Logarithm of the deviation of continuous actions at first."""

    def __post_init__(self) -> None:
        check_above_zero(self, "learning_rate", "clip", "gradient_norm")
        check_at_least_one(self, "environments", "rollout", "epochs", "minibatches")
        check_not_below_zero(self, "entropy", "value", "shaping")
        check_share(self, "discount", "smoothing", "shaping_until")
        check_network(self.hidden, self.activation, self.parameters)
        if self.value_clip is not None:
            check_above_zero(self, "value_clip")
        if self.truncation not in ("end", "bootstrap"):
            raise OptionError(f"truncation: expected end or bootstrap, got {self.truncation!r}")
        if not math.isfinite(self.log_spread):
            raise OptionError(f"log_spread: expected a finite number, got {self.log_spread}")

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
    "hanabi": {"learning_rate": 5e-4, "hidden": (256, 256), "activation": "relu"},
}
"""What differs from `PPO`'s own defaults, by family of games."""


_SETTINGS = "settings."
"""What the names of settings begin with in `Config.flat`."""
_UNSAID: dict[str, Any] = {
    f"{_SETTINGS}normalise_values": False,
    f"{_SETTINGS}parameters": "shared",
}
"""What trainings did that began before there was a setting for it, and so do not say."""


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
        """All that it says, by name, as JSON has it; settings as ``settings.NAME``."""
        said = msgspec.json.decode(msgspec.json.encode(self))
        settings = said.pop("settings")
        return said | {f"{_SETTINGS}{name}": value for name, value in settings.items()}


def from_flat(said: Mapping[str, Any], kind: Callable[[str], type]) -> Config:
    """The training that `Config.flat` tells of.

    Args:
        said: all of it.
        kind: an algorithm's name -> the class of its settings.

    Raises:
        OptionError: where anything is missing or is not taken.
    """
    settings = {
        name.removeprefix(_SETTINGS): value
        for name, value in said.items()
        if name.startswith(_SETTINGS)
    }
    rest = {name: value for name, value in said.items() if not name.startswith(_SETTINGS)}
    made = settings_of(kind(str(rest.get("algorithm"))), {}, settings)
    return convert(rest | {"settings": made}, Config)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What two trainings' `Config.flat` do not have in common, in words.

    Where one of them is of before there was a setting, it is what it did without.
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
        OptionError: where a name is unknown or a value is not taken.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # pyright: ignore[reportArgumentType]
    try:
        return convert({**usual, **new_names(given, names)}, kind)
    except OptionError as error:
        raise OptionError(f"settings: {error}") from error
