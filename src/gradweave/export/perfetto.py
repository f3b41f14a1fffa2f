"""Traces for Perfetto's viewer, ui.perfetto.dev: links and servers as tracks over time.

Source: perfetto.protos.TracePacket and TrackEvent, the format of its tracing SDK.
"""

import functools
import heapq
import json
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.atomic import atomic_write
from gradweave.common.wording import counted
from gradweave.errors import FileError, OptionError
from gradweave.export.protobuf import Field, message_classes
from gradweave.printable import printable
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import OPS, Schedule
from gradweave.simulator.seconds import event_seconds
from gradweave.simulator.traffic import piece_bytes
from gradweave.topology.units import as_size

MAX_TRANSFERS = 300_000
"""Largest number of transfers in a trace, the same as on a page."""

_PACKAGE = "perfetto.protos"
_MESSAGES = {
    "DebugAnnotation": (
        ("name", 10, Field.TYPE_STRING, False),
        ("int_value", 4, Field.TYPE_INT64, False),
        ("double_value", 5, Field.TYPE_DOUBLE, False),
        ("string_value", 6, Field.TYPE_STRING, False),
    ),
    "ProcessDescriptor": (
        ("pid", 1, Field.TYPE_INT32, False),
        ("process_name", 6, Field.TYPE_STRING, False),
    ),
    "TrackDescriptor": (
        ("uuid", 1, Field.TYPE_UINT64, False),
        ("name", 2, Field.TYPE_STRING, False),
        ("process", 3, f".{_PACKAGE}.ProcessDescriptor", False),
        ("parent_uuid", 5, Field.TYPE_UINT64, False),
        # Enumerations, which are written as integers.
        ("child_ordering", 11, Field.TYPE_INT32, False),
        ("sibling_order_rank", 12, Field.TYPE_INT32, False),
    ),
    "TrackEvent": (
        ("debug_annotations", 4, f".{_PACKAGE}.DebugAnnotation", True),
        ("type", 9, Field.TYPE_INT32, False),
        ("track_uuid", 11, Field.TYPE_UINT64, False),
        ("categories", 22, Field.TYPE_STRING, True),
        ("name", 23, Field.TYPE_STRING, False),
        ("flow_ids", 47, Field.TYPE_FIXED64, True),
    ),
    "TracePacket": (
        ("timestamp", 8, Field.TYPE_UINT64, False),
        ("trusted_packet_sequence_id", 10, Field.TYPE_UINT32, False),
        ("track_event", 11, f".{_PACKAGE}.TrackEvent", False),
        ("track_descriptor", 60, f".{_PACKAGE}.TrackDescriptor", False),
    ),
    "Trace": (("packet", 1, f".{_PACKAGE}.TracePacket", True),),
}
_BEGIN, _END = 1, 2
"""``TYPE_SLICE_BEGIN`` and ``TYPE_SLICE_END`` of the enumeration ``TrackEvent.Type``."""
_EXPLICIT = 3
"""``TrackDescriptor.ChildTracksOrdering``: by ranks, not by names, or 10 would precede 2."""
_NS = 1e9
_SEQUENCE = 1

Slice = tuple[int, int, str, dict[str, Any], tuple[int, ...]]
"""Begin and end in nanoseconds, name, annotations, and the flows that it is a part of."""


@functools.cache
def messages() -> dict[str, type[Any]]:
    """The message classes that traces consist of, by name."""
    return message_classes(_PACKAGE, _MESSAGES, syntax="proto2")


def to_perfetto(
    schedule: ScheduleLike, *, gradient_bytes: float | str, measured: str | Path | None = None
) -> bytes:
    """Writes the predicted timeline of a schedule, without barriers, as a trace for Perfetto.

    Each link direction has a track, and each server has two, for sends and receives. A transfer is
    a slice on each track that it uses, and arrows join these slices. Slices that overlap on a track
    are shown in several rows. Each measured run is a track of one slice.

    Args:
        schedule: a schedule of any collective.
        gradient_bytes: size of the whole gradient.
        measured: file with the output of ``gradweave bench --json`` for this schedule.

    Returns:
        The file's content.

    Raises:
        OptionError: the schedule has too many transfers.
        FileError: `measured` cannot be read, or is not a run of this schedule with these bytes.

    >>> import gradweave as gw
    >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    >>> trace = to_perfetto(schedule, gradient_bytes=1e6)
    >>> len(messages()["Trace"].FromString(trace).packet) > 4 * schedule.num_transfers
    True
    """
    schedule = as_schedule(schedule)
    gradient_bytes = as_size(gradient_bytes)
    if schedule.num_transfers > MAX_TRANSFERS:
        raise OptionError(
            f"a trace takes at most {MAX_TRANSFERS:,} transfers, got {schedule.num_transfers:,}; "
            "take a smaller network or fewer pieces"
        )
    runs = [] if measured is None else _runs(schedule, gradient_bytes, measured)
    begin, end = event_seconds(schedule, gradient_bytes)
    writer = TraceWriter()
    plan = (0, round(float(end.max(initial=0.0)) * _NS), "predicted", {}, ())
    whole = writer.group("Whole", 1)
    writer.track(whole, f"plan: {schedule.scheduler.name}", [plan])
    for name, seconds in runs:
        writer.track(whole, name, [(0, round(seconds * _NS), "measured", {}, ())])
    of_links, sent, received = _slices(schedule, begin, end, gradient_bytes)
    topology = schedule.topology
    links = writer.group("Links", 2)
    for link in sorted(of_links):
        writer.track(links, topology.link_name(link), of_links[link])
    servers = writer.group("Servers", 3)
    for node in sorted({*sent, *received}):
        for words, slices in (("sends", sent), ("receives", received)):
            if node in slices:
                writer.track(servers, f"{topology.node_name(node)} {words}", slices[node])
    return writer.trace.SerializeToString(deterministic=True)


def save_perfetto(
    schedule: ScheduleLike,
    path: str | Path,
    *,
    gradient_bytes: float | str,
    measured: str | Path | None = None,
) -> None:
    """Writes `to_perfetto` to a file.

    Raises:
        OptionError: see `to_perfetto`.
        FileError: a file cannot be read or written.
    """
    data = to_perfetto(schedule, gradient_bytes=gradient_bytes, measured=measured)
    atomic_write(path, data)


def _slices(
    schedule: Schedule, begin: NDArray, end: NDArray, gradient_bytes: float
) -> tuple[dict[int, list[Slice]], dict[int, list[Slice]], dict[int, list[Slice]]]:
    """Slices of each link direction, and of each node's sends and receives."""
    of_links: dict[int, list[Slice]] = {}
    sent: dict[int, list[Slice]] = {}
    received: dict[int, list[Slice]] = {}
    size = piece_bytes(schedule, gradient_bytes)
    links, transfers = schedule.route_links
    name = schedule.topology.node_name
    first = np.searchsorted(transfers, np.arange(schedule.num_transfers + 1)).tolist()
    for t, (one, after) in enumerate(pairwise(first)):
        op, piece = OPS[int(schedule.op[t])], int(schedule.piece[t])
        notes = {
            "op": op,
            "piece": piece,
            "round": int(schedule.round[t]),
            "bytes": float(size[piece]),
            "route": " → ".join(map(name, schedule.route(t))),
        }
        span = round(float(begin[t]) * _NS), round(float(end[t]) * _NS)
        slice_: Slice = (*span, f"{op} {piece}", notes, (t + 1,))
        for link in links[one:after].tolist():
            of_links.setdefault(link, []).append(slice_)
        sent.setdefault(int(schedule.source[t]), []).append(slice_)
        received.setdefault(int(schedule.target[t]), []).append(slice_)
    return of_links, sent, received


class TraceWriter:
    """Packets of a trace, track by track."""

    def __init__(self) -> None:
        self.trace = messages()["Trace"]()
        self._uuid = count(1)
        self._rank = count()

    def group(self, name: str, number: int) -> int:
        """A group of tracks, in the viewer a process; returns its id."""
        uuid = next(self._uuid)
        process = messages()["ProcessDescriptor"](pid=number, process_name=name)
        self._packet(
            track_descriptor=messages()["TrackDescriptor"](
                uuid=uuid, process=process, child_ordering=_EXPLICIT
            )
        )
        return uuid

    def track(self, group: int, name: str, slices: Sequence[Slice]) -> None:
        """Adds a track with slices, and further tracks of the same name for overlapping slices.

        The viewer draws tracks with one name in a group as rows of one track.
        """
        rank = next(self._rank)
        for row in _rows(slices):
            uuid = next(self._uuid)
            self._packet(
                track_descriptor=messages()["TrackDescriptor"](
                    uuid=uuid, parent_uuid=group, name=printable(name), sibling_order_rank=rank
                )
            )
            for one in row:
                self._slice(uuid, one)

    def _slice(self, track: int, one: Slice) -> None:
        begin, end, name, notes, flows = one
        event = messages()["TrackEvent"]
        annotations = [_annotation(key, value) for key, value in notes.items()]
        kind = str(notes.get("op", "whole"))
        self._packet(
            timestamp=begin,
            track_event=event(
                type=_BEGIN,
                track_uuid=track,
                name=name,
                categories=[kind],
                debug_annotations=annotations,
                flow_ids=flows,
            ),
        )
        self._packet(timestamp=end, track_event=event(type=_END, track_uuid=track))

    def _packet(self, **fields: Any) -> None:
        self.trace.packet.add(trusted_packet_sequence_id=_SEQUENCE, **fields)


def _rows(slices: Sequence[Slice]) -> Iterator[list[Slice]]:
    """Slices in as few rows as keep those of one row apart."""
    rows: list[list[Slice]] = []
    free: list[tuple[int, int]] = []
    for one in sorted(slices, key=lambda one: one[:2]):
        if free and free[0][0] <= one[0]:
            row = heapq.heappop(free)[1]
        else:
            row = len(rows)
            rows.append([])
        rows[row].append(one)
        heapq.heappush(free, (one[1], row))
    yield from rows


def _annotation(name: str, value: Any) -> Any:
    field = {int: "int_value", float: "double_value"}.get(type(value), "string_value")
    shown = printable(value) if isinstance(value, str) else value
    return messages()["DebugAnnotation"](**{"name": name, field: shown})


def _runs(schedule: Schedule, gradient_bytes: float, path: str | Path) -> list[tuple[str, float]]:
    """Names and seconds of measured runs, of this schedule and of the runtime's own all-reduce."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        named = found["topology"], found["collective"], found["scheduler"]
        size = float(found["gradient_bytes"])
        runs = [
            (f"measured: run {number + 1}", float(seconds))
            for number, seconds in enumerate(found["schedule"]["seconds"])
        ]
        own = found["own"]
        if own:
            runs.append((f"measured: {own['name']}, median", float(own["median_s"])))
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"{path}: expected what 'gradweave bench --json' prints; {error!r:.80}"
        ) from error
    mine = schedule.topology.name, schedule.name, schedule.scheduler.name
    if named != mine:
        raise FileError(
            f"{path}: is a run of {', '.join(map(str, named))}, not of {', '.join(mine)}"
        )
    if size != gradient_bytes:
        raise FileError(
            f"{path}: is a run of {counted(round(size), 'byte')}, not of {gradient_bytes:,.0f}; "
            "give both one gradient_bytes"
        )
    if not all(0 < seconds < 1e9 for _, seconds in runs):
        raise FileError(f"{path}: expected seconds above 0 in every run")
    return runs
