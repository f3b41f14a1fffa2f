"""Parameter servers: SPEC's figures, and unmerged flows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.errors import OptionError
from gradweave.report.comparison import TABLE_2
from gradweave.schedulers import CentralParameterServer, ParameterServer
from gradweave.schedules.schedule import COLLECTIVES
from gradweave.topology import from_spec
from gradweave.topology.routes import shortest_route
from tests.simulator.random_networks import networks

REPRODUCED = {
    "B3": 16.8,
    "B4": 31.8,
    "B5": 51.3,
    "D4": 29.6,
    "D5": 48.0,
    "D6": 71.0,
    "J10": 23.1,
    "J15": 37.0,
    "J20": 52.9,
}
"""SPEC's mean of 20 seeds."""


@pytest.mark.parametrize("case", TABLE_2, ids=lambda case: case.label)
def test_the_mean_of_twenty_seeds_is_the_specs(case):
    rounds = [
        ParameterServer().schedule(case.network(seed), collective=case.stages, seed=seed).rounds
        for seed in range(20)
    ]
    assert sum(rounds) / 20 == pytest.approx(REPRODUCED[case.label], rel=0.03)


@given(network=networks(), collective=st.sampled_from(COLLECTIVES))
def test_each_contribution_travels_alone_on_its_whole_shortest_path(network, collective):
    made = ParameterServer().schedule(network, collective=collective)
    servers = network.servers.tolist()
    sent = [(int(made.op[t]), made.route(t)) for t in range(made.num_transfers)]
    expected = []
    for root in servers:
        for server in set(servers) - {root}:
            path = shortest_route(network, server, root)
            if collective != "all_gather":
                expected.append((0, path))
            if collective != "reduce_scatter":
                expected.append((1, path[::-1]))
    assert sorted(sent) == sorted(expected)


@given(network=networks(), collective=st.sampled_from(COLLECTIVES))
def test_the_central_server_holds_every_piece(network, collective):
    server = int(network.servers[-1])
    made = CentralParameterServer(server).schedule(network, collective=collective)
    assert set(made.root.tolist()) == {server}
    assert made.pieces == network.num_servers
    assert ((made.source == server) | (made.target == server)).all()


def test_the_central_servers_links_carry_everything():
    made = CentralParameterServer().schedule(from_spec("star:6"))
    assert made.root.tolist() == [0] * 6
    assert made.stages == {"reduce_scatter": 30, "all_gather": 30}


@pytest.mark.parametrize("server", [6, 7, -1, 10**20])
def test_only_a_server_can_be_the_central_one(server):
    with pytest.raises(OptionError) as caught:
        CentralParameterServer(server).schedule(from_spec("star:6"))
    assert str(caught.value) == (
        f"central_parameter_server: server: {server} is not a server of 'star:n=6'"
    )


@pytest.mark.parametrize("strategy", [ParameterServer(), CentralParameterServer()])
def test_the_seed_decides_the_order(strategy):
    network = from_spec("dcell:n=3,k=1")
    rounds = [strategy.schedule(network, seed=seed).piece.tolist() for seed in (1, 1, 2)]
    assert rounds[0] == rounds[1] != rounds[2]
