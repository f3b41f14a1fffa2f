"""The configuration of `gradweave learn`: a TOML file that determines a training."""

import dataclasses
import hashlib
import importlib.resources
import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from gradweave.aggregate.spec import EXACT, AggregationSpec, parse
from gradweave.common.checks import (
    check_above_zero,
    check_at_least_one,
    check_not_below_zero,
)
from gradweave.environment.instance import Trees
from gradweave.environment.rewards import Rewards
from gradweave.errors import OptionError
from gradweave.learning.settings import PPO
from gradweave.schedules.schedule import Collective
from gradweave.training.config import convert, first_names, parse_toml, read_toml

SHIPPED = "shipped.toml"
"""The file from which the shipped weights are trained."""


@dataclasses.dataclass(frozen=True)
class Exercise:
    """One problem to learn on."""

    topology: str
    """Notation of the command line: a family and its parameters, or a file."""
    collective: Collective = "all_gather"
    trees: Trees = "grown"


@dataclasses.dataclass(frozen=True)
class Group:
    """Problems that are padded to one size, and therefore compiled together."""

    exercises: tuple[Exercise, ...]
    at_once: int
    """Number of random problems per update."""
    episodes: int
    """Number of episodes of each problem per update."""
    share: float = 1.0
    """Relative frequency with which the group is chosen among the groups."""

    def __post_init__(self) -> None:
        if not 1 <= self.at_once <= len(self.exercises):
            raise OptionError(
                f"at_once: expected 1 to {len(self.exercises)}, the number of the group's "
                f"exercises, got {self.at_once}"
            )
        check_at_least_one(self, "episodes")
        check_above_zero(self, "share")

    def check_devices(self, devices: int) -> None:
        """Refuses episodes that cannot be divided evenly among the devices.

        Raises:
            OptionError: they cannot.
        """
        if self.episodes % devices:
            raise OptionError(
                f"episodes: expected a multiple of the {devices} devices, got {self.episodes}"
            )


@dataclasses.dataclass(frozen=True)
class Config:
    """A training."""

    groups: tuple[Group, ...]
    iterations: int
    """I of Algorithm 1."""
    tree_updates: int
    """J, the number of updates of flow-tree selection per iteration."""
    workload_updates: int
    """K, the number of updates of workload scheduling per iteration."""
    imitation_updates: int = 0
    """Initial updates of workload scheduling in which it imitates instead of learning from its
    episodes; it imitates the shortest of many repaired episodes."""
    seed: int = 0
    seeds: int = 1
    """Number of learners that are trained in parallel; the best is kept."""
    tree_bias: float = 0.0
    """Initial log-odds that a tree is selected."""
    draws: int = 8
    """Number of evenly spread draws per round that are used for learning."""
    single_policy: bool = False
    """Whether to train without flow-tree selection: every tree is selected."""
    rewards: Rewards = dataclasses.field(default_factory=Rewards)
    tree: PPO = dataclasses.field(default_factory=PPO)
    workload: PPO = dataclasses.field(default_factory=PPO)
    checkpoint_minutes: float = 2.0

    def __post_init__(self) -> None:
        check_at_least_one(self, "iterations", "seeds", "draws")
        check_not_below_zero(
            self, "tree_updates", "workload_updates", "imitation_updates", "checkpoint_minutes"
        )
        if self.tree_updates + self.workload_updates == 0:
            raise OptionError("tree_updates and workload_updates are both 0: nothing would learn")
        if not self.groups:
            raise OptionError("groups: expected at least one, with exercises to learn on")
        if not 0 <= self.seed < 2**31:
            raise OptionError(f"seed: expected 0 to {2**31 - 1}, got {self.seed}")
        if not math.isfinite(self.tree_bias):
            raise OptionError(f"tree_bias: expected a finite number, got {self.tree_bias}")
        for name, weight in dataclasses.asdict(self.rewards).items():
            if not math.isfinite(weight):
                raise OptionError(f"rewards: {name}: expected a finite number, got {weight}")

    @property
    def updates(self) -> int:
        """Number of updates in the whole training, for both agents and including imitation."""
        alternating = self.iterations * (self.tree_updates + self.workload_updates)
        return self.imitation_updates + alternating

    def agent(self, update: int) -> Literal["tree", "workload"]:
        """The agent that learns in an update: J times flow-tree selection, K times scheduling."""
        if self.imitates(update):
            return "workload"
        place = (update - self.imitation_updates) % (self.tree_updates + self.workload_updates)
        return "tree" if place < self.tree_updates else "workload"

    def imitates(self, update: int) -> bool:
        """Whether workload scheduling imitates in an update."""
        return update < self.imitation_updates

    def fields(self) -> dict[str, Any]:
        """All fields by name, as JSON values, so that no checkpoint of another training is used."""
        # msgspec itself leaves out the defaults of what it has converted
        return msgspec.json.decode(msgspec.json.encode(dataclasses.asdict(self)))

    def digest(self) -> str:
        """A fingerprint, which the weights and earlier checkpoints have."""
        text = msgspec.json.encode(first_names(msgspec.to_builtins(self)), order="sorted")
        return hashlib.sha256(text).hexdigest()[:16]


def read_config(path: Path | None) -> Config:
    """Reads a training's file, by default the shipped file.

    Raises:
        OptionError: it is not TOML, or a field is missing, unknown or out of range.
    """
    if path is not None:
        return _config_of(read_toml(path), str(path))
    shipped = importlib.resources.files("gradweave.learning").joinpath(SHIPPED)
    return parse_config(shipped.read_bytes(), SHIPPED)


def parse_config(text: bytes, name: str) -> Config:
    """Parses a training's file.

    Args:
        text: TOML.
        name: name of the file for messages.
    """
    return _config_of(parse_toml(text, name), name)


def _config_of(table: dict[str, Any], name: str) -> Config:
    try:
        return convert(table, Config)
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from error


def parse_aggregation(text: str, devices: int | None) -> AggregationSpec:
    """Parses how devices average gradients, without finding a schedule yet.

    Args:
        text: an aggregation, in the notation of `gradweave.aggregate.aggregator`.
        devices: number of devices, or None if not known yet.

    Raises:
        SpecError: the specification cannot be parsed.
        OptionError: it leaves devices with different parameters, or a value is out of its range.
        ScheduleError: it is for another number of devices.
    """
    spec = parse(text)
    if not spec.exact:
        raise OptionError(
            f"aggregation: {text} gives each device different parameters, but there is one pair of "
            f"policies; use one of {', '.join(EXACT)}"
        )
    if devices is not None:
        spec.check_workers(devices)
    return spec
