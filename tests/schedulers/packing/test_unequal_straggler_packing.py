"""Trees and schedules for servers that are late."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds import least_seconds
from gradweave.errors import OptionError
from gradweave.execute import play
from gradweave.schedulers import Packed, to_spec
from gradweave.schedulers.packing.straggler_packing import pack_straggler_trees
from gradweave.schedulers.packing.tuning import TUNING
from gradweave.topology import from_spec
from tests.schedulers.packing.test_unequal_packing import slowed

NEAR = (1 + TUNING.tolerance) * (1 + TUNING.slack)
GIGABYTE = 1e9


@pytest.mark.parametrize(
    ("network", "late"),
    [
        (from_spec("star:8"), [0]),
        (from_spec("complete:8"), [3]),
        (from_spec("ring:8"), [5]),
        (from_spec("mesh:2x4"), [0]),
        (slowed(from_spec("star:8"), 1, 0.5), [0, 1]),
        (from_spec("torus:3x3"), [0, 4]),
    ],
    ids=str,
)
def test_trees_take_the_least_time_that_is_proved(network, late):
    """Two late servers, one a quarter later: windows of three lengths."""
    half = least_seconds(network, GIGABYTE).seconds / 2
    ready = np.zeros(network.num_servers)
    ready[late] = half * np.linspace(1, 1.25, len(late))
    least = float(least_seconds(network, GIGABYTE, ready_at_s=ready).bandwidth_s)
    packing = pack_straggler_trees(network, GIGABYTE, ready)
    assert least * (1 - 1e-4) <= packing.seconds_per_byte * GIGABYTE
    assert packing.seconds_per_byte * GIGABYTE <= least * NEAR
    for stage in ("reduce_scatter", "all_gather"):
        trees = [tree for tree in packing.trees if tree.stage == stage]
        assert sum(tree.share for tree in trees) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["ring:8", "complete:8"])
def test_half_an_all_reduce_late_is_within_5_percent_of_the_bound(name):
    network = from_spec(name)
    late = [least_seconds(network, GIGABYTE).seconds / 2] + [0.0] * 7
    solved = gw.solve(
        network,
        objective="seconds",
        gradient_bytes=GIGABYTE,
        ready_at_s=late,
        schedulers=["packed"],
    )
    assert solved.timing is not None and 0 <= solved.timing.gap < 0.05
    assert solved.schedule.scheduler.options["ready_at_s"] == late
    assert to_spec(solved.scheduler) == "packed:gradient_bytes=1000000000.0"
    brought = np.arange(8 * 1001).reshape(8, 1001) % 997
    assert (play(solved.schedule, brought) == brought.sum(axis=0)).all()


def test_when_servers_are_ready_is_asked_for_with_a_size():
    with pytest.raises(OptionError, match="packed: ready_at_s: expected gradient_bytes as well"):
        Packed(ready_at_s=(0.0, 1.0))
    with pytest.raises(OptionError, match="ready times need objective=seconds"):
        gw.solve("ring:4", ready_at_s=[1, 0, 0, 0])
    with pytest.raises(OptionError, match="ready_at_s: expected 4, one for each server, got 2"):
        gw.solve("ring:4", objective="seconds", gradient_bytes=1e6, ready_at_s=[1, 0])
