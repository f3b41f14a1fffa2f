"""The cost model, its strategies and its bound, against the definition tried out in full."""

import itertools

import numpy as np
import pytest

from benchmarks.naive_placement import Naive
from gradweave.errors import NoScheduleError, OptionError
from gradweave.placement import (
    PLACERS,
    Annealing,
    Evolutionary,
    ExactPlacer,
    Stage,
    Transformer,
    Workload,
    even_stages,
    placement_bound,
)
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.exchange_kernel import matching
from gradweave.placement.pairs import Pairs, pairs_of
from gradweave.placement.problem import Problem, problem_of
from gradweave.placement.strategies import annealing
from gradweave.topology import cities

GRADIENT, ACTIVATION = 0.6e9, 0.4e9


def random_pairs(seed: int, devices: int = 8, sites: int | None = None) -> Pairs:
    """Devices anywhere, or in sites with alike distances."""
    rng = np.random.default_rng(seed)
    count = sites or devices
    latency = rng.uniform(1e-3, 0.2, (count, count))
    bandwidth = 10 ** rng.uniform(7.5, 9.5, (count, count))
    home = np.arange(devices) % count
    return Pairs(latency[np.ix_(home, home)], bandwidth[np.ix_(home, home)])


def problem_and_naive(seed: int, stages: int, data: int, **how) -> tuple[Problem, Naive]:
    pairs = random_pairs(seed, stages * data, **how)
    work = even_stages(stages, activation_bytes=ACTIVATION / 4, gradient_bytes=GRADIENT,
                       microbatches=4)  # fmt: skip
    naive = Naive(pairs.latency_s, pairs.bandwidth_bytes_per_s, GRADIENT, ACTIVATION, data)
    return Problem(pairs, work, data), naive


@pytest.mark.parametrize("seed", range(20))
def test_matching_is_the_least_largest(seed):
    weights = np.random.default_rng(seed).integers(0, 12, (5, 5)).astype(float)
    largest, columns = matching(weights)
    least = min(
        max(weights[i, j] for i, j in enumerate(order))
        for order in itertools.permutations(range(5))
    )
    assert sorted(columns) == list(range(5))
    assert largest == max(weights[i, j] for i, j in enumerate(columns)) == least


@pytest.mark.parametrize(("stages", "data"), [(4, 2), (2, 4), (8, 1), (1, 8), (3, 2)])
def test_cost_is_that_of_the_definition(stages, data):
    for seed in range(3):
        problem, naive = problem_and_naive(seed, stages, data)
        groups = np.random.default_rng(seed).permutation(stages * data).reshape(stages, data)
        cost = exchange_cost(problem, groups)
        if stages <= 4:
            assert cost.seconds == pytest.approx(naive.cost(tuple(map(tuple, groups.tolist()))))
        assert sorted(map(sorted, cost.devices.tolist())) == sorted(map(sorted, groups.tolist()))
        again = exchange_cost(problem, cost.devices, as_placed=True)
        assert again.seconds == pytest.approx(cost.seconds)


@pytest.mark.parametrize(("stages", "data"), [(4, 2), (2, 4)])
@pytest.mark.parametrize("sites", [None, 3])
def test_exact_is_the_least_and_the_bound_below(stages, data, sites):
    for seed in range(3):
        problem, naive = problem_and_naive(seed, stages, data, sites=sites)
        least = naive.best(8)
        for placer in (ExactPlacer(), Annealing(restarts=2, moves=2_500)):
            cost = exchange_cost(problem, placer.place(problem, seed=seed))
            assert cost.seconds == pytest.approx(least, rel=1e-7), (placer, seed)
        bound = placement_bound(problem)
        assert 0 < bound.seconds <= least * (1 + 1e-9)


@pytest.mark.parametrize("name", [*PLACERS])
def test_every_strategy_places_what_fits_and_repeats_itself(name):
    stages = [Stage(1.0, 2.0, 1e8 * (s + 1), 1e9 / (s + 1), 1e9 * s) for s in range(3)]
    memory = tuple(2.5e9 if device % 3 == 0 else 1.5e9 for device in range(9))
    problem = Problem(random_pairs(1, 9), Workload(tuple(stages)), 2, memory)
    placer = Annealing(moves=1_000) if name == "annealing" else PLACERS[name]()
    placed = placer.place(problem, seed=3)
    assert placed.shape == (3, 2) and len(np.unique(placed)) == 6
    assert problem.fits[np.arange(3)[:, None], placed].all()
    assert (placer.place(problem, seed=3) == placed).all()


def test_batches_of_restarts_go_on_until_they_find_nothing_better(monkeypatch):
    monkeypatch.setattr(annealing, "SMALL", 0)  # without what follows annealing
    pairs = pairs_of(cities(each=2))
    problem = problem_of(pairs, Transformer(), 5, 4)

    def costs(placer: Annealing) -> list[float]:
        found = (placer.place(problem, seed=seed) for seed in range(4))
        return [exchange_cost(problem, devices).seconds for devices in found]

    one, more = costs(Annealing(restarts=8, moves=200)), costs(Annealing(moves=200))
    assert all(found <= before for found, before in zip(more, one, strict=True))
    assert min(more) == pytest.approx(77.17, abs=0.01)
    assert min(more) < min(one)


def test_time_limits_end_searches():
    problem, _ = problem_and_naive(0, 4, 4)
    for placer in (Annealing(moves=10**10), Evolutionary(trials=10**9)):
        placed, stopped = placer.search(problem, time_limit=0.1)
        assert placed.shape == (4, 4) and stopped == "time"
    assert Annealing(restarts=1, moves=10).search(problem, time_limit=60)[1] == "tried"
    # What does not search has tried all that it tries, whatever the time.
    assert PLACERS["rank_order"]().search(problem, time_limit=1e-9)[1] == "tried"
    with pytest.raises(NoScheduleError, match="no proof within"):
        ExactPlacer().place(problem, time_limit=0.05)
    large, _ = problem_and_naive(0, 4, 6)
    with pytest.raises(OptionError, match="or activations of one size and groups of at most"):
        ExactPlacer().place(large)
    larger, _ = problem_and_naive(0, 5, 4)
    with pytest.raises(NoScheduleError, match="no proof within"):
        ExactPlacer().place(larger, time_limit=0.05)
