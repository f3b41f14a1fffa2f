"""Schedules as users give them: a schedule, the solution of a search, or the path of a file."""

import os
from typing import Any, Protocol

from gradweave.errors import OptionError
from gradweave.schedules.file import load
from gradweave.schedules.kinds import is_schedule_file
from gradweave.schedules.schedule import Schedule
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology


class HasSchedule(Protocol):
    """The result of a search, such as `gradweave.Solution`."""

    @property
    def schedule(self) -> Schedule:
        """The schedule that the search found."""
        ...


ScheduleLike = Schedule | HasSchedule | str | os.PathLike[str]
"""A schedule, a solution, or the path of a schedule file."""


def as_schedule(given: ScheduleLike) -> Schedule:
    """The schedule itself, that of a solution, or that of a file.

    Raises:
        FileError: the file cannot be read, or is not a schedule.
        OptionError: for any other type.
    """
    if isinstance(given, Schedule):
        return given
    if isinstance(given, str | os.PathLike):
        return load(os.fspath(given))
    found: Any = getattr(given, "schedule", None)
    if isinstance(found, Schedule):
        return found
    raise OptionError(
        "expected a schedule: a Schedule, a Solution, or the path of a schedule file; got "
        f"{type(given).__name__}"
    )


def schedule_or_network(given: ScheduleLike | TopologyLike) -> Schedule | Topology:
    """The given schedule or network, or the one that a file or a specification describes.

    Raises:
        FileError: the file cannot be read, or is neither.
        SpecError: for a specification that cannot be parsed.
        OptionError: for any other type.
    """
    if isinstance(given, Topology):
        return given
    if not isinstance(given, str | os.PathLike):
        return as_schedule(given)
    path = os.fspath(given)
    return load(path) if is_schedule_file(path) else as_topology(path)
