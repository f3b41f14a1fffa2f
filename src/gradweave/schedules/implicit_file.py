"""The file of an implicit schedule: its base as small differences, its group and its network.

The format is documented in docs/reference/schedule-file.md. Reading checks types, lengths and
ranges, makes the network from its specification, and executes nothing.
"""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gradweave.errors import FileError, GradweaveError, ScheduleError
from gradweave.schedules.implicit import ImplicitSchedule
from gradweave.schedules.schedule import (
    COPY,
    Collective,
    Provenance,
    Schedule,
    StatedBound,
    distinct_rows,
    take_rows,
)
from gradweave.topology.formats.files import parts_of
from gradweave.topology.formats.readers import SUFFIXES
from gradweave.topology.spec import from_spec
from gradweave.topology.topology import Topology
from gradweave.topology.translations import Translations

FORMAT = "gradweave-implicit-schedule"
Count = Annotated[int, msgspec.Meta(ge=0)]


class _Symmetry(msgspec.Struct):
    sizes: list[int]
    layers: list[list[int]]
    fixed: list[int] = []


class _Hops(msgspec.Struct):
    length: list[int]
    nodes: list[int]


class _Transfers(msgspec.Struct):
    round: list[int]
    piece: list[int]
    hop: list[int]
    source: list[int]


class _Scheduler(msgspec.Struct):
    name: str
    options: dict[str, Any] = {}
    seed: int | None = None


class _Bound(msgspec.Struct):
    rounds: Count
    kind: str


class _File(msgspec.Struct):
    format: Literal["gradweave-implicit-schedule"]
    version: Literal[1]
    collective: Collective
    network: str
    symmetry: _Symmetry
    root: list[int]
    rounds: Count
    hops: _Hops
    transfers: _Transfers
    scheduler: _Scheduler
    bound: _Bound | None = None


def from_bytes(content: bytes, name: str) -> ImplicitSchedule:
    """Reads an implicit schedule from the content of an unpacked file.

    Args:
        content: content in the format of `to_object`.
        name: name of the file for messages.

    Raises:
        FileError: it is not an implicit schedule; one line that names the field.
    """
    try:
        return _read(msgspec.json.decode(content, type=_File))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FileError(f"{name}: not an implicit schedule's file: {error}") from error
    except RecursionError as error:
        raise FileError(f"{name}: not an implicit schedule's file: nested too deeply") from error
    except GradweaveError as error:
        raise FileError(f"{name}: {error}") from error


def to_object(plan: ImplicitSchedule) -> Mapping[str, Any]:
    """An implicit schedule as plain lists, ready for JSON.

    Raises:
        ScheduleError: the network's name does not make it, or the base is not made of trees.
    """
    base, symmetry, topology = plan.base, plan.symmetry, plan.topology
    _check_name(topology)
    source = _places(base)
    # The hop of a transfer: its route, moved so that the source's shifted coordinates are 0.
    back = symmetry.shift_between(base.source, symmetry.orbit[base.source])
    lengths = np.diff(base.route_offsets)
    routes = symmetry.moved(base.route_nodes, np.repeat(back, lengths, axis=0))
    first, hop = distinct_rows(routes, base.route_offsets)
    nodes, offsets = take_rows(routes, base.route_offsets, first)
    return {
        "format": FORMAT,
        "version": 1,
        "collective": plan.collective,
        "network": topology.name,
        "symmetry": {
            "sizes": list(symmetry.sizes),
            "layers": [list(layer) for layer in symmetry.layers],
            "fixed": list(symmetry.fixed),
        },
        "root": base.root.tolist(),
        "rounds": plan.rounds,
        "hops": {"length": np.diff(offsets).tolist(), "nodes": _steps(nodes, offsets)},
        "transfers": {
            "round": np.diff(base.round, prepend=0).tolist(),
            "piece": np.diff(base.piece, prepend=0).tolist(),
            "hop": np.diff(hop, prepend=0).tolist(),
            "source": _since(source, hop).tolist(),
        },
        "scheduler": {
            "name": base.scheduler.name,
            "options": dict(base.scheduler.options),
            "seed": base.scheduler.seed,
        },
        "bound": plan.bound and {"rounds": plan.bound.rounds, "kind": plan.bound.kind},
    }


def _check_name(topology: Topology) -> None:
    try:
        known = from_spec(topology.name, installed=False).same_network(topology)
    except GradweaveError:
        known = False
    if not known:
        raise ScheduleError(
            f"network: {topology.name!r} does not make this network; expected a specification"
        )


def _places(base: Schedule) -> NDArray[np.int64]:
    """[T] 1 + the transfer by which each source got the piece; 0 for the piece's root."""
    held = {(piece, root): 0 for piece, root in enumerate(base.root.tolist())}
    places = []
    rows = zip(base.piece.tolist(), base.source.tolist(), base.target.tolist(), strict=True)
    for row, (piece, source, target) in enumerate(rows):
        if (piece, source) not in held or (piece, target) in held:
            raise ScheduleError(
                f"base: transfer {row} from {source} to {target} is not part of a tree; expected a "
                "source that has the piece and a target that lacks it"
            )
        places.append(held[piece, source])
        held[piece, target] = row + 1
    return np.array(places, np.int64)


def _since(values: NDArray, group: NDArray) -> NDArray[np.int64]:
    """[T] each value less the previous one of its group, or itself if it is the first."""
    order = np.argsort(group, kind="stable")
    steps = np.diff(values[order], prepend=0)
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    steps[starts] = values[order][starts]
    found = np.empty(len(values), np.int64)
    found[order] = steps
    return found


def _summed(steps: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """The inverse of `_since`."""
    order = np.argsort(group, kind="stable")
    total = np.cumsum(steps[order])
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    before = (total - steps[order])[starts]
    found = np.empty(len(steps), np.int64)
    found[order] = total - np.repeat(before, np.diff(starts, append=len(steps)))
    return found


def _steps(nodes: NDArray, offsets: NDArray) -> list[int]:
    """Nodes of ragged rows, each less the node at the same place of the previous row."""
    rows = [nodes[a:b].tolist() for a, b in itertools.pairwise(offsets.tolist())]
    before = [[], *rows]
    return [
        node - (last[place] if place < len(last) else 0)
        for last, row in zip(before, rows, strict=False)
        for place, node in enumerate(row)
    ]


def _rows(lengths: list[int], steps: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Nodes and offsets of ragged rows: the inverse of `_steps`."""
    if any(length < 2 for length in lengths) or sum(lengths) != len(steps):
        raise FileError(
            f"hops: expected as many nodes as the lengths, of at least 2 each, add up to; got "
            f"{len(steps)}"
        )
    nodes: list[int] = []
    last: list[int] = []
    place = 0
    for length in lengths:
        row = steps[place : place + length]
        row = [a + (last[i] if i < len(last) else 0) for i, a in enumerate(row)]
        nodes += row
        last, place = row, place + length
    return _column("hops.nodes", nodes), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _column(name: str, values: list[int]) -> NDArray[np.int64]:
    try:
        return np.array(values, np.int64)
    except OverflowError as error:
        raise FileError(f"{name}: an integer does not fit in 64 bits") from error


def _read(file: _File) -> ImplicitSchedule:
    given = file.symmetry
    symmetry = Translations(tuple(given.sizes), tuple(map(tuple, given.layers)), tuple(given.fixed))
    by_name = os.path.isfile(file.network) or Path(file.network).suffix.lower() in SUFFIXES
    if by_name or parts_of(file.network):
        raise FileError(f"network: expected a specification, got the file {file.network!r:.60}")
    topology = from_spec(file.network, installed=False)
    if symmetry.num_nodes != topology.num_nodes:
        raise FileError(
            f"symmetry: its layers have {symmetry.num_nodes:,} nodes; expected "
            f"{topology.num_nodes:,}, as {file.network} has"
        )
    plan = ImplicitSchedule(_base(file, topology, symmetry), symmetry, file.collective)
    if plan.rounds != file.rounds:
        raise FileError(f"rounds: is {file.rounds}, but the transfers take {plan.rounds}")
    return plan


def _base(file: _File, topology: Topology, symmetry: Translations) -> Schedule:
    names = ("round", "piece", "hop", "source")
    columns = {name: _column(name, getattr(file.transfers, name)) for name in names}
    count = len(columns["round"])
    for name, column in columns.items():
        if len(column) != count:
            raise FileError(f"{name}: expected {count} entries, as many as round has")
    rounds, piece, hop = (np.cumsum(columns[name]) for name in names[:3])
    root, (nodes, offsets) = _column("root", file.root), _rows(file.hops.length, file.hops.nodes)
    _in_range("hop", hop, len(offsets) - 1)
    _in_range("piece", piece, len(root))
    _in_range("root", root, topology.num_nodes)
    _in_range("hops.nodes", nodes, topology.num_nodes)
    source = _sources(
        topology,
        symmetry,
        root[piece],
        _summed(columns["source"], hop),
        nodes[offsets[1:] - 1][hop],
    )
    # Routes start where the source's shifted coordinates are 0.
    shift = symmetry.shift_between(symmetry.orbit[source], source)
    nodes, offsets = take_rows(nodes, offsets, hop)
    nodes = symmetry.moved(nodes, np.repeat(shift, np.diff(offsets), axis=0))
    scheduler, bound = file.scheduler, file.bound
    return Schedule(
        topology=topology,
        collective="all_gather",
        root=root,
        round=rounds,
        piece=piece,
        source=source,
        target=nodes[offsets[1:] - 1],
        op=np.full(count, COPY),
        route_nodes=nodes,
        route_offsets=offsets,
        scheduler=Provenance(scheduler.name, scheduler.options, scheduler.seed),
        bound=StatedBound(bound.rounds, bound.kind) if bound else None,
    )


def _in_range(name: str, column: NDArray[np.int64], number: int) -> None:
    wrong = np.flatnonzero((column < 0) | (column >= number))
    if wrong.size:
        row = int(wrong[0])
        raise FileError(f"{name}[{row}]: expected 0 to {number - 1}, got {column[row]}")


def _sources(
    topology: Topology,
    symmetry: Translations,
    root: NDArray[np.int64],
    place: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.int64]:
    """[T] the sources of transfers, from the transfers that bring them the piece.

    A hop that is moved to its source moves its last node to its target. Coordinates add up along
    the tree, so sources are found level by level.

    Args:
        topology: the network.
        symmetry: the group.
        root: [T] root of each transfer's piece.
        place: [T] as `_places` returns them.
        ends: [T] last node of each transfer's hop.
    """
    rows = np.arange(len(place))
    wrong = np.flatnonzero((place < 0) | (place > rows))
    if wrong.size:
        row = int(wrong[0])
        raise FileError(f"source[{row}]: expected 0 to {row}, got {place[row]}")
    source = np.where(place == 0, root, -1)
    ready = np.flatnonzero(place == 0)
    order = np.argsort(place, kind="stable")
    first = np.searchsorted(place[order], np.arange(len(place) + 2))
    while ready.size:
        shift = symmetry.shift_between(symmetry.orbit[source[ready]], source[ready])
        target = symmetry.moved(ends[ready], shift)
        following, rest = take_rows(order, first, ready + 1)
        source[following] = np.repeat(target, np.diff(rest))
        ready = following
    return source
