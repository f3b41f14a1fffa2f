"""Every strategy on every network: what all of them promise."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.conformance import scheduler as promises
from gradweave.errors import NoScheduleError
from gradweave.schedulers import STRATEGIES as NAMED
from gradweave.schedules import COLLECTIVES, Schedule
from gradweave.topology import Topology
from tests.conformance.made import made
from tests.conformance.networks import NETWORKS, network, relabelled
from tests.conformance.strategies import STRATEGIES
from tests.schedules.same import same_columns

PAIRS = [(name, strategy) for strategy in STRATEGIES for name in NETWORKS]
FOUND = [(name, strategy) for name, strategy in PAIRS if name not in STRATEGIES[strategy].none_on]
LARGE = [pair for pair in FOUND if network(pair[0]).num_servers > STRATEGIES[pair[1]].up_to]
NONE = [pair for pair in PAIRS if pair not in FOUND]
MANY_SERVERS = 12
"""On networks of more servers a strategy's promises are tried in turn: half of the strategies on
each, half of these networks by each strategy."""
QUICK = ("complete:4", "irregular")
"""On which every strategy is tried by `make test`, too."""


def fresh(topology: Topology, strategy: str, collective: str, seed: int = 0) -> Schedule:
    scheduler = STRATEGIES[strategy].make(topology)
    return scheduler.schedule(topology, collective=collective, seed=seed)


def in_turn(name: str, strategy: str) -> bool:
    large = [each for each in NETWORKS if network(each).num_servers > MANY_SERVERS]
    return name not in large or (large.index(name) + [*STRATEGIES].index(strategy)) % 2 == 0


def test_every_strategy_has_a_row():
    topology = network("ring:8")
    shown = {row.make(topology).name for row in STRATEGIES.values()}
    # The exact search takes minutes on some of these networks; its own tests do the same on less.
    assert shown - {"solved"} | {"exact"} == set(NAMED)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        pytest.param(*pair, marks=[pytest.mark.quick] if pair[0] in QUICK else [])
        for pair in FOUND
        if pair not in LARGE and in_turn(*pair)
    ],
)
def test_every_promise(name, strategy):
    """Every collective's schedule is made once, and one of them anew: making is most of the time.

    Which one comes in turn, so that each strategy and each network meets all three: how a strategy
    draws and numbers is independent of the network.
    """
    topology = network(name)
    stages = {stage: fresh(topology, strategy, stage) for stage in COLLECTIVES[1:]}
    schedules = {"all_reduce": made(name, strategy), **stages}
    turn = NETWORKS.index(name) + [*STRATEGIES].index(strategy)
    for number, schedule in enumerate(schedules.values()):
        bound = is_valid_and_not_better_than_possible(schedule, strategy)
        is_as_large_as_expected(schedule, strategy)
        if number == turn % len(COLLECTIVES):
            is_determined_by_the_seed(schedule, strategy)
            moves_as_much_with_another_seed(schedule, strategy)
            does_as_well_under_other_node_ids(schedule, strategy, bound)
    is_both_stages(schedules["all_reduce"], strategy)
    if not STRATEGIES[strategy].own_pieces:
        assert np.array_equal(schedules["all_reduce"].root, schedules["reduce_scatter"].root)
    for collective, schedule in schedules.items():
        assert schedule.topology is topology
        assert schedule.collective == collective


@pytest.mark.parametrize(("name", "strategy"), LARGE)
def test_an_all_reduce_where_a_schedule_takes_seconds(name, strategy):
    schedule = made(name, strategy)
    is_valid_and_not_better_than_possible(schedule, strategy)
    is_as_large_as_expected(schedule, strategy)
    is_both_stages(schedule, strategy)


def is_valid_and_not_better_than_possible(schedule: Schedule, strategy: str) -> int:
    """Returns the bound of the strategy: no schedule with its freedoms has fewer rounds."""
    scheduler = STRATEGIES[strategy].make(schedule.topology)
    promises.is_valid(scheduler, schedule)
    promises.says_who_made_it(scheduler, schedule)
    return promises.is_not_better_than_possible(scheduler, schedule)


def is_as_large_as_expected(schedule: Schedule, strategy: str) -> None:
    in_stage = STRATEGIES[strategy].transfers_in_stage
    if in_stage is not None:
        stages = 2 if schedule.collective == "all_reduce" else 1
        assert schedule.num_transfers == stages * in_stage(schedule.topology.num_servers)


def is_determined_by_the_seed(schedule: Schedule, strategy: str) -> None:
    promises.is_determined_by_the_seed(STRATEGIES[strategy].make(schedule.topology), schedule)


def moves_as_much_with_another_seed(schedule: Schedule, strategy: str) -> None:
    other = fresh(schedule.topology, strategy, schedule.collective, seed=1)
    promises.is_valid(STRATEGIES[strategy].make(schedule.topology), other)
    assert other.num_transfers == schedule.num_transfers


def does_as_well_under_other_node_ids(schedule: Schedule, strategy: str, bound: int) -> None:
    promises.holds_renamed(STRATEGIES[strategy].make(schedule.topology), schedule)
    topology, _ = relabelled(schedule.topology)
    scheduler, made_anew = (
        STRATEGIES[strategy].make(topology),
        fresh(topology, strategy, schedule.collective),
    )
    promises.is_valid(scheduler, made_anew)
    if STRATEGIES[strategy].transfers_in_stage is not None:
        assert made_anew.num_transfers == schedule.num_transfers
    assert made_anew.rounds >= bound


def is_both_stages(schedule: Schedule, strategy: str) -> None:
    if "overlap" not in strategy:
        assert sum(schedule.stages.values()) == schedule.rounds
    reduces = schedule.round[schedule.op == gw.schedules.REDUCE]
    copies = schedule.round[schedule.op == gw.schedules.COPY]
    assert len(reduces) and (len(copies) or STRATEGIES[strategy].one_stage)
    if "overlap" not in strategy and strategy != "ring, paper":
        promises.copies_come_last(schedule)


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
