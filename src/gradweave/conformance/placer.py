"""The promises of every placement strategy, one function for each promise on one problem."""

from collections.abc import Callable
from functools import partial

import numpy as np

from gradweave.conformance.finding import Findings, attempt, expect
from gradweave.placement.bound.search import placement_bound
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.pairs import pairs_of
from gradweave.placement.problem import Problem, problem_of
from gradweave.placement.strategies.strategy import Placer
from gradweave.placement.workload import Stage, Workload
from gradweave.topology.spec import from_spec

_TOLERANCE = 1e-9
"""Relative tolerance of costs and their bound: both sum the same numbers in different orders."""


def problems() -> dict[str, Problem]:
    """Small problems: with and without spare servers, and with scarce memory."""
    stages = tuple(Stage(0.1, 0.2, 1e8, 1e9 * (1 + s), 1e9 * (1 + s % 2)) for s in range(3))
    work = Workload(stages)
    near = pairs_of(from_spec("leaf_spine:leaves=2,spines=1,servers_per_leaf=3"))
    far = pairs_of(from_spec("cities:Oregon.Tokyo,each=4"))
    scarce = [2e9 if n % 2 else 1e9 for n in range(8)]
    return {
        "3 stages of 2 on 6 servers": problem_of(near, work, 3, 2, None, None),
        "3 stages of 2 on 8 servers": problem_of(far, work, 3, 2, None, None),
        "3 stages of 2 on 8 servers, memory": problem_of(far, work, 3, 2, scarce, None),
    }


def places_each_once(placer: Placer, problem: Problem) -> None:
    """The result is a table [S, D] of distinct devices with enough memory."""
    devices = np.asarray(placer.place(problem, seed=0))
    shape = (problem.stages, problem.data)
    expect(devices.shape == shape, f"expected devices {shape}, got {devices.shape}")
    expect(len(np.unique(devices)) == devices.size, "a device has two stages")
    expect(((0 <= devices) & (devices < problem.devices)).all(), "there is no such device")
    fits = problem.fits[np.arange(problem.stages)[:, None], devices]
    expect(fits.all(), "a stage is where its memory does not suffice")


def is_determined_by_the_seed(placer: Placer, problem: Problem) -> None:
    """The same seed gives the same placement."""
    one, other = (placer.place(problem, seed=3) for _ in range(2))
    expect(np.array_equal(one, other), "two placements of one seed differ")


def is_not_better_than_possible(placer: Placer, problem: Problem) -> None:
    """Its cost is not below the certified bound."""
    cost = exchange_cost(problem, placer.place(problem, seed=0), as_placed=placer.as_placed)
    bound = placement_bound(problem, cost_s=cost.seconds)
    expect(
        cost.seconds >= bound.seconds * (1 - _TOLERANCE),
        f"its cost is {cost.seconds:.6g} s, below the bound of {bound.seconds:.6g} s",
    )


_PROMISES: dict[str, Callable[[Placer, Problem], None]] = {
    "places each once": places_each_once,
    "same seed, same placement": is_determined_by_the_seed,
    "keeps the bound": is_not_better_than_possible,
}


def check_placer(placer: Placer) -> Findings:
    """Checks every promise of a placement strategy with its options."""
    for case, problem in problems().items():
        for check, promise in _PROMISES.items():
            yield attempt(check, case, partial(promise, placer, problem))
