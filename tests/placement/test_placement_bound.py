"""The bound's certificate against the least cost of all placements, with all that it claims."""

import dataclasses
import itertools

import numpy as np
import pytest

from benchmarks.naive_placement import Naive
from gradweave.errors import InvalidCertificateError
from gradweave.placement import (
    Annealing,
    ExactPlacer,
    RandomOrder,
    Stage,
    Workload,
    even_stages,
    exchange_kernel,
    placement_bound,
)
from gradweave.placement.bound import levels, search, sequences
from gradweave.placement.bound.duals import (
    NS,
    Columns,
    GroupDuals,
    Window,
    class_steps,
    data_ns,
    exchange_ns,
    step_ns,
)
from gradweave.placement.bound.levels import Levels, compositions, count_compositions, levels_of
from gradweave.placement.bound.sequences import Sequences, SequenceSearch, alike
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.pairs import Pairs
from gradweave.placement.problem import Problem
from tests.interpreted import interpreted

MICROBATCHES = 3


def drawn(
    seed: int, devices: int, stages: int, data: int, *, like: bool = False, sent: bool = False
):
    """Devices in three sites or anywhere, one-way differences; stages alike, or in what is sent."""
    rng = np.random.default_rng(seed)
    sites = devices if seed % 2 else 3
    home = rng.permutation(devices) % sites
    latency = rng.uniform(1e-3, 0.2, (sites, sites))[np.ix_(home, home)]
    bandwidth = 10 ** rng.uniform(7.5, 9.5, (sites, sites))[np.ix_(home, home)]
    activation = 10 ** rng.uniform(6, 8, stages)
    gradient = 10 ** rng.uniform(7, 9, stages)
    if like or sent:
        activation[:] = activation[0]
    if like:
        gradient[:] = gradient[0]
    elif sent and stages > 1:  # two kinds, of which the first may be at both ends
        gradient[1:] = gradient[1]
        gradient[-1] = gradient[seed % 2]
    each = zip(activation, gradient, strict=True)
    work = Workload(tuple(Stage(0, 0, a, g) for a, g in each), MICROBATCHES)
    problem = Problem(Pairs(latency, bandwidth), work, data)
    moved = (MICROBATCHES * activation).tolist()
    return problem, Naive(latency, bandwidth, gradient.tolist(), moved, data)


@pytest.mark.parametrize(
    ("devices", "stages", "data"),
    [(6, 3, 2), (7, 3, 2), (8, 3, 2), (6, 2, 3), (7, 2, 3), (5, 4, 1), (6, 1, 4)],
)
@pytest.mark.parametrize("like", [True, False])
def test_whatever_duals_prove_no_placement_is_below(devices, stages, data, like, monkeypatch):
    """With none, one and two idle; then with few thresholds, and few classes of devices."""
    rng = np.random.default_rng(devices)
    for seed in range(4):
        problem, naive = drawn(seed, devices, stages, data, like=like)
        least = naive.best_in_order(devices, stages)
        with monkeypatch.context() as patched:
            if seed > 1:
                patched.setattr(levels, "MAX_LEVELS", 3)
                patched.setattr(search, "MAX_COMPOSITIONS", 6)
            found = placement_bound(problem)
            duals = found.certificate
            assert isinstance(duals, GroupDuals)
            assert duals.nanoseconds(problem) / NS == found.seconds <= least * (1 + 1e-12)
            for scale in (1e5, 1e7, 1e9):
                windows = tuple(
                    Window(one.since_ns, tuple(rng.normal(0, scale, len(one.duals_ns)).astype(int)))
                    for one in duals.windows
                )
                other = GroupDuals(duals.classes, windows)
                assert other.nanoseconds(problem) / NS <= least * (1 + 1e-12)


SHAPES = [(6, 3, 2), (7, 3, 2), (6, 2, 3), (8, 4, 2), (5, 5, 1), (6, 4, 1), (5, 1, 4)]
"""Devices, stages and pipelines; in three, devices stay idle."""


@pytest.mark.parametrize(("devices", "stages", "data"), SHAPES)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("like", [True, False])
def test_sequences_prove_the_least_where_boundaries_carry_as_much(
    devices, stages, data, seed, like
):
    """And find it, given the cost of another placement."""
    problem, naive = drawn(seed, devices, stages, data, like=like, sent=True)
    least = naive.best_in_order(devices, stages)
    proof = Sequences(alike(problem), int(2 * least * NS))
    assert proof.nanoseconds(problem) / NS == pytest.approx(least, rel=1e-7)
    assert proof.nanoseconds(problem) / NS <= least * (1 + 1e-12)
    dear = exchange_cost(problem, RandomOrder().place(problem, seed=seed)).seconds
    found = placement_bound(problem, cost_s=dear)
    if found.cheaper is not None:
        assert exchange_cost(problem, found.cheaper).seconds == pytest.approx(least, rel=1e-7)
        assert isinstance(found.certificate, Sequences)
    read = type(found.certificate).from_object(problem, **found.certificate.as_object())
    assert read.nanoseconds(problem) / NS == found.seconds <= least * (1 + 1e-12)


@pytest.mark.parametrize(("devices", "stages", "data"), SHAPES)
def test_whatever_sequences_prove_no_placement_is_below(devices, stages, data):
    """By any classes, of stages that differ, and with few thresholds."""
    rng = np.random.default_rng(devices)
    for seed in range(6):
        problem, naive = drawn(seed, devices, stages, data, like=seed % 3 == 0)
        least = naive.best_in_order(devices, stages)
        count = int(rng.integers(1, devices + 1))
        classes = np.r_[np.arange(count), rng.integers(count, size=devices - count)]
        classes = rng.permutation(classes)
        for share in (0.5, 0.9, 1.5):
            goal_ns = int(share * least * NS)
            proved = Sequences(classes, goal_ns).nanoseconds(problem)
            assert proved <= goal_ns and proved / NS <= least * (1 + 1e-12)


def test_what_is_left_out_of_sequences_is_dearer(monkeypatch):
    """Sites of alike devices, some idle, against all that can be reached group by group."""
    rng = np.random.default_rng(5)
    for instance in range(100):
        data = 1 + instance % 3
        stages = int(rng.integers(3, 10 - 2 * data))
        home = rng.integers(int(rng.integers(2, 6)), size=stages * data + int(rng.integers(3)))
        count = int(home.max()) + 1
        # Boundaries of few lengths, and exchanges that take about as long as all of them.
        latency = rng.integers(1, 6, (count, count)) * 0.1
        if instance % 4:  # else sites may be far from themselves
            np.fill_diagonal(latency, 0.05)
        slowness = rng.uniform(0, 1, (count, count))
        pairs = Pairs(latency[np.ix_(home, home)], 1 / slowness[np.ix_(home, home)])
        work = even_stages(
            stages, activation_bytes=1e-3, gradient_bytes=float(rng.choice([0.3, 4]))
        )
        if instance % 5 == 0:
            most = dataclasses.replace(work.stages[0], gradient_bytes=1.0)
            ends = (most, *work.stages[1:-1], most if instance % 2 else work.stages[-1])
            work = Workload(ends)
        problem = Problem(pairs, work, data)
        least = least_by_states(problem, alike(problem))
        for goal, known in itertools.product((least + 2, 2 * least), (0, 1, 1 << 12)):
            monkeypatch.setattr(sequences, "KNOWN", known)
            found = SequenceSearch(problem, alike(problem)).least(goal, 10**9)
            assert found is not None and found.ns == least
            assert found.devices is not None
            cost = exchange_cost(problem, found.devices).seconds
            assert cost == pytest.approx(least / NS, rel=1e-7)


def least_by_states(problem: Problem, classes: np.ndarray) -> int:
    """By what is left and the last group, for each DataP that is allowed."""
    columns = Columns(problem, classes)
    steps = class_steps(step_ns(problem), classes)
    rows = [tuple(row) for row in columns.taken.tolist()]
    members = [[one for one, count in enumerate(row) for _ in range(count)] for row in rows]
    between = {
        (one, other): min(
            max(int(steps[pair]) for pair in zip(members[one], order, strict=True))
            for order in itertools.permutations(members[other])
        )
        for one, other in itertools.product(range(len(rows)), repeat=2)
    }
    takes = np.stack(
        [data_ns(exchange_ns(problem, part), classes, columns.taken) for part in problem.part_bytes]
    )
    least = 1 << 62
    for longest in np.unique(takes).tolist():
        allowed = [np.flatnonzero(row <= longest).tolist() for row in takes]
        reached = {(rows[one], one): 0 for one in allowed[0]}
        for stage in range(1, problem.stages):
            after: dict = {}
            for (taken, last), length in reached.items():
                for one in allowed[stage]:
                    both = tuple(map(sum, zip(taken, rows[one], strict=True)))
                    if all(map(int.__le__, both, columns.sizes.tolist())):
                        key, value = (both, one), length + between[last, one]
                        after[key] = min(value, after.get(key, value))
            reached = after
        least = min([least, *(longest + length for length in reached.values())])
    return least


@pytest.mark.parametrize("goal_ns", [-1, 10**14 + 1])
def test_a_goal_that_is_no_time_is_refused(goal_ns):
    problem = even(between_sites([4], 10.5, 10.5), 2, 2)
    with pytest.raises(InvalidCertificateError, match="goal_ns: expected whole nanoseconds up to"):
        Sequences.from_object(problem, [0, 0, 0, 0], goal_ns)


def test_classes_that_are_too_many_for_tables_are_refused(monkeypatch):
    problem = even(between_sites([4], 10.5, 10.5), 2, 2)
    monkeypatch.setattr(sequences, "MAX_TABLE", 6 * 4 * 48 - 1)
    with pytest.raises(InvalidCertificateError, match="classes: expected fewer"):
        Sequences.from_object(problem, [0, 1, 2, 3], 10)
    assert isinstance(placement_bound(problem, cost_s=1.0).certificate, GroupDuals)


@pytest.mark.parametrize("limit", ["MAX_LOOKED", "MAX_PAIRS"])
def test_sequences_that_are_too_many_are_refused(monkeypatch, limit):
    problem, _ = drawn(1, 6, 3, 2, like=True)
    monkeypatch.setattr(sequences, limit, 3)
    with pytest.raises(InvalidCertificateError, match="certificate: there are more than"):
        Sequences(np.arange(6), 10**12).nanoseconds(problem)


def test_devices_are_alike_if_all_others_are_as_far_from_them():
    far = np.array([[0, 5, 1, 9], [5, 0, 1, 9], [1, 1, 0, 9], [9, 9, 9, 0.0]])
    problem = even(Pairs(far, np.full((4, 4), 1e9)), 2, 2)
    assert alike(problem).tolist() == [0, 0, 1, 2]
    assert count_compositions(np.bincount(alike(problem)), 2) == 4
    assert not count_compositions(np.array([1, 1]), 3)
    rng = np.random.default_rng(1)
    for _ in range(20):  # against the definition
        home = rng.integers(4, size=9)
        latency = rng.integers(1, 3, (4, 4))[np.ix_(home, home)] * 0.1
        problem = even(Pairs(latency, np.full((9, 9), 1e9)), 3, 3)
        there = latency + latency.T
        classes = alike(problem)
        for one, other in itertools.combinations(range(9), 2):
            rest = np.setdiff1d(np.arange(9), [one, other])
            same = (there[one, rest] == there[other, rest]).all()
            assert same == (classes[one] == classes[other])


@pytest.mark.parametrize("like", [True, False])
def test_exact_and_annealing_find_the_least_beside_idle_devices(like):
    problem, naive = drawn(1, 7, 3, 2, like=like)
    least = naive.best_in_order(7, 3)
    for placer in (ExactPlacer(), Annealing(restarts=2, moves=2_500)):
        found = exchange_cost(problem, placer.place(problem))
        assert found.seconds == pytest.approx(least, rel=1e-7)


def between_sites(sizes: list[int], within_ns: float, across_ns: float) -> Pairs:
    """Round trips; bytes take no time."""
    home = np.repeat(np.arange(len(sizes)), sizes)
    trips = np.where(home[:, None] == home, within_ns, across_ns) * 1e-9
    return Pairs(trips / 2, np.full(trips.shape, 1e30))


def even(pairs: Pairs, stages: int, data: int) -> Problem:
    return Problem(pairs, even_stages(stages, activation_bytes=1, gradient_bytes=1), data)


def test_what_groups_pay_by_hand():
    """Sites of two, two and one: two groups of two, and a device that stays idle."""
    problem = even(between_sites([2, 2, 1], 10.5, 100.5), 2, 2)
    columns = Columns(problem, np.array([0, 0, 1, 1, 2]))
    paid = {
        tuple(taken): (data, cost)
        for taken, data, cost in zip(
            columns.taken.tolist(), columns.data_ns, columns.cost_ns, strict=True
        )
    }
    # A run of groups without a boundary of 90 more has two of one and one, else one group alone.
    assert paid == {
        (2, 0, 0): (10, 90), (0, 2, 0): (10, 90), (1, 1, 0): (100, 45), (1, 0, 1): (100, 90),
        (0, 1, 1): (100, 90),
    }  # fmt: skip
    assert columns.constant == 10 - 90
    assert [columns.within(end) for end in (10, 11, 100, 101, None)] == [0, 2, 2, 5, 5]
    for duals, end, least in [
        ((0, 0, 0), None, 10),
        ((0, 0, 0), 100, 100),
        ((0, 0, 1), None, 10),  # the idle device pays nothing
        ((0, 0, 50), None, 10),
        ((20, 20, -5), None, 5),
        ((-30, 10, 0), 100, -80 - 60 + 2 * 90),
        ((-10, 0, 0), None, 10),
        ((0, 0, -20), None, 0),
        ((0, 0, 0), 10, 1 << 62),
    ]:
        assert columns.least(np.array(duals), end) == least, duals
    assert placement_bound(problem).seconds == pytest.approx(110 / NS)


def test_all_devices_of_a_class_pay_where_none_is_idle():
    problem = even(between_sites([2, 2], 10.5, 100.5), 2, 2)
    columns = Columns(problem, np.array([0, 0, 1, 1]))
    assert columns.least(np.array([0, 0]), None) == 10
    # (1, 1) pays 45 − 13, (2, 0) 90 − 14, (0, 2) 90 − 12; all devices' duals are 26.
    assert columns.least(np.array([7, 6]), None) == 10 - 90 + 26 + 2 * (45 - 13)
    # Now (2, 0) pays least: 90 − 94.
    assert columns.least(np.array([47, 0]), None) == 10 - 90 + 94 + 2 * (90 - 94)


def test_the_cheapest_boundary_and_exchange_of_unlike_stages():
    latency, bandwidth = np.zeros((4, 4)), np.full((4, 4), 1e30)
    latency[0, 1], latency[1, 0] = 1.25e-9, 2e-9
    bandwidth[0, 1], bandwidth[1, 0] = 0.5e9, 0.25e9
    stages = [Stage(0, 0, 2, 8), Stage(0, 0, 6, 12)]
    problem = Problem(Pairs(latency, bandwidth), Workload(tuple(stages), 3), 2)
    # 2 and 4 ns for each byte: 3·2 bytes of the first stage's; a half of its 8 bytes.
    assert step_ns(problem)[0, 1] == step_ns(problem)[1, 0] == 3 + 6 * 6
    assert exchange_ns(problem)[0, 1] == exchange_ns(problem)[1, 0] == 3 + 4 * 6
    stages = [Stage(0, 0, 6, 12), Stage(0, 0, 2, 8)]  # the last one sends nothing
    problem = Problem(Pairs(latency, bandwidth), Workload(tuple(stages), 3), 2)
    assert step_ns(problem)[0, 1] == 3 + 18 * 6
    assert exchange_ns(problem)[0, 1] == 3 + 4 * 6


@pytest.fixture
def python():
    """Costs of a few groups need not be compiled."""
    with interpreted(exchange_kernel):
        yield


def test_the_bound_is_met_where_unlike_stages_leave_it_room():
    # Three in a row: little crosses the far link, much another one, whose bandwidth is free.
    latency = np.array([[0, 50.25, 50.25], [50.25, 0, 5.25], [50.25, 5.25, 0]]) * 1e-9
    bandwidth = np.where(latency > 1e-8, 1e9, 1e30)
    stages = (Stage(0, 0, 20, 1), Stage(0, 0, 70, 1), Stage(0, 0, 1, 1))
    problem = Problem(Pairs(latency, bandwidth), Workload(stages), 1)
    assert placement_bound(problem).seconds == pytest.approx((140 + 10) / NS)
    cost = exchange_cost(problem, ExactPlacer().place(problem)).seconds
    assert cost == pytest.approx((140.5 + 10.5) / NS)
    # Two pairs of which one has bandwidth for free: it takes the large gradient.
    paired = np.kron(np.eye(2), np.ones((2, 2)))
    latency = np.where(paired, 3.125e-9, 50.125e-9)
    bandwidth = np.where(paired, 1e30, 1e8)
    bandwidth[2:, 2:] = 1e9
    stages = (Stage(0, 0, 0, 900), Stage(0, 0, 0, 80))
    problem = Problem(Pairs(latency, bandwidth), Workload(stages), 2)
    assert placement_bound(problem).seconds == pytest.approx((6 + 80 + 100) / NS)
    cost = exchange_cost(problem, ExactPlacer().place(problem)).seconds
    assert cost == pytest.approx((6.25 + 80 + 100.25) / NS)


def test_bound_is_met_where_regions_are_alike_inside():
    home = np.repeat(np.arange(4), 4)
    near = home[:, None] == home
    pairs = Pairs(np.where(near, 1e-3, 0.05), np.where(near, 1e9, 1e8))
    work = even_stages(4, activation_bytes=4e8, gradient_bytes=1e8)
    problem = Problem(pairs, work, 4)
    cost = exchange_cost(problem, Annealing(restarts=2, moves=3_000).place(problem))
    assert placement_bound(problem).seconds == pytest.approx(cost.seconds, rel=1e-8)


@pytest.mark.usefixtures("python")
def test_a_single_stage_pays_for_its_exchange_alone():
    # Three of four; 0, 1 and 2 are 7, 9 and 11 apart, 3 is 99 from all: 0 or 2 waits 7 or more.
    trips = np.full((4, 4), 99.5)
    for pair, trip in (((0, 1), 7.5), ((0, 2), 9.5), ((1, 2), 11.5)):
        trips[pair] = trips[pair[::-1]] = trip
    problem = even(Pairs(trips / 2 * 1e-9, np.full((4, 4), 1e30)), 1, 3)
    assert exchange_cost(problem, np.array([[0, 1, 2]])).seconds == pytest.approx(21e-9)
    assert placement_bound(problem).seconds == pytest.approx(20e-9)


def test_thresholds_and_who_reaches_whom_by_hand():
    steps = np.array([[0, 4, 9, 9], [4, 0, 7, 9], [9, 7, 0, 20], [9, 9, 20, 0]])
    found = levels_of(steps)
    assert found.least == 4
    assert [(one.width, one.component.tolist()) for one in found.levels] == [
        (3, [0, 0, 1, 2]), (2, [0, 0, 0, 1]),
    ]  # fmt: skip
    assert levels_of(np.zeros((1, 1), np.int64)).levels == ()


def test_of_many_thresholds_the_widest_steps_stay_and_nothing_is_longer(monkeypatch):
    heights = np.array([1, 2, 10, 11, 30, 31])
    steps = np.full((7, 7), 99)
    for place, height in enumerate(heights.tolist()):
        steps[place, place + 1] = steps[place + 1, place] = height
    monkeypatch.setattr(levels, "MAX_LEVELS", 4)
    found = levels_of(steps)
    # 1, 10, 30 and 31 are told apart: what merges at 2 counts as merged from 1 on.
    assert [(one.width, one.component.max() + 1) for one in found.levels] == [
        (9, 5), (20, 3), (1, 2),
    ]  # fmt: skip


def test_classes_are_components_or_the_largest_of_them_and_all_others():
    found = Levels(
        1, (levels.Level(1, np.array([0, 0, 0, 1, 1, 2])), levels.Level(1, np.array([0] * 5 + [1])))
    )
    few = [one.tolist() for one in levels.classings(found, 6, 2, most=3)]
    # Two classes have three compositions of two devices.
    assert few == [[0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1]]
    most = [one.tolist() for one in levels.classings(found, 6, 2, most=21)]
    assert most[0] == [0, 1, 2, 3, 4, 5] and most[1] == [0, 0, 0, 1, 1, 2]
    assert [one.tolist() for one in levels.classings(Levels(0, ()), 1, 1, 9)] == [[0], [0]]


def test_every_way_to_take_devices_of_classes():
    rows = compositions(np.array([2, 1, 3]), 3).tolist()
    assert rows == [
        [0, 0, 3], [0, 1, 2], [1, 0, 2], [1, 1, 1], [2, 0, 1], [2, 1, 0],
    ]  # fmt: skip
