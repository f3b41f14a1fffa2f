"""Moves of the searches, as plain Python: what they keep, what they gain, and where they end."""

import itertools

import numpy as np
import pytest

from gradweave.placement import exchange_kernel
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.problem import Problem
from gradweave.placement.strategies import annealing_kernel as annealing
from gradweave.placement.strategies import evolutionary_kernel as evolution
from gradweave.placement.strategies.annealing import Annealing, _mean_cost, _nearest, table_of
from gradweave.placement.strategies.annealing_kernel import Table
from gradweave.placement.strategies.evolutionary import Evolutionary
from tests.interpreted import interpreted
from tests.placement.test_placement_bound import between_sites, drawn, even

KERNELS = annealing, exchange_kernel, evolution
STAGES, DATA, DEVICES = 3, 2, 8
NEVER = np.zeros(1, np.bool_)


@pytest.fixture(autouse=True)
def python():
    with interpreted(*KERNELS):
        yield


def made(seed: int = 1, *, like: bool = False) -> tuple[Problem, Table]:
    """Two devices are idle, one has no memory for the first stage."""
    problem, _ = drawn(seed, DEVICES, STAGES, DATA, like=like)
    fits = np.ones((STAGES, DEVICES), bool)
    fits[0, 3] = False
    at = np.array([4, 0, 3, 7, 1, 6, 2, 5])
    table = table_of(problem, at)._replace(fits=fits)
    annealing._measure_all(table)
    return problem, table


def copied(table: Table) -> Table:
    return table._replace(
        at=table.at.copy(), edge=table.edge.copy(), exchange=table.exchange.copy()
    )


def measured(table: Table) -> Table:
    again = copied(table)
    annealing._measure_all(again)
    return again


def rows(table: Table) -> list[list[int]]:
    return table.at[: STAGES * DATA].reshape(STAGES, DATA).tolist()


def test_what_a_table_measures_and_costs():
    problem, table = made()
    both = problem.pairs
    (a, b), (c, d) = rows(table)[0], rows(table)[1]

    def takes(one: int, other: int, size: float) -> float:
        return both.there_and_back_s[one, other] + size * both.there_and_back_s_per_byte[one, other]

    moved, part = problem.activation_bytes, problem.part_bytes
    assert table.edge[0].tolist() == [takes(a, c, moved[0]), takes(b, d, moved[0])]
    assert table.exchange[1].tolist() == [takes(c, d, part[1])] * 2
    for max_weight in (0.0, 0.25, 1.0):
        largest = table.exchange.max() + table.edge.max(1).sum()
        mean = table.exchange.mean() + table.edge.mean(1).sum()
        found = annealing._cost(table, max_weight)
        assert found == pytest.approx(max_weight * largest + (1 - max_weight) * mean)


def test_exchanges_measure_what_they_touch():
    _, table = made()
    for one, other in itertools.permutations(range(DEVICES), 2):
        changed = copied(table)
        annealing._exchange(changed, one, other)
        assert (changed.at[[one, other]] == table.at[[other, one]]).all()
        assert sorted(changed.at) == list(range(DEVICES))
        again = measured(changed)
        assert changed.edge == pytest.approx(again.edge), (one, other)
        assert changed.exchange == pytest.approx(again.exchange), (one, other)


def test_tails_and_turns():
    _, table = made()
    before = rows(table)
    for first in (1, 2):
        changed = copied(table)
        annealing._exchange_tails(changed, first, 0, 1)
        turned = [row if s < first else row[::-1] for s, row in enumerate(before)]
        assert rows(changed) == turned
        again = measured(changed)
        assert changed.edge == pytest.approx(again.edge)
        assert changed.exchange == pytest.approx(again.exchange)
    for first, last in itertools.product(range(3), repeat=2):
        changed = copied(table)
        annealing._reverse(changed, first, last)
        low, high = min(first, last), max(first, last)
        assert rows(changed) == before[:low] + before[low : high + 1][::-1] + before[high + 1 :]
        assert changed.edge == pytest.approx(measured(changed).edge)


def test_which_devices_may_change_places_and_which_need_not():
    _, table = made()
    for one, other in itertools.product(range(DEVICES), repeat=2):
        idle = one >= 6 and other >= 6
        # Device 3 is at position 2, and fits not where the first stage's are.
        unfit = {one, other} in ({0, 2}, {1, 2})
        expected = one != other and not idle and not unfit
        assert annealing._may_exchange(table, one, other) == expected, (one, other)
    pairs = between_sites([3, 2], 1, 9)
    alike = table_of(even(pairs, 2, 2), np.arange(5))
    for one, other in itertools.permutations(range(5), 2):
        assert annealing._helps(alike, one, other) == ((one < 3) != (other < 3))
    slow = alike._replace(per_byte=alike.per_byte.copy())
    slow.per_byte[0, 4] = slow.per_byte[4, 0] = 1.0
    assert annealing._helps(slow, 0, 1) and not annealing._helps(slow, 1, 2)


def test_a_device_is_moved_beside_one_near_it():
    """To the next or the last stage of its pipeline, or into its group."""
    _, table = made()
    near = ((np.arange(DEVICES) + 1) % DEVICES)[:, None]
    np.random.seed(0)
    ways = set()
    for _ in range(300):
        to, from_ = annealing._two(table, near, True)
        (home,) = np.flatnonzero(near[table.at, 0] == table.at[from_])
        assert home < STAGES * DATA
        stage, pipeline = divmod(int(home), DATA)
        step = to // DATA - stage
        assert step in (-1, 0, 1) and (step == 0 or to % DATA == pipeline) and to < STAGES * DATA
        ways.add((stage, step, pipeline, to % DATA))
    assert {(s, w, p, p) for s, w in ((0, 1), (1, 1), (1, -1), (2, -1)) for p in (0, 1)} <= ways
    assert {(s, 0, p, q) for s in range(3) for p in (0, 1) for q in (0, 1)} <= ways
    anywhere = {annealing._two(table, near, False) for _ in range(600)}
    assert anywhere == set(itertools.product(range(6), range(8)))


@pytest.mark.parametrize("like", [True, False])
def test_local_search_ends_where_no_exchange_helps(like: bool):
    problem, table = made(2, like=like)
    table.fits[:] = True
    alike = problem.alike
    cost = annealing.local_search(table, alike, 10_000, NEVER)
    groups = np.array(rows(table))
    assert cost == pytest.approx(exchange_cost(problem, groups).seconds)
    for one, other in itertools.combinations(range(DEVICES), 2):
        at = table.at.copy()
        at[[one, other]] = at[[other, one]]
        assert exchange_cost(problem, at[:6].reshape(3, 2)).seconds >= cost * (1 - 1e-9)
    _, again = made(2, like=like)
    start = exchange_cost(problem, np.array(rows(again))).seconds
    assert start > cost
    assert annealing.local_search(again, alike, 0, NEVER) == pytest.approx(start)
    assert annealing.local_search(again, alike, 100, ~NEVER) == pytest.approx(start)


def test_perturbing_keeps_the_best():
    problem, table = made(2)
    table.fits[:] = True
    cost = annealing.local_search(table, False, 10_000, NEVER)
    best = annealing.perturbed(copied(table), False, 12, cost, 7, NEVER)
    found = exchange_cost(problem, np.array(rows(best))).seconds
    assert found <= cost and sorted(best.at) == list(range(DEVICES))
    bad = copied(made(2)[1])
    start = exchange_cost(problem, np.array(rows(bad))).seconds
    again = annealing.perturbed(copied(bad), False, 12, start, 7, NEVER)
    assert exchange_cost(problem, np.array(rows(again))).seconds < start
    none = annealing.perturbed(copied(bad), False, 12, start, 7, ~NEVER)
    assert (none.at == bad.at).all()


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("last_max_weight", [0.0, 1.0])
def test_without_heat_nothing_gets_dearer(alike: bool, last_max_weight: float, monkeypatch):
    monkeypatch.setattr(annealing, "MOVES_PER_CHECK", 64)
    problem, table = made(3, like=alike)
    near = _nearest(problem)
    costs = [annealing._cost(table, 0.0)]
    monkeypatch.setattr(annealing, "WEIGHT_FIXED_FROM", 1e-9 if last_max_weight else 0.8)
    changed = copied(table)
    annealing.anneal(changed, alike, near, 600, 1e-300, 1e-300, last_max_weight, 5, NEVER)
    costs = [annealing._cost(one, last_max_weight) for one in (table, changed)]
    assert costs[1] < costs[0]
    again = measured(changed)
    assert changed.edge == pytest.approx(again.edge)
    assert changed.exchange == pytest.approx(again.exchange)
    assert changed.fits[0, changed.at[:DATA]].all() and sorted(changed.at) == list(range(8))
    if not alike and last_max_weight == 0:
        # No move that is tried helps any more, so that the pipelines' tails are as they should be.
        for one, other in itertools.combinations(range(DEVICES), 2):
            if annealing._may_exchange(changed, one, other):
                trial = copied(changed)
                annealing._exchange(trial, one, other)
                assert annealing._cost(trial, 0.0) >= costs[1] * (1 - 1e-9)
    unchanged = copied(table)
    annealing.anneal(unchanged, alike, near, 600, 1.0, 1.0, last_max_weight, 5, ~NEVER)
    assert (unchanged.at == table.at).all()


@pytest.mark.parametrize("alike", [True, False])
def test_what_is_not_accepted_is_undone(alike: bool, monkeypatch):
    """The cost from which each move's rise is counted is that of the last placement accepted.

    Every 16 moves `anneal` measures and costs the placement anew, which must agree, too.
    """
    monkeypatch.setattr(annealing, "MOVES_PER_CHECK", 16)
    problem, table = made(3, like=alike)
    _cost, _accepted = annealing._cost, annealing._accepted
    accepted, answers, costs = [_cost(table, 0.0)], list[bool](), list[float]()

    def cost(now: Table, max_weight: float) -> float:
        costs.append(_cost(measured(now), max_weight))
        return _cost(now, max_weight)

    def answer(rise: float, temperature: float) -> bool:
        *summed, changed = costs  # those summed anew come before that of the move
        assert summed == pytest.approx(accepted[-1:] * len(summed))
        assert changed - rise == pytest.approx(accepted[-1])
        costs.clear()
        answers.append(_accepted(rise, temperature))
        if answers[-1]:
            accepted.append(changed)
        return answers[-1]

    monkeypatch.setattr(annealing, "_cost", cost)
    monkeypatch.setattr(annealing, "_accepted", answer)
    annealing.anneal(copied(table), alike, _nearest(problem), 400, 1e-300, 1e-300, 0.0, 5, NEVER)
    assert accepted == sorted(accepted, reverse=True) and 3 < len(accepted)
    assert answers.count(False) > 100


def test_moves_are_taken_by_how_much_they_cost():
    np.random.seed(1)
    taken = np.mean([annealing._accepted(1.0, 2.0) for _ in range(4000)])
    assert taken == pytest.approx(np.exp(-0.5), abs=0.03)
    assert all(annealing._accepted(rise, 1e-300) for rise in (0.0, -1.0))


def test_scales_and_neighbours_by_hand():
    problem = even(between_sites([2, 1], 10, 100), 3, 1)
    assert _nearest(problem).tolist() == [[1, 2], [0, 2], [0, 1]]
    # Two boundaries, each the mean of 9 pairs: 0 of itself, 2 of 10, 4 of 100.
    assert _mean_cost(problem) == pytest.approx(2 * 420e-9 / 9)
    assert Annealing().restarts == 0 and Evolutionary().points == 5


def sites_table() -> Table:
    """Devices 0–2 at a site, 3–5 at another: 1 apart, and 2 where 2 is; 9 between the sites."""
    trips = np.kron(np.eye(2), np.full((3, 3), -8.0)) + 9
    trips[2, :2] = trips[:2, 2] = 2
    np.fill_diagonal(trips, 0)
    pairs = between_sites([6], 1, 1)
    table = table_of(even(pairs, 2, 3), np.arange(6))
    return table._replace(delay=trips, per_byte=np.zeros((6, 6)))


def test_what_a_device_gains_by_a_move():
    table, labels = sites_table(), np.array([0, 0, 0, 1, 1, 1])
    assert evolution._weight(table, 0, 2) == 2
    heavy = table._replace(per_byte=np.ones((6, 6)), moved=np.array([5.0]))
    assert evolution._weight(heavy, 0, 2) == 7
    assert evolution._nearest_mate(table, labels, 2) == 2
    assert evolution._nearest_mate(table, labels, 0) == 1
    assert evolution._nearest_mate(table, np.array([0, 1, 1, 1, 1, 1]), 0) == np.inf
    free, locked = np.zeros(6, bool), np.array([True, True, False, False, False, False])
    assert evolution._most_redundant(table, labels, free, 0) == 0
    assert evolution._most_redundant(table, labels, locked, 0) == 2
    assert evolution._most_redundant(table, labels, np.ones(6, bool), 0) == -1
    mixed = np.array([0, 1, 0, 1, 1, 0])
    # 0 is 2 from its mate 2; from 1, 3 and 4 it is (1 + 9 + 9) / 3.
    assert evolution._gain(table, mixed, 0, 1) == pytest.approx(19 / 3 - 2)
    assert evolution._farthest(table, mixed, 0) == (1, pytest.approx(19 / 3 - 2))
    assert evolution._gain(table, np.array([0, 1, 1, 1, 1, 1]), 0, 2) == 0
    three = table._replace(exchange=np.zeros((3, 2)))
    # Of the groups of 1 and 3, and of 4 and 5, it is farther from the last.
    assert evolution._farthest(three, np.array([0, 1, 0, 1, 2, 2]), 0) == (2, pytest.approx(7.0))


def test_moves_after_the_best_are_taken_back():
    for kept, labels in [
        (-2, [1, 2, 0]),  # closed by itself
        (0, [0, 1, 2]),
        (1, [7, 1, 2]),
        (2, [1, 7, 2]),
        (3, [1, 2, 7]),
    ]:
        moved = np.array([1, 2, 0])
        evolution._keep(moved, np.array([0, 1, 2]), np.array([0, 1, 2]), 3, kept, 7)
        assert moved.tolist() == labels, kept


def test_children_have_equal_groups():
    _, table = made()
    np.random.seed(3)
    rng = np.random.default_rng(3)
    plain = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    took = 0
    for _ in range(40):
        one, other = rng.permutation(plain), rng.permutation(plain)
        child = evolution._crossed(table, one, other, 3)
        assert np.bincount(child).tolist() == [2, 2, 2, 2]
        took += int((child == one).sum() > (other == one).sum())
        evolution._move_in_cycles(table, child)
        assert np.bincount(child).tolist() == [2, 2, 2, 2]
        same = evolution._crossed(table, other, other, 3)
        assert (same == other).all()
    assert took > 20
    assert not evolution._fits(table, np.array([1, 1, 2, 0, 0, 2, 3, 3]))
    assert evolution._fits(table, np.array([1, 0, 2, 3, 0, 2, 1, 3]))
    assert evolution.groups_of(np.array([2, 0, 1, 3, 0, 2, 1, 3]), 3, 2).tolist() == [
        [1, 4], [2, 6], [0, 5],
    ]  # fmt: skip


def test_cycles_spread_groups_over_sites():
    """Two sites of three and two groups: of each group one or two are at each site afterwards."""
    table, labels = sites_table(), np.array([0, 0, 0, 1, 1, 1])
    evolution._move_in_cycles(table, labels)
    assert sorted([int(labels[:3].sum()), int(labels[3:].sum())]) == [1, 2]


def test_evolution_keeps_the_best_that_fits():
    problem, table = made(4)
    rng = np.random.default_rng(0)
    population = np.array([rng.permutation([0, 0, 1, 1, 2, 2, 3, 3]) for _ in range(40)])
    population = population[[evolution._fits(table, one) for one in population]][:6]
    scores = sorted(evolution._score(table, False, one) for one in population)
    first = evolution.groups_of(population[0], 3, 2)
    score = evolution._score(table, False, population[0])
    assert score == pytest.approx(exchange_cost(problem, first).seconds)
    kept = evolution.evolve(table, False, population.copy(), 0, 5, 1, NEVER)
    assert evolution._score(table, False, kept) == scores[0]
    unchanged = evolution.evolve(table, False, population.copy(), 50, 5, 1, ~NEVER)
    assert (unchanged == kept).all()
    found = evolution.evolve(table, False, population, 60, 3, 1, NEVER)
    after = sorted(evolution._score(table, False, one) for one in population)
    # No child takes the place of a better one, and some of worse ones.
    assert all(new <= old for new, old in zip(after, scores, strict=True)) and after != scores
    assert evolution._score(table, False, found) == after[0]
    assert all(evolution._fits(table, one) for one in population)
