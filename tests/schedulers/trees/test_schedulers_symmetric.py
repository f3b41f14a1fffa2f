"""Symmetric trees: at the bound on regular families, and refused without a free group."""

import builtins

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds import free_trees
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import Symmetric
from gradweave.schedulers.kernels import slots
from gradweave.schedulers.problem import hop_table
from gradweave.schedulers.spec import from_spec
from gradweave.schedulers.trees import orbit_kernel
from gradweave.schedulers.trees.symmetric import BaseHops
from gradweave.schedules import COLLECTIVES
from gradweave.topology import Topology, free_groups
from gradweave.topology.symmetry import automorphism_generators
from gradweave.verifier import verify
from tests.conformance.networks import relabelled
from tests.interpreted import interpreted
from tests.schedules.same import same_columns
from tests.simulator.random_networks import networks

AT_BOUND = (
    *(f"bcube:n={n},k=1" for n in range(2, 7)),
    *(f"bcube:n={n},k=2" for n in (2, 3, 4)),
    *(f"dcell:n={n},k=1" for n in (4, 5, 6)),
    *(f"torus:{sizes}" for sizes in ("3x3", "4x4", "5x5", "4x4x4", "3x5", "2x30", "3x20", "1x7")),
    *(f"hypercube:{dimension}" for dimension in range(3, 7)),
    *(f"ring:{n}" for n in (2, 3, 8, 9)),
    *(f"complete:{n}" for n in (2, 3, 6)),
    *(f"star:{n}" for n in (2, 5)),
    "torus:4x4,capacity=2",
)


@pytest.mark.parametrize("spec", AT_BOUND)
def test_it_is_at_the_bound(spec):
    network = gw.topology.from_spec(spec)
    for seed in (0, 1):
        made = Symmetric().schedule(network, collective="all_gather", seed=seed)
        assert made.rounds == free_trees(network, "all_gather").rounds


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("spec", ["bcube:n=5,k=1", "dcell:n=5,k=1", "torus:5x5"])
def test_every_collective_is(spec, collective):
    network = gw.topology.from_spec(spec)
    made = Symmetric().schedule(network, collective=collective)
    assert made.rounds == free_trees(network, collective).rounds
    assert verify(made, forwarding_servers=False).valid


@pytest.mark.parametrize("spec", ["bcube:n=3,k=1", "dcell:n=5,k=1", "torus:3x4"])
def test_the_group_moves_the_schedule_onto_itself(spec):
    network = gw.topology.from_spec(spec)
    made = Symmetric().schedule(network, collective="all_gather")

    def transfers(move: np.ndarray) -> set[tuple[int, ...]]:
        roots = move[made.root[made.piece]]
        nodes = move[made.route_nodes]
        return {
            (int(made.round[t]), int(roots[t]), *nodes[a:b].tolist())
            for t, (a, b) in enumerate(
                zip(made.route_offsets[:-1], made.route_offsets[1:], strict=True)
            )
        }

    as_made = transfers(np.arange(network.num_nodes))
    kept = [
        group
        for group in free_groups(network)
        if all(transfers(move) == as_made for move in group.permutations)
    ]
    assert kept, "moved by no group that is known"


@settings(max_examples=60)
@given(network=networks(max_servers=6, max_switches=3), collective=st.sampled_from(COLLECTIVES))
def test_on_any_network_it_is_valid_or_says_that_there_is_none(network, collective):
    try:
        made = Symmetric(restarts=5).schedule(network, collective=collective)
    except NoScheduleError as error:
        assert "\n" not in str(error)
    else:
        assert made.rounds >= free_trees(network, collective).rounds
        assert verify(made, forwarding_servers=False).valid


def crossing(capacity: int) -> Topology:
    """Two halves of two servers joined by one link between their switches.

    Turning one half into the other maps that link to its opposite; swapping the servers of both
    halves at once keeps it in place, so that its stabiliser has two elements.
    """
    links = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 5)]
    return Topology.from_links(
        "crossing", servers=4, switches=2, links=links, capacity=[1, 1, 1, 1, capacity]
    )


@pytest.mark.parametrize(("capacity", "at_least"), [(2, 3), (4, 3), (1, 3)])
def test_a_link_that_an_element_keeps_counts_once_for_each(capacity, at_least):
    """With capacity 1 the group of four would need half a transfer, so a smaller group is used, or
    none; whatever is made respects the link's capacity."""
    network = crossing(capacity)
    try:
        made = Symmetric().schedule(network, collective="all_gather")
    except NoScheduleError:
        assert capacity == 1 or not automorphism_generators(network)
        return
    assert verify(made, forwarding_servers=False).valid
    assert made.rounds >= free_trees(network, "all_gather").rounds >= at_least


def test_orbit_capacities_are_shared_by_the_stabiliser():
    """In a star with a second switch behind it, no server's link is kept; on two servers with a
    switch between, the turn exchanges both directions."""
    pair = Topology.from_links("star:2", servers=2, switches=1, links=[(0, 2), (1, 2)])
    (group, *_) = free_groups(pair)
    hops = BaseHops.of(pair, group)
    assert group.order == 2
    assert hops.orbits.capacity.tolist() == [1, 1]  # to the switch, from the switch
    trunk = crossing(4)
    for group in free_groups(trunk):
        hops = BaseHops.of(trunk, group)
        over_trunk = {4, 5}
        for hop in range(len(hops.routes.source)):
            start, end = hops.routes.route_offsets[hop : hop + 2]
            route = set(hops.routes.route_nodes[start:end].tolist())
            if over_trunk <= route:
                # Two directions in one orbit, 4 transfers each, over the elements of the group.
                used = [i for i in range(len(hops.route)) if hops.route[i] == hop]
                table = hops.orbits.hops
                orbit = table.links[table.first_link[used[0]] + 1]
                assert hops.orbits.capacity[orbit] == 4 * 2 // group.order


@pytest.mark.parametrize("easiest", [0, 1, 2])
def test_who_can_be_reached_from_the_fewest_sides_goes_first(easiest: int, monkeypatch):
    """Whatever the position of its hop in the list: a root and three others, one link each."""
    monkeypatch.setattr(orbit_kernel, "DRAWS", 40)  # so that each of three is drawn
    links, four = np.arange(3), np.arange(4)
    hops = hop_table(np.zeros(3, np.int64), links + 1, links, four, 4)
    orbits = orbit_kernel.HopOrbits(hops, root=np.array([0]), capacity=np.ones(3, np.int64))
    holds, near = four[None] == 0, np.full((1, 4), 2)
    near[0, 1 + easiest] = 1
    with interpreted(orbit_kernel, slots):
        for seed in range(8):
            np.random.seed(seed)
            found = orbit_kernel._draw(orbits, holds, near, links.copy(), 3, np.zeros(3, np.int64))
            assert found == (easiest, 3)
        full = np.array([1, 1, 0])
        place, _ = orbit_kernel._draw(orbits, holds, near, links.copy(), 3, full)
    assert place == 2  # the only hop that fits


@pytest.mark.skipif(
    not automorphism_generators(gw.topology.from_spec("ring:3")), reason="no pynauty"
)
@pytest.mark.parametrize("spec", ["bcube:n=3,k=1", "torus:4x4", "hypercube:4", "dcell:n=4,k=1"])
def test_a_network_from_a_file_does_as_well(spec, tmp_path):
    network, _ = relabelled(gw.topology.from_spec(spec))
    path = tmp_path / "network.json"
    gw.topology.save(network, path)
    read = gw.topology.from_spec(str(path))
    made = Symmetric().schedule(read, collective="all_gather")
    assert made.rounds == free_trees(read, "all_gather").rounds


@pytest.mark.parametrize("with_pynauty", [True, False])
@pytest.mark.parametrize("spec", ["mesh:3x3", "jellyfish:reference=J15", "mesh:3"])
def test_without_a_free_group_it_says_so_in_one_line(spec, with_pynauty, monkeypatch):
    if not with_pynauty:
        really_import = builtins.__import__

        def refuse(name, *arguments, **options):
            if name == "pynauty":
                raise ImportError(name)
            return really_import(name, *arguments, **options)

        monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(NoScheduleError) as caught:
        Symmetric().schedule(gw.topology.from_spec(spec))
    message = str(caught.value)
    assert message.startswith("symmetric: found no group") and spec in message
    assert message.endswith("use grown") and "\n" not in message


def test_the_seed_decides():
    network = gw.topology.from_spec("torus:5x5")
    one, again, other = (Symmetric().schedule(network, seed=seed) for seed in (0, 0, 1))
    assert same_columns(one, again) and not same_columns(one, other)


def test_out_of_time_it_returns_what_it_has():
    network = gw.topology.from_spec("mesh:2x20")  # it does not reach the bound here
    made = (
        Symmetric(restarts=1_000_000).schedule(network, collective="all_gather", time_limit=0.05)
        if automorphism_generators(network)
        else None
    )
    assert made is None or verify(made).valid


def test_256_servers_take_few_restarts():
    network = gw.topology.from_spec("torus:16x16")
    made = Symmetric(restarts=4).schedule(network, collective="all_gather")
    assert made.rounds == free_trees(network, "all_gather").rounds == 64


@pytest.mark.parametrize("restarts", [0, -1, 10**7])
def test_options_are_checked(restarts):
    with pytest.raises(OptionError, match="symmetric: restarts: expected 1 to 1,000,000, got"):
        Symmetric(restarts=restarts)
    assert from_spec("symmetric:restarts=5") == Symmetric(restarts=5)
