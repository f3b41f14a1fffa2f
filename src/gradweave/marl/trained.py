"""What a training reports and ends in, and what its folder says of it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradweave.aggregate.asynchronous import checkpoint as of_server
from gradweave.errors import FileError, OptionError
from gradweave.marl import checkpoint
from gradweave.marl.config import Config, current, differences
from gradweave.marl.games.environment import Environment
from gradweave.marl.learners.learner import Learner
from gradweave.schedule.schedule import Schedule

if TYPE_CHECKING:
    from gradweave.aggregate.asynchronous.history import Run

CHECKPOINT = "checkpoint.safetensors"
SERVERS = "servers"
"""Folder of the checkpoint of an asynchronous server."""
POLICY = "policy.safetensors"


@dataclasses.dataclass(frozen=True)
class Report:
    """How far a training is."""

    update: int
    """Updates completed."""
    of: int
    steps: int
    """Steps completed, of all games."""
    mean_return: float | None
    """Of the episodes that ended lately, over all seeds and agents; None if none did."""
    steps_per_s: float
    """Lately, of all games of one seed; compilation counts in the first one."""
    seconds_left: float
    not_finite: tuple[int, ...] = ()
    """Per device: gradients so far that were left out as not finite."""
    replaced: int = 0
    """Workers of an asynchronous server that died so far, and were replaced."""
    recovered: int = 0
    """How often servers were lost so far, and all resumed from the checkpoint."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a training led to."""

    config: Config
    environment: Environment
    learner: Learner
    parameters: Any
    """[S, ...] of each seed."""
    resumed_from: int
    """Updates that were done before."""
    steps_per_s: float | None
    """Of all games of one seed, compilation aside; None where too little was done to tell."""
    schedule: Schedule | None = None
    """By which devices averaged gradients; None where by none."""
    extended: tuple[int, ...] = ()
    """Steps that it was to have before, where it was extended: in the order in which it came to
    its end."""
    run: "Run | None" = None
    """The asynchronous server's account of what it applied; None where there is none."""


def updates_done(config: Config, folder: Path, *, extend: bool = False) -> int:
    """Updates that the checkpoint of a folder has had; 0 where there is none.

    Args:
        config: what the training is to be of.
        folder: where it is kept.
        extend: whether the checkpoint may be the end of a training of fewer steps.

    Raises:
        OptionError: where the checkpoint is of another training; names what differs.
        FileError: where it cannot be read.
    """
    metadata = stated(config, folder, extend)
    return 0 if metadata is None else metadata["updates"]


def begun(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """A folder's checkpoint and what it says of its training; None without one.

    Raises:
        FileError: where it cannot be read.
    """
    path = folder / CHECKPOINT
    if path.exists():
        return path, checkpoint.about(path)
    by_server = of_server.about(folder / SERVERS)
    if by_server is None:
        return None
    metadata, gradients = by_server
    workers = metadata.get("config", {}).get("devices", 1)
    return folder / SERVERS, metadata | {"updates": gradients // workers}


def stated(
    config: Config, folder: Path, extend: bool, *, sweep: Mapping[str, Any] | None = None
) -> Mapping[str, Any] | None:
    """The metadata of a folder's checkpoint, if it can be resumed from; None without one.

    Args:
        config: what the training is to be of.
        folder: where it is kept.
        extend: whether the checkpoint may be the end of a training of fewer steps.
        sweep: values by the name of a setting, of several trainings side by side.

    Raises:
        OptionError: where the checkpoint is of another training; names what differs.
        FileError: where it cannot be read.
    """
    found = begun(folder)
    if found is None:
        return None
    path, metadata = found
    other, updates = metadata.get("config"), metadata.get("updates")
    if not isinstance(other, dict) or not isinstance(updates, int):
        raise FileError(f"{path}: does not say what training it is of")
    other = current(other)
    differ = differences(other, config.flat())
    if metadata.get("sweep") != sweep:
        differ = [f"sweep {metadata.get('sweep')} there, {sweep} here", *differ]
    if not differ:
        return metadata
    more_steps = isinstance(other.get("steps"), int) and other["steps"] < config.steps
    if more_steps and not differences(other | {"steps": config.steps}, config.flat()):
        had = dataclasses.replace(config, steps=other["steps"]).updates
        if updates < had:
            raise OptionError(
                f"{path} is of {other['steps']} steps and not at its end ({updates} of {had} "
                f"updates): finish it with --steps {other['steps']}, then extend it"
            )
        if extend:
            return metadata
        differ = [f"{differ[0]}, which --steps {config.steps} extends it to"]
    more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
    raise OptionError(
        f"{path} is of another training: {'; '.join(differ[:3])}{more}; "
        "give another folder, or remove it"
    )


def extended_from(config: Config, metadata: Mapping[str, Any] | None) -> tuple[int, ...]:
    """`Trained.extended`, of a training that resumes from a checkpoint that `stated` returned."""
    if metadata is None:
        return ()
    before = tuple(metadata.get("extended", ()))
    steps = metadata["config"]["steps"]
    return before if steps == config.steps else (*before, steps)


def description(config: Config, extended: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """What files say of a training: all that their arrays depend on."""
    before = {"extended": list(extended)} if extended else {}
    return {"config": config.flat(), **more, **before}
