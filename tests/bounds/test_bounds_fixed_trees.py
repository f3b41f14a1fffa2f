"""The fixed-tree bound: SPEC's figures, a count by hand, and certificates that hold up."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds import LinkLoad, TreeDepth, fixed_trees
from gradweave.schedules.flow_tree import FlowTrees, Workloads
from gradweave.schedules.schedule import COLLECTIVES
from gradweave.topology import Topology, from_spec
from tests.simulator.random_networks import networks


@pytest.mark.parametrize(
    ("spec", "collective", "rounds"),
    [
        ("bcube:n=3,k=1", "all_reduce", 12),
        ("bcube:n=4,k=1", "all_reduce", 24),
        ("bcube:n=5,k=1", "all_reduce", 40),
        ("dcell:n=4,k=1", "reduce_scatter", 12),
        ("dcell:n=5,k=1", "reduce_scatter", 20),
        ("dcell:n=6,k=1", "reduce_scatter", 30),
        ("jellyfish:reference=J10,seed=0", "all_reduce", 18),
        ("jellyfish:reference=J15,seed=0", "all_reduce", 32),
        # SPEC says 46; ties between shortest paths decide, and these are pinned by id.
        ("jellyfish:reference=J20,seed=0", "all_reduce", 48),
    ],
)
def test_the_bound_of_shortest_path_trees_is_the_specs(spec, collective, rounds):
    assert fixed_trees(FlowTrees.shortest_path(from_spec(spec)), collective).rounds == rounds


def test_three_servers_in_a_line_by_hand():
    """0 — 1 — 2. Piece 0: 2→1, 1→0. Piece 1: 0→1, 2→1. Piece 2: 0→1, 1→2. Each direction of each
    link carries two; each chain has at most two."""
    trees = FlowTrees.shortest_path(from_spec("mesh:3"))
    bound = fixed_trees(trees)
    assert (bound.rounds, bound.kind) == (2, "link_load")
    assert bound.certificates[0].load == 2
    assert fixed_trees(trees, "all_reduce").rounds == 4


def test_the_longest_chain_decides_where_links_are_plenty():
    bound = fixed_trees(FlowTrees.shortest_path(from_spec("mesh:4,capacity=9")))
    assert (bound.rounds, bound.kind) == (3, "tree_depth")
    assert isinstance(bound.certificates[0], TreeDepth)
    assert bound.certificates[0].piece in (0, 3)
    assert str(bound) == (
        "at least 3 rounds (tree_depth) for schedules that root a piece at each server and keep "
        "to the given trees, since the tree of piece 0 has a chain of 3 transfers"
    )


def test_the_text_names_the_link():
    bound = fixed_trees(FlowTrees.shortest_path(from_spec("star:4")), "all_gather")
    (certificate,) = bound.certificates
    assert isinstance(certificate, LinkLoad)
    link = f"{certificate.source}→{certificate.target}"
    assert str(bound) == (
        "at least 3 rounds (link_load) for schedules that root a piece at each server, add at "
        "servers alone and keep to the given trees, since "
        f"3 transfers cross the link {link} at 1 per round"
    )


@given(
    network=networks(),
    collective=st.sampled_from(COLLECTIVES),
    merged=st.booleans(),
    overlap=st.booleans(),
)
def test_certificates_equal_a_count_by_hand(network, collective, merged, overlap):
    trees = (FlowTrees.shortest_path if merged else FlowTrees.unmerged)(network)
    bound = fixed_trees(trees, collective, overlap=overlap)
    stages = (
        [collective] if collective != "all_reduce" or overlap else ["reduce_scatter", "all_gather"]
    )
    assert len(bound.certificates) == len(stages)
    expected = 0
    for stage, certificate in zip(stages, bound.certificates, strict=True):
        load, chain = counted(trees, stage)
        room = capacities(network)
        needed = max(math.ceil(load[link] / room[link]) for link in load)
        longest = max(chain.values())
        expected += max(needed, longest)
        if isinstance(certificate, LinkLoad):
            link = certificate.source, certificate.target
            assert (certificate.load, certificate.capacity) == (load[link], room[link])
            assert math.ceil(certificate.load / certificate.capacity) == max(needed, longest)
        else:
            assert certificate.transfers == chain[certificate.piece] == max(needed, longest)
    assert bound.rounds == expected


def capacities(network: Topology) -> dict[tuple[int, int], int]:
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    return dict(zip(ends, network.capacity.tolist(), strict=True))


def counted(trees: FlowTrees, collective: str) -> tuple[Counter, dict[int, int]]:
    """Transfers over each link direction, and the longest chain of each piece, edge by edge."""
    load: Counter = Counter()
    parents: dict[int, dict[int, int]] = {piece: {} for piece in range(trees.pieces)}
    for piece, route in trees.edges():
        parents[piece][route[0]] = route[-1]
        steps = list(itertools.pairwise(route))
        if collective != "all_gather":
            load.update(steps)
        if collective != "reduce_scatter":
            load.update((b, a) for a, b in steps)
    both = 2 if collective == "all_reduce" else 1

    def depth(piece: int, node: int) -> int:
        if node not in parents[piece]:
            return 0
        return 1 + (depth(piece, parents[piece][node]) if trees.merged else 0)

    return load, {
        piece: both * max(depth(piece, node) for node in edges)
        for piece, edges in parents.items()
        if edges
    }


@given(network=networks(), rule=st.sampled_from(["random", "deepest", "most_loaded"]))
def test_no_order_of_the_workloads_beats_the_bound(network, rule):
    trees = FlowTrees.shortest_path(network)
    made = gw.schedulers.Merged(rule, tries=1).schedule(network, collective="reduce_scatter")
    assert made.rounds >= fixed_trees(trees).rounds
    assert len(Workloads.of(trees, "reduce_scatter")) == made.num_transfers


@given(network=networks())
def test_overlap_is_never_bounded_higher_than_the_barrier(network):
    trees = FlowTrees.shortest_path(network)
    barrier = fixed_trees(trees, "all_reduce")
    assert fixed_trees(trees, "all_reduce", overlap=True).rounds <= barrier.rounds
