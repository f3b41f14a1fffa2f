"""The forwarding tables, walked packet by packet; needs neither root nor processes."""

import pytest

import gradweave as gw
from gradweave.lab.forwarding import Hop, multipath, schedule_paths, shortest_paths
from gradweave.schedulers.spec import from_spec
from tests.conformance.networks import network

NETWORKS = (
    "bcube:n=3,k=1",
    "dcell:n=3,k=1",
    "jellyfish:reference=J10",
    "jellyfish:reference=J15",
    "jellyfish:switches=5,degree=3,servers_per_switch=2,seed=1",
    "fat_tree:4",
    "irregular",
)


def walk(tables: dict[int, list[Hop]], channel: int, source: int, target: int) -> tuple[int, ...]:
    """Where a message goes, by the forwarding tables alone."""
    route = [source]
    while route[-1] != target:
        lines = [
            hop
            for hop in tables[route[-1]]
            if (hop.channel, hop.target) == (channel, target) and hop.source in (None, source)
        ]
        specific = [hop for hop in lines if hop.source is not None]
        (hop,) = specific or lines
        route.append(hop.next)
        assert len(route) < 100, "goes in circles"
    return tuple(route)


@pytest.mark.parametrize("strategy", ["portfolio", "ring", "parameter_server", "grown:restarts=2"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_transfer_takes_exactly_its_route(name, strategy):
    schedule = gw.solve(network(name), schedulers=strategy).schedule
    paths = schedule_paths(schedule)
    tables = paths.tables()
    for transfer in range(schedule.num_transfers):
        route = schedule.route(transfer)
        assert walk(tables, int(paths.channel[transfer]), route[0], route[-1]) == route


def test_there_are_networks_on_which_two_servers_use_two_routes():
    schedule = gw.schedulers.Symmetric().schedule(network("jellyfish:reference=J10"))
    assert schedule_paths(schedule).channels > 1


def test_every_pair_of_servers_is_connected_on_every_channel():
    topology = network("jellyfish:reference=J10")
    paths = schedule_paths(gw.schedulers.Symmetric().schedule(topology))
    tables = paths.tables()
    for channel in range(paths.channels):
        for source in topology.servers.tolist():
            for target in set(topology.servers.tolist()) - {source}:
                walk(tables, channel, source, target)


def test_only_the_unmerged_baselines_forward_through_servers():
    topology = network("bcube:n=3,k=1")
    assert not schedule_paths(gw.solve(topology).schedule).forwarders
    unmerged = from_spec("parameter_server").schedule(topology)
    assert schedule_paths(unmerged).forwarders


def test_shortest_paths_connect_all():
    topology = network("dcell:n=3,k=1")
    paths = shortest_paths(topology)
    tables = paths.tables()
    servers = topology.servers.tolist()
    assert len(paths.routes) == len(servers) * (len(servers) - 1)
    assert paths.forwarders <= set(servers)
    for (channel, source, target), route in paths.routes.items():
        assert walk(tables, channel, source, target) == route


def test_multipath_takes_shortest_routes_and_others_by_other_seeds():
    net = gw.topology.from_spec("leaf_spine:leaves=3,spines=2,servers_per_leaf=2")
    shortest = shortest_paths(net).routes
    drawn = [multipath(net, seed).routes for seed in range(4)]
    for routes in drawn:
        assert {pair: len(route) for pair, route in routes.items()} == {
            pair: len(route) for pair, route in shortest.items()
        }
        assert all(len(net.find_links(route[:-1], route[1:])) for route in routes.values())
    far = [pair for pair, route in shortest.items() if len(route) == 5]
    spines = {(pair, routes[pair][2]) for pair in far for routes in drawn}
    assert len(spines) > 1.5 * len(far)
    assert multipath(net, 1).routes == drawn[1]
    assert (
        multipath(gw.topology.ring(5), 0).forwarders
        == shortest_paths(gw.topology.ring(5)).forwarders
    )
