"""Translations: automorphisms in closed form, equal to the groups that symmetry lists."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import TopologyError
from gradweave.topology import free_groups
from gradweave.topology.symmetry import is_automorphism
from gradweave.topology.translations import Translations, translations

GRIDS = (
    *("torus:3x4", "torus:1x7", "torus:2x3x4", "bcube:n=3,k=2", "hypercube:4", "ring:7"),
    *("circulant:n=16,jumps=1.6", "complete:5", "star:5", "fat_tree:k=4", "fat_tree:k=6"),
    *("hyperx:3x4", "hyperx:3x4,servers_per_switch=0"),
)
FABRICS = (
    "leaf_spine:leaves=4,spines=2,servers_per_leaf=6",
    "leaf_spine:leaves=3,spines=4,servers_per_leaf=6,oversubscription=3",
    *("h100", "h100:boxes=4", "h100:boxes=4,rails=8", "mi300x:boxes=3,rails=8"),
    "h100:boxes=4,rails=4,nvswitches=2,boxes_per_leaf=2,spines=4",
    *("gb200_nvl72:boxes=2,rails=72", "tpu_v4:4x4x4"),
)


def known(spec: str) -> tuple[gw.Topology, Translations]:
    network = gw.topology.from_spec(spec)
    found = translations(network)
    assert found is not None
    return network, found


@pytest.mark.parametrize("spec", GRIDS + FABRICS)
def test_every_generator_is_an_automorphism_and_no_server_stays(spec):
    network, group = known(spec)
    assert group.order == network.num_servers
    assert all(is_automorphism(network, move) for move in group.generators())
    to = group.moved(network.servers[0], group.elements())
    assert sorted(to.tolist()) == network.servers.tolist()


@pytest.mark.parametrize("spec", GRIDS)
def test_elements_are_those_of_free_groups_in_its_order(spec):
    network, group = known(spec)
    listed = next(free_groups(network)).permutations
    moved = group.moved(np.arange(network.num_nodes), group.elements()[:, None])
    assert np.array_equal(moved, listed)


@pytest.mark.parametrize("spec", ["torus:3x4", "bcube:n=3,k=1", "h100:boxes=4,rails=8"])
def test_shifts_between_servers_move_one_to_the_other(spec):
    network, group = known(spec)
    source = network.servers
    target = np.random.default_rng(0).permutation(source)
    assert np.array_equal(group.moved(source, group.shift_between(source, target)), target)


@pytest.mark.parametrize("spec", GRIDS + FABRICS)
def test_orbits_of_links_have_as_many_links_as_their_stabilisers_say(spec):
    network, group = known(spec)
    orbit, keeps = group.link_orbits(network.source, network.target)
    for number in np.unique(orbit):
        inside = orbit == number
        assert (inside.sum() * keeps[inside] == group.order).all()
    for move in group.generators():
        image = network.find_links(move[network.source], move[network.target])
        assert np.array_equal(orbit[image], orbit)


def test_names_that_do_not_fit_have_none():
    network = gw.topology.from_spec("torus:3x4")
    renamed = [
        gw.topology.Topology.from_links(name, servers=4, switches=0, links=[(0, 1), (1, 2), (2, 3)])
        for name in (
            "torus:3x4",
            "torus:999999999x999999999",
            "a file.yaml",
            "bcube:n=3,k=99999999",
        )
    ]
    assert translations(network) is not None
    assert [translations(one) for one in renamed] == [None] * 4
    assert translations(gw.topology.from_spec("mesh:3x3")) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sizes": (2, 0), "layers": ((0, 1),)}, "sizes must be 1 to 1,048,576, got 0"),
        ({"sizes": (2, 1 << 40), "layers": ((0,),)}, "sizes must be 1 to 1,048,576, got 10995"),
        ({"sizes": (2,), "layers": ((0, 1),)}, "each at most once; got [0, 1]"),
        ({"sizes": (2,), "layers": ((0, 0),)}, "each at most once; got [0, 0]"),
        ({"sizes": (2,), "layers": ()}, "expected 1 to 64 layers"),
        ({"sizes": (2,), "layers": ((0,),), "fixed": (1,)}, "each at most once; got [1]"),
    ],
)
def test_malformed_ones_are_refused(given, message):
    with pytest.raises(TopologyError) as caught:
        Translations(**given)
    assert message in str(caught.value) and "\n" not in str(caught.value)
