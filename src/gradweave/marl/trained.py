"""The reports and the result of a training, and the metadata that its folder keeps about it."""

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
from gradweave.schedules.schedule import Schedule

if TYPE_CHECKING:
    from gradweave.aggregate.asynchronous.history import Run

CHECKPOINT = "checkpoint.safetensors"
SERVERS = "servers"
"""Subfolder that holds the checkpoint of a training through an asynchronous server."""
POLICY = "policy.safetensors"


@dataclasses.dataclass(frozen=True)
class Report:
    """The progress of a training."""

    update: int
    """Updates completed."""
    of: int
    steps: int
    """Environment steps completed, summed over all games."""
    mean_return: float | None
    """Mean return of the episodes that ended recently, over all seeds and agents, or None if none
    ended."""
    steps_per_s: float
    """Recent speed, over all games of one seed; the first report includes compilation."""
    seconds_left: float
    by_agent: tuple[float, ...] = ()
    """Mean return of each agent; empty if no episode ended."""
    not_finite: tuple[int, ...] = ()
    """Number of gradients per device skipped so far because they were not finite."""
    replaced: int = 0
    """Number of workers of an asynchronous server that have died and been replaced so far."""
    recovered: int = 0
    """Number of times so far that servers were lost and the run resumed from its checkpoint."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of a training."""

    config: Config
    environment: Environment
    learner: Learner
    parameters: Any
    """Learned parameters, with a leading axis [S, ...] over seeds."""
    resumed_from: int
    """Number of updates that the checkpoint contained when this call resumed it; 0 for a fresh
    start."""
    steps_per_s: float | None
    """Speed over all games of one seed, without compilation, or None if too few updates ran to
    measure it."""
    schedule: Schedule | None = None
    """The schedule that averaged the devices' gradients, or None if no schedule was used."""
    extended: tuple[int, ...] = ()
    """Earlier targets in steps, oldest first, if a finished training was extended."""
    run: "Run | None" = None
    """The asynchronous server's record of applied gradients, or None without such a server."""


def updates_done(config: Config, folder: Path, *, extend: bool = False) -> int:
    """Number of updates in a folder's checkpoint; 0 if the folder has none.

    Args:
        config: configuration of the training that should resume.
        folder: folder of the training.
        extend: whether to accept the final checkpoint of a training with fewer steps.

    Raises:
        OptionError: the checkpoint belongs to another training; the message names the differences.
        FileError: the checkpoint cannot be read.
    """
    metadata = stated(config, folder, extend)
    return 0 if metadata is None else metadata["updates"]


def begun(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The path of a folder's checkpoint and its metadata, or None if there is no checkpoint.

    Raises:
        FileError: the checkpoint cannot be read.
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
    """The metadata of the checkpoint that this training can resume from, or None if there is none.

    Args:
        config: configuration of the training that should resume.
        folder: folder of the training.
        extend: whether to accept the final checkpoint of a training with fewer steps.
        sweep: the values of each varied setting, for several trainings that run in one program.

    Raises:
        OptionError: the checkpoint belongs to another training; the message names the differences.
        FileError: the checkpoint cannot be read.
    """
    found = begun(folder)
    if found is None:
        return None
    path, metadata = found
    other, updates = metadata.get("config"), metadata.get("updates")
    if not isinstance(other, dict) or not isinstance(updates, int):
        raise FileError(f"{path}: does not say which training it belongs to")
    other = current(other)
    differ = differences(other, config.flat())
    same_sweep = metadata.get("sweep") == sweep
    if not same_sweep:
        differ = [f"sweep {metadata.get('sweep')} there, {sweep} here", *differ]
    if not differ:
        return metadata
    longer = isinstance(other.get("steps"), int) and other["steps"] < config.steps
    if same_sweep and longer and not differences(other | {"steps": config.steps}, config.flat()):
        had = dataclasses.replace(config, steps=other["steps"]).updates
        if updates < had:
            raise OptionError(
                f"{path} is for {other['steps']} steps and has not finished ({updates} of {had} "
                f"updates): finish it with --steps {other['steps']}, then extend it"
            )
        if extend:
            return metadata
        differ = [f"{differ[0]}, which --steps {config.steps} extends it to"]
    more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
    raise OptionError(
        f"{path} belongs to another training: {'; '.join(differ[:3])}{more}; "
        "give another folder, or remove it"
    )


def extended_from(config: Config, metadata: Mapping[str, Any] | None) -> tuple[int, ...]:
    """`Trained.extended` for a training that resumes from the metadata that `stated` returned."""
    if metadata is None:
        return ()
    before = tuple(metadata.get("extended", ()))
    steps = metadata["config"]["steps"]
    return before if steps == config.steps else (*before, steps)


def description(config: Config, extended: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """The metadata that files keep about a training: everything that their arrays depend on."""
    before = {"extended": list(extended)} if extended else {}
    return {"config": config.flat(), **more, **before}
