"""A schedule with one thing changed is rejected, unless it is another valid schedule.

Which of the two it is, the oracle says. A table of what was tried is printed (``pytest -s``);
benchmarks/experiments/mutations.py tries all alternatives and writes it down.
"""

import pytest

import gradweave as gw
from gradweave.schedulers.spec import from_spec
from gradweave.schedules import Schedule
from tests.verifier.mutations import judge, table, total
from tests.verifier.oracle import Draft, faults

# network, strategy, collective, alternatives per mutation and transfer (None: all), least mutants
SCHEDULES = [
    ("bcube:n=3,k=1", "merged", "all_reduce", 1, 3_000),
    ("complete:4", "merged", "all_reduce", None, 1_800),
    ("dcell:n=3,k=1", "parameter_server", "reduce_scatter", 1, 4_000),
    ("fat_tree:2", "merged:aggregating_switches=true", "all_reduce", None, 1_000),
    ("mesh:2x3", "merged", "all_gather", None, 3_000),
    ("ring:4,capacity=2", "merged:overlap=true", "all_reduce", None, 1_900),
    ("ring:5", "ring", "all_reduce", None, 4_900),
    ("star:4", "central_parameter_server", "all_reduce", None, 3_000),
    ("star:4", "merged:aggregating_switches=true", "all_reduce", None, 3_000),
]
NAMES = [f"{network}-{strategy}-{collective}" for network, strategy, collective, *_ in SCHEDULES]

ALWAYS_WRONG = {
    "direction",
    "route: node appended",
    "route: node dropped",
    "source, route kept",
    "target, route kept",
    "transfer deleted",
    "transfer twice in a round",
}
"""Mutations after which none of these schedules can be valid, whatever the transfer."""


def made(network: str, strategy: str, collective: str) -> tuple[Schedule, bool]:
    scheduler = from_spec(strategy)
    schedule = scheduler.schedule(gw.topology.from_spec(network), collective=collective)
    return schedule, getattr(scheduler, "aggregating_switches", False)


@pytest.mark.parametrize(
    ("network", "strategy", "collective", "most", "least"), SCHEDULES, ids=NAMES
)
def test_every_mutant_that_is_not_valid_is_rejected_and_every_other_accepted(
    network, strategy, collective, most, least
):
    schedule, aggregating = made(network, strategy, collective)
    assert not faults(Draft.of(schedule), aggregating_switches=aggregating)

    tallies = judge(schedule, most=most, aggregating_switches=aggregating)

    print(f"\n{schedule}\n{table(tallies)}")
    every = total(tallies.values())
    assert not every.wrongly_accepted, every.wrongly_accepted[0]
    assert not every.wrongly_rejected, every.wrongly_rejected[0]
    assert not every.wrongly_explained, every.wrongly_explained[0]
    assert every.tried >= least
    assert every.rejected >= 0.9 * every.tried
    # A copy into a switch that holds nothing yet is as good as a reduce.
    for name in ALWAYS_WRONG | (set() if aggregating else {"op"}):
        assert tallies[name].rejected >= schedule.num_transfers, name
        assert not tallies[name].still_valid, name


@pytest.mark.parametrize(
    ("network", "strategy", "mutation"),
    [
        ("ring:5", "merged", "round later"),
        ("ring:5", "ring", "transfer again, later"),
        ("ring:5", "ring", "collective"),
        ("star:4", "central_parameter_server", "root of a piece"),
    ],
)
def test_another_valid_schedule_is_accepted(network, strategy, mutation):
    schedule, _ = made(network, strategy, "all_reduce")
    assert judge(schedule, most=1)[mutation].still_valid
