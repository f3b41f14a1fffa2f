"""The time of an implicit schedule is that of all its transfers."""

import numpy as np
import pytest

from gradweave.schedulers import implicit
from gradweave.simulator import by_orbits, round_seconds

SPECS = (
    "torus:3x4",
    "bcube:n=3,k=1",
    "fat_tree:k=4",
    "h100:boxes=4,rails=8",
    "torus:3x3,capacity=2",
)
SPECS += ("leaf_spine:leaves=4,spines=3,servers_per_leaf=6,oversubscription=3", "hypercube:4")


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("spec", SPECS)
def test_rounds_take_as_long_as_when_expanded(spec, collective):
    made = implicit(spec, collective=collective)
    for size in (1e3, 1e9):
        expected = round_seconds(made.expand(), size)
        assert np.allclose(by_orbits.round_seconds(made, size), expected, rtol=1e-12)
