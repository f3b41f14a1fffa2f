"""Every strategy on every network: what all of them promise."""

import functools

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import NoScheduleError
from gradweave.schedule import COLLECTIVES, Schedule
from gradweave.schedulers import STRATEGIES as NAMED
from gradweave.schedulers.solve import bound_for
from gradweave.topology import Topology
from gradweave.verify import Verdict, verify
from tests.conformance.networks import NETWORKS, network, relabelled
from tests.conformance.strategies import STRATEGIES
from tests.schedule.same import same, same_columns

PAIRS = [(name, strategy) for strategy in STRATEGIES for name in NETWORKS]
FOUND = [(name, strategy) for name, strategy in PAIRS if name not in STRATEGIES[strategy].none_on]
NONE = [pair for pair in PAIRS if pair not in FOUND]

each = pytest.mark.parametrize(("name", "strategy"), FOUND)
collectives = pytest.mark.parametrize("collective", COLLECTIVES)


def fresh(topology: Topology, strategy: str, collective: str, seed: int = 0) -> Schedule:
    scheduler = STRATEGIES[strategy].make(topology)
    return scheduler.schedule(topology, collective=collective, seed=seed)


@functools.cache
def made(name: str, strategy: str, collective: str) -> Schedule:
    return fresh(network(name), strategy, collective)


@functools.cache
def bound(name: str, strategy: str, collective: str) -> int:
    """What no schedule is shorter than that has the freedoms of the strategy's options."""
    topology = network(name)
    return bound_for(topology, collective, [STRATEGIES[strategy].make(topology)]).rounds


def strictly(schedule: Schedule, strategy: str) -> Verdict:
    """Judged by the strategy's own terms and no laxer ones."""
    scheduler = STRATEGIES[strategy].make(schedule.topology)
    return verify(
        schedule,
        forwarding_servers=scheduler.forwards_through_servers,
        aggregating_switches=getattr(scheduler, "aggregating_switches", False),
    )


def test_every_strategy_has_a_row():
    topology = network("ring:8")
    shown = {row.make(topology).name for row in STRATEGIES.values()}
    # The exact search takes minutes on some of these networks; its own tests do the same on less.
    assert shown | {"exact"} == set(NAMED)


@collectives
@each
def test_it_verifies_and_is_not_better_than_possible(name, strategy, collective):
    schedule = made(name, strategy, collective)
    topology = network(name)
    scheduler = STRATEGIES[strategy].make(topology)

    verdict = strictly(schedule, strategy)
    assert verdict.valid, verdict.violation
    assert schedule.topology is topology
    assert schedule.collective == collective
    assert (schedule.scheduler.name, schedule.scheduler.seed) == (scheduler.name, 0)
    assert schedule.scheduler.options == scheduler.options()
    assert schedule.rounds >= bound(name, strategy, collective)


@collectives
@each
def test_it_is_determined_by_the_seed_and_moves_as_much_with_any(name, strategy, collective):
    schedule = made(name, strategy, collective)
    assert same(fresh(network(name), strategy, collective), schedule)

    other = fresh(network(name), strategy, collective, seed=1)
    assert strictly(other, strategy).valid
    assert other.num_transfers == schedule.num_transfers
    in_stage = STRATEGIES[strategy].transfers_in_stage
    if in_stage is not None:
        stages = 2 if collective == "all_reduce" else 1
        assert schedule.num_transfers == stages * in_stage(network(name).num_servers)


@collectives
@each
def test_it_does_as_well_under_other_node_ids(name, strategy, collective):
    schedule = made(name, strategy, collective)
    topology, new_id = relabelled(network(name))

    renamed = schedule.replace(
        topology=topology,
        **{
            column: new_id[getattr(schedule, column)]
            for column in ("root", "source", "target", "route_nodes")
        },
    )
    assert strictly(renamed, strategy).valid

    made_anew = fresh(topology, strategy, collective)
    assert strictly(made_anew, strategy).valid
    if STRATEGIES[strategy].transfers_in_stage is not None:
        assert made_anew.num_transfers == schedule.num_transfers
    assert made_anew.rounds >= bound(name, strategy, collective)


@pytest.mark.parametrize(("name", "strategy"), NONE)
def test_where_there_is_none_it_says_so_in_one_line(name, strategy):
    for topology in (network(name), relabelled(network(name))[0]):
        with pytest.raises(NoScheduleError) as raised:
            fresh(topology, strategy, "all_reduce")
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("strategy", ["merged, random", "parameter server"])
def test_seeds_matter_where_the_order_is_random(strategy):
    schedules = [fresh(network("dcell:n=4,k=1"), strategy, "all_reduce", seed) for seed in (0, 1)]
    assert not same_columns(*schedules)


@each
def test_both_stages_are_an_all_reduce(name, strategy):
    stages = made(name, strategy, "all_reduce").stages
    schedule = made(name, strategy, "all_reduce")
    if "overlap" not in strategy:
        assert sum(stages.values()) == schedule.rounds
    reduces = schedule.round[schedule.op == gw.schedule.REDUCE]
    copies = schedule.round[schedule.op == gw.schedule.COPY]
    assert len(reduces) and (len(copies) or STRATEGIES[strategy].one_stage)
    if "overlap" not in strategy and len(copies) and strategy != "ring, paper":
        assert reduces.max() < copies.min()
    assert np.array_equal(schedule.root, made(name, strategy, "reduce_scatter").root)
