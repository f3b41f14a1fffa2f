"""The schedule file: what goes in comes out, byte for byte the same each time, and fast."""

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.common.stop import UNLIMITED
from gradweave.schedulers import Ring
from gradweave.schedules import COPY, REDUCE, Provenance, Schedule, StatedBound
from gradweave.schedules.file import load, save
from tests.conformance.strategies import STRATEGIES
from tests.schedules.same import same
from tests.verifier.random_schedules import drafts, valid_schedules

GOLDEN = Path(__file__).parents[1] / "golden" / "ring3.json"
SUFFIXES = [".json", ".json.gz"]


def test_the_golden_file_is_the_ring_of_the_lecture_on_three_servers():
    schedule = load(GOLDEN)
    by_hand = [
        # Round 0: server p sends the piece whose root is at p − 1 to p + 1.
        *[(0, 2, REDUCE, (0, 1)), (0, 0, REDUCE, (1, 2)), (0, 1, REDUCE, (2, 0))],
        # Round 1: what came in, with its own; now root r has all of piece r.
        *[(1, 1, REDUCE, (0, 1)), (1, 2, REDUCE, (1, 2)), (1, 0, REDUCE, (2, 0))],
        *[(2, 0, COPY, (0, 1)), (2, 1, COPY, (1, 2)), (2, 2, COPY, (2, 0))],
        *[(3, 2, COPY, (0, 1)), (3, 0, COPY, (1, 2)), (3, 1, COPY, (2, 0))],
    ]
    ring = gw.topology.ring(3)
    expected = Schedule.from_rows(
        ring, by_hand, scheduler=Provenance("ring", {"order": "id", "steps": "minimal"}, 0)
    ).replace(bound=StatedBound(2, "cut"))
    assert same(schedule, expected)
    assert gw.verify(schedule).valid
    assert gw.bounds.free_trees(ring).rounds == 2
    made = Ring().schedule(ring).replace(bound=expected.bound, scheduler=expected.scheduler)
    assert same(made, expected)


def test_what_is_written_has_the_golden_files_shape(tmp_path):
    golden = json.loads(GOLDEN.read_text())
    path = tmp_path / "ring3.json"
    save(load(GOLDEN), path)
    written = json.loads(path.read_text())
    assert written == golden
    assert json.dumps(written) == json.dumps(golden), "the keys' order"


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(st.one_of(valid_schedules(), drafts().map(lambda draft: draft.schedule())))
@settings(max_examples=60)
def test_round_trip(tmp_path_factory, suffix, schedule):
    path = tmp_path_factory.mktemp("files") / f"schedule{suffix}"
    save(schedule, path)
    assert same(load(path), schedule)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_round_trip_and_the_same_bytes_each_time(tmp_path, strategy, suffix):
    suits = {"all with all": "complete:4"} | {
        name: "a100:boxes=2" for name in STRATEGIES if name.startswith("hierarchical")
    }
    topology = gw.topology.from_spec(suits.get(strategy, "bcube:n=2,k=1"))
    schedule = STRATEGIES[strategy].make(topology).schedule(topology)
    paths = [tmp_path / f"{name}{suffix}" for name in ("a", "another-name")]
    schedule.save(paths[0])
    loaded = load(paths[0])
    assert same(loaded, schedule)
    loaded.save(str(paths[1]))
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_names_of_people_and_odd_numbers_survive(tmp_path, suffix):
    odd = Provenance('"Grüße" \n \u2028 😀', {"a": [1, 2.5, None, True, {"b": ""}]}, 2**63)
    schedule = load(GOLDEN).replace(scheduler=odd, bound=None)
    path = tmp_path / f"ring{suffix}"
    save(schedule, path)
    assert same(load(path), schedule)


def test_gzip_is_by_suffix_and_says_neither_when_nor_what_name(tmp_path):
    save(load(GOLDEN), tmp_path / "ring3.json.gz")
    packed = (tmp_path / "ring3.json.gz").read_bytes()
    assert packed[:4] == b"\x1f\x8b\x08\x00", "flags: no name"
    assert packed[4:8] == bytes(4), "time stamp"
    save(load(GOLDEN), tmp_path / "ring3.json")
    assert gzip.decompress(packed) == (tmp_path / "ring3.json").read_bytes()


def test_saving_replaces_a_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "ring3.json"
    path.write_text("old")
    save(load(GOLDEN), path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["ring3.json"]
    assert same(load(path), load(GOLDEN))


def seconds_of(do: Callable[[], object]) -> float:
    started = time.process_time()
    do()
    return time.process_time() - started


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_many_transfers_are_read_in_two_thirds_of_json_load(tmp_path, suffix):
    schedule = Ring().make(gw.topology.bcube(23, 1), "reduce_scatter", 0, UNLIMITED)
    assert schedule.num_transfers > 250_000
    path = tmp_path / f"many{suffix}"
    save(schedule, path)
    opened = gzip.open if suffix.endswith(".gz") else open

    def parsed() -> object:
        with opened(path, "rb") as file:
            return json.load(file)

    assert same(load(path), schedule)
    ours, theirs = (
        min(seconds_of(read) for _ in range(3)) for read in (lambda: load(path), parsed)
    )
    assert ours < 2 / 3 * theirs, f"{ours:.2f} s of processor time at best; json.load: {theirs:.2f}"
