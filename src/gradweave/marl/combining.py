"""How a training's devices combine what they learn, the same each time that it is gone on with.

A schedule that was found for a network is kept beside the checkpoint, which says by its digest
which one that is.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradweave.aggregate.spec import by_schedule, from_spec, network_of
from gradweave.errors import OptionError
from gradweave.marl.config import Config
from gradweave.marl.learners.algorithms import Aggregate
from gradweave.schedule.file import from_bytes, load, to_bytes
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.solve.solve import solve
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.marl.processes import Processes

SCHEDULE = "schedule.json"


@dataclasses.dataclass(frozen=True)
class Combining:
    """How devices combine what they learn."""

    aggregate: Aggregate
    """Puts that into an optimizer."""
    schedule: Schedule | None = None
    """By which they average gradients; None where by none."""
    kept: bool = False
    """Whether the schedule was found for a network, and so is to be kept."""

    @functools.cached_property
    def digest(self) -> str | None:
        """What the checkpoint calls the schedule by."""
        return None if self.schedule is None else _digest(self.schedule)

    def keep(self, folder: Path) -> None:
        """Writes the schedule that was found, beside a checkpoint of a training by it.

        Raises:
            FileError: where it cannot be written.
        """
        if self.schedule is not None and self.kept:
            self.schedule.save(folder / SCHEDULE)


def combining(
    config: Config, folder: Path, stated: Mapping[str, Any] | None, processes: "Processes"
) -> Combining:
    """What a config names.

    Args:
        config: of the training.
        folder: where it is kept.
        stated: what the checkpoint that is gone on from says; None where there is none, or in
            processes other than the first.
        processes: which train together; the first one alone has a folder, and files.

    Raises:
        SpecError: the aggregation is not understood.
        OptionError: it has a value that is not taken; or the schedule is another one than that by
            which the training began.
        ScheduleError: it is for another number of devices.
        FileError: a schedule's file cannot be read.
    """
    spec, devices = config.aggregation, config.devices
    name, _, what = spec.partition(":")
    if name.strip().lower() != "scheduled" or not what.strip():
        return Combining(processes.together(lambda: from_spec(spec, devices, same_data=True)))
    if processes.alone:
        schedule, kept = _schedule(config, folder, stated)
    else:
        content = processes.bytes_of_first(lambda: to_bytes(_schedule(config, folder, stated)[0]))
        schedule = processes.together(lambda: from_bytes(content, spec))
        kept = bool(processes.number_of_first(lambda: network_of(spec) is not None))
    found = processes.together(lambda: by_schedule(schedule, devices, spec=spec))
    return Combining(found, schedule, kept)


def _schedule(
    config: Config, folder: Path, stated: Mapping[str, Any] | None
) -> tuple[Schedule, bool]:
    """The schedule, and whether it was found for a network."""
    network = network_of(config.aggregation)
    wanted = None if stated is None else stated.get("schedule")
    if network is None:
        path = Path(config.aggregation.partition(":")[2].strip())
        schedule = load(path)
        if wanted not in (None, _digest(schedule)):
            raise OptionError(
                f"{path} is another schedule than that by which the training in {folder} began; "
                "put that one back, or give another folder"
            )
        return schedule, False
    from_spec(config.aggregation, config.devices)  # refuses what is of another size, unsolved
    if stated is not None:
        schedule = _kept(folder / SCHEDULE, network)
        if schedule is not None and wanted in (None, _digest(schedule)):
            return schedule, True
    schedule = solve(network, seed=config.seed).schedule
    if wanted not in (None, _digest(schedule)):
        raise OptionError(
            f"{folder / SCHEDULE} is not the schedule by which the training there began, and the "
            "one found now is another; put that one back, or give another folder"
        )
    return schedule, True


def _kept(path: Path, network: Topology) -> Schedule | None:
    """The schedule that is kept, if it is one for the network."""
    if not path.exists():
        return None
    schedule = load(path)
    same = topology_to_object(schedule.topology) == topology_to_object(network)
    return schedule if same else None


def _digest(schedule: Schedule) -> str:
    return hashlib.sha256(to_bytes(schedule)).hexdigest()[:16]
