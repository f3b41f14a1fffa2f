"""The same network in another file: lines in another order, nodes renamed, ids permuted.

In every format the bounds and the best ring are the same, and so are the times of strategies that
do not depend on the ranks of servers.
"""

import json
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest

import gradweave as gw
from gradweave.bounds.seconds_bound import seconds_bound
from gradweave.topology.formats.files import read

DUMPS = Path(__file__).parents[1] / "topology" / "data"
SIZE = 1e9
FAST, SLOW = ("240GB/s", "1us"), ("24GB/s", "1us")
STAR_AND_SLOW = (
    ("fast", "slow"),
    [(server, switch, *of) for switch, of in (("fast", FAST), ("slow", SLOW)) for server in "abcd"],
)
"""Four servers on two switches. A ring of 1 GB takes 1.5 GB at 240 GB/s: 6.25 ms."""
TWO_SITES = (
    ("x", "y", "p", "q"),
    [
        *[(server, "x", "40Gbit/s", "2us") for server in "abc"],
        *[(server, "y", "25Gbit/s", "2us") for server in "def"],
        ("x", "p", "10Gbit/s", "50us"),
        ("p", "y", "10Gbit/s", "50us"),
        ("x", "q", "20Gbit/s", "90us"),
        ("q", "y", "20Gbit/s", "90us"),
    ],
)
"""Two sites, joined by a short thin path and a long wide path with as many links."""
SOLVED = {
    "star_and_slow": (("symmetric", SIZE), ("merged:tries=1", SIZE), ("recursive_doubling", 4e3)),
    "two_sites": (("postal:shape=cross", SIZE), ("postal:shape=cross", 4e3)),
}
"""Deterministic strategies for which ranks do not matter on those networks, and sizes."""
NETWORKS = {"star_and_slow": STAR_AND_SLOW, "two_sites": TWO_SITES}
RING_S = {"star_and_slow": 1.5 / 240, "two_sites": 2 * 5 / 6 * 8 / 20}
"""Time of the best ring's bytes: the largest load of a link over its bandwidth."""


def written(name: str, format: str, seed: int) -> str:
    """A network's file; with a seed, in another order, with other names and other ids."""
    rng = random.Random(seed)
    switches, links = NETWORKS[name]
    nodes = list(dict.fromkeys(end for link in links for end in link[:2]))
    if seed:
        rng.shuffle(nodes)
        links = [
            (b, a, *of) if rng.random() < 0.5 else (a, b, *of)
            for a, b, *of in rng.sample(links, len(links))
        ]
    number = {node: place for place, node in enumerate(nodes)}
    called = {node: f"n{rng.randrange(10**6):06}{node}" if seed else node for node in nodes}
    return WRITERS[format](nodes, switches, links, called, number)


def as_edges(nodes, switches, links, called, number) -> str:
    lines = [f"{called[a]} {called[b]} {' '.join(of)}" for a, b, *of in links]
    return "\n".join([f"# switches: {' '.join(called[s] for s in switches)}", *lines])


def as_csv(nodes, switches, links, called, number) -> str:
    head = [
        f"# switches: {' '.join(called[s] for s in switches)}",
        "source,target,latency,bandwidth",
    ]
    return "\n".join([*head, *(f"{called[a]},{called[b]},{d},{w}" for a, b, w, d in links)])


def as_json(nodes, switches, links, called, number) -> str:
    kinds = {node: "switch" if node in switches else "server" for node in nodes}
    return json.dumps(
        {
            "nodes": [{"id": called[node], "kind": kinds[node]} for node in nodes],
            "links": [
                {"source": called[a], "target": called[b], "bandwidth": w, "latency": d}
                for a, b, w, d in links
            ],
        }
    )


def as_yaml(nodes, switches, links, called, number) -> str:
    return as_json(nodes, switches, links, {node: number[node] for node in nodes}, number)


def as_graphml(nodes, switches, links, called, number) -> str:
    keys = [
        '<key id="k" for="node" attr.name="kind" attr.type="string"/>',
        '<key id="w" for="edge" attr.name="bandwidth" attr.type="string"/>',
        '<key id="d" for="edge" attr.name="latency" attr.type="string"/>',
    ]
    kinds = {node: "switch" if node in switches else "server" for node in nodes}
    shown = [f'<node id="{called[n]}"><data key="k">{kinds[n]}</data></node>' for n in nodes]
    shown += [
        f'<edge source="{called[a]}" target="{called[b]}"><data key="w">{w}</data>'
        f'<data key="d">{d}</data></edge>'
        for a, b, w, d in links
    ]
    start = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    return (
        f'{start}{"".join(keys)}<graph edgedefault="undirected">{"".join(shown)}</graph></graphml>'
    )


def as_ns3(nodes, switches, links, called, number) -> str:
    lines = [f"{number[a]} {number[b]} {w.replace('/s', 'ps')} {d} 0" for a, b, w, d in links]
    ids = " ".join(str(number[switch]) for switch in switches)
    return "\n".join([f"{len(nodes)} {len(switches)} {len(links)}", ids, *lines])


WRITERS = {
    "edges": as_edges,
    "csv": as_csv,
    "json": as_json,
    "yaml": as_yaml,
    "graphml": as_graphml,
    "simai": as_ns3,
}


def answers(name: str, net: gw.Topology) -> dict[str, float]:
    """Bounds, the best ring for gloo, and all-reduces, in seconds and rounds."""
    ordered = gw.ranks.optimize(net, "gloo", SIZE, runtime="ideal")
    found = {
        "bound": seconds_bound(net, "all_reduce", SIZE).seconds,
        "rounds bound": gw.bounds.free_trees(net, "all_reduce").rounds,
        "ring": ordered.seconds,
        "ring bound": ordered.bound.seconds,
    }
    for strategy, size in SOLVED[name]:
        solved = gw.solve(net, schedulers=strategy, objective="seconds", gradient_bytes=size)
        found[f"{strategy} {size:g}"] = solved.timing.seconds
    return found


def loaded(folder: Path, content: str, format: str) -> gw.Topology:
    path = folder / f"network.{format}"
    path.write_text(content)
    return read(path, format)


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_answers_do_not_depend_on_lines_names_or_ids(name, format, tmp_path):
    expected = answers(name, loaded(tmp_path, written(name, "edges", 0), "edges"))
    assert expected["ring"] == pytest.approx(RING_S[name], rel=0.01)
    for seed in (1, 2):
        found = answers(name, loaded(tmp_path, written(name, format, seed), format))
        assert found == pytest.approx(expected, rel=1e-9)


def dumped_otherwise(text: str, seed: int) -> str:
    """A dump of NCCL with its elements in another order, and other bus ids and processors' ids."""
    rng = random.Random(seed)
    root = ElementTree.fromstring(text)
    buses = {
        pci.get("busid"): f"{rng.randrange(10**4):04}:{at:02x}:00.0"
        for at, pci in enumerate(root.iter("pci"))
    }
    for element in root.iter():
        element[:] = rng.sample(list(element), len(element))
        for key in ("busid", "target"):
            if element.get(key) in buses:
                element.set(key, buses[element.get(key)])
    for number, cpu in enumerate(rng.sample(root.findall("cpu"), len(root.findall("cpu")))):
        cpu.set("numaid", str(number))
    return ElementTree.tostring(root, encoding="unicode")


@pytest.mark.parametrize(("name", "ring_s"), [("a100_pairs", 1.5 / 240), ("two_cpus", 1.5 / 6)])
def test_answers_do_not_depend_on_the_order_in_a_dump_of_nccl(name, ring_s, tmp_path):
    """Four GPUs; between two processors, 6 GB/s each way."""
    text = (DUMPS / f"{name}.xml").read_text()
    for seed in range(3):
        content = dumped_otherwise(text, seed) if seed else text
        net = loaded(tmp_path, content, "nccl_xml")
        bound = seconds_bound(net, "all_reduce", SIZE).seconds
        ordered = gw.ranks.optimize(net, "gloo", SIZE, runtime="ideal")
        solved = gw.solve(
            net, schedulers="recursive_doubling", objective="seconds", gradient_bytes=SIZE
        )
        found = bound, ordered.seconds, ordered.bound.seconds, solved.timing.seconds
        if not seed:
            expected = found
        assert found == pytest.approx(expected, rel=1e-9)
        assert ordered.seconds == pytest.approx(ring_s, rel=0.01)
