"""Files found by fuzzing, or like those: a value or one line, whatever reads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from safetensors.numpy import save

import gradweave.topology as gt
from gradweave.aggregate.asynchronous import checkpoint as snapshots
from gradweave.aggregate.sequences import read_trace
from gradweave.automata import dump, load_machine, read_text
from gradweave.common import arrays
from gradweave.errors import GradweaveError, OptionError
from gradweave.learning.config import read_config
from gradweave.learning.policies.plan import read_weights
from gradweave.marl import folder
from gradweave.marl.request import read_request
from gradweave.placement.placement import Placement, load_placement, load_workload
from gradweave.placement.workload import even_stages
from gradweave.training.checkpoint import Format

RING = gt.ring(4)
LIKE = {"a": jax.ShapeDtypeStruct((2,), np.float32)}
STAGE = {"forward_s": 1, "backward_s": 1, "activation_bytes": 1, "gradient_bytes": 1}


def placement(**changed: Any) -> bytes:
    said = {"format": "gradweave-placement", "version": 1, "network": "ring:n=4", "data_s": 0}
    said |= {"pipeline_s": 0, "strategy": {}, "workload": {"stages": [STAGE] * 2}}
    return json.dumps(said | {"servers": [[0, 1], [2, 3]]} | changed).encode()


def tensors(metadata: dict[str, Any], **columns: Any) -> bytes:
    text = {
        name: each if isinstance(each, str) else json.dumps(each) for name, each in metadata.items()
    }
    return save({"a": np.ones(2, np.float32)} | columns, text)


def header(said: Any) -> bytes:
    text = json.dumps(said).encode()
    return len(text).to_bytes(8, "little") + text


def snapshot(run: Any, **changed: Any) -> bytes:
    columns = {name: np.ones(2, kind) for name, kind in snapshots.COLUMNS.items()}
    said = {"format": snapshots.FORMAT, "version": snapshots.VERSION, "digest": "0", "run": run}
    return tensors(said, **(columns | changed))


def read_placement(path: Path) -> Placement:
    return load_placement(path, RING)


def read_snapshot(path: Path) -> None:
    path.rename(path.parent / snapshots.FILE)
    snapshots.about(path.parent)
    snapshots.load_snapshot(path.parent, "0", 2)


FORMAT = Format("kind")


def read_policy(path: Path) -> None:
    folder.FORMAT.load(path, LIKE)


def read_learner(path: Path) -> None:
    FORMAT.load(path, LIKE)
    said = FORMAT.about(path)
    arrays.whole_entry(path, said, "updates")
    arrays.json_entry(path, said, "recent")


def read_training(path: Path) -> None:
    read_request(path, {}, ())


RUN = {"updates": 1, "clock": [1, 1], "seconds": 1, "about": {}, "gradients": 2}
KIND = {"format": "kind", "version": FORMAT.version}
DEEP = b"[" * 100_000
ALIEN = {"a": {"dtype": "two\nlines\x1b[31m" + "x" * 5000, "shape": [2], "data_offsets": [0, 8]}}
HOSTILE: dict[str, tuple[bytes, Callable[[Path], Any], str]] = {
    "a server of 65 bits": (placement(servers=[[2**64, 1], [2, 3]]), read_placement, "too large"),
    "a server of 33 bits": (
        placement(servers=[[2**32, 1], [2, 3]]), read_placement, "expected node ids of servers"
    ),
    "no pipeline": (placement(servers=[[], []]), read_placement, "expected a row of servers"),
    "ragged pipelines": (placement(servers=[[0], [1, 2]]), read_placement, "inhomogeneous"),
    "a seed in words": (placement(strategy={"seed": "one"}), read_placement, "Expected `int`"),
    "options in a list": (placement(strategy={"options": [1]}), read_placement, "`object`"),
    "a deep placement": (placement()[:-1] + b', "x": ' + DEEP, read_placement, "too deeply"),
    "a deep workload": (b'{"stages": ' + DEEP, load_workload, "Expected `object`"),
    "deep TOML": (b"a = " + DEEP, read_config, "nested too deeply"),
    "a long key": (b"a." * 60 + b"a = 1", read_training, "line 1: a key of more than 50 parts"),
    "a key of two lines": (b'"two\\nlines\\u001b[31m" = 1', read_config, "unknown; "),
    "a large file": (b"#" * (1 << 20) + b"\n", read_training, "larger than 1 MiB"),
    "a type of two lines": (header(ALIEN), arrays.read, "two lines\\x1b[31mxxx"),
    "a shape beyond memory": (
        header({"a": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}),
        arrays.read, "cannot be read as safetensors",
    ),
    "weights of another kind": (
        tensors({"format": "x" * 5000}), lambda path: read_weights(str(path)), "got 'xxx"
    ),
    "no count of updates": (tensors(KIND), read_learner, "updates: expected a count, got ''"),
    "a count below 0": (
        tensors(KIND | {"updates": "-1"}), read_learner, "updates: expected a count, got '-1'"
    ),
    "no JSON": (
        tensors(KIND | {"updates": "1", "recent": "{"}), read_learner, "recent: not JSON"
    ),
    "deep JSON": (
        tensors({"gradweave": DEEP.decode()}), read_policy, "deeply"
    ),
    "endless updates": (
        snapshot(RUN | {"updates": float("inf")}), read_snapshot, "expected a run's columns"
    ),
    "endless gradients": (
        snapshot(RUN | {"gradients": float("inf")}), read_snapshot, "which training it belongs to"
    ),
    "columns of two lengths": (
        snapshot(RUN, loss=np.ones(3)), read_snapshot, "columns of different lengths"
    ),
    "no columns": (
        snapshot(RUN, update=np.array(1)), read_snapshot, "expected a run's columns"
    ),
    "a far step": (b"999999,0,1", lambda path: read_trace(path, 99), "a step from 0 to 3422"),
    "an endless line": (b'0,0,"' + b"1" * 200_000, lambda p: read_trace(p, 3), "field larger"),
    "a reward beyond numbers": (
        b"start: s\nmoves: {s: {a: {to: s, reward: 1e300}}}", load_machine, "from -1e12 to 1e12"
    ),
    "ten thousand events": (
        b"start: s\nmoves: {s: }\nevents: [%s]" % b",".join(b"e%d" % i for i in range(10_000)),
        load_machine, "10,000 events; a machine has at most 200",
    ),
    "a name in a list": (
        b"name: [a]\nstart: s\nmoves: {s: }", load_machine, "name: expected a name"
    ),
    "many formulas": (
        b"start: s\nmoves: {s: {a: s}}\ncausal: [%s]" % b",".join([b"a"] * 60),
        load_machine, "60 formulas; expected at most 50",
    ),
    "formulas that are long together": (
        b"start: s\nmoves: {s: {}}\nevents: [%s]\ncausal: [%s]" % (
            b",".join(b"a%d" % i for i in range(10)),
            b",".join([b" & ".join(b"F a%d" % i for i in range(10))] * 49),
        ),
        load_machine, "takes more than 102,040 terms",
    ),
    "a formula of two lines": (
        b'start: s\nmoves: {s: {a: s}}\ncausal: "a &\\n !a"', load_machine, "holds for no trace"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(name: str, tmp_path: Path):
    content, read, expected = HOSTILE[name]
    path = tmp_path / "hostile"
    path.write_bytes(content)
    with pytest.raises(GradweaveError) as raised:
        read(path)
    said = str(raised.value)
    assert expected in said and said.isprintable() and len(said) < 1_000


def test_what_is_well_formed_is_read(tmp_path: Path):
    (tmp_path / "a").write_bytes(placement())
    assert load_placement(tmp_path / "a", RING).servers.tolist() == [[0, 1], [2, 3]]
    (tmp_path / "b").write_bytes(snapshot(RUN, update=np.array([1, 1])))
    read_snapshot(tmp_path / "b")
    (tmp_path / "c").write_bytes(b"step,a,b\n3,0,1\n")
    trace = read_trace(tmp_path / "c", 3).weights
    assert np.array_equal(trace[:3], np.tile(np.eye(3), (3, 1, 1)))
    assert np.allclose(trace[3], [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])


def test_a_machine_is_named_by_its_file_whatever_that_is_called(tmp_path: Path):
    path = tmp_path / f"\x1b[31m{'x' * 100}.yaml"
    path.write_text("start: s\nmoves: {s: {a: s}}")
    name = load_machine(path).machine.name
    assert name.startswith("?[31mxxx") and len(name) == 60
    assert read_text(dump(load_machine(path))).machine.name == name


def test_a_placement_has_servers_by_their_ids():
    work = even_stages(2, activation_bytes=1, gradient_bytes=1)
    with pytest.raises(OptionError, match="expected node ids, got float64 values"):
        Placement(RING, work, np.array([[0.0, 1.0], [2.0, 3.5]]), 0, 0, "none", {}, 0)  # type: ignore[arg-type]
