"""How a training's devices combine what they learn, the same each time that it is resumed.

A schedule that was solved for is kept beside the checkpoint, which names it by its digest.
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
from gradweave.schedule.file import from_bytes, load, to_bytes
from gradweave.schedule.schedule import Schedule
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.processes.agreement import Processes

SCHEDULE = "schedule.json"


@dataclasses.dataclass(frozen=True)
class Combining:
    """How devices combine what they learn."""

    aggregate: Aggregate
    """Puts that into an optimizer."""
    schedule: Schedule | None = None
    """By which they average gradients; None where by none."""
    kept: bool = False
    """Whether the schedule was solved for, and so is to be kept."""

    @functools.cached_property
    def digest(self) -> str | None:
        """By which the checkpoint names the schedule."""
        return None if self.schedule is None else _digest(self.schedule)

    def keep(self, folder: Path) -> None:
        """Writes a schedule that was solved for, beside a checkpoint of a training by it.

        Raises:
            FileError: where it cannot be written.
        """
        if self.schedule is not None and self.kept:
            self.schedule.save(folder / SCHEDULE)


def combining(
    config: Config, folder: Path, stated: Mapping[str, Any] | None, processes: "Processes"
) -> Combining:
    """Resolves the aggregation of a config.

    Args:
        config: of the training.
        folder: where it is kept.
        stated: metadata of the checkpoint to resume from; None where there is none, or in processes
            other than the first.
        processes: which train together; the first one alone has a folder, and files.

    Raises:
        SpecError: the aggregation is not understood.
        OptionError: it has a value out of its range; or the schedule is another one than that by
            which the training began.
        ScheduleError: it is for another number of devices.
        FileError: a schedule's file cannot be read.
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
    """The schedule that is read, solved for or kept, and whether it is for a network."""
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
            f"{spec.file} is another schedule than that by which the training in {folder} began; "
            "put that one back, or give another folder"
            if spec.file
            else f"{folder / SCHEDULE} is not the schedule by which the training there began, and "
            "the one found now is another; put that one back, or give another folder"
        )
    return schedule, spec.network is not None


def _kept(path: Path, network: Topology) -> Schedule | None:
    """The schedule that is kept, if it is one for the network."""
    if not path.exists():
        return None
    schedule = load(path)
    same = topology_to_object(schedule.topology) == topology_to_object(network)
    return schedule if same else None


def _digest(schedule: Schedule) -> str:
    return hashlib.sha256(to_bytes(schedule)).hexdigest()[:16]
