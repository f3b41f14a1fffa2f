"""Traces for Perfetto: the format, and that what they show is what the event model says."""

import importlib
import json
from collections import defaultdict
from pathlib import Path

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from gradweave.errors import FileError, OptionError
from gradweave.export import perfetto, save_perfetto, to_perfetto
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.seconds import event_seconds
from tests.conformance.made import made

BYTES = 1e8


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    return made("bcube:n=3,k=1", "symmetric", "all_reduce")


def read(trace: bytes) -> tuple[dict[int, tuple[str, str]], dict[int, list[tuple[int, int, str]]]]:
    """Of each track its group and name; of each its slices, checked to be one after another."""
    groups: dict[int, str] = {}
    tracks: dict[int, tuple[str, str]] = {}
    slices = defaultdict(list)
    open_: dict[int, tuple[int, str]] = {}
    for packet in perfetto.messages()["Trace"].FromString(trace).packet:
        if packet.HasField("track_descriptor"):
            one = packet.track_descriptor
            if one.HasField("process"):
                groups[one.uuid] = one.process.process_name
            else:
                tracks[one.uuid] = (groups[one.parent_uuid], one.name)
        else:
            event = packet.track_event
            assert packet.HasField("timestamp")  # of 0, too: without one the viewer takes another
            assert event.track_uuid in tracks
            if event.type == 1:
                assert event.track_uuid not in open_
                open_[event.track_uuid] = (packet.timestamp, event.name)
            else:
                begin, name = open_.pop(event.track_uuid)
                assert begin <= packet.timestamp
                before = slices[event.track_uuid]
                assert not before or before[-1][1] <= begin
                before.append((begin, packet.timestamp, name))
    assert not open_
    return tracks, dict(slices)


@pytest.mark.quick
def test_every_transfer_is_on_its_links_and_at_its_servers(schedule: Schedule) -> None:
    tracks, slices = read(to_perfetto(schedule, gradient_bytes=BYTES))
    begin, end = event_seconds(schedule, BYTES)
    of = defaultdict(list)
    for track, some in slices.items():
        of[tracks[track][0]] += some
    spans = sorted((round(b * 1e9), round(e * 1e9)) for b, e in zip(begin, end, strict=True))
    assert sorted(one[:2] for one in of["Servers"]) == sorted(spans * 2)
    assert len(of["Links"]) == len(schedule.route_links[0])
    assert [one[:2] for one in of["Whole"]] == [(0, round(float(end.max()) * 1e9))]
    ends = {name for group, name in tracks.values() if group == "Servers"}
    assert {"server 0 sends", "server 8 receives"} <= ends


def test_what_perfettos_own_messages_read(schedule: Schedule) -> None:
    try:  # pip install perfetto
        own = importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    except ImportError:
        pytest.skip("perfetto is not installed")
    trace = to_perfetto(schedule, gradient_bytes=BYTES)
    read_ = own.Trace.FromString(trace)
    assert read_.SerializeToString(deterministic=True) == trace
    for packet in read_.packet:
        part = getattr(packet, packet.WhichOneof("data"))
        assert not len(UnknownFieldSet(packet)) and not len(UnknownFieldSet(part))
    kinds = {packet.WhichOneof("data") for packet in read_.packet}
    assert kinds == {"track_descriptor", "track_event"}


def run_of(schedule: Schedule) -> dict:
    return {
        "topology": schedule.topology.name,
        "collective": schedule.collective,
        "scheduler": schedule.scheduler.name,
        "gradient_bytes": int(BYTES),
        "schedule": {"seconds": [0.02, 0.03]},
        "own": {"name": "MPI_Allreduce", "median_s": 0.05},
    }


def test_measured_runs_stand_beside_the_plan(schedule: Schedule, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run_of(schedule)))
    save_perfetto(schedule, tmp_path / "t.pftrace", gradient_bytes=BYTES, measured=file)
    tracks, slices = read((tmp_path / "t.pftrace").read_bytes())
    measured = {
        tracks[track][1]: some[0][1]
        for track, some in slices.items()
        if tracks[track][1].startswith("measured")
    }
    assert measured == {
        "measured: run 1": 20_000_000,
        "measured: run 2": 30_000_000,
        "measured: MPI_Allreduce, median": 50_000_000,
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot be read"),
        ("[]", "expected what 'gradweave bench --json' prints"),
        ("{", "expected what 'gradweave bench --json' prints"),
        ({"topology": "ring:8"}, "is a run of ring:8"),
        ({"gradient_bytes": 1}, "is a run of 1 byte, not of 100,000,000"),
        ({"schedule": {"seconds": [-1.0]}}, "seconds above 0"),
    ],
)
def test_other_files_are_refused(
    schedule: Schedule, tmp_path: Path, text: str | dict | None, reason: str
) -> None:
    file = tmp_path / "run.json"
    if text is not None:
        whole = text if isinstance(text, str) else json.dumps(run_of(schedule) | text)
        file.write_text(whole)
    with pytest.raises(FileError, match=reason):
        to_perfetto(schedule, gradient_bytes=BYTES, measured=file)


def test_too_many_transfers_are_refused(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto, "MAX_TRANSFERS", schedule.num_transfers - 1)
    with pytest.raises(OptionError, match="at most"):
        to_perfetto(schedule, gradient_bytes=BYTES)
