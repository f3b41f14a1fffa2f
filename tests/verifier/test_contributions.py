"""Counting contributions: exactly, for any number of servers, in any memory, and quickly.

What no test can tell apart: which number stands for nodes that hold nothing (no transfer that is
counted names one), and in `_write` an exclusive or of the two *at least twice* planes (a bit set in
both is set in both *at least once* planes too, whose conjunction sets it anyway).
"""

import dataclasses
import time
import tracemalloc

import numpy as np
import pytest

import gradweave as gw
from gradweave.schedulers import Merged, Ring
from gradweave.schedules import COPY, REDUCE, Schedule
from gradweave.topology import Topology
from gradweave.verifier import contributions, verify
from tests.verifier.oracle import Draft, end_state

LINE = gw.topology.mesh((1, 3))  # servers 0 – 1 – 2
PAIR = gw.topology.complete(2)


@pytest.fixture
def all_counted(monkeypatch) -> None:
    """No piece is proved right before its contributions are counted."""
    monkeypatch.setattr(
        contributions, "not_proved", lambda schedule, *given: np.arange(schedule.pieces)
    )


def to_root(topology: Topology, rows: list) -> Schedule:
    """A reduce-scatter of one piece to server 0."""
    return Schedule.from_rows(topology, rows, collective="reduce_scatter", root=[0])


@pytest.mark.parametrize("times", [2, 3, 255, 256, 257, 65_537])
def test_a_contribution_that_arrives_many_times_is_rejected(times):
    repeated = [(round_, 0, REDUCE, (1, 0)) for round_ in range(times)]
    violation = verify(to_root(PAIR, repeated)).violation
    assert (violation.kind, violation.server, violation.piece) == ("result", 0, 0)
    assert violation.found == times
    assert f"the contribution of server 1 {times} times; expected once" in violation.message


def test_a_contribution_that_comes_by_two_ways_is_rejected():
    ring = gw.topology.ring(4)
    rows = [
        (0, 0, REDUCE, (2, 1)),
        (0, 0, REDUCE, (2, 3)),
        (1, 0, REDUCE, (1, 0)),
        (1, 0, REDUCE, (3, 0)),
    ]
    violation = verify(to_root(ring, rows)).violation
    assert violation.message == (
        "end: server 0 holds piece 0 with the contribution of server 2 2 times; expected once"
    )


@pytest.mark.parametrize("doublings", [1, 2, 8, 16, 32, 63, 64, 65, 200])
def test_counts_that_double_every_round_never_wrap_around(doublings):
    rows = [(0, 0, REDUCE, (1, 0))]
    for round_ in range(1, doublings + 1):
        rows += [(round_, 0, REDUCE, (0, 1)), (round_, 0, REDUCE, (1, 0))]
    schedule = to_root(PAIR, rows)
    counts = end_state(Draft.of(schedule))[0, 0]
    wrong = counts[0] if counts[0] != 1 else counts[1]
    violation = verify(schedule).violation
    assert violation.found == wrong >= 2 ** (doublings - 1)
    assert f" {wrong} times" in violation.message


def test_a_copy_forgives_what_it_overwrites():
    rows = [
        (0, 0, REDUCE, (2, 1)),
        (1, 0, REDUCE, (0, 1)),
        (2, 0, REDUCE, (1, 0)),
        (3, 0, COPY, (1, 0)),
    ]
    assert verify(to_root(LINE, rows)).valid
    assert verify(to_root(LINE, rows[:-1])).violation.found == 2


def test_a_transfer_sends_what_its_source_held_when_the_round_began():
    one_round = [(0, 0, REDUCE, (1, 0)), (0, 0, REDUCE, (2, 1))]
    violation = verify(to_root(LINE, one_round)).violation
    assert (violation.found, "the contribution of server 2 never" in violation.message) == (0, True)
    assert verify(to_root(LINE, [(0, 0, REDUCE, (2, 1)), (1, 0, REDUCE, (1, 0))])).valid


def direct(topology: Topology, interior: list[int]) -> Schedule:
    """Everyone sends to every root at once, or by rotation where a switch is between them."""
    count = topology.num_servers
    source, target = np.nonzero(~np.eye(count, dtype=bool))
    step = (target - source) % count - 1 if interior else np.zeros(len(source), int)
    stages, rounds = [], int(step.max()) + 1
    for op, begin, piece in ((REDUCE, 0, target), (COPY, rounds, source)):
        stages.append((begin + step, piece, source, target, np.full(len(source), op)))
    columns = [np.concatenate(column) for column in zip(*stages, strict=True)]
    between = [np.full(len(columns[0]), switch) for switch in interior]
    routes = np.stack([columns[2], *between, columns[3]], axis=1)
    return Schedule(
        topology,
        "all_reduce",
        topology.servers,
        *columns,
        routes.ravel(),
        np.arange(len(routes) + 1) * routes.shape[1],
    )


def wide(family: str, servers: int) -> Schedule:
    topology = gw.topology.from_spec(f"{family}:{servers}")
    if family == "ring":
        return Ring().schedule(topology)
    return direct(topology, [servers] if family == "star" else [])


@pytest.mark.parametrize("servers", [63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("family", ["complete", "ring", "star"])
@pytest.mark.usefixtures("all_counted")
def test_no_server_is_lost_at_the_edges_of_words(family, servers):
    schedule = wide(family, servers)
    assert verify(schedule).valid

    # The reduce from the last server that reaches the root of piece 0, left out and twice.
    reduces = Draft.of(schedule.replace(collective="reduce_scatter"))
    last = max(
        (row for row in reduces.rows if (row.piece, row.op, row.target) == (0, REDUCE, 0)),
        key=lambda row: row.source,
    )
    without = tuple(row for row in reduces.rows if row != last)
    again = (*reduces.rows, last._replace(round=schedule.rounds))
    for rows, found in ((without, 0), (again, 2)):
        violation = verify(dataclasses.replace(reduces, rows=rows).schedule()).violation
        assert (violation.kind, violation.server, violation.piece) == ("result", 0, 0)
        assert violation.found == found


@pytest.mark.parametrize(
    "schedule",
    [
        Ring().schedule(gw.topology.star(65)),
        Merged(tries=1).schedule(gw.topology.bcube(3, 1)),
        Merged(tries=1, aggregating_switches=True).schedule(gw.topology.fat_tree(4)),
    ],
    ids=["ring", "merged", "aggregating"],
)
@pytest.mark.parametrize("block_bytes", [1, 10_000, 1 << 40])
@pytest.mark.usefixtures("all_counted")
def test_the_memory_given_changes_no_verdict(schedule, block_bytes):
    aggregating = schedule.scheduler.options.get("aggregating_switches", False)
    draw = np.random.default_rng(0)
    for lost in [None, *draw.choice(schedule.num_transfers, 5, replace=False).tolist()]:
        changed = Draft.of(schedule)
        rows = tuple(row for t, row in enumerate(changed.rows) if t != lost)
        tried = dataclasses.replace(changed, rows=rows).schedule()
        verdict = verify(tried, aggregating_switches=aggregating, block_bytes=block_bytes)
        assert verdict == verify(tried, aggregating_switches=aggregating)
        assert verdict.valid == (lost is None)


@pytest.mark.parametrize(("spare", "per_block"), [(0, 7), (1, 7), (-1, 6)])
@pytest.mark.usefixtures("all_counted")
def test_blocks_are_as_large_as_the_memory_given(spare, per_block, monkeypatch):
    schedule = Ring().schedule(gw.topology.ring(65))
    one_piece = 2 * 2 * 8 * 65  # two planes of two words for each server
    sizes, real = [], contributions._initial

    def initial(*given):
        planes = real(*given)
        sizes.append(sum(plane.nbytes for plane in planes))
        return planes

    monkeypatch.setattr(contributions, "_initial", initial)
    assert verify(schedule, block_bytes=7 * one_piece + spare).valid
    whole, rest = divmod(65, per_block)
    assert sizes == [per_block * one_piece] * whole + [rest * one_piece]
    sizes.clear()
    assert verify(schedule, block_bytes=1).valid
    assert sizes == [one_piece] * 65


def test_what_is_there_once_grows_by_what_comes_twice_and_the_other_way():
    network = gw.topology.complete(3)
    twice = [(0, 0, REDUCE, (2, 1)), (1, 0, REDUCE, (2, 1))]
    grown = [(0, 0, REDUCE, (2, 0)), *twice, (2, 0, REDUCE, (1, 0))]
    assert verify(to_root(network, grown)).violation.found == 3
    assert verify(to_root(network, grown[1:])).violation.found == 2
    kept = [(0, 0, REDUCE, (1, 0)), (1, 0, REDUCE, (1, 0)), (2, 0, REDUCE, (2, 0))]
    assert verify(to_root(network, kept)).violation.found == 2


def test_layers_count_the_earlier_writes_of_a_cell_in_its_round():
    draw = np.random.default_rng(0)
    for _ in range(50):
        rounds, written = np.sort(draw.integers(0, 4, 20)), draw.integers(0, 4, 20)
        before = [*zip(rounds.tolist(), written.tolist(), strict=True)]
        expected = [before[:t].count(pair) for t, pair in enumerate(before)]
        assert contributions._layers(rounds, written).tolist() == expected


@pytest.mark.slow
def test_two_million_transfers_are_verified_in_seconds_and_little_memory():
    network = gw.topology.bcube(32, 1)
    schedule = Ring().schedule(network)
    assert schedule.num_transfers == 2 * 1024 * 1023

    started = time.process_time()
    assert verify(schedule).valid
    seconds = time.process_time() - started
    assert seconds < 30, f"{schedule.num_transfers:,} transfers took {seconds:.1f} s; expected < 30"

    naive_bytes = network.num_servers**3
    tracemalloc.start()
    assert verify(schedule).valid
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < naive_bytes, (
        f"took {peak_bytes:,} bytes; expected less than a byte per count: {naive_bytes:,}"
    )
    print(f"\n{schedule.num_transfers:,} transfers: {seconds:.2f} s, {peak_bytes:,} bytes")

    # The very last copy is left out: only a full count finds that.
    *_, last = range(schedule.num_transfers)
    late = schedule.replace(op=np.where(np.arange(last + 1) == last, REDUCE, schedule.op))
    violation = verify(late).violation
    assert (violation.kind, violation.found) == ("result", 2)
    assert (violation.server, violation.piece) == (schedule.target[last], schedule.piece[last])
