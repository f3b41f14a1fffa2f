"""Strategies run in parallel give the same results as in sequence."""

import multiprocessing
import threading

import networkx as nx
import pytest

import gradweave as gw
from gradweave.common.stop import Interrupt
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


def test_for_seconds_too_and_an_interrupt_waits_for_none():
    network = gw.topology.slowed(gw.topology.ring(5), {(0, 1): 0.25, (1, 2): 0.5}).topology
    given = {"objective": "seconds", "gradient_bytes": 1e8}
    strategies = ["ring", "timed", "planned"]
    alone = gw.solve(network, schedulers=strategies, **given)
    with spread.local_processes(2) as executor:
        together = gw.solve(network, schedulers=strategies, executor=executor, **given)
        assert rows(together) == rows(alone)
        assert [a.seconds for a in together.attempts] == [a.seconds for a in alone.attempts]
        interrupt = Interrupt()

        def end(progress: str) -> None:
            if "trying grown" in progress:
                interrupt.end()

        given |= {"executor": executor, "interrupt": interrupt, "progress": end}
        endless, network = Grown(restarts=10**6), gw.topology.from_networkx(nx.tutte_graph())
        ended = gw.solve(network, schedulers=[Ring(), endless], **given)
        assert (ended.scheduler.name, ended.stopped) == ("ring", "interrupt")
        with pytest.raises(KeyboardInterrupt):
            gw.solve(network, schedulers=[endless], **given)
    assert not multiprocessing.active_children()


def test_an_interrupt_ends_a_search_with_the_best_so_far():
    interrupt, network = Interrupt(), gw.topology.from_networkx(nx.tutte_graph())
    threading.Timer(0.2, interrupt.end).start()
    ended = gw.solve(network, schedulers=[Grown(restarts=10**6)], interrupt=interrupt)
    assert ended.stopped == "interrupt" and ended.rounds < 60


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
