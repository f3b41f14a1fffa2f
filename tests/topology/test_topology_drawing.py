"""Drawings: nodes apart, links clear of the nodes that they do not join."""

import itertools

import numpy as np
import pytest

import gradweave.topology as gt
from gradweave.topology.drawing import MAX_DRAWN

CLEAR = [
    *(f"bcube:n={n},k=1" for n in range(2, 9)),
    *(f"dcell:n={n},k=1" for n in range(2, 7)),
    "bcube:n=4,k=0",
    "dcell:n=4,k=0",
    *(f"torus:{a}x{b}" for a, b in itertools.product((2, 3, 4, 5), repeat=2)),
    "torus:7",
    "mesh:4x5",
    "mesh:3x3x3",
    "hypercube:3",
    "hypercube:4",
    "fat_tree:2",
    "fat_tree:4",
    "ring:9",
    "star:6",
    "complete:7",
    "jellyfish:reference=J10",
    "jellyfish:switches=8,degree=3,servers_per_switch=4",
]
CROWDED = [
    "bcube:n=3,k=2",
    "bcube:n=2,k=4",
    "dcell:n=3,k=2",
    "torus:3x3x3",
    "torus:3x4x3x2",
    "hypercube:8",
    "fat_tree:8",
    "jellyfish:switches=100,degree=3,servers_per_switch=10",
    "jellyfish:switches=2,degree=1",
]


def scaled(topology):
    """Positions in units of the mean length of a link."""
    points = topology.positions
    lengths = np.linalg.norm(points[topology.source] - points[topology.target], axis=1)
    return points / lengths.mean()


@pytest.mark.parametrize("spec", [*CLEAR, *CROWDED])
def test_nodes_stand_apart(spec):
    points = scaled(gt.from_spec(spec))
    assert np.isfinite(points).all()
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    assert apart[~np.eye(len(points), dtype=bool)].min() > 0.003


@pytest.mark.parametrize("spec", CLEAR)
def test_links_pass_over_no_other_node(spec):
    net = gt.from_spec(spec)
    points = scaled(net)
    start, along = points[net.source], points[net.target] - points[net.source]
    for node, point in enumerate(points):
        share = ((point - start) * along).sum(1) / (along**2).sum(1)
        nearest = start + np.clip(share, 0, 1)[:, None] * along
        distance = np.linalg.norm(point - nearest, axis=1)
        others = (net.source != node) & (net.target != node)
        assert not others.any() or distance[others].min() > 0.03


def test_the_third_dimension_of_a_grid_is_straight():
    """Layers are alike, each one up and to the right of the one before."""
    layers = gt.from_spec("torus:4x3x3").positions.reshape(4, 9, 2)
    for layer in range(4):
        np.testing.assert_allclose(layers[layer] - layers[0], [[0.43 * layer, 0.31 * layer]] * 9)


def test_the_largest_that_are_drawn():
    assert gt.ring(MAX_DRAWN).positions.shape == (MAX_DRAWN, 2)
    assert gt.ring(MAX_DRAWN + 1).positions is None


def test_very_large_networks_have_no_drawing():
    for spec in (
        "bcube:n=64,k=1",
        "dcell:n=3,k=3",
        "torus:100x100",
        "hypercube:12",
        "fat_tree:20",
        "ring:5000",
        "star:5000",
        "complete:2500",
        "jellyfish:switches=500,degree=3",
    ):
        assert gt.from_spec(spec).positions is None
