"""Transfers as a table in CSV, of all servers or of one."""

import os
from pathlib import Path

import numpy as np

from gradweave.common.atomic import atomic_write
from gradweave.errors import OptionError
from gradweave.schedules.file import load_implicit
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.implicit import ImplicitSchedule
from gradweave.schedules.kinds import is_implicit_file
from gradweave.schedules.schedule import OPS, Schedule


def to_csv(schedule: ScheduleLike | ImplicitSchedule, *, rank: int | None = None) -> str:
    """Writes transfers as lines of comma-separated values, in order of rounds.

    The columns are round, piece, op (reduce or copy), source, target, and the nodes of the route,
    separated by spaces. Nodes are named by their ids.

    Args:
        schedule: a schedule, explicit or implicit; one server's lines of an implicit schedule do
            not need its expansion.
        rank: write only the transfers from and to the server of this rank; all if not given.

    Raises:
        OptionError: there is no such rank.

    >>> import gradweave as gw
    >>> print(to_csv(gw.schedulers.implicit("ring:3", collective="all_gather"), rank=1), end="")
    round,piece,op,source,target,route
    0,1,copy,1,2,1 2
    0,0,copy,0,1,0 1
    0,1,copy,1,0,1 0
    0,2,copy,2,1,2 1
    """
    own = _of_rank(schedule, rank)
    offsets, nodes = own.route_offsets.tolist(), own.route_nodes.tolist()
    columns = (own.round, own.piece, own.op, own.source, own.target)
    lines = ["round,piece,op,source,target,route"]
    rows = zip(*(column.tolist() for column in columns), offsets[:-1], offsets[1:], strict=True)
    lines += [
        f"{at},{piece},{OPS[op]},{source},{target},{' '.join(map(str, nodes[begin:end]))}"
        for at, piece, op, source, target, begin, end in rows
    ]
    return "\n".join(lines) + "\n"


def save_csv(
    schedule: ScheduleLike | ImplicitSchedule, path: str | Path, *, rank: int | None = None
) -> None:
    """Writes `to_csv` to a file, whole or not at all.

    Raises:
        OptionError: there is no such rank.
        FileError: the file cannot be written.
    """
    atomic_write(path, to_csv(schedule, rank=rank).encode())


def _of_rank(schedule: ScheduleLike | ImplicitSchedule, rank: int | None) -> Schedule:
    if isinstance(schedule, str | os.PathLike) and is_implicit_file(os.fspath(schedule)):
        schedule = load_implicit(os.fspath(schedule))
    if isinstance(schedule, ImplicitSchedule):
        if rank is None:
            return schedule.expand()
        _check_rank(rank, schedule.topology.num_servers)
        return schedule.of_rank(rank)
    schedule = as_schedule(schedule)
    if rank is None:
        return schedule
    _check_rank(rank, schedule.topology.num_servers)
    server = schedule.topology.servers[rank]
    return schedule.take(np.flatnonzero((schedule.source == server) | (schedule.target == server)))


def _check_rank(rank: int, servers: int) -> None:
    if not 0 <= rank < servers:
        raise OptionError(f"rank: expected 0 to {servers - 1}, got {rank}")
