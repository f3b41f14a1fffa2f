"""The oracle, against sums worked out by hand and by NumPy, and what goes with it."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.execute import play
from gradweave.execute.pattern import contribution, expected
from gradweave.execute.reduction import REDUCTIONS, check_reduction
from gradweave.execute.reference import meaningful
from gradweave.schedulers import Merged, RecursiveDoubling, Ring
from gradweave.schedules import COLLECTIVES, COPY, REDUCE, Schedule
from tests.conformance.networks import network
from tests.verifier.random_schedules import valid_schedules

NUMPY = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
schedules = valid_schedules().filter(
    lambda schedule: not schedule.scheduler.options.get("aggregating_switches")
)


def line(rows: list[tuple[int, int, int, int, int]], *, pieces: int = 1) -> Schedule:
    """From (round, piece, source, target, op), on three servers that are all linked."""
    columns = np.array(rows).T
    return Schedule(
        topology=gw.topology.complete(3),
        collective="all_reduce",
        root=np.zeros(pieces, np.int32),
        round=columns[0],
        piece=columns[1],
        source=columns[2],
        target=columns[3],
        op=columns[4],
        route_nodes=columns[2:4].T.reshape(-1),
        route_offsets=np.arange(0, 2 * len(rows) + 1, 2),
    )


@given(schedules, st.sampled_from(REDUCTIONS), st.integers(0, 40), st.integers(0, 99))
def test_it_ends_with_the_reduction_of_all(schedule, reduction, elements, seed):
    servers = schedule.topology.num_servers
    # Small whole numbers, so that every order of adding gives the same.
    brought = np.random.default_rng(seed).integers(-99, 99, (servers, elements)).astype(np.float64)
    before = brought.copy()
    ends, counts = play(schedule, brought, reduction), meaningful(schedule, elements)
    assert np.array_equal(brought, before)
    if schedule.collective == "all_gather":
        owner = roots(schedule, elements)
        assert np.array_equal(ends, np.tile(brought[owner, np.arange(elements)], (servers, 1)))
    else:
        reduced = NUMPY[reduction](brought, axis=0)
        assert np.array_equal(ends[counts], np.tile(reduced, (servers, 1))[counts])


def roots(schedule: Schedule, elements: int) -> np.ndarray:
    """[elements] rank of the server at which each element is reduced."""
    sizes = np.diff(schedule.piece_offsets(elements))
    return np.repeat(schedule.topology.rank[schedule.root], sizes)


@given(schedules, st.integers(0, 40))
def test_what_means_anything(schedule: Schedule, elements: int):
    counts = meaningful(schedule, elements)
    assert counts.shape == (schedule.topology.num_servers, elements)
    if schedule.collective == "reduce_scatter":
        assert (counts.sum(0) == 1).all()
        assert np.array_equal(counts.argmax(0), roots(schedule, elements))
    else:
        assert counts.all()


def test_what_is_sent_stood_there_when_the_round_began():
    swap = line([(0, 0, 0, 1, REDUCE), (0, 0, 1, 0, REDUCE)])
    assert play(swap, np.array([[1], [10], [100]])).tolist() == [[11], [11], [100]]
    turn = line([(0, 0, 0, 1, COPY), (0, 0, 1, 2, COPY), (0, 0, 2, 0, COPY)])
    assert play(turn, np.array([[1], [10], [100]])).tolist() == [[100], [1], [10]]


def test_contributions_are_added_in_the_order_of_the_schedule():
    brought = np.array([[1.0], [1e16], [-1e16]])
    one, two = (0, 0, 1, 0, REDUCE), (0, 0, 2, 0, REDUCE)
    assert play(line([one, two]), brought)[0] == 0
    assert play(line([two, one]), brought)[0] == 0
    brought[0], brought[1] = brought[1].copy(), brought[0].copy()
    assert play(line([one, two]), brought)[0] == 0
    assert play(line([two, one]), brought)[0] == 1


def test_by_hand_with_uneven_pieces():
    schedule = Merged().schedule(gw.topology.star(3))
    brought = np.array([[1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400]])
    assert play(schedule, brought).tolist() == [[111, 222, 333, 444]] * 3
    assert play(schedule, brought[:, :1]).tolist() == [[111]] * 3
    assert play(schedule, brought[:, :0]).shape == (3, 0)


def test_a_stage_leaves_and_reads_the_pieces_at_their_roots():
    topology = network("irregular")
    brought = np.random.default_rng(0).integers(0, 99, (6, 13))
    scatter = Merged().schedule(topology, collective="reduce_scatter")
    gather = Merged().schedule(topology, collective="all_gather")
    between = play(scatter, brought)
    between[~meaningful(scatter, 13)] = -1
    assert np.array_equal(play(gather, between), np.tile(brought.sum(0), (6, 1)))


def test_a_mean_is_taken_once():
    topology = gw.topology.ring(4)
    brought = np.arange(16.0).reshape(4, 4)
    scatter, gather = (Ring().schedule(topology, collective=each) for each in COLLECTIVES[1:])
    between = play(scatter, brought, "mean")
    assert np.array_equal(play(gather, between, "mean"), np.tile(brought.mean(0), (4, 1)))


def test_a_function_combines():
    schedule = RecursiveDoubling().schedule(gw.topology.hypercube(2))

    def bitwise_or(into: np.ndarray, other: np.ndarray) -> None:
        into |= other

    ends = play(schedule, 1 << np.arange(4)[:, None], bitwise_or)
    assert ends.tolist() == [[15]] * 4


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float16", "float32", "complex64"])
def test_the_type_stays(dtype: str):
    schedule = Ring().schedule(gw.topology.ring(3))
    brought = np.full((3, 5), 100, dtype)
    ends = play(schedule, brought)
    assert ends.dtype == dtype
    assert (ends == brought[0] + brought[1] + brought[2]).all()  # which wrap around


def test_refusals():
    schedule = Ring().schedule(gw.topology.ring(3))
    for shape in ((3,), (4, 2), (3, 2, 2)):
        with pytest.raises(OptionError, match="expected 3 rows"):
            play(schedule, np.zeros(shape))
    with pytest.raises(OptionError, match="the mean needs a floating-point type, got int32"):
        play(schedule, np.zeros((3, 2), np.int32), "mean")
    with pytest.raises(OptionError, match="one of sum, mean, max, min, got 'product'"):
        play(schedule, np.zeros((3, 2)), "product")
    assert check_reduction("max", floating=False, dtype="int8") == "max"


@pytest.mark.parametrize(("servers", "reduction"), [*itertools.product((1, 2, 5, 8), REDUCTIONS)])
def test_the_pattern_that_everybody_can_work_out(servers: int, reduction: str):
    for dtype in (np.float32, np.int8) if reduction != "mean" else (np.float32,):
        brought = np.stack([contribution(rank, 23, dtype) for rank in range(servers)])
        reduced = NUMPY[reduction](brought, axis=0)
        assert np.array_equal(expected(servers, 23, reduction, dtype), reduced.astype(dtype))
