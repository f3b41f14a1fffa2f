"""Very many transfers: columns are narrower, and say the same."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import ScheduleError
from gradweave.schedulers import Ring, Symmetric
from gradweave.schedules import Schedule, columns, compose, reverse
from gradweave.simulator import seconds
from gradweave.verifier import verify
from tests.schedules.same import COLUMNS, same, same_columns

NETWORKS = ("bcube:n=3,k=1", "torus:3x4", "dcell:n=4,k=1", "star:5")


@pytest.fixture
def few_are_many(monkeypatch) -> None:
    """As if every schedule had very many transfers."""
    monkeypatch.setattr(columns, "MANY", 0)


def again(schedule: Schedule) -> Schedule:
    """The same, made from writable columns."""
    return schedule.replace(
        **{name: np.array(getattr(schedule, name), np.int64) for name in COLUMNS[1:]}
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_narrow_columns_say_the_same(network, monkeypatch):
    wide = Symmetric().schedule(network)
    monkeypatch.setattr(columns, "MANY", 0)
    for narrow in (Symmetric().schedule(network), again(wide)):
        assert same_columns(narrow, wide)
        assert {narrow.round.dtype, narrow.piece.dtype, narrow.route_nodes.dtype} == {
            np.dtype("i2")
        }
        assert narrow.round_offsets.tolist() == wide.round_offsets.tolist()
        assert [narrow.route(t) for t in (0, -1 % wide.num_transfers)] == [
            wide.route(t) for t in (0, -1 % wide.num_transfers)
        ]
        assert verify(narrow) == verify(wide)
        assert seconds(narrow, gradient_bytes=1e6) == seconds(wide, gradient_bytes=1e6)


@pytest.mark.usefixtures("few_are_many")
@pytest.mark.parametrize("network", ["bcube:n=3,k=1", "torus:3x4"])
def test_routes_of_one_length_keep_that_alone_and_ends_are_views(network):
    made = Symmetric().schedule(network)
    assert made.route_length == (2 if network.startswith("torus") else 3)
    assert np.shares_memory(made.source, made.route_nodes)
    assert np.shares_memory(made.target, made.route_nodes)
    kept = sum(column.nbytes for column in (made.round, made.piece, made.op, made.route_nodes))
    assert kept == made.num_transfers * (2 + 2 + 1 + 2 * made.route_length)
    other = made.replace(bound=gw.schedules.StatedBound(1, "cut"))
    assert other.route_nodes is made.route_nodes
    assert other.bound.rounds == 1


def test_routes_of_one_length_are_sorted_with_their_rounds(monkeypatch):
    made = Symmetric().schedule("bcube:n=3,k=1")
    backwards = {name: getattr(made, name)[::-1] for name in COLUMNS[1:6]}
    backwards["route_nodes"] = made.route_nodes.reshape(-1, 3)[::-1].ravel()
    wide = made.replace(**backwards)
    assert not np.array_equal(wide.route_nodes, backwards["route_nodes"])
    monkeypatch.setattr(columns, "MANY", 0)
    narrow = made.replace(**backwards)
    assert narrow.route_length == 3
    assert same_columns(narrow, wide)


@pytest.mark.usefixtures("few_are_many")
def test_wrong_ends_are_kept_for_the_verifier():
    made = Ring().schedule(gw.topology.ring(4))
    wrong = made.replace(source=np.roll(made.source, 1))
    assert verify(wrong).violation.kind == "route"
    assert not np.shares_memory(wrong.source, wrong.route_nodes)


def test_rounds_beyond_16_bits_are_not_cut_off(monkeypatch):
    stage = Ring().schedule(gw.topology.ring(4), collective="all_gather")
    late = stage.replace(round=stage.round * 10_000)
    expected = compose(reverse(late), late)
    monkeypatch.setattr(columns, "MANY", 0)
    stage = Ring().schedule(gw.topology.ring(4), collective="all_gather")
    late = stage.replace(round=stage.round.astype(np.int64) * 10_000)
    assert late.round.dtype == np.int16
    made = compose(reverse(late), late)
    assert made.round.max() == expected.round.max() > 32_767
    assert same(made, expected)


@pytest.mark.parametrize("many", [0, columns.MANY])
def test_offsets_may_be_given_as_one_number(many, monkeypatch):
    ring = Ring().schedule(gw.topology.ring(4))
    monkeypatch.setattr(columns, "MANY", many)
    assert same(ring.replace(route_offsets=2), ring)
    for wrong in (1, 3, -2):
        with pytest.raises(ScheduleError, match=f"48 route_nodes, got {wrong}"):
            ring.replace(route_offsets=wrong)


def test_what_cannot_change_is_not_copied():
    ring = Ring().schedule(gw.topology.ring(4))
    assert ring.replace(collective="all_reduce").piece is ring.piece
    writable = np.array(ring.piece)
    view = writable[:]
    view.flags.writeable = False
    made = ring.replace(piece=view)
    writable[0] = 3 - writable[0]
    assert made.piece.tolist() == ring.piece.tolist()
