"""Swaps within a round, by hand."""

import numpy as np
import pytest

from gradweave.schedulers.kernels import slots
from gradweave.schedulers.ordering import list_scheduling_in_rounds_kernel as kernel
from tests.interpreted import interpreted


@pytest.mark.parametrize(
    ("weight", "swaps"),
    [(4, {False}), (5, {False, True}), (6, {True})],
    ids=["less", "as much", "more"],
)
def test_a_channel_replaces_those_in_its_way_if_it_weighs_no_less(weight, swaps):
    """Channels 1 and 2 weigh 2 and 3 and fill links 0 and 1; channel 0 takes link 2 as well.

    Of swaps between equals, some are skipped.
    """
    unused, ones = np.zeros(0, np.int64), np.ones(3, np.int64)
    problem = kernel.Problem(np.array([0, 1, 2, 0, 1]), np.array([0, 3, 4, 5]), *[unused] * 10)
    seen = set()
    with interpreted(kernel, slots):
        for seed in range(20):
            np.random.seed(seed)
            taken, sending = slots.no_slots_taken(ones), np.array([False, True, True])
            for channel in (1, 2):
                assert slots.claim(taken, problem.links, channel + 2, channel + 3, channel)
            weights = np.array([weight, 2, 3])
            state = kernel.State(
                *[unused] * 3, taken, sending, weights, unused, np.zeros(3, np.int64)
            )
            swapped = kernel._swap(problem, state, np.array([0]))
            assert sending.tolist() == [swapped, not swapped, not swapped]
            assert taken.used.tolist() == [1, 1, int(swapped)]
            seen.add(swapped)
    assert seen == swaps
