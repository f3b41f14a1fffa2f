"""Every strategy for demands on every kind of demand: what all of them promise."""

import dataclasses
from collections.abc import Callable

import pytest

from gradweave.conformance import demand_strategy as promises
from gradweave.conformance.networks import network
from gradweave.schedulers import (
    DEMAND_STRATEGIES,
    Apart,
    BinomialTree,
    Bruck,
    Butterfly,
    Chain,
    Direct,
    DisjointTrees,
    DoubleBinaryTree,
    ExactDemand,
    Flows,
    Group,
    HalvingDoubling,
    HierarchicalRing,
    Joint,
    PostalTree,
    Ring,
)
from gradweave.schedulers.scheduler import DemandStrategy
from gradweave.schedules import Demand

NETWORKS = promises.SMALL
DEMANDS = [*promises.demands(network(NETWORKS[0]))]
STAGES = tuple(
    f"{name}, {group}"
    for name in ("all_reduce", "all_gather", "reduce_scatter")
    for group in ("all", "some")
)


@dataclasses.dataclass(frozen=True)
class Row:
    """A strategy, and the demands that it is for where each server reaches each other."""

    strategy: DemandStrategy
    takes: Callable[[str, Demand], bool]
    quick: bool = True
    """Whether a millisecond is enough for what it does."""


def any_demand(_: str, demand: Demand) -> bool:
    return True


def not_messages(_: str, demand: Demand) -> bool:
    return not demand.unicast


def messages(_: str, demand: Demand) -> bool:
    return demand.unicast


def one_stage(what: str, _: Demand) -> bool:
    return what in STAGES


def one_tree(_: str, demand: Demand) -> bool:
    return len(demand) == 1 and 1 in (len(demand.contributors[0]), len(demand.destinations[0]))


def whole_trees(what: str, _: Demand) -> bool:
    name, group = what.split(", ") if ", " in what else ("", "")
    stages = ("all_gather", "reduce_scatter")
    return (name in ("broadcast", "reduce", *stages) and group == "all") or (
        name in stages and group == "lists"
    )


def few_hops(_: str, demand: Demand) -> bool:
    servers = max(len(demand.servers), len(demand.relays))
    return len(demand) * servers * (servers - 1) <= 50


ROWS: dict[str, Row] = {
    "direct": Row(Direct(), any_demand),
    "chain": Row(Chain(), not_messages),
    "binomial_tree": Row(BinomialTree(), not_messages),
    "double_binary_tree": Row(DoubleBinaryTree(), not_messages),
    "butterfly": Row(Butterfly(), any_demand),
    "butterfly:partners=bine": Row(Butterfly("bine"), any_demand),
    "bruck": Row(Bruck(), messages),
    "hierarchical_ring": Row(HierarchicalRing(), not_messages),
    "disjoint_trees": Row(DisjointTrees(), whole_trees),
    "postal_tree": Row(PostalTree(tries=20), one_tree),
    "joint": Row(Joint(), any_demand),
    "flows": Row(Flows(), messages, quick=False),
    "group": Row(Group(Ring()), one_stage, quick=False),
    "apart": Row(
        Apart(HalvingDoubling()),
        lambda what, demand: one_stage(what, demand) or what == "overlapping",
        quick=False,
    ),
    "exact": Row(ExactDemand(effort=0.3, max_hops=50), few_hops, quick=False),
}
ANEW = ("states what is played", "same seed, same schedule", "other node ids")
"""Promises for which a strategy plans anew; each comes in turn, of a schedule of every strategy."""


def test_every_strategy_has_a_row():
    assert {row.strategy.name for row in ROWS.values()} == set(DEMAND_STRATEGIES)


@pytest.mark.parametrize("name", ROWS)
def test_every_promise(name: str):
    """Every kind of demand on one network, another for each strategy and demand."""
    row, turn = ROWS[name], [*ROWS].index(name)
    limit = 1e-3 if row.quick else None
    anew = list(ANEW)
    for number, what in enumerate(DEMANDS):
        spec = NETWORKS[(number + turn) % len(NETWORKS)]
        topology = network(spec)
        demand = promises.demands(topology)[what]
        made = promises.made_or_refused(row.strategy, topology, demand, time_limit=limit)
        if made is None:
            assert spec != "star:4" or not row.takes(what, demand), (what, spec)
            continue
        assert row.takes(what, demand), (what, spec)
        checks = dict(promises.promises(row.strategy, made, demand))
        if row.quick and anew:  # as long as it likes, from here on
            made = row.strategy.schedule(topology, demand)
            checks |= dict(promises.promises(row.strategy, made, demand))
        for promise, check in checks.items():
            if promise not in ANEW or promise in anew[:1]:
                check()
        anew = anew[1:]
    assert not anew, "fewer schedules than promises"
