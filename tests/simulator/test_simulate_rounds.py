"""Rounds: what is available is what SPEC says, and whatever a policy does is a valid schedule."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import NoScheduleError, ScheduleError
from gradweave.schedules.flow_tree import FlowTrees, Workloads
from gradweave.schedules.schedule import COLLECTIVES, COPY, REDUCE
from gradweave.simulator import RoundState, schedule_from_rounds
from gradweave.simulator.rounds import play
from gradweave.topology import from_spec
from gradweave.verifier import verify
from tests.simulator.random_networks import networks

collectives = st.sampled_from(COLLECTIVES)


def workloads_of(network, collective, merged=True) -> Workloads:
    trees = (FlowTrees.shortest_path if merged else FlowTrees.unmerged)(network)
    return Workloads.of(trees, collective)


def random_policy(seed: int, laziness: float = 0.3):
    """Tries a random part of what is left in a random order, ready or not, some of it twice."""
    rng = np.random.default_rng(seed)

    def policy(state: RoundState):
        count = len(state.workloads)
        chosen = np.flatnonzero(rng.random(count) > laziness)
        return rng.permutation(np.concatenate([chosen, chosen[:3]]))

    return policy


@given(
    network=networks(),
    collective=collectives,
    merged=st.booleans(),
    barrier=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150)
def test_any_policy_gives_a_valid_schedule(network, collective, merged, barrier, seed):
    made = play(
        workloads_of(network, collective, merged),
        random_policy(seed),
        barrier=barrier,
    )
    verdict = verify(made, forwarding_servers=not merged)
    assert verdict.valid, verdict.violation
    if barrier and collective == "all_reduce":
        assert made.round[made.op == COPY].min() > made.round[made.op == REDUCE].max()


@given(
    network=networks(),
    collective=collectives,
    merged=st.booleans(),
    barrier=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_available_is_what_the_definition_says(network, collective, merged, barrier, seed):
    """Not sent; every prefix complete in an earlier round; each link of the route has room; with a
    barrier, no copy before the round after the last reduce."""
    workloads = workloads_of(network, collective, merged)
    state = RoundState(workloads, barrier)
    rng = np.random.default_rng(seed)
    sent: dict[int, int] = {}
    for _ in range(200):
        assert state.done == (len(sent) == len(workloads))
        if state.done:
            break
        available = state.available().tolist()
        assert available == available_by_definition(workloads, sent, state.round, barrier)
        if available and rng.random() < 0.8:
            workload = int(rng.choice(available))
            state.send(workload)
            sent[workload] = state.round
        else:
            state.end_round()
    assert state.sent_in.tolist() == [sent.get(w, -1) for w in range(len(workloads))]


def available_by_definition(
    workloads: Workloads, sent: dict[int, int], now: int, barrier: bool
) -> list[int]:
    topology = workloads.topology
    ends = zip(topology.source.tolist(), topology.target.tolist(), strict=True)
    room = dict(zip(ends, topology.capacity.tolist(), strict=True))
    for workload, at in sent.items():
        if at == now:
            for step in steps(workloads, workload):
                room[step] -= 1
    reduces = np.flatnonzero(workloads.op == REDUCE).tolist()
    scattered = all(sent.get(w, now) < now for w in reduces)
    return [
        workload
        for workload in range(len(workloads))
        if workload not in sent
        and all(sent.get(prefix, now) < now for prefix in workloads.prefixes(workload))
        and all(room[step] > 0 for step in steps(workloads, workload))
        and (not barrier or scattered or workloads.op[workload] == REDUCE)
    ]


def steps(workloads: Workloads, workload: int) -> list[tuple[int, int]]:
    first, last = workloads.route_offsets[workload : workload + 2]
    route = workloads.route_nodes[first:last].tolist()
    return list(itertools.pairwise(route))


def test_what_is_sent_in_a_round_is_complete_only_in_the_next():
    """0 — 1 — 2: 1 may pass piece 0 on once it has 2's part, a round later."""
    workloads = workloads_of(from_spec("mesh:3"), "reduce_scatter")
    state = RoundState(workloads, barrier=True)
    ends = zip(workloads.piece.tolist(), workloads.source.tolist(), strict=True)
    edge = {end: workload for workload, end in enumerate(ends)}
    state.send(edge[0, 2])
    assert edge[0, 1] not in state.available()
    state.end_round()
    assert edge[0, 1] in state.available()


def test_sending_what_is_not_ready_or_does_not_fit_is_an_error():
    workloads = workloads_of(from_spec("star:3"), "reduce_scatter")
    state = RoundState(workloads, barrier=True)
    state.send(0)
    with pytest.raises(ScheduleError, match="round 0: workload 0 is not ready, or was sent"):
        state.send(0)
    with pytest.raises(ScheduleError, match="round 0: workload 1 finds a link of its route full"):
        state.send(1)
    state.end_round()
    state.send(1)


def test_a_lanes_worth_of_transfers_fit_a_link_of_higher_capacity():
    workloads = workloads_of(from_spec("star:4,capacity=3"), "reduce_scatter")
    made = play(workloads, lambda state: state.available())
    assert made.rounds == 1


@pytest.mark.parametrize("patience", [1, 5])
def test_a_policy_that_stops_is_given_up(patience):
    workloads = workloads_of(from_spec("ring:4"), "all_reduce")
    left = len(workloads) - 2
    reason = f"the policy sent nothing for {patience} rounds with {left} workloads left"
    with pytest.raises(NoScheduleError, match=reason):
        play(
            workloads, lambda state: state.available()[: 2 * (state.round == 0)], patience=patience
        )


def test_a_pause_within_patience_is_no_end():
    workloads = workloads_of(from_spec("ring:4"), "reduce_scatter")
    made = play(workloads, lambda s: s.available() if s.round % 4 == 3 else (), patience=3)
    assert made.rounds > 4 and verify(made).valid
    assert set(made.round % 4) == {3}


def test_without_a_barrier_a_copy_starts_once_its_root_is_complete():
    """The middle's pieces are complete early, and their copies use links that the
    reduces leave idle."""
    workloads = workloads_of(from_spec("mesh:3x3"), "all_reduce")
    apart, together = (
        play(workloads, lambda state: state.available(), barrier=barrier)
        for barrier in (True, False)
    )
    assert together.rounds < apart.rounds
    assert together.round[together.op == COPY].min() < together.round[together.op == REDUCE].max()
    assert sum(apart.stages.values()) == apart.rounds
    assert sum(together.stages.values()) > together.rounds


def test_the_policys_order_is_what_counts():
    workloads = workloads_of(from_spec("star:3"), "reduce_scatter")
    forward = play(workloads, lambda state: range(len(workloads)))
    backward = play(workloads, lambda state: reversed(range(len(workloads))))
    assert forward.piece[0] != backward.piece[0]
    again = play(workloads, lambda state: range(len(workloads)))
    assert again.round.tolist() == forward.round.tolist()


@given(network=networks(), seed=st.integers(0, 1000))
def test_schedule_from_rounds_keeps_each_workload_in_its_round(network, seed):
    workloads = workloads_of(network, "all_gather")
    rounds = np.random.default_rng(seed).integers(0, 5, len(workloads))
    made = schedule_from_rounds(workloads, rounds, gw.schedules.Provenance("by hand"))
    found = {
        (int(made.piece[t]), made.route(t)): int(made.round[t]) for t in range(made.num_transfers)
    }
    for workload, at in enumerate(rounds.tolist()):
        path = tuple(
            workloads.route_nodes[
                workloads.route_offsets[workload] : workloads.route_offsets[workload + 1]
            ].tolist()
        )
        assert found[int(workloads.piece[workload]), path] == at
    assert made.scheduler.name == "by hand"
