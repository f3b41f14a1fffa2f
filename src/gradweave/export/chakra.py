"""Chakra's execution traces, one file per server, which ASTRA-sim reads as collective algorithms.

A file is the metadata, then the nodes: ``COMM_SEND_NODE``, ``COMM_RECV_NODE`` and, for a sum,
``COMP_NODE``, each with the nodes that it waits for.
"""

import math
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.atomic import atomic_write
from gradweave.common.wording import counted
from gradweave.errors import FileError, OptionError, ScheduleError
from gradweave.execute.program import LOCAL, Action, Program
from gradweave.export.chakra_messages import (
    COMPUTE,
    RECEIVE,
    SEND,
    attribute,
    delimited,
    messages,
)
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule
from gradweave.topology.units import as_size

SCHEMA = "0.0.4"
"""The version that the metadata states."""


def to_chakra_et(
    schedule: ScheduleLike, *, gradient_bytes: int | str, element_bytes: int = 4
) -> list[bytes]:
    """Writes a schedule as execution traces of Chakra.

    Each server's nodes are the actions of its `gradweave.execute.Program`, which wait for data and
    for their turn on the link; a reduction is a receive and then a computation. The traces name
    servers by rank. The tag of a message is its transfer's row in the schedule, and so unique.
    ``piece`` and ``place`` (in scratch memory) are attributes beyond Chakra's, which simulators
    ignore: they give the data of a message and its destination. Routes are left to the simulator,
    and computations have no duration.

    Args:
        schedule: a valid schedule of any collective in which no switch adds.
        gradient_bytes: size of the whole gradient, a multiple of `element_bytes`; it is cut as
            `Schedule.piece_offsets` does.
        element_bytes: size of one number.

    Returns:
        One file's content for each server, by rank.

    Raises:
        OptionError: for invalid sizes, or sizes that leave a piece without an element.
        ScheduleError: a piece whose share is 0 is sent.
        InvalidScheduleError: the schedule is invalid, or switches add in it.

    >>> import gradweave as gw
    >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    >>> len(to_chakra_et(schedule, gradient_bytes=1_000_000))
    4
    """
    schedule, gradient_bytes = as_schedule(schedule), as_size(gradient_bytes)
    if element_bytes < 1 or gradient_bytes % element_bytes:
        raise OptionError(
            f"gradient_bytes: expected a multiple of element_bytes, {element_bytes}, "
            f"got {gradient_bytes}"
        )
    elements = np.diff(schedule.piece_offsets(gradient_bytes // element_bytes))
    _check_none_empty(schedule, elements, element_bytes)
    return [
        _trace(Program.of(schedule, rank), elements.tolist(), element_bytes)
        for rank in range(schedule.topology.num_servers)
    ]


def _check_none_empty(schedule: Schedule, elements: NDArray, element_bytes: int) -> None:
    """Refuses messages of no bytes, which simulators do not expect."""
    sent = np.unique(schedule.piece)
    if (elements[sent] > 0).all():
        return
    empty = sent[schedule.share[sent] == 0]
    if empty.size:
        raise ScheduleError(f"shares[{empty[0]}]: is 0, but the piece is sent; leave it out")
    least = math.ceil(1 / schedule.share[sent].min()) * element_bytes
    raise OptionError(
        f"gradient_bytes: expected at least {least}, an element of {element_bytes} bytes for each "
        f"of {counted(schedule.pieces, 'piece')}, got {elements.sum() * element_bytes}"
    )


def save_chakra_et(
    schedule: ScheduleLike, prefix: str | Path, *, gradient_bytes: int | str, element_bytes: int = 4
) -> list[Path]:
    """Writes the files of `to_chakra_et`: ``<prefix>.<rank>.et``.

    All are written in full under other names before the first is renamed.

    Returns:
        The files, by rank.

    Raises:
        FileError: a file cannot be written.
    """
    traces = to_chakra_et(schedule, gradient_bytes=gradient_bytes, element_bytes=element_bytes)
    prefix = Path(prefix)
    if not prefix.name:
        raise FileError(f"{str(prefix)!r}: expected the prefix of the files' names")
    paths = [prefix.parent / f"{prefix.name}.{rank}.et" for rank in range(len(traces))]
    _write_together(dict(zip(paths, traces, strict=True)))
    return paths


def _trace(program: Program, elements: list[int], element_bytes: int) -> bytes:
    schedule = program.schedule
    metadata = messages()["GlobalMetadata"](
        version=SCHEMA,
        attr=[
            attribute("collective", schedule.name),
            attribute("topology", schedule.topology.name),
            attribute("scheduler", schedule.scheduler.name),
            attribute("gradient_bytes", sum(elements) * element_bytes, wide=True),
            attribute("pieces", schedule.pieces),
        ],
    )
    nodes = (_node(program, action, elements, element_bytes) for action in range(len(program.kind)))
    return b"".join(delimited(message) for message in (metadata, *nodes))


def _node(program: Program, action: int, elements: list[int], element_bytes: int) -> object:
    kind = Action(program.kind[action])
    piece, place = int(program.piece[action]), int(program.place[action])
    attributes = [attribute("is_cpu_op", False), attribute("piece", piece)]
    if place >= 0:
        attributes.append(attribute("place", place))
    name, specific = _name_and_attributes(program, action, elements[piece], element_bytes)
    after = program.after[program.after_offsets[action] : program.after_offsets[action + 1]]
    return messages()["Node"](
        id=action,
        name=name,
        type={Action.SEND: SEND, Action.RECEIVE: RECEIVE}.get(kind, COMPUTE),
        data_deps=sorted(set(after.tolist())),
        attr=attributes + specific,
    )


def _name_and_attributes(
    program: Program, action: int, elements: int, element_bytes: int
) -> tuple[str, list[Any]]:
    """The name of a node, and the attributes of its kind: a computation or a message."""
    kind, size = Action(program.kind[action]), elements * element_bytes
    piece, peer = int(program.piece[action]), int(program.peer[action])
    if kind in LOCAL:
        name = f"{kind.name.lower()} piece {piece} from rank {peer}"
        return name, [
            attribute("num_ops", elements, wide=True),
            attribute("tensor_size", size, wide=True),
        ]
    sends = kind == Action.SEND
    verb, way = ("send", "to") if sends else ("receive", "from")
    name = f"{verb} piece {piece} {way} rank {peer}"
    return name, [
        attribute("comm_src", program.rank if sends else peer),
        attribute("comm_dst", peer if sends else program.rank),
        attribute("comm_tag", int(program.transfer[action])),
        attribute("comm_size", size, wide=True),
    ]


def _write_together(files: dict[Path, bytes]) -> None:
    """Writes files of one directory so that all appear, or none where writing them fails."""
    directory = next(iter(files)).parent
    for path in files:
        if path.is_dir():
            raise FileError(f"{str(path)!r} cannot be written: is a directory")
    staged = directory / f".gradweave-{secrets.token_hex(8)}.part"
    try:
        staged.mkdir()
        for path, content in files.items():
            atomic_write(staged / path.name, content)
        for path in files:
            os.replace(staged / path.name, path)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"{str(directory)!r} cannot be written to: {reason}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
