"""Groups of automorphisms: whatever is proposed is one, and acts freely on the servers."""

import builtins
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.schedulers import Symmetric
from gradweave.topology import Topology, free_groups, from_spec
from gradweave.topology.symmetry import automorphism_generators, is_automorphism
from gradweave.topology.topology import LINK_COLUMNS, LINK_PROPERTIES
from tests.conformance.networks import irregular, lopsided, relabelled
from tests.simulator.random_networks import networks

pynauty_only = pytest.mark.skipif(
    not automorphism_generators(from_spec("ring:3")), reason="pynauty is not installed"
)

ORDERS = {
    "bcube:n=2,k=1": 4,
    "bcube:n=3,k=1": 9,
    "bcube:n=5,k=1": 25,
    "bcube:n=2,k=2": 8,
    "bcube:n=3,k=2": 27,
    "dcell:n=2,k=1": 6,
    "dcell:n=4,k=1": 20,
    "dcell:n=6,k=1": 42,
    "fat_tree:k=4": 16,
    "fat_tree:k=6": 54,
    "torus:3x3": 9,
    "torus:4x4": 16,
    "torus:3x5": 15,
    "torus:2x3x4": 24,
    "torus:1x5": 5,
    "hypercube:1": 2,
    "hypercube:3": 8,
    "hypercube:5": 32,
    "ring:8": 8,
    "complete:2": 2,
    "complete:5": 5,
    "star:6": 6,
    "ring:5,capacity=3": 5,
    "torus:4x4,bandwidth=10Gbit/s,latency=5us": 16,
}
"""Of the first group found; on all but DCell(5,1) one that moves any server to any other."""


@pytest.fixture
def no_pynauty(monkeypatch):
    really_import = builtins.__import__

    def refuse(name, *arguments, **options):
        if name == "pynauty":
            raise ImportError(name)
        return really_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert automorphism_generators(from_spec("ring:4")) == []


def links_of(topology: Topology) -> set[tuple]:
    return set(zip(*(getattr(topology, name).tolist() for name in LINK_COLUMNS), strict=True))


def check_group(topology: Topology, permutations: np.ndarray) -> None:
    """By the definitions alone: automorphisms, a group, and none but the first keeps a server."""
    moves = [tuple(move) for move in permutations.tolist()]
    links = links_of(topology)
    assert moves[0] == tuple(range(topology.num_nodes))
    assert len(set(moves)) == len(moves)
    for move in moves:
        assert sorted(move) == list(range(topology.num_nodes))
        assert all(topology.is_server[i] == topology.is_server[to] for i, to in enumerate(move))
        assert {(move[a], move[b], *rest) for a, b, *rest in links} == links
    for move in moves[1:]:
        assert all(move[server] != server for server in topology.servers.tolist())
    some = moves if len(moves) <= 32 else moves[1:20]
    for one, other in itertools.product(some, some):
        assert tuple(one[node] for node in other) in set(moves)


def renamed(topology: Topology, name: str) -> Topology:
    return Topology(
        name=name,
        is_server=topology.is_server,
        source=topology.source,
        target=topology.target,
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s,
        latency_s=topology.latency_s,
        capacity=topology.capacity,
    )


@pytest.mark.parametrize(("spec", "order"), ORDERS.items())
def test_a_family_brings_its_group_without_pynauty(spec, order, no_pynauty):
    topology = from_spec(spec)
    groups = list(free_groups(topology))
    assert groups[0].order == order
    for group in groups:
        check_group(topology, group.permutations)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("spec", "least"),
    [("bcube:n=3,k=1", 9), ("torus:3x4", 12), ("hypercube:3", 8), ("dcell:n=4,k=1", 5)],
)
@pynauty_only
def test_a_network_of_no_known_name_gets_one_by_pynauty(spec, least, seed):
    topology, _ = relabelled(from_spec(spec), seed)
    groups = list(free_groups(topology))
    orders = [group.order for group in groups]
    assert orders == sorted(set(orders), reverse=True) and orders[0] >= least
    for group in groups:
        check_group(topology, group.permutations)


@pynauty_only
@pytest.mark.parametrize(
    ("spec", "order"),
    [
        ("jellyfish:switches=20,degree=4,servers_per_switch=4,seed=1", 4),
        ("fat_tree:4", 16),
        ("leaf_spine:leaves=3,spines=2,servers_per_leaf=2", 2),
    ],
)
def test_alike_servers_of_one_switch_turn_all_at_once(spec, order):
    """nauty's generators swap two of them each; no random product would move every server."""
    for topology in (from_spec(spec), relabelled(from_spec(spec))[0]):
        assert next(free_groups(topology)).order >= order


def test_no_link_of_a_fat_tree_keeps_its_place(no_pynauty):
    topology = from_spec("fat_tree:k=4")
    for move in next(free_groups(topology)).permutations[1:]:
        same = (move[topology.source] == topology.source) & (
            move[topology.target] == topology.target
        )
        assert not same.any()


@pytest.mark.parametrize(
    ("spec", "order"), [("dcell:n=5,k=1", 6), ("dcell:n=3,k=1", 4), ("dcell:n=7,k=1", 8)]
)
def test_a_dcell_whose_cells_are_no_prime_number_turns_by_its_cells(spec, order, no_pynauty):
    """Each cell's servers then stay apart: as many orbits as a cell has servers."""
    topology = from_spec(spec)
    (group,) = free_groups(topology)
    assert group.order == order
    check_group(topology, group.permutations)


@pytest.mark.parametrize(
    "name",
    [
        "bcube:n=3,k=1",
        "bcube:n=2,k=2",
        "bcube:n=0,k=0",
        "bcube:n=999999999,k=1",
        "bcube:n=9,k=99999999999",
        "torus:3x3",
        "torus:9x9999999999999",
        "torus:0x0",
        "torus:",
        "torus:axb",
        "torus:dimensions=8",
        "hypercube:3",
        "hypercube:99999999999999999999",
        "dcell:n=4,k=1",
        "dcell:n=0,k=1",
        "dcell:n=99999999,k=1",
        "dcell:n=4,k=²",
        "torus:²x²",
        "bcube:n=²,k=1",
        "ring:n=3",
        "complete:n=4",
        "star:8",
        "no such family:x",
        "",
        ":",
        ",,,",
        "bcube:n=3,n=3",
        "a\nb\0c",
        "‮torus:4x4",
        "x" * 10_000,
        "torus:" + "1x" * 100 + "8",
        "hypercube:" + "9" * 5000,
    ],
)
@pytest.mark.parametrize("like", ["mesh:3x3", "irregular", "jellyfish:reference=J10", "ring:8"])
def test_a_lying_or_odd_name_is_harmless(name, like):
    topology = renamed(irregular() if like == "irregular" else from_spec(like), name)
    for group in free_groups(topology):
        assert group.order > 1
        check_group(topology, group.permutations)


def test_a_name_says_nothing_of_switches_that_are_wired_otherwise(no_pynauty):
    """Named BCube(3,1), with two servers' links to the upper switches swapped."""
    real = from_spec("bcube:n=3,k=1")
    links = [(int(a), int(b)) for a, b in zip(real.source, real.target, strict=True) if a < b]
    swap = {(0, 12): (0, 13), (1, 13): (1, 12)}
    assert set(swap) <= set(links)
    odd = Topology.from_links(
        real.name, servers=9, switches=6, links=[swap.get(pair, pair) for pair in links]
    )
    for group in free_groups(odd):
        check_group(odd, group.permutations)


def uneven(spec: str, column: str, link: int, both: bool) -> Topology:
    """A known network in which one link, or one direction of it, is not like the others."""
    topology = from_spec(spec)
    values = getattr(topology, column).copy()
    values[link] *= 2
    if both:
        values[topology.opposite[link]] *= 2
    columns = {field: getattr(topology, field) for field in LINK_COLUMNS}
    columns[column] = values
    return Topology(name=topology.name, is_server=topology.is_server, **columns)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("column", LINK_PROPERTIES)
@pytest.mark.parametrize("spec", ["bcube:n=3,k=1", "torus:3x4", "hypercube:3", "ring:6"])
def test_one_unlike_link_breaks_the_translations(spec, column, both):
    topology = uneven(spec, column, 1, both)
    for group in free_groups(topology):
        assert group.order < topology.num_servers
        check_group(topology, group.permutations)


def test_capacities_that_turn_along_are_kept():
    """A torus whose rows are twice as wide as its columns still has all translations."""
    plain = from_spec("torus:4x4")
    wide = np.where(plain.source // 4 == plain.target // 4, 2, 1)
    topology = Topology(
        name=plain.name,
        is_server=plain.is_server,
        source=plain.source,
        target=plain.target,
        bandwidth_bytes_per_s=plain.bandwidth_bytes_per_s * wide,
        latency_s=plain.latency_s,
        capacity=wide,
    )
    assert next(free_groups(topology)).order == 16
    made = Symmetric().schedule(topology, collective="all_gather")
    assert made.rounds == 4  # the distance; six pieces a round would take three


@given(network=networks())
def test_what_is_found_on_any_network_is_a_free_group(network):
    for group in free_groups(network):
        assert group.order > 1 and network.num_servers % group.order == 0
        check_group(network, group.permutations)


@given(data=st.data())
def test_a_relabelling_is_judged_by_the_links(data):
    network = data.draw(networks(max_servers=4, max_switches=2, max_capacity=2))
    permutation = np.array(data.draw(st.permutations(range(network.num_nodes))))
    links = links_of(network)
    moved = {(permutation[a], permutation[b], *rest) for a, b, *rest in links}
    kinds = np.array_equal(network.is_server[permutation], network.is_server)
    assert is_automorphism(network, permutation) == (kinds and moved == links)


@pynauty_only
@pytest.mark.parametrize("spec", ["mesh:3x4", "fat_tree:4", "star:4", "jellyfish:reference=J10"])
def test_pynautys_generators_are_automorphisms(spec):
    network = from_spec(spec)
    generators = automorphism_generators(network)
    assert generators
    for generator in generators:
        assert is_automorphism(network, generator)


@pynauty_only
def test_unlike_directions_have_no_generators():
    """nauty's graphs are undirected here; a link's unlike directions would be lost on it."""
    assert automorphism_generators(lopsided()) == []
    assert list(free_groups(lopsided())) == []
