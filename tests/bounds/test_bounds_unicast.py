"""Bounds for messages from server to server, and their certificates."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds.demands.link_lengths import MAX_LENGTH
from gradweave.bounds.demands.unicast import LinkLengths, Messages, farthest, unicast
from gradweave.errors import OptionError
from gradweave.topology.routes import server_routes


def all_to_all(spec: str, amount: int = 1) -> Messages:
    topology = gw.topology.from_spec(spec)
    source, target = np.nonzero(~np.eye(topology.num_servers, dtype=bool))
    servers = topology.servers
    return Messages(topology, servers[source], servers[target], np.full(len(source), amount))


@pytest.mark.parametrize(
    ("spec", "rounds"),
    [
        ("ring:8", 8),  # n^2/8
        ("ring:7", 6),  # (n^2 - 1)/8
        ("torus:4x4", 8),  # n k/8 with n = k^2, two dimensions of 4
        ("hypercube:dimension=5", 16),  # n/2
        ("complete:n=6", 1),
        ("star:6", 5),  # n - 1 through each port
        ("bcube:n=4,k=1", 12),  # 9 of 15 pieces take two transfers, over 2 ports
    ],
)
def test_rounds_of_an_all_to_all_are_the_formulas(spec: str, rounds: int) -> None:
    assert unicast(all_to_all(spec), "rounds").time == rounds


def test_the_farthest_server_counts_where_little_moves() -> None:
    ring = gw.topology.ring(9)
    bound = unicast(Messages(ring, np.array([0]), np.array([4]), np.array([1])), "rounds")
    assert bound.time == 4
    assert str(bound) == "a message needs 4 transfers from server 0 to server 4"


def test_ports_explain_themselves() -> None:
    bound = unicast(all_to_all("star:6", 1000))
    assert "5 kB must leave server 0 at 100 Gbit/s" in str(bound)
    assert bound.time == Fraction(5000) / Fraction(12.5e9) + Fraction(2e-6)


def test_lengths_on_a_cut_prove_it() -> None:
    messages = all_to_all("mesh:4x4")
    topology = messages.topology
    left = np.arange(16) % 4 < 2
    crosses = left[topology.source] & ~left[topology.target]
    once, twice = (LinkLengths(messages, "rounds", each * crosses) for each in (1, 2))
    assert once.time == twice.time == 8 * 8 / 4
    assert str(once) == (
        "the shortest paths over 4 link directions carry 64 pieces together, which offer 4 per "
        "round"
    )
    assert str(twice) == (
        "with lengths up to 2 on 4 link directions, amounts times distances are 128, and the "
        "links offer 8 per round"
    )


def test_servers_that_may_not_relay_are_gone_round() -> None:
    messages = all_to_all("bcube:n=3,k=1")
    with pytest.raises(OptionError, match="from server 0 to server 4 passes servers that are not"):
        unicast(dataclasses.replace(messages, relays=np.zeros(15, bool)), "rounds")
    # A triangle with a short way through server 1, and a long one.
    links = [(0, 1), (1, 2), (0, 3), (3, 4), (4, 2)]
    net = gw.topology.Topology.from_links("detour", servers=3, switches=2, links=links)
    ends = np.array([0]), np.array([2]), np.array([5])
    ones = np.ones(10, int)
    free = LinkLengths(Messages(net, *ends), "rounds", ones)
    held = LinkLengths(Messages(net, *ends, relays=np.zeros(5, bool)), "rounds", ones)
    assert (free.used, held.used) == (10, 15)


def test_amounts_and_lengths_may_be_huge() -> None:
    messages = all_to_all("ring:4", 10**18)
    lengths = LinkLengths(messages, "seconds", np.full(8, MAX_LENGTH))
    assert lengths.used == 16 * 10**18 * MAX_LENGTH
    assert lengths.offered == 8 * Fraction(12.5e9) * MAX_LENGTH


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_lengths_prove_more_than_routing_takes(data: st.DataObject) -> None:
    """Loads of the shortest routes are a schedule's, in rounds, that any lengths must be below."""
    messages = all_to_all("jellyfish:reference=J10,seed=0")
    topology = messages.topology
    _, _, nodes, offsets = server_routes(topology)
    load = np.bincount(topology.links_along(nodes, offsets), minlength=len(topology.source))
    draw = st.lists(st.integers(0, 9), min_size=len(load), max_size=len(load))
    lengths = np.array(data.draw(draw))
    assert LinkLengths(messages, "rounds", lengths).time <= load.max()


@pytest.mark.parametrize("length", [np.full(8, -1), np.full(8, MAX_LENGTH + 1), np.ones(7, int)])
def test_lengths_that_are_none_are_refused(length: np.ndarray) -> None:
    with pytest.raises(OptionError, match="lengths"):
        LinkLengths(all_to_all("ring:4"), "rounds", length)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("source", 4, "expected a server, got node 4"),
        ("target", -1, "expected a server, got node -1"),
        ("target", 0, "from a server to itself"),
        ("amount", 0, "expected 1 at least, got 0"),
        ("amount", 0.5, "integers"),
    ],
)
def test_messages_that_are_none_are_refused(column: str, value: float, message: str) -> None:
    columns = {"source": 0, "target": 1, "amount": 1} | {column: value}
    star = gw.topology.star(4)
    with pytest.raises(OptionError, match=message):
        Messages(star, **{name: np.array([entry]) for name, entry in columns.items()})


def test_farthest_in_seconds_is_latency() -> None:
    assert float(farthest(all_to_all("ring:6"), "seconds").time) == pytest.approx(3e-6)
