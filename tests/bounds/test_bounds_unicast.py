"""Bounds for messages from server to server, in rounds and in seconds."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds import DemandLengths, demand_bound, demand_rounds
from gradweave.bounds.prices import MAX_LENGTH
from gradweave.errors import OptionError
from gradweave.schedules import Demand, collective, sends
from gradweave.topology.routes import server_routes


def all_to_all(spec: str, pieces: int = 1) -> tuple[gw.Topology, Demand]:
    """Each server has some pieces for each other."""
    net = gw.topology.from_spec(spec)
    return net, collective("all_to_all", net.servers, pieces * net.num_servers)


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
    assert demand_rounds(*all_to_all(spec)).rounds == rounds


@pytest.mark.parametrize(
    ("name", "pieces", "rounds"),
    [
        ("broadcast", 6, 3),  # out of the root's two links
        ("reduce", 6, 3),
        ("all_gather", 6, 3),  # 5 into each server over two links
        ("all_reduce", 12, 10),  # 12 · 2 · 5 transfers over 12 link directions
    ],
)
def test_rounds_of_other_demands_are_counted_like_seconds(
    name: str, pieces: int, rounds: int
) -> None:
    root = 0 if name in ("broadcast", "reduce") else None
    demand = collective(name, range(6), pieces, root=root)
    assert demand_rounds(gw.topology.ring(6), demand).rounds == rounds


def test_capacities_count_in_rounds_and_bandwidths_in_seconds() -> None:
    """A path whose first link is wide for pieces, and whose second link is wide for bytes."""
    net = gw.topology.Topology.from_links(
        "path",
        servers=3,
        switches=0,
        links=[(0, 1), (1, 2)],
        capacity=[4, 1],
        bandwidth_bytes_per_s=np.array([1e3, 4e3]),
    )
    demand = sends([(0, 2, 9000)], relays=[1])
    assert demand_rounds(net, demand).rounds == 9000
    assert demand_bound(net, demand).seconds == pytest.approx(9, rel=1e-4)


def test_the_farthest_server_counts_where_little_moves() -> None:
    ring = gw.topology.ring(9)
    bound = demand_rounds(ring, sends([(0, 1, 1), (0, 4, 1)], relays=ring.servers))
    assert (bound.rounds, bound.kind) == (4, "depth")
    assert bound.reason() == "a piece needs 4 transfers from server 0 to server 4"
    whole = demand_rounds(ring, collective("broadcast", range(9), 1, root=8))
    assert whole.reason() == "a piece needs 4 transfers from server 8 to server 3"


def test_rounds_are_whole_and_the_farthest_of_any_job_counts() -> None:
    ring = gw.topology.ring(8)
    near = sends([(0, 1, 3)], relays=ring.servers)
    assert demand_rounds(ring, near).rounds == 2  # 3 pieces over 2 links out of server 0
    far = demand_rounds(ring, Demand.together([sends([(0, 4, 1)], relays=ring.servers), near]))
    assert (far.rounds, far.reason()) == (4, "a piece needs 4 transfers from server 0 to server 4")


def test_ports_explain_themselves() -> None:
    star, demand = all_to_all("star:6", 1000)
    assert "5 kB must leave server 2 at 100 Gbit/s" in str(demand_bound(star, demand))
    assert str(demand_rounds(star, demand)) == (
        "at least 5,000 rounds (lengths) for schedules that add at servers alone, since 5,000 "
        "pieces must leave server 0 at 1 per round"
    )


def test_lengths_on_a_cut_prove_it() -> None:
    mesh, demand = all_to_all("mesh:4x4")
    left = np.arange(16) % 4 < 2
    crosses = left[mesh.source] & ~left[mesh.target]
    once, twice = (DemandLengths(mesh, demand, n * crosses, "rounds") for n in (1, 2))
    assert once.time == twice.time == 8 * 8 / 4
    assert str(once) == ("64 pieces must cross 4 link directions, which carry 4 per round together")
    assert str(twice) == (
        "with lengths up to 2 on 4 link directions, the pieces use 128, and the links offer 8 per "
        "round"
    )
    for lengths in (crosses / 7, crosses + 1e-9 * np.arange(len(crosses))):  # small integers do
        found = demand_rounds(mesh, demand, lengths=lengths)
        assert (found.rounds, found.reason()) == (16, str(once))


def test_servers_that_may_not_relay_are_gone_round() -> None:
    bcube = gw.topology.bcube(n=3, k=1)
    with pytest.raises(OptionError, match="from server 0 to server 4 passes servers that are not"):
        demand_rounds(bcube, sends([(0, 4, 1)]))


def test_amounts_and_lengths_may_be_huge() -> None:
    ring, demand = all_to_all("ring:4", 10**14)
    lengths = DemandLengths(ring, demand, np.full(8, MAX_LENGTH))
    assert lengths.used == 16 * 10**14 * MAX_LENGTH
    assert lengths.offered == 8 * Fraction(12.5e9) * MAX_LENGTH


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_lengths_prove_more_than_routing_takes(data: st.DataObject) -> None:
    """Loads of the shortest routes are a schedule's, in rounds, that any lengths must be below."""
    net, demand = all_to_all("jellyfish:reference=J10,seed=0")
    _, _, nodes, offsets = server_routes(net)
    load = np.bincount(net.links_along(nodes, offsets), minlength=len(net.source))
    draw = st.lists(st.integers(0, 9), min_size=len(load), max_size=len(load))
    lengths = np.array(data.draw(draw))
    assert DemandLengths(net, demand, lengths, "rounds").time <= load.max()


def test_jobs_that_relay_for_each_other_in_part_are_bounded_each_by_its_own_paths() -> None:
    """The second job may use the short way through server 1, and the first may not."""
    links = [(0, 1), (1, 2), (0, 3), (3, 4), (4, 2)]
    net = gw.topology.Topology.from_links("detour", servers=3, switches=2, links=links)
    jobs = [sends([(0, 2, 5)]), sends([(0, 1, 2), (0, 2, 5)])]
    ones = DemandLengths(net, Demand.together(jobs), np.ones(10, int), "rounds")
    assert ones.used_by_job == (15, 12)


def test_farthest_in_seconds_is_latency_and_overhead() -> None:
    ring, demand = all_to_all("ring:6")
    far = demand_bound(ring, demand).seconds_by("distance")
    assert far == pytest.approx(float(3 * ring.latency_s[0] + ring.overhead_s[0]))
