"""Base trees from queues: at the bound on regular families, refused where no group is known."""

import pytest

import gradweave as gw
from gradweave.bounds import block_cuts, free_trees
from gradweave.errors import NoScheduleError
from gradweave.schedulers import implicit
from gradweave.schedules import COLLECTIVES
from gradweave.topology.topology import LINK_COLUMNS
from gradweave.topology.translations import translations

AT_BOUND = (
    *("torus:3x4", "torus:4x4", "torus:1x7", "torus:2x3x4", "torus:16x16", "torus:4x4,capacity=2"),
    *("bcube:n=3,k=2", "bcube:n=4,k=1", "hypercube:5", "ring:7", "circulant:n=16,jumps=1.6"),
    *("complete:5", "star:5", "fat_tree:k=4", "fat_tree:k=6", "hyperx:3x4"),
    *("h100", "h100:boxes=4,rails=8", "mi300x:boxes=3,rails=8", "tpu_v4:4x4x4"),
    "leaf_spine:leaves=4,spines=3,servers_per_leaf=6,oversubscription=3",
)


@pytest.mark.parametrize("spec", AT_BOUND)
def test_it_is_at_the_bound(spec):
    assert implicit(spec).rounds == free_trees(spec).rounds


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("spec", [*AT_BOUND, "h100:boxes=4,rails=4,boxes_per_leaf=2,spines=4"])
def test_cuts_around_blocks_never_exceed_the_bound_for_any_trees(spec, collective):
    network = gw.topology.from_spec(spec)
    group = translations(network)
    assert group is not None
    assert block_cuts(network, group, collective).rounds <= free_trees(network, collective).rounds


def test_65_536_servers_are_at_the_bound_of_their_ports():
    made = implicit("bcube:n=16,k=3", collective="all_gather")
    assert made.bound is not None
    assert (made.rounds, made.bound.rounds) == (16384, 16384)
    assert made.of_rank(40_000).num_transfers == 2 * 65_535


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mesh:3x3", "no translations are known of 'mesh:3x3'; expected a torus"),
        ("dgx1v", "no translations are known of 'dgx1v'"),
        ("tpu_v4:4x4x8,wrap=twisted", "no translations are known of"),
        (
            "leaf_spine:leaves=3,spines=1,servers_per_leaf=8,oversubscription=16",
            "trees that all look the same reach 8 of 24 servers",
        ),
    ],
)
def test_other_networks_are_refused_in_a_line(spec, message):
    with pytest.raises(NoScheduleError) as caught:
        implicit(spec)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_network_that_is_not_as_its_name_says_is_refused():
    slow = gw.topology.slowed("torus:3x4", {(0, 1): 0.5}).topology
    columns = {name: getattr(slow, name) for name in ("is_server", *LINK_COLUMNS)}
    named = gw.topology.Topology("torus:3x4", **columns)
    with pytest.raises(NoScheduleError, match="is not as its name says: symmetry: a step along"):
        implicit(named)
