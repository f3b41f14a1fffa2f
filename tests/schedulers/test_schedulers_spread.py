"""Strategies side by side give what they give one after the other."""

import pytest

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.schedulers import Grown, Merged, Ring, spread

STRATEGIES = (Ring(), Merged(tries=2), Grown(restarts=3))


def rows(solution):
    made = solution.schedule
    return [made.round.tolist(), made.piece.tolist(), made.source.tolist(), made.target.tolist()]


def test_local_processes_find_the_same():
    network = gw.topology.dcell(n=4, k=1)
    alone = gw.solve(network, schedulers=STRATEGIES)
    with spread.local_processes(2) as executor:
        together = gw.solve(network, schedulers=STRATEGIES, executor=executor)
    assert rows(together) == rows(alone)
    assert together.scheduler == alone.scheduler
    assert [a.rounds for a in together.attempts] == [a.rounds for a in alone.attempts]


def test_a_ray_cluster_finds_the_same():
    pytest.importorskip("ray", reason="the extra ray is not installed")
    network = gw.topology.dcell(n=4, k=1)
    alone = gw.solve(network, schedulers=STRATEGIES)
    with spread.ray_cluster() as executor:
        together = gw.solve(network, schedulers=STRATEGIES, executor=executor)
    assert rows(together) == rows(alone)


def test_bad_input_is_refused():
    with pytest.raises(OptionError, match="workers: expected at least 1, got 0"):
        with spread.local_processes(0):
            pass
