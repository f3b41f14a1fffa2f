"""List scheduling: the compiled kernel against the reference simulator, with and without swaps."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradweave.schedulers.ordering.list_scheduling_in_rounds import Rule, first_fit, list_schedule
from gradweave.schedules.flow_tree import FlowTrees, Workloads
from gradweave.schedules.schedule import COLLECTIVES, COPY, REDUCE, Provenance
from gradweave.simulator import RoundState, schedule_from_rounds
from gradweave.simulator.rounds import play
from gradweave.topology import from_spec
from gradweave.verifier import verify
from tests.simulator.random_networks import networks

rules = st.sampled_from(Rule)
collectives = st.sampled_from(COLLECTIVES)


def workloads_of(network, collective="reduce_scatter", merged=True) -> Workloads:
    trees = (FlowTrees.shortest_path if merged else FlowTrees.unmerged)(network)
    return Workloads.of(trees, collective)


def by_priority(workloads: Workloads, rule: Rule, seed: int):
    """The rules as a plain policy: it tries the remaining workloads by priority, ties at random."""
    tie = np.empty(len(workloads), np.int64)
    tie[np.random.default_rng(seed).permutation(len(workloads))] = np.arange(len(workloads))
    heights = workloads.heights()
    links, first = workloads.links()

    def policy(state: RoundState):
        waiting = np.flatnonzero(state.sent_in < 0)
        load = Counter(link for w in waiting for link in links[first[w] : first[w + 1]].tolist())

        def priority(w: int) -> int:
            if rule == Rule.RANDOM:
                return 0
            if rule == Rule.DEEPEST:
                return int(heights[w])
            capacity = workloads.topology.capacity
            busiest = max(-(-load[i] // int(capacity[i])) for i in links[first[w] : first[w + 1]])
            return busiest + int(heights[w])

        return sorted(waiting.tolist(), key=lambda w: (-priority(w), tie[w]))

    return policy


@given(
    network=networks(max_capacity=1),
    collective=collectives,
    rule=rules,
    merged=st.booleans(),
    barrier=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=150)
def test_the_kernel_does_what_the_rule_says(network, collective, rule, merged, barrier, seed):
    workloads = workloads_of(network, collective, merged)
    expected = play(workloads, by_priority(workloads, rule, seed), barrier=barrier)
    rounds = list_schedule(workloads, rule, seed, barrier=barrier)
    made = schedule_from_rounds(workloads, rounds, Provenance("kernel"))
    assert contents(made) == contents(expected)


@given(network=networks(max_capacity=4), seed=st.integers(0, 99))
def test_where_nothing_waits_it_does_so_at_any_capacity(network, seed):
    workloads = workloads_of(network, "reduce_scatter", merged=False)
    expected = play(workloads, by_priority(workloads, Rule.RANDOM, seed))
    rounds = list_schedule(workloads, Rule.RANDOM, seed)
    made = schedule_from_rounds(workloads, rounds, Provenance("kernel"))
    assert contents(made) == contents(expected)


def contents(made) -> set:
    return {
        (int(made.round[t]), int(made.piece[t]), int(made.op[t]), made.route(t))
        for t in range(made.num_transfers)
    }


@given(
    network=networks(max_capacity=4),
    collective=collectives,
    rule=rules,
    merged=st.booleans(),
    barrier=st.booleans(),
    swap_passes=st.integers(0, 4),
    target=st.integers(0, 20),
    seed=st.integers(0, 99),
)
@settings(max_examples=250)
def test_every_schedule_is_valid_with_any_capacities_and_swaps(
    network, collective, rule, merged, barrier, swap_passes, target, seed
):
    workloads = workloads_of(network, collective, merged)
    rounds = list_schedule(
        workloads, rule, seed, barrier=barrier, target=target, swap_passes=swap_passes
    )
    assert sorted(set(rounds.tolist())) == list(range(rounds.max() + 1)), "a round is empty"
    for w in range(len(workloads)):
        assert all(rounds[prefix] < rounds[w] for prefix in workloads.prefixes(w))
    if barrier and collective == "all_reduce":
        assert rounds[workloads.op == REDUCE].max() < rounds[workloads.op == COPY].min()
    load = Counter(
        (int(rounds[w]), step) for w in range(len(workloads)) for step in steps(workloads, w)
    )
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    room = dict(zip(ends, network.capacity.tolist(), strict=True))
    assert all(count <= room[step] for (_, step), count in load.items())
    made = schedule_from_rounds(workloads, rounds, Provenance("kernel"))
    assert verify(made, forwarding_servers=not merged).valid


def steps(workloads: Workloads, workload: int) -> list[tuple[int, int]]:
    first, last = workloads.route_offsets[workload : workload + 2]
    return list(itertools.pairwise(workloads.route_nodes[first:last].tolist()))


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("swap_passes", [0, 3])
def test_the_same_seed_gives_the_same_rounds(rule, swap_passes):
    workloads = workloads_of(from_spec("dcell:n=4,k=1"))
    runs = [
        list_schedule(workloads, rule, seed, swap_passes=swap_passes, target=12).tolist()
        for seed in (5, 5, 6)
    ]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("rule", [Rule.DEEPEST, Rule.MOST_LOADED])
def test_swaps_help(rule):
    workloads = workloads_of(from_spec("dcell:n=4,k=1"))

    def mean(swap_passes: int) -> float:
        runs = (
            list_schedule(workloads, rule, seed, target=12, swap_passes=swap_passes)
            for seed in range(10)
        )
        return sum(int(rounds.max()) + 1 for rounds in runs) / 10

    assert mean(8) < mean(0)


def test_it_gives_up_where_told_to():
    workloads = workloads_of(from_spec("star:5"))
    needed = int(list_schedule(workloads, Rule.RANDOM, 0).max()) + 1
    assert list_schedule(workloads, Rule.RANDOM, 0, max_rounds=needed - 1) is None
    assert list_schedule(workloads, Rule.RANDOM, 0, max_rounds=needed) is not None


@given(network=networks(max_capacity=3), seed=st.integers(0, 99))
def test_first_fit_puts_each_transfer_in_the_first_round_with_room(network, seed):
    workloads = workloads_of(network, merged=False)
    links, first = workloads.links()
    order = np.random.default_rng(seed).permutation(len(workloads))
    rounds = first_fit(links, first, network.capacity, order)
    load: Counter = Counter()
    for w in order.tolist():
        route = links[first[w] : first[w + 1]].tolist()
        at = next(
            at
            for at in itertools.count()
            if all(load[at, link] < network.capacity[link] for link in route)
        )
        assert rounds[w] == at
        load.update((at, link) for link in route)
