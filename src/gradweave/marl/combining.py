"""How a training's devices combine their updates, identically each time the training resumes.

If the solver finds the schedule, it is saved next to the checkpoint, which names it by its digest.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradweave.aggregate.aggregation import by_schedule, find_schedule, resolve
from gradweave.aggregate.spec import ScheduledSpec, method_of, parse
from gradweave.errors import OptionError
from gradweave.marl.config import Config
from gradweave.marl.learners.algorithms import Aggregate
from gradweave.schedules.file import from_bytes, load, to_bytes
from gradweave.schedules.schedule import Schedule
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.processes.agreement import Processes

SCHEDULE = "schedule.json"


@dataclasses.dataclass(frozen=True)
class Combining:
    """How devices combine their updates."""

    aggregate: Aggregate
    """Adds the aggregation to an optimizer."""
    schedule: Schedule | None = None
    """The schedule that averages gradients, or None if no schedule is used."""
    kept: bool = False
    """Whether the solver found the schedule, so that it must be saved with the checkpoint."""

    @functools.cached_property
    def digest(self) -> str | None:
        """The name under which the checkpoint refers to the schedule."""
        return None if self.schedule is None else _digest(self.schedule)

    def keep(self, folder: Path) -> None:
        """Saves the schedule, if the solver found it, next to the training's checkpoint.

        Raises:
            FileError: the file cannot be written.
        """
        if self.schedule is not None and self.kept:
            self.schedule.save(folder / SCHEDULE)


def combining(
    config: Config, folder: Path, stated: Mapping[str, Any] | None, processes: "Processes"
) -> Combining:
    """Resolves the aggregation of a configuration.

    Args:
        config: configuration of the training.
        folder: folder of the training.
        stated: metadata of the checkpoint to resume from, or None if there is none, and in all
            processes but the first.
        processes: the processes that train together; only the first has a folder and reads files.

    Raises:
        SpecError: the aggregation cannot be parsed.
        OptionError: a value is out of range, or the schedule is not the one that the training
            started with.
        ScheduleError: the schedule is for another number of devices.
        FileError: the schedule's file cannot be read.
    """
    text, devices = config.aggregation, config.devices
    if method_of(text) != "scheduled":
        return Combining(processes.together(lambda: resolve(parse(text), devices, same_data=True)))
    schedule, solved = processes.by_first(lambda: _schedule(config, folder, stated)) or (
        None,
        False,
    )
    if not processes.alone:
        content = processes.bytes_of_first(lambda: to_bytes(schedule) if schedule else b"")
        schedule = processes.together(lambda: from_bytes(content, text))
    assert schedule is not None
    aggregation = processes.together(lambda: by_schedule(schedule, devices, spec=text))
    return Combining(aggregation, schedule, kept=solved)


def _schedule(
    config: Config, folder: Path, stated: Mapping[str, Any] | None
) -> tuple[Schedule, bool]:
    """The schedule (read, found or saved earlier), and whether it was found for a network."""
    spec = parse(config.aggregation)
    assert isinstance(spec, ScheduledSpec)
    expected = None if stated is None else stated.get("schedule")
    if spec.network is not None and stated is not None:
        schedule = _kept(folder / SCHEDULE, spec.network)
        if schedule is not None and expected in (None, _digest(schedule)):
            return schedule, True
    schedule = find_schedule(spec, config.devices, config.seed)
    if expected not in (None, _digest(schedule)):
        raise OptionError(
            f"{spec.file} is not the schedule that the training in {folder} started with; "
            "restore that file, or give another folder"
            if spec.file
            else f"{folder / SCHEDULE} is not the schedule that the training there started with, "
            "and neither is the schedule found now; restore that file, or give another folder"
        )
    return schedule, spec.network is not None


def _kept(path: Path, network: Topology) -> Schedule | None:
    """The saved schedule, if it is for this network."""
    if not path.exists():
        return None
    schedule = load(path)
    same = topology_to_object(schedule.topology) == topology_to_object(network)
    return schedule if same else None


def _digest(schedule: Schedule) -> str:
    return hashlib.sha256(to_bytes(schedule)).hexdigest()[:16]
