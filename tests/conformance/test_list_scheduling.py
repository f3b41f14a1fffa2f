"""The compiled list scheduler does what its rule says when a policy plays it in plain Python."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.schedulers.ordering.list_scheduling_in_rounds import Rule, list_schedule
from gradweave.schedules import FlowTrees, Provenance, Workloads
from gradweave.simulator import RoundState, schedule_from_rounds
from gradweave.simulator.rounds import play
from tests.schedules.same import same_columns

NETWORKS = ["bcube:n=3,k=1", "fat_tree:2", "hypercube:3", "mesh:2x3", "ring:5", "star:4"]


def policy_of(rule: Rule, workloads: Workloads, seed: int):
    """Workloads by the rule, ties by the random order that the compiled scheduler draws."""
    order = np.random.default_rng(seed).permutation(len(workloads))
    heights = workloads.heights()
    links, first = workloads.links()
    owner = np.repeat(np.arange(len(workloads)), np.diff(first))

    def busiest(state: RoundState, workload: int) -> int:
        waiting = state.sent_in[owner] < 0
        load = np.bincount(links[waiting], minlength=len(state.link_load))
        return load[links[first[workload] : first[workload + 1]]].max()

    def policy(state: RoundState) -> list[int]:
        ready = [w for w in order.tolist() if state.ready()[w]]
        if rule == Rule.RANDOM:
            return ready
        if rule == Rule.DEEPEST:
            return sorted(ready, key=lambda w: -heights[w])
        key = {w: busiest(state, w) + heights[w] for w in ready}
        return sorted(ready, key=lambda w: -key[w])

    return policy


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("kind", ["merged", "unmerged"])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_same_round_for_every_workload(network, kind, rule):
    topology = gw.topology.from_spec(network)
    make = FlowTrees.unmerged if kind == "unmerged" else FlowTrees.shortest_path
    for collective, barrier, seed in [
        ("reduce_scatter", True, 0),
        ("all_gather", True, 1),
        ("all_reduce", True, 2),
        ("all_reduce", False, 3),
    ]:
        workloads = Workloads.of(make(topology), collective)
        compiled = list_schedule(workloads, rule, seed, barrier=barrier)
        played = play(workloads, policy_of(rule, workloads, seed), barrier=barrier)
        assert same_columns(played, schedule_from_rounds(workloads, compiled, Provenance("list")))
