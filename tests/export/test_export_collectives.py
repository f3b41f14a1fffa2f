"""Recorded collectives as traces: tracks, arrows, and clocks of several machines."""

import dataclasses
from pathlib import Path

import pytest

from gradweave.errors import FileError
from gradweave.execute.recorded import (
    SUFFIX,
    RecordedCall,
    RecordedLane,
    RecordedRank,
    read_recorded,
)
from gradweave.export import perfetto
from gradweave.export.collectives import clocks_ahead_ns, recorded_to_perfetto, save_recorded

ALL, SOME, PAIR = "a", "b", "a:0>1"
LANES = {
    ALL: RecordedLane((0, 1, 2), False),
    SOME: RecordedLane((0, 2), False),
    PAIR: RecordedLane((0, 1), True),
}
SUM = "all_reduce float32[9] sum"


def call(lane: str, number: int, begin: int, end: int, text: str = SUM) -> RecordedCall:
    return RecordedCall(lane, number, text, 36, begin, end, number == 2, "")


def rank(number: int, *calls: RecordedCall, machine: str = "x", wall_ns: int = 0) -> RecordedRank:
    return RecordedRank(number, 3, f"node{number}", machine, wall_ns, 990, True, LANES, calls)


RANKS = [
    rank(0, call(ALL, 1, 100, 200), call(SOME, 1, 150, 250), call(PAIR, 1, 300, 310, "message")),
    rank(1, call(ALL, 1, 120, 205), call(PAIR, 1, 290, 312, "message")),
    rank(2, call(ALL, 1, 130, 204), call(SOME, 1, 140, 0)),
]


def slices(trace: bytes) -> dict[tuple[str, str], list[tuple[int, int, str, int]]]:
    """By rank and track: begin, end, name and flow of each."""
    groups: dict[int, str] = {}
    tracks: dict[int, tuple[str, str]] = {}
    found: dict[tuple[str, str], list[tuple[int, int, str, int]]] = {}
    for packet in perfetto.messages()["Trace"].FromString(trace).packet:
        one, event = packet.track_descriptor, packet.track_event
        if one.HasField("process"):
            groups[one.uuid] = one.process.process_name
        elif packet.HasField("track_descriptor"):
            tracks[one.uuid] = groups[one.parent_uuid], one.name
        elif event.type == 1:
            row = packet.timestamp, 0, event.name, event.flow_ids[0]
            found.setdefault(tracks[event.track_uuid], []).append(row)
        else:
            last = found[tracks[event.track_uuid]].pop()
            found[tracks[event.track_uuid]].append((last[0], packet.timestamp, *last[2:]))
    return found


def test_each_rank_has_a_track_for_each_group_and_each_peer():
    found = slices(recorded_to_perfetto(RANKS))
    assert set(found) == {
        *(
            ("rank 0 (node0)", name)
            for name in ("all ranks", "ranks 0 and 2", "messages to rank 1")
        ),
        *(("rank 1 (node1)", name) for name in ("all ranks", "messages from rank 0")),
        *(("rank 2 (node2)", name) for name in ("all ranks", "ranks 0 and 2")),
    }
    ((*times, name, flow),) = found["rank 1 (node1)", "all ranks"]
    assert (times, name) == ([120, 205], SUM)
    assert flow == found["rank 0 (node0)", "all ranks"][0][3]
    assert flow != found["rank 0 (node0)", "ranks 0 and 2"][0][3]
    assert found["rank 2 (node2)", "ranks 0 and 2"][0][:2] == (140, 990)  # was in flight


def test_clocks_of_other_machines_follow_from_what_all_wait_in():
    ahead, wall = 10**9, 7 * 10**9
    other = rank(
        1,
        call(ALL, 1, 150 + ahead, 206 + ahead),
        call(ALL, 2, 500 + ahead, 560 + ahead),
        call(PAIR, 1, 0, 1, "message"),
        machine="y",
        wall_ns=wall,
    )
    first = rank(0, call(ALL, 1, 110, 206), call(ALL, 2, 550, 566), machine="x")
    assert clocks_ahead_ns([first, other])["y"] == pytest.approx(ahead, abs=60)
    found = slices(recorded_to_perfetto([first, other]))
    assert found["rank 1 (node1)", "all ranks"][0][0] == pytest.approx(150, abs=60)
    apart = rank(1, machine="y", wall_ns=-wall)
    assert clocks_ahead_ns([first, apart]) == {"x": 0, "y": wall}


def test_files_of_ranks(tmp_path: Path):
    for one in RANKS:
        (tmp_path / f"rank-{one.rank}{SUFFIX}").write_bytes(one.written())
    assert read_recorded([tmp_path]) == RANKS
    assert read_recorded([tmp_path / f"rank-1{SUFFIX}"]) == RANKS[1:2]
    save_recorded(RANKS, tmp_path / "t.pftrace")
    assert (tmp_path / "t.pftrace").read_bytes() == recorded_to_perfetto(RANKS)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not a record of a rank's collectives"),
        (b"[]", "not a record of a rank's collectives"),
        (dataclasses.replace(RANKS[0], lanes={}).written(), "calls of 'a', which is not among"),
        (RANKS[0].written().replace(b'"calls":[', b'"calls":[3,'), "not a record"),
        (RANKS[0].written().replace(b'"bytes":36', b'"bytes":-1'), "not a record"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, said: str):
    (tmp_path / f"rank-0{SUFFIX}").write_bytes(content)
    with pytest.raises(FileError, match=said):
        read_recorded([tmp_path])


def test_files_that_do_not_go_together(tmp_path: Path):
    with pytest.raises(FileError, match="no files of ranks"):
        read_recorded([tmp_path])
    with pytest.raises(FileError, match="cannot be read"):
        read_recorded([tmp_path / "none"])
    for name in ("x", "y"):
        (tmp_path / f"{name}{SUFFIX}").write_bytes(RANKS[0].written())
    with pytest.raises(FileError, match=r"of rank 0, like .*; give one"):
        read_recorded([tmp_path])
