"""Collectives that a job's ranks have recorded, as a trace for Perfetto's viewer."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gradweave.common.atomic import atomic_write
from gradweave.common.wording import listed
from gradweave.execute.recorded import RecordedCall, RecordedLane, RecordedRank
from gradweave.export.perfetto import Slice, TraceWriter
from gradweave.processes.clock_offset import ahead_by_meetings

_MEETINGS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no rank ends before all have begun."""


def recorded_to_perfetto(ranks: Sequence[RecordedRank]) -> bytes:
    """Writes a job's collectives as a trace for Perfetto.

    Each rank has a track for each of its groups, and one for its messages to and from each other
    rank; arrows join the parts of one collective. Times are those of the first rank's clock. If
    ranks run on several machines, the offsets of their clocks are derived from collectives that no
    rank ends before all have begun.

    Args:
        ranks: what was recorded; at least one.

    Returns:
        The file's content.
    """
    ahead = clocks_ahead_ns(ranks)
    shift = ranks[0].wall_ns
    writer = TraceWriter()
    for rank in ranks:
        group = writer.group(f"rank {rank.rank} ({rank.host})", rank.rank + 1)
        tracks: dict[str, list[Slice]] = {}
        for call in rank.calls:
            tracks.setdefault(call.lane, []).append(_slice(rank, call, shift - ahead[rank.machine]))
        for key in sorted(tracks, key=lambda key: (rank.lanes[key].between_two, key)):
            writer.track(group, _track(rank, rank.lanes[key]), tracks[key])
    return writer.trace.SerializeToString(deterministic=True)


def save_recorded(ranks: Sequence[RecordedRank], path: str | Path) -> None:
    """Writes `recorded_to_perfetto` to a file.

    Raises:
        FileError: it cannot be written.
    """
    atomic_write(path, recorded_to_perfetto(ranks))


def clocks_ahead_ns(ranks: Sequence[RecordedRank]) -> Mapping[str, int]:
    """How far each machine's clock is ahead of the first rank's, in nanoseconds.

    Measured by collectives that ranks of both machines took part in; if there are none, by the
    machines' clocks for the time of day.
    """
    first = ranks[0]
    here = _meetings(ranks, first.machine)
    found = {first.machine: 0}
    for rank in ranks:
        if rank.machine in found:
            continue
        there = _meetings(ranks, rank.machine)
        pairs = [
            (float(one[0]), float(one[1]), float(other[0]), float(other[1]))
            for key, ones in here.items()
            for one in ones
            for other in there.get(key, ())
        ]
        ahead = ahead_by_meetings(pairs)[0] if pairs else first.wall_ns - rank.wall_ns
        found[rank.machine] = round(ahead)
    return found


def _meetings(
    ranks: Iterable[RecordedRank], machine: str
) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Begins and ends of the collectives that all wait in, by lane and number."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for rank in ranks:
        for call in rank.calls if rank.machine == machine else ():
            if call.end_ns and not call.error and call.text.startswith(_MEETINGS):
                found.setdefault((call.lane, call.number), []).append((call.begin_ns, call.end_ns))
    return found


def _slice(rank: RecordedRank, call: RecordedCall, shift_ns: int) -> Slice:
    notes: dict[str, int | str] = {"number": call.number, "bytes": call.bytes}
    notes["by"] = "a plan" if call.planned else "the backend"
    if not call.end_ns:
        notes["end"] = "was in flight"
    elif not rank.ends_are_noted:
        notes["end"] = "not later than this"
    if call.error:
        notes["error"] = call.error
    flow = zlib.crc32(f"{call.lane} {call.number}".encode()) + 1
    begin_ns = _time(call.begin_ns + shift_ns)
    end_ns = max(_time((call.end_ns or rank.written_ns) + shift_ns), begin_ns)
    return (begin_ns, end_ns, call.text, notes, (flow,))


def _time(ns: int) -> int:
    """As the format can write it."""
    return min(max(ns, 0), (1 << 63) - 1)


def _track(rank: RecordedRank, lane: RecordedLane) -> str:
    members = [str(member) for member in lane.members]
    if lane.between_two:
        to = lane.members[0] == rank.rank
        return f"messages {'to' if to else 'from'} rank {members[-1 if to else 0]}"
    if len(members) == rank.ranks:
        return "all ranks"
    return f"ranks {listed(members)}"
