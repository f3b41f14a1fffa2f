"""Grown trees, round by round: whatever is sent where it is available makes a valid schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import ScheduleError
from gradweave.schedulers.hops import Hops
from gradweave.schedules import Provenance, Schedule
from gradweave.schedules.schedule import COPY, REDUCE, take_rows
from gradweave.simulator import GrownState
from gradweave.verifier import verify
from tests.simulator.random_networks import networks


def state_of(topology, backward=False, variants=2) -> GrownState:
    hops = Hops.of(topology, variants=variants)
    return GrownState(topology, hops.route_nodes, hops.route_offsets, backward)


def play_at_random(state: GrownState, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        available = state.available()
        if len(available) and rng.random() < 0.8:
            state.send(int(rng.choice(available)))
        else:
            state.end_round()
        if state.done:
            return
    pytest.fail("not done after 1000 steps")


def schedule_of(state: GrownState) -> Schedule:
    sent = np.flatnonzero(state.sent_in >= 0)
    rounds = state.sent_in[sent]
    rounds = rounds.max() - rounds if state.backward else rounds
    order = np.argsort(rounds, kind="stable")
    hop, piece = np.divmod(sent[order], state.topology.num_servers)
    nodes, offsets = take_rows(state.route_nodes, state.route_offsets, hop)
    return Schedule(
        topology=state.topology,
        collective="reduce_scatter" if state.backward else "all_gather",
        root=state.topology.servers,
        round=rounds[order],
        piece=piece,
        source=nodes[offsets[:-1]],
        target=nodes[offsets[1:] - 1],
        op=np.full(len(hop), REDUCE if state.backward else COPY, np.int8),
        route_nodes=nodes,
        route_offsets=offsets,
        scheduler=Provenance("random"),
    )


@given(network=networks(), backward=st.booleans(), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_any_choice_gives_a_valid_schedule(network, backward, seed):
    state = state_of(network, backward)
    play_at_random(state, seed)
    made = schedule_of(state)
    verdict = verify(made)
    assert verdict.valid, verdict.violation
    assert len(made.round) == network.num_servers * (network.num_servers - 1)


@given(network=networks(max_servers=5), backward=st.booleans(), seed=st.integers(0, 1000))
@settings(max_examples=40)
def test_available_is_what_the_definition_says(network, backward, seed):
    """A candidate's source holds the piece since an earlier round, its target neither holds it
    nor was promised it, and each link of its route has room."""
    state = state_of(network, backward)
    hops = Hops.of(network, variants=2)
    giver, taker = (hops.target, hops.source) if backward else (hops.source, hops.target)
    routes = [set(links.tolist()) for links in np.split(hops.links, hops.first_link[1:-1])]
    servers = network.num_servers
    since = {(server, server): 0 for server in range(servers)}
    load = dict.fromkeys(range(len(network.source)), 0)
    now = 0
    rng = np.random.default_rng(seed)
    while len(since) < servers**2:
        expected = [
            hop * servers + piece
            for hop, route in enumerate(routes)
            for piece in range(servers)
            if since.get((giver[hop], piece), now + 1) <= now
            and (taker[hop], piece) not in since
            and all(load[link] < network.capacity[link] for link in route)
        ]
        assert state.available().tolist() == expected
        if expected and rng.random() < 0.8:
            workload = int(rng.choice(expected))
            hop, piece = divmod(workload, servers)
            state.send(workload)
            since[taker[hop], piece] = now + 1
            for link in routes[hop]:
                load[link] += 1
        else:
            state.end_round()
            now += 1
            load = dict.fromkeys(load, 0)
        assert state.round == now
    assert state.done
    assert state.available().tolist() == []


def test_sending_what_is_not_ready_or_does_not_fit_is_an_error():
    state = state_of(gw.topology.from_spec("star:3"), variants=1)
    ends = list(zip(state.giver.tolist(), state.taker.tolist(), strict=True))
    first, same_link = ends.index((0, 1)) * 3, ends.index((0, 2)) * 3
    with pytest.raises(ScheduleError, match=f"round 0: workload {first + 1} is not ready"):
        state.send(first + 1)  # server 0 lacks piece 1
    state.send(first)
    with pytest.raises(ScheduleError, match=f"workload {first} is not ready, or was sent"):
        state.send(first)
    with pytest.raises(ScheduleError, match=f"{same_link} finds a link of its route full"):
        state.send(same_link)
    state.end_round()
    state.send(same_link)
