"""What a reader or a question takes grows with its input, and is refused where it cannot.

Each input is doubled four times: a reader that looks at everything again for each part would then
take 256 times as long, one that does not about sixteen times. Between them is a wide margin, and
processor time is counted, so that a busy machine does not matter.
"""

import dataclasses
import functools
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as safetensors

import gradweave.topology as gt
from gradweave.aggregate.sequences import read_trace
from gradweave.automata import (
    automaton,
    load_machine,
)
from gradweave.common import arrays
from gradweave.common.specification import parse_spec
from gradweave.marl.request import read_request
from gradweave.placement.placement import load_placement, load_workload
from gradweave.probe.nccl_tests import read_measurements
from gradweave.schedules.file import load as load_schedule
from gradweave.topology.names import find_link
from gradweave.topology.units import parse_sizes
from gradweave.training.config import parse_toml
from tests.growth import FACTOR, refuse_square


def lines(n: int, line: str) -> bytes:
    return "\n".join(line.format(i=i, j=i + 1) for i in range(n)).encode()


def node_link(n: int, **more: Any) -> bytes:
    nodes = [{"id": i, **{f"{k}{i}": v for k, v in more.items()}} for i in range(n + 1)]
    edges = [{"source": i, "target": i + 1} for i in range(n)]
    return json.dumps({"nodes": nodes, "links": edges}).encode()


def plain(n: int) -> bytes:
    ids = list(range(n))
    ends = [*ids, *ids[1:], 0], [*ids[1:], 0, *ids]
    columns = {"source": ends[0], "target": ends[1], "capacity": [1] * (2 * n)}
    columns |= {"latency_s": [0.0] * (2 * n), "bandwidth_bytes_per_s": [1e9] * (2 * n)}
    links = {"name": "a", "servers": ids, "switches": [], "links": columns}
    return json.dumps(links).encode()


def graphml(n: int) -> bytes:
    nodes, edges = '<node id="n{i}"/>', '<edge source="n{i}" target="n{j}"/>'
    head = b'<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph>'
    return head + lines(n + 1, nodes) + lines(n, edges) + b"</graph></graphml>"


def nccl(n: int, of_pci: str, close: str) -> bytes:
    return b'<system><cpu numaid="0">%s%s</cpu></system>' % (lines(n, of_pci), close.encode() * n)


def simai(n: int) -> bytes:
    return b"%d 1 0 1 %d X\n%d\n" % (n + 1, n, n) + lines(n, "{i} {j} 1Gbps 1us 0")


def msccl(n: int) -> bytes:
    """As many numbers as are asked for."""
    side = int(n**0.5)
    links = [[int(a != b) for a in range(side)] for b in range(side)]
    both = list(range(side))
    return json.dumps({"links": links, "switches": [[both, both, 10_000, "x"]] * 20}).encode()


def transfers(n: int, suffix: str) -> bytes:
    golden = json.loads((Path(__file__).parent / "golden" / "ring3.json").read_bytes())
    moved = golden["transfers"]
    again = {name: (column * n)[:n] for name, column in moved.items()}
    again["round"] = list(range(n))
    content = json.dumps(golden | {"transfers": again, "rounds": n}).encode()
    return gzip.compress(content, 1) if suffix else content


def machine(n: int) -> bytes:
    moves = "\n".join(f"  s{i}: {{a: s{i + 1}, b: s{i}}}" for i in range(n))
    return f"start: s0\nfinal: s{n}\nmoves:\n{moves}\n".encode()


def final_states(n: int) -> bytes:
    moves = "\n".join(f"  s{i}: {{a: s{i}, b: s0}}" for i in range(n))
    return f"start: s0\nfinal: [{', '.join(['end'] * 20 * n)}]\nmoves:\n{moves}\n".encode()


def placement(n: int) -> bytes:
    stage = {"forward_s": 1, "backward_s": 1, "activation_bytes": 1, "gradient_bytes": 1}
    said = {"format": "gradweave-placement", "version": 1, "network": "", "data_s": 0}
    said |= {"pipeline_s": 0, "strategy": {}, "workload": {"stages": [stage] * n}}
    return json.dumps(said | {"servers": [[i] for i in range(n)]}).encode()


def tensors(n: int) -> bytes:
    return safetensors({f"a{i}": np.zeros(1, np.float32) for i in range(n)}, {"a" * n: "b" * n})


def find_hyphens(text: str) -> None:
    """Looks up a link whose nodes have this text in their names."""
    named = dataclasses.replace(RING, labels=(f"a{text}", f"{text}b", "c"))
    assert find_link(named, f"a{text}-{text}b") == (0, 1)


RING = gt.ring(3)
READERS: dict[str, tuple[str, Callable[[int], bytes], int, Callable[[Path], Any]]] = {
    "YAML: the last key twice": (
        ".yaml", lambda n: lines(n, "k{i}: 0") + b"\nk%d: 0\n" % (n - 1), 1500, gt.read
    ),
    "YAML: a network": (".yaml", lambda n: node_link(n), 20, gt.read),
    "JSON: nodes and links": (".json", node_link, 200, gt.read),
    "JSON: attributes": (".json", lambda n: node_link(n, weight=1), 50, gt.read),
    "JSON: a topology object": (".json", plain, 300, gt.read),
    "JSON: names alike": (
        ".json", lambda n: json.dumps({f"link{i}": 0 for i in range(n)} | {"links": [], "nodes": []}
        ).encode(), 50, gt.read
    ),
    "CSV: rows": (".csv", lambda n: b"source,target\n" + lines(n, "a{i},a{j}"), 200, gt.read),
    "CSV: columns": (".csv", lambda n: b"source,target," + b",".join(b"c%d" % i for i in range(n))
                     , 200, gt.read),
    "edges: lines": (".edges", lambda n: lines(n, "a{i} a{j} 1Gbit/s"), 200, gt.read),
    "edges: comments": (".edges", lambda n: lines(n, "# rack{i}: x") + b"\na b", 100, gt.read),
    "edges: switches": (".edges", lambda n: b"# switches: " + lines(n, "a{i}").replace(b"\n", b" ")
                        + b"\n" + lines(n, "a{i} a{j}"), 200, gt.read),
    "GraphML": (".graphml", graphml, 100, gt.read),
    "GML: blank lines": (".txt", lambda n: b"\n" * n + b"graph", 2000, gt.read),
    "GML: nodes": (
        ".gml", lambda n: b"graph [\n" + lines(n, "node [ id {i} ]") + b"]", 100, gt.read
    ),
    "NetQ": (".json", lambda n: json.dumps([{"links": [], "nodes": [{"compounded_nodes": [
        {"id": str(i), "tier": -1} for i in range(n)]}]}]).encode(), 200, gt.read),
    "nccl-tests": (
        ".log", lambda n: b"# size count time algbw busbw\n" + lines(n, "8 2 float 1 2 3"), 200,
        read_measurements,
    ),
    "NCCL: devices": (
        ".xml", lambda n: nccl(n, '<pci busid="{i}"><gpu dev="{i}"/></pci>', ""), 50, gt.read
    ),
    "NCCL: nested": (".xml", lambda n: nccl(n, '<pci busid="{i}">', "</pci>"), 100, gt.read),
    "msccl-tools": (
        ".json", msccl, 1000, lambda path: gt.read(path, "msccl_json")
    ),
    "SimAI": (".edges", simai, 100, gt.read),
    "schedule": (".json", lambda n: transfers(n, ""), 1000, load_schedule),
    "schedule, packed": (".json.gz", lambda n: transfers(n, ".gz"), 1000, load_schedule),
    "placement": (".json", placement, 500, lambda path: load_placement(path, RING)),
    "workload": (
        ".json", lambda n: json.dumps(json.loads(placement(n))["workload"]).encode(), 300,
        load_workload,
    ),
    "machine": (".yaml", machine, 20, load_machine),
    "machine: many ends": (".yaml", final_states, 50, load_machine),
    "machine: many agents": (".yaml", lambda n: machine(2) + b"agents: {%s}" % b", ".join(
        b"a%d: [a, b]" % i for i in range(n)), 20, load_machine),
    "formula": (
        ".txt", lambda n: b" & ".join(b"F a%d" % i for i in range(n)), 50,
        lambda path: automaton(path.read_text())
    ),
    "TOML: keys": (".toml", lambda n: lines(n, "k{i} = 0"), 200, lambda p: read_request(p, {}, ())),
    "TOML: parts of a key": (
        ".toml", lambda n: b"a." * n + b"a = 1", 100, lambda p: parse_toml(p.read_bytes(), "a")
    ),
    "TOML: nested": (
        ".toml", lambda n: b"a = " + b"[" * n + b"]" * n, 100,
        lambda p: parse_toml(p.read_bytes(), "a")
    ),
    "arrays": (".safetensors", tensors, 50, arrays.read),
    "trace": (".csv", lambda n: lines(n, "{i},0,1"), 20, lambda path: read_trace(path, 3)),
    "trace: far apart": (
        ".csv", lambda n: b"%d,0,1" % (500 * n), 100, lambda path: read_trace(path, 3)
    ),
    "specification": (
        ".txt", lambda n: b"a:" + b",".join(b"k%d=0" % i for i in range(n)), 500,
        lambda path: parse_spec(path.read_text())
    ),
    "link: hyphens": (
        ".txt", lambda n: b"-" * n, 1000, lambda path: find_link(RING, path.read_text())
    ),
    "link: hyphens of names": (
        ".txt", lambda n: b"-" * n, 500, lambda path: find_hyphens(path.read_text())
    ),
    "sizes": (".txt", lambda n: b"1MB," * n, 100, lambda path: parse_sizes(path.read_text())),
}  # fmt: skip
"""Suffix, what makes an input of so many parts, parts of the smaller input, and the reader."""


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_time_in_proportion(name: str, tmp_path: Path):
    suffix, content, parts, read = READERS[name]
    paths = [tmp_path / f"small{suffix}", tmp_path / f"large{suffix}"]
    for path, size in zip(paths, (parts, parts * FACTOR), strict=True):
        path.write_bytes(content(size))
    refuse_square(*(functools.partial(read, path) for path in paths))
