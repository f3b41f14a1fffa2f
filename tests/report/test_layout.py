"""Layouts: given positions first, then the family's, then distances; always the same."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import gradweave.topology
from benchmarks.cluster_networks import dual_homed
from gradweave.report.layout import STRESS_NODES, bends, draw, layout, node_radius
from gradweave.topology import Topology
from tests.report.small_schedules import ring_topology, star_topology

DATA = Path(__file__).parents[1] / "topology" / "data"


def unnamed(topology: Topology, name: str = "unnamed") -> Topology:
    return dataclasses.replace(topology, name=name, positions=None)


NETWORKS = {
    "pair": ring_topology(2),
    "ring": ring_topology(9),
    "star": star_topology(7),
    "grid": unnamed(gradweave.topology.mesh((4, 5))),
    "bcube": unnamed(gradweave.topology.bcube(3, 1)),
}


@pytest.mark.parametrize("topology", NETWORKS.values(), ids=NETWORKS)
def test_in_the_unit_square_apart_and_repeatable(topology: Topology) -> None:
    positions = layout(topology)
    assert positions.shape == (topology.num_nodes, 2)
    assert positions.min() > -1e-9
    assert positions.max() < 1 + 1e-9
    reach = draw(topology).reach
    extent = (positions + reach).max(axis=0) - (positions - reach).min(axis=0)
    assert extent.max() == pytest.approx(1)
    assert node_radius(topology, draw(topology)) > 0.01
    assert np.array_equal(positions, layout(topology))


def test_ring_is_a_circle() -> None:
    positions = layout(ring_topology(12))
    radius = np.linalg.norm(positions - positions.mean(axis=0), axis=1)
    assert np.ptp(radius) < 0.02


def test_given_positions_keep_their_proportions() -> None:
    given = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 2.0]])
    positions = layout(dataclasses.replace(ring_topology(3), positions=given))
    assert np.allclose(positions, [[0, 0.25], [1, 0.25], [1, 0.75]])


def test_positions_of_the_family_that_the_name_specifies() -> None:
    family = gradweave.topology.bcube(3, 1)
    stripped = dataclasses.replace(family, positions=None)
    assert np.array_equal(layout(stripped), layout(family))


@pytest.mark.parametrize(
    "name",
    [
        "bcube:n=3,k=2",
        "bcube:n=12,k=9",
        "hypercube:40",
        "torus:9x9x9x9",
        "ring:n=999999999999",
        "bcube:",
        "a:b",
    ],
)
def test_misleading_names_are_ignored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = star_topology(14)
    expected = layout(topology)
    built: list[Topology] = []
    original = gradweave.topology.Topology.__post_init__
    monkeypatch.setattr(
        Topology, "__post_init__", lambda self: (built.append(self), original(self))[1]
    )
    assert np.array_equal(layout(unnamed_in_place(topology, name)), expected)
    assert all(other.num_nodes <= topology.num_nodes for other in built)


def unnamed_in_place(topology: Topology, name: str) -> Topology:
    object.__setattr__(topology, "name", name)
    return topology


def test_a_name_never_opens_a_file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring:n=9").write_text("not a network")
    (tmp_path / "ring:n=9.json").write_text("not a network")
    monkeypatch.setattr("gradweave.topology.spec.read", lambda path: pytest.fail(f"opened {path}"))
    for name in ("ring:n=9", "ring:n=9.json"):
        layout(unnamed(ring_topology(9), name))


BOXED = {
    "one box": gradweave.topology.from_spec("a100"),
    "two boxes": gradweave.topology.from_spec("a100:boxes=2"),
    "rails": gradweave.topology.from_spec("a100:boxes=3,nvswitches=2,rails=4"),
    "many boxes": gradweave.topology.from_spec("a100:boxes=16,rails=8"),
    "leaf and spine": gradweave.topology.from_spec(
        "leaf_spine:leaves=16,spines=8,servers_per_leaf=16"
    ),
    "fat tree": gradweave.topology.from_spec("fat_tree:6"),
    "two leaves a rack": dual_homed(4, 5, 3),
    "a server lost": gradweave.topology.without_servers(
        gradweave.topology.leaf_spine(3, 2, 4), [5]
    ).topology,
    "NCCL's file": gradweave.topology.read(DATA / "dgx_a100.xml"),
    "grid": gradweave.topology.bcube(16, 1),
}


@pytest.mark.parametrize("topology", BOXED.values(), ids=BOXED)
def test_switches_of_boxes_are_bars_that_nothing_stands_on(topology: Topology) -> None:
    drawing = draw(topology)
    bars = np.flatnonzero(np.asarray(drawing.reach.any(axis=1)))
    assert len(bars) and not topology.is_server[bars].any()
    radius = node_radius(topology, drawing)
    assert radius > 0.2 / np.sqrt(topology.num_nodes) / 4
    points = np.setdiff1d(np.arange(topology.num_nodes), bars)
    size = np.where(topology.is_server, radius, radius / 2)[points]
    for bar in bars:
        beside = np.abs(drawing.positions[points] - drawing.positions[bar]) - drawing.reach[bar]
        apart = np.hypot(*np.maximum(beside, 0).T)
        assert (apart > size).all(), bar


@pytest.mark.parametrize("topology", BOXED.values(), ids=BOXED)
def test_links_end_on_their_bars(topology: Topology) -> None:
    drawing = draw(topology)
    source = topology.source
    off = np.abs(drawing.ends - drawing.positions[source]) - drawing.reach[source]
    assert off[drawing.reach[source] > 0].max() < 1e-9
    assert np.array_equal(
        drawing.ends[topology.is_server[source]],
        drawing.positions[source[topology.is_server[source]]],
    )


FRAMED = {
    "leaf and spine": (["rack"] * 16, 16),
    "fat tree": (["pod"] * 6 + ["rack"] * 18, 3),
    "two leaves a rack": (["rack"] * 4, 5),
    "a server lost": (["rack"] * 3, 4),
    "two boxes": (["box"] * 2, 8),
    "many boxes": (["box"] * 16, 8),
    "grid": ([], 0),
}


@pytest.mark.parametrize("name", FRAMED)
def test_each_rack_holds_its_own_servers_alone(name: str) -> None:
    topology, (kinds, servers) = BOXED[name], FRAMED[name]
    drawing = draw(topology)
    assert [frame.label.split()[0] for frame in drawing.frames] == kinds
    held = []
    for frame in drawing.frames:
        assert abs(frame.x - 0.5) + frame.wide <= 0.5 + 1e-9
        apart = np.abs(drawing.positions - [frame.x, frame.y]) - [frame.wide, frame.high]
        held += [np.flatnonzero((apart < 0).all(axis=1) & topology.is_server)]
    if not kinds:
        return
    smallest = [ids for ids, frame in zip(held, drawing.frames, strict=True) if not frame.level]
    assert sorted(np.concatenate(smallest).tolist()) == topology.servers.tolist()
    assert max(map(len, smallest)) == servers
    for ids, frame in zip(held, drawing.frames, strict=True):
        inner = [np.isin(one, ids).sum() for one in smallest]
        assert frame.level == 0 or sorted(inner) == [0] * (len(inner) - 3) + [3] * 3


def test_racks_have_their_leaves_names() -> None:
    net = gradweave.topology.leaf_spine(2, 2, 3)
    labels = (*"abcdef", "leaf-x", "leaf-y", "s0", "s1")
    named = dataclasses.replace(net, labels=labels)
    assert [frame.label for frame in draw(named).frames] == ["leaf-x", "leaf-y"]


@pytest.mark.parametrize("name", ["a100:boxes=2", "dgx1v", "mi250", "tpu_v5e:4x4"])
def test_machines_are_drawn_alike_from_their_file(name: str, tmp_path: Path) -> None:
    topology = gradweave.topology.from_spec(name)
    stripped = dataclasses.replace(topology, positions=None)
    assert np.array_equal(layout(stripped), layout(topology))


def test_links_bow_round_nodes_in_their_way() -> None:
    line = Topology.from_links(
        "triangle in a row",
        servers=3,
        switches=0,
        links=[(0, 1), (1, 2), (0, 2)],
        positions=np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]),
    )
    bowed = bends(line, draw(line))
    ends = list(zip(line.source.tolist(), line.target.tolist(), strict=True))
    assert {pair for pair, bend in zip(ends, bowed, strict=True) if bend} == {(0, 2), (2, 0)}
    assert np.array_equal(bowed, -bowed[line.opposite])


def test_large_networks_are_drawn_on_circles() -> None:
    positions = layout(star_topology(STRESS_NODES))
    assert len(np.unique(positions.round(6), axis=0)) == STRESS_NODES + 1
