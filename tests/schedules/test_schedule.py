"""A schedule's columns: what they may hold, and what they give."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given

import gradweave as gw
from gradweave.errors import ScheduleError
from gradweave.schedules import COPY, REDUCE, Provenance, Schedule
from gradweave.schedules.schedule import distinct_rows
from tests.schedules.same import COLUMNS, same, same_columns
from tests.verifier.oracle import Draft
from tests.verifier.random_schedules import drafts

STAR = gw.topology.star(3)  # servers 0, 1, 2 at switch 3
ROWS = [
    (0, 0, REDUCE, (1, 3, 0)),
    (0, 1, REDUCE, (2, 3, 1)),
    (2, 0, COPY, (0, 3, 2)),
]
SMALL = Schedule.from_rows(STAR, ROWS)


def test_from_rows_takes_the_ends_of_the_routes():
    assert (SMALL.source.tolist(), SMALL.target.tolist()) == ([1, 2, 0], [0, 1, 2])
    assert [SMALL.route(t) for t in range(3)] == [route for *_, route in ROWS]
    assert SMALL.root.tolist() == [0, 1, 2]
    assert (SMALL.pieces, SMALL.num_transfers, SMALL.rounds) == (3, 3, 3)
    assert SMALL.collective == "all_reduce"
    assert SMALL.scheduler == Provenance("unknown")
    other = Schedule.from_rows(
        STAR, ROWS[:2], collective="reduce_scatter", root=[2, 2], scheduler=Provenance("hand")
    )
    assert (other.root.tolist(), other.scheduler.name) == ([2, 2], "hand")


def test_a_schedule_without_transfers_has_no_rounds():
    empty = Schedule.from_rows(STAR, [])
    assert (empty.rounds, empty.num_transfers) == (0, 0)
    assert empty.stages == {"reduce_scatter": 0, "all_gather": 0}
    assert empty.round_offsets.tolist() == [0]
    assert [len(column) for column in empty.route_links] == [0, 0]


# column, what it is given, what the message must say
BAD = [
    ("round", [0, -1, 2], "round[1]: expected 0 to 67108863, got -1"),
    ("round", [0, 0, 2**31], "round[2]: expected 0 to 67108863, got 2147483648"),
    ("round", [0, 0, 10**30], "round: expected integers, got object"),
    ("round", [0.0, 1.0, 2.0], "round: expected integers, got float64"),
    ("round", [True, True, True], "round: expected integers, got bool"),
    ("round", ["0", "1", "2"], "round: expected integers, got <U1"),
    ("round", [None, 1, 2], "round: expected integers, got object"),
    ("round", [[0, 1, 2]], "round: expected a flat list, got 2 dimensions"),
    ("round", [[0], [1, 2]], "round: expected a flat list, got a ragged one"),
    ("round", 3, "round: expected a flat list, got 0 dimensions"),
    ("round", None, "round: expected a flat list, got 0 dimensions"),
    ("round", [], "piece: expected 0 entries, as many as round has, got 3"),
    ("piece", [0, 3, 0], "piece[1]: expected 0 to 2, got 3"),
    ("piece", [0, 1], "piece: expected 3 entries, as many as round has, got 2"),
    ("source", [1, 2, 4], "source[2]: expected 0 to 3, got 4"),
    ("source", [1, 2, 0, 0], "source: expected 3 entries, as many as round has, got 4"),
    ("target", [-9, 1, 2], "target[0]: expected 0 to 3, got -9"),
    ("target", [0], "target: expected 3 entries, as many as round has, got 1"),
    ("op", [0, 0, 2], "op[2]: expected 0 to 1, got 2"),
    ("op", [0, 0], "op: expected 3 entries, as many as round has, got 2"),
    ("root", [0, 1, 3], "root[2]: expected a server, got switch 3"),
    ("root", [0, 1, 4], "root[2]: expected 0 to 3, got 4"),
    ("root", [], "root: expected at least one piece, got none"),
    ("root", 3, "root: expected a flat list, got 0 dimensions"),
    ("route_nodes", [1, 3, 0, 2, 3, 1, 0, 7, 2], "route_nodes[7]: expected 0 to 3, got 7"),
    (
        "route_nodes",
        [1, 3, 0, 2, 3, 1, 0, 3, 2, 1],
        "route_offsets: expected 0 to 10, the number of route_nodes; got 0 to 9",
    ),
    ("route_offsets", [0, 3, 6, 12], "route_offsets[3]: expected 0 to 9, got 12"),
    ("route_offsets", [0, 3, 9], "route: expected 3 routes, as many as round has, got 2"),
    ("route_offsets", [], "route: expected 3 routes, as many as round has, got 0"),
    (
        "route_offsets",
        [0, 8, 9, 9],
        "route[1]: expected at least its source and target, got 1 nodes",
    ),
    (
        "route_offsets",
        [0, 6, 3, 9],
        "route[1]: expected at least its source and target, got -3 nodes",
    ),
    ("collective", "all_to_all", "collective: expected one of all_reduce, reduce_scatter, all"),
    ("collective", None, "collective: expected one of all_reduce, reduce_scatter, all_gather"),
]


@pytest.mark.parametrize(("column", "values", "message"), BAD)
def test_a_bad_column_is_refused_in_one_line_that_names_it_and_the_row(column, values, message):
    with pytest.raises(ScheduleError) as raised:
        SMALL.replace(**{column: values})
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_no_transfers_and_no_offsets_are_refused_too():
    nothing = dict.fromkeys(COLUMNS[1:], ())
    with pytest.raises(ScheduleError, match="expected 0 routes"):
        SMALL.replace(**nothing)


@pytest.mark.parametrize("column", COLUMNS)
def test_nothing_can_be_changed(column):
    array = getattr(SMALL, column)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(SMALL, column, array)


def test_the_columns_are_copies_of_what_was_given():
    given_rounds = np.array([0, 0, 2])
    schedule = SMALL.replace(round=given_rounds)
    given_rounds[0] = 1
    assert schedule.round.tolist() == [0, 0, 2]
    assert given_rounds.flags.writeable


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.uint64])
def test_any_integers_will_do(dtype):
    changes = {name: getattr(SMALL, name).astype(dtype) for name in COLUMNS}
    assert same(SMALL.replace(**changes), SMALL)
    assert SMALL.replace(**changes).round.dtype == np.int32


@given(drafts())
def test_rows_are_sorted_by_round_and_otherwise_stay_in_order(draft):
    schedule = draft.schedule()
    assert Draft.of(schedule).rows == tuple(sorted(draft.rows, key=lambda row: row.round))
    from_rows = [(row.round, row.piece, row.op, row.route) for row in draft.rows]
    made = Schedule.from_rows(
        draft.topology, from_rows, collective=draft.collective, root=draft.root
    )
    assert same_columns(made, schedule)


@given(drafts())
def test_the_offsets_of_the_rounds(draft):
    schedule = draft.schedule()
    offsets = schedule.round_offsets
    assert len(offsets) == schedule.rounds + 1
    for at in range(schedule.rounds):
        assert (schedule.round[offsets[at] : offsets[at + 1]] == at).all()


@given(drafts())
def test_the_links_of_the_routes(draft):
    schedule, topology = draft.schedule(), draft.topology
    links, transfer = schedule.route_links
    ends = zip(topology.source[links].tolist(), topology.target[links].tolist(), strict=True)
    expected = [
        (t, link)
        for t in range(schedule.num_transfers)
        for link in zip(schedule.route(t), schedule.route(t)[1:], strict=False)
    ]
    assert list(zip(transfer.tolist(), ends, strict=True)) == expected


def test_a_link_that_the_network_has_not_is_minus_one():
    schedule = Schedule.from_rows(STAR, [(0, 0, REDUCE, (1, 0))])
    assert schedule.route_links[0].tolist() == [-1]


@pytest.mark.parametrize(
    ("collective", "rows", "stages"),
    [
        ("all_reduce", ROWS, (1, 2)),
        ("all_reduce", ROWS[:2], (1, 0)),
        ("all_reduce", ROWS[2:], (0, 3)),
        # Overlap: the last reduce in round 2, copies from round 1 on.
        ("all_reduce", [(2, *ROWS[0][1:]), (1, *ROWS[2][1:]), (3, *ROWS[2][1:])], (3, 3)),
        ("reduce_scatter", ROWS, (3, 0)),
        ("all_gather", ROWS, (0, 3)),
    ],
)
def test_the_rounds_of_the_stages(collective, rows, stages):
    schedule = Schedule.from_rows(STAR, rows, collective=collective)
    assert schedule.stages == dict(zip(("reduce_scatter", "all_gather"), stages, strict=True))


def test_a_copy_of_a_schedule_by_pickle_is_the_same():
    assert same(pickle.loads(pickle.dumps(SMALL)), SMALL)


@pytest.mark.parametrize(
    ("rows", "first", "kind"),
    [
        ([[3, 1], [1], [3, 1], [1, 3], [1]], [0, 1, 3], [0, 1, 0, 2, 1]),
        ([[], [5], []], [0, 1], [0, 1, 0]),
        ([], [], []),
    ],
)
def test_distinct_rows_in_the_order_in_which_they_first_occur(rows, first, kind):
    entries = np.array([entry for row in rows for entry in row], np.int32)
    offsets = np.cumsum([0, *map(len, rows)])
    found = distinct_rows(entries, offsets)
    assert [array.tolist() for array in found] == [first, kind]
