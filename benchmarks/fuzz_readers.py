"""Gradweave's readers for fuzzing: what each reads, and files to start from."""

import dataclasses
import functools
import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "topology" / "data"
GOLDEN = ROOT / "tests" / "golden" / "ring3.json"

MACHINE = b"""
start: begin
final: done
moves:
  begin: {a: drained, c: open}
  drained: {c: ready}
  open: {a: ready, b: wasted}
  wasted: {}
  ready: {b: {to: done, reward: 2}}
agents: {one: [a, c], two: [b, c]}
causal: G(c -> N G !a)
events: [d]
"""
FORMULAS = (b"G(c -> N G !a)", b"!a U b & F (b | X X c)", b"a R b -> (true & !false)")
SPECIFICATIONS = (
    b"bcube:n=3,k=1", b"torus:4x4", b"jellyfish:n=10,degree=3,seed=1", b"merged:tries=8",
    b"gossip:network=ring", b"10Gbit/s", b"1.5ms", b"1MB..8MB*2,4KiB", b"0-1=0.5",
)  # fmt: skip
TRAINING = b"""env = "MPE_simple_spread_v3"
algorithm = "ippo"
steps = 100000
seed = 1
[settings]
learning_rate = 3e-4
"""


@dataclasses.dataclass(frozen=True)
class Reader:
    """One way into the package for a file from a stranger."""

    shape: str
    """How inputs are mutated: json, yaml, safetensors, gzip or text."""
    suffix: str
    read: Callable[[Path], Any]
    seeds: Sequence[bytes]


def _network_files(suffix: str) -> list[bytes]:
    """Small networks, with labels, switches, positions and links that differ."""
    import gradweave.topology as gt

    labelled = gt.without_servers(gt.complete(4), [1]).topology
    networks = [gt.ring(3), gt.star(3), gt.bcube(2, 1), labelled]
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}{suffix}" for number in range(len(networks))]
        for network, path in zip(networks, paths, strict=True):
            gt.save(network, path)
        return [path.read_bytes() for path in paths]


def _network(suffix: str, shape: str, more: Sequence[bytes] = (), *formats: str | None) -> Reader:
    from gradweave.topology.formats.files import read as read_network

    def read(path: Path) -> None:
        for name in formats or (None,):
            read_network(path, name)

    made = _network_files(suffix) if suffix not in (".xml", "") else []
    return Reader(shape, suffix, read, [*made, *more])


def _schedule(suffix: str, shape: str) -> Reader:
    from gradweave.schedules.file import load

    shared = json.loads(GOLDEN.read_bytes())
    shared |= {"version": 2, "shares": {"numerators": [1, 2, 3], "denominator": 6}}
    among = {"contributors": [[0], [1], [0, 1, 2]], "destinations": [[1], [0, 2], [0, 1, 2]]}
    blocks = {"job": [0, 1, 1], "bytes": [3, 5, 7], **among}
    demand = {"jobs": ["send", "all_reduce"], "blocks": blocks, "relays": [2]}
    demanded = shared | {"version": 3, "collective": "demand"}
    demanded |= {"demand": demand, "block": [0, 1, 2]}
    seeds = [GOLDEN.read_bytes(), *(json.dumps(one).encode() for one in (shared, demanded))]
    packed = [gzip.compress(seed, mtime=0) for seed in seeds]
    return Reader(shape, suffix, load, packed if suffix.endswith(".gz") else seeds)


def _placement() -> Reader:
    import gradweave.topology as gt
    from gradweave.placement.placement import Placement, load_placement
    from gradweave.placement.workload import even_stages

    ring = gt.ring(4)
    work = even_stages(2, activation_bytes=1e6, gradient_bytes=1e6)
    placed = Placement(ring, work, [[0, 1], [2, 3]], 0.1, 0.2, "exact", {"a": 1}, 0)  # type: ignore[arg-type]
    seed = json.dumps(placed.as_object()).encode()
    return Reader("json", ".json", lambda path: load_placement(path, ring), [seed])


def _workload() -> Reader:
    from gradweave.placement.placement import load_workload

    stage = {"forward_s": 1.0, "backward_s": 2.0, "activation_bytes": 1e6, "gradient_bytes": 1e7}
    seed = json.dumps({"stages": [stage, stage | {"memory_bytes": 1}], "microbatches": 8}).encode()
    return Reader("json", ".json", load_workload, [seed])


def _machine() -> Reader:
    from gradweave.automata import dump, load_machine, read_text

    def read(path: Path) -> None:
        read_text(dump(load_machine(path)))  # what is read can be written and read again

    worlds = (ROOT / "src" / "gradweave" / "marl" / "worlds" / "data").glob("*.yaml")
    return Reader("yaml", ".yaml", read, [MACHINE, *(path.read_bytes() for path in sorted(worlds))])


def _formula() -> Reader:
    from gradweave.automata import automaton

    return Reader(
        "text", ".txt", lambda path: automaton(path.read_bytes().decode("latin-1")), FORMULAS
    )


def _specification() -> Reader:
    from gradweave.aggregate.spec import parse
    from gradweave.common.specification import parse_spec
    from gradweave.errors import GradweaveError
    from gradweave.schedulers.spec import from_spec
    from gradweave.topology import units

    readers = (
        parse_spec, from_spec, parse, units.parse_bandwidth, units.parse_latency,
        units.parse_size, units.parse_sizes,
    )  # fmt: skip

    def read(path: Path) -> None:
        text, refused = path.read_bytes().decode("latin-1"), None
        for one in readers:
            try:
                one(text)
            except GradweaveError as error:
                if not str(error).isprintable():
                    raise
                refused = error
        if refused:
            raise refused

    return Reader("text", ".txt", read, SPECIFICATIONS)


def _planned_weights() -> Reader:
    from gradweave.learning.policies.plan import read_weights

    shipped = ROOT / "src/gradweave/learning/policies/weights/planned.safetensors"
    return Reader(
        "safetensors", ".safetensors", lambda p: read_weights(str(p)), [shipped.read_bytes()]
    )


def _learned_weights() -> Reader:
    from gradweave.learning.policies.policy import read_weights

    shipped = ROOT / "src/gradweave/learning/policies/weights/learned.safetensors"
    return Reader(
        "safetensors", ".safetensors", lambda p: read_weights(str(p)), [shipped.read_bytes()]
    )


def _tensors(metadata: dict[str, str], **arrays: Any) -> bytes:
    from safetensors.numpy import save

    return save(arrays, metadata)


def _checkpoint() -> Reader:
    import jax
    import numpy as np

    from gradweave.learning.training import FORMAT

    like = {"a": jax.ShapeDtypeStruct((2, 2), np.float32), "b": jax.ShapeDtypeStruct((), np.int32)}
    seed = _tensors(
        {"format": FORMAT.name, "version": FORMAT.version, "config": "0", "updates": "3"},
        a=np.ones((2, 2), np.float32),
        b=np.array(3, np.int32),
    )
    return Reader("safetensors", ".safetensors", lambda p: FORMAT.load(p, like), [seed])


def _policy() -> Reader:
    import jax
    import numpy as np

    from gradweave.marl.folder import FORMAT

    like = {"actor": jax.ShapeDtypeStruct((3,), np.float32)}
    said = {"format": FORMAT.name, "version": FORMAT.version, "about": {"config": {}}}
    seed = _tensors({"gradweave": json.dumps(said)}, actor=np.ones(3, np.float32))
    return Reader("safetensors", ".safetensors", lambda p: FORMAT.load(p, like), [seed])


def _snapshot() -> Reader:
    import numpy as np

    from gradweave.aggregate.asynchronous import checkpoint

    columns = {name: np.zeros(2, kind) for name, kind in checkpoint.COLUMNS.items()}
    run = {"updates": 2, "clock": [1, 1], "seconds": 1.0, "about": {}, "gradients": 2}
    seed = _tensors(
        {
            "format": checkpoint.FORMAT,
            "version": checkpoint.VERSION,
            "digest": "0",
            "run": json.dumps(run),
        },
        **columns,
    )

    def read(path: Path) -> None:
        there = path.parent / checkpoint.FILE
        path.replace(there)
        checkpoint.about(path.parent)
        checkpoint.load_snapshot(path.parent, "0", 2)

    return Reader("safetensors", ".safetensors", read, [seed])


def _learning() -> Reader:
    from gradweave.learning import config

    shipped = ROOT / "src" / "gradweave" / "learning" / config.SHIPPED
    small = b'groups = [{exercises = [{topology = "ring:4"}], at_once = 1, episodes = 2}]\n'
    small += b"iterations = 1\ntree_updates = 1\nworkload_updates = 1\n[tree]\n"
    return Reader("text", ".toml", config.read_config, [shipped.read_bytes(), small])


def _training() -> Reader:
    from gradweave.marl.request import read_request

    return Reader("text", ".toml", lambda path: read_request(path, {}, ()), [TRAINING])


def _trace() -> Reader:
    from gradweave.aggregate.sequences import read_trace

    return Reader("text", ".csv", lambda path: read_trace(path, 4), [b"step,a,b\n0,0,1\n3,2,3\n"])


READERS: dict[str, Callable[[], Reader]] = {
    "graphml": lambda: _network(".graphml", "text"),
    "json": lambda: _network(
        ".json", "json", [GOLDEN.read_bytes(), (DATA / "hub_and_spoke.msccl.json").read_bytes()]
    ),
    "yaml": lambda: _network(".yaml", "yaml"),
    "csv": lambda: _network(".csv", "text"),
    "edges": lambda: _network(".edges", "text"),
    "nccl_xml": lambda: _network(
        ".xml",
        "text",
        [path.read_bytes() for path in sorted(DATA.glob("*.xml"))],
        *("nccl_xml", "nccl_xml_with_network", "nccl_xml_nvlink_only"),
    ),
    "msccl_json": lambda: _network(
        ".json", "json", [path.read_bytes() for path in sorted(DATA.glob("*.json"))], "msccl_json"
    ),
    "simai": lambda: _network("", "text", [(DATA / "rail_16g_8gps_400Gbps_H100").read_bytes()]),
    "schedule": lambda: _schedule(".json", "json"),
    "schedule_gz": lambda: _schedule(".json.gz", "gzip"),
    "placement": _placement,
    "workload": _workload,
    "machine": _machine,
    "formula": _formula,
    "specification": _specification,
    "planned_weights": _planned_weights,
    "learned_weights": _learned_weights,
    "checkpoint": _checkpoint,
    "policy": _policy,
    "snapshot": _snapshot,
    "learning_toml": _learning,
    "training_toml": _training,
    "trace": _trace,
}
"""By name; made when asked for, since some import much."""


@functools.cache
def reader(name: str) -> Reader:
    """A reader by its name."""
    return READERS[name]()
