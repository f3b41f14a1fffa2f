"""Servers go to the ranks on the hosts that they are named after; where none do, rank 0 warns."""

import dataclasses
import warnings

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import InputWarning, OptionError
from gradweave.execute.running import hosts
from gradweave.execute.running.hosts import order_by_hosts, placed_by_hosts


@pytest.mark.parametrize(
    ("names", "on", "order"),
    [
        (["n1", "n2"], ["n2", "n1"], [1, 0]),
        (["n1", "n2", "n3"], ["n1", "n3", "n2"], [0, 2, 1]),
        (["n1", "n2", "n3"], ["n3.example.org", "n1", "n2"], [2, 0, 1]),
        (["alpha", "beta"], ["beta", "alpha"], [1, 0]),
        (["a:0", "b:0", "a:1", "b:1"], ["a", "a", "b", "b"], [0, 2, 1, 3]),
        (["n1", "n2", "n3"], ["n3", "n2"], [2, 1]),
        (["n1", "n2", "n3"], ["n1", "n2"], [0, 1]),
        (["a:0", "a:1", "b:0"], ["a", "a"], [0, 1]),
    ],
)
def test_servers_by_hosts(names, on, order):
    assert order_by_hosts(names, on) == order
    assert [hosts._host_of(names[place], set(on)) for place in order] == list(map(hosts._short, on))


@pytest.mark.parametrize(
    ("names", "on", "says"),
    [
        (["n1", "n2"], ["other", "n2.example.org"], "rank 0 runs on host other, .* server n1 has"),
        (["n1", "n2"], ["x", "y"], "rank 0 runs on host x, .* server n1 has no rank"),
        (["a:0", "a:1", "b"], ["b", "a", "b"], "rank 2 runs on host b, .* server a:1 has no rank"),
    ],
)
def test_hosts_without_a_server(names, on, says):
    with pytest.raises(OptionError, match=says):
        order_by_hosts(names, on)


@pytest.mark.parametrize(
    ("names", "on"),
    [
        (["n1", "n2"], ["n1", "n2"]),
        (["N1", "n2"], ["n1.example.org", "n2.example.org"]),
        (["n1.example.org", "n2"], ["n1", "n2"]),
        (["a:0", "b", "a:1"], ["a", "b", "a"]),
        (["n1", "n2"], ["n1", "n1"]),
        (["n1", "n2"], ["laptop", "laptop"]),
        (["gpu0", "gpu1"], ["x", "y"]),
        (["server-0", "server-1"], ["x", "y"]),
        (["s0", "h1"], ["x", "y"]),
        (["Oregon 1", "Tokyo 1"], ["x", "y"]),
        (["0", "2"], ["x", "y"]),
        (["10.0.0.1", "10.0.0.2"], ["x", "y"]),
    ],
)
def test_no_false_alarm(names, on):
    assert order_by_hosts(names, on) is None


@dataclasses.dataclass
class Told:
    """A runner among processes that all say the same, but the second one another host."""

    ranks: list[int]

    def gathered(self, numbers):
        other = np.zeros_like(numbers)
        other[:2] = np.frombuffer(b"n1", np.uint8)
        return np.stack([numbers, other])


def test_the_schedule_follows_the_hosts(monkeypatch):
    network = gw.topology.star(2)
    network = dataclasses.replace(network, labels=("n1", "n2", "switch"))
    schedule = gw.schedulers.ParameterServer().schedule(network)
    monkeypatch.setattr(hosts.socket, "gethostname", lambda: "n2")
    placed = placed_by_hosts(Told([0]), schedule)  # pyright: ignore[reportArgumentType]
    assert placed.topology.labels == ("n2", "n1", "switch")
    assert placed.root.tolist() == [1 - root for root in schedule.root]
    assert gw.verify(placed).valid
    again = placed.with_server_order([1, 0])
    assert again.topology.same_network(network)
    assert again.route_nodes.tolist() == schedule.route_nodes.tolist()


def test_rank_0_warns_in_one_line(monkeypatch):
    network = dataclasses.replace(gw.topology.complete(2), labels=("n2", "n3"))
    schedule = gw.schedulers.Ring().schedule(network)
    monkeypatch.setattr(hosts.socket, "gethostname", lambda: "n2")
    with pytest.warns(InputWarning, match=r"^rank 1 runs on host n1, .* server n3 has no rank"):
        placed_by_hosts(Told([0]), schedule)  # pyright: ignore[reportArgumentType]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bare = gw.schedulers.Ring().schedule(gw.topology.complete(2))
        for told, given in ((Told([1]), schedule), (Told([0]), bare)):
            placed = placed_by_hosts(told, given)  # pyright: ignore[reportArgumentType]
            assert placed is given
