"""Tables of algorithms: what is predicted, what is chosen, and each format as its library reads it.

The readers follow the sources of the libraries: Open MPI's coll_tuned_dynamic_file.c and
coll_tuned_dynamic_rules.c, MPICH's csel.c, NCCL's plugins/tuner/example/plugin.c, RCCL's
src/plugin/tuner/csv_tuner.cc, NCCLX' meta/tuner/{CsvConfigParse,ConfigParse}.h and Int64Range.cc,
UCC's ucc_coll_score.c and oneCCL's selector_impl.hpp.
"""

import ctypes
import dataclasses
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import FileError, OptionError, TopologyError
from gradweave.ranks import algorithms as made
from gradweave.ranks.pattern import Phase
from gradweave.ranks.stock import LIBRARIES, Named
from gradweave.ranks.table_files import TABLE_FORMATS, save_table, to_table
from gradweave.ranks.tables import Entry, Table, measured_table, predict_table
from gradweave.simulator.runtime import Costs, Runtime

MIB = 1 << 20
SIZES = [0, 8, 100, 1023, 1024, 5000, 1 << 15, 99_999, MIB, 5 * MIB, 1 << 26, 1 << 30]
MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
MPICH = os.environ.get("GRADWEAVE_MPICH")
"""A virtual environment with the packages mpich, mpi4py and numpy."""
TUNER = os.environ.get("GRADWEAVE_NCCL_TUNER")
"""NCCL's plugins/tuner/example, compiled; it needs no CUDA."""


def racks(each: int = 4) -> gw.Topology:
    """Two racks behind a trunk of one host's speed."""
    return gw.topology.leaf_spine(leaves=2, spines=1, servers_per_leaf=each, oversubscription=each)


def received(phases: list[Phase], ranks: int) -> np.ndarray:
    """[N] bytes that each rank receives; of a ring, each hop carries every block but one."""
    return np.sum([np.bincount(one.target, one.size, ranks) for one in phases], axis=0)


# What every algorithm moves.


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 8, 12, 16, 31])
@pytest.mark.parametrize(
    "maker",
    [
        *(made.linear, made.chain, made.binary, made.binomial, made.knomial),
        made.binomial_in_turn,
    ],
)
@pytest.mark.parametrize("segment", [0, 300])
def test_a_tree_gives_everything_to_everyone_once(maker: Any, ranks: int, segment: int):
    moved = received(maker(ranks, 1000.0, segment), ranks)
    np.testing.assert_allclose(moved, [0.0] + [1000.0] * (ranks - 1))


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 12, 16])
@pytest.mark.parametrize(
    "maker", [made.gather_ring, made.gather_bruck, made.gather_doubling, made.pairwise]
)
def test_everybody_gets_the_blocks_of_all_others(maker: Any, ranks: int):
    moved = received(maker(ranks, 120.0, 0), ranks)
    np.testing.assert_allclose(moved, 120.0 * (ranks - 1) / ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_sparbit_and_neighbours_get_the_blocks_of_all_others(ranks: int):
    for maker in (made.gather_sparbit, made.gather_neighbor):
        np.testing.assert_allclose(received(maker(ranks, 64.0, 0), ranks), 64 * (1 - 1 / ranks))


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_halving_sends_as_much_as_a_ring(ranks: int):
    ring = received(made.ring(ranks, 64.0, 0), ranks)
    np.testing.assert_allclose(ring, 2 * 64 * (1 - 1 / ranks))
    np.testing.assert_allclose(received(made.halving_doubling(ranks, 64.0, 0), ranks), ring)
    scatter = received(made.scatter_far_halving(ranks, 64.0, 0), ranks)
    np.testing.assert_allclose(scatter, ring / 2)


def test_a_scatter_gives_the_root_of_each_subtree_its_blocks():
    phases = made.scatter_ring(6, 60.0, 0)
    sent = [(one.source.tolist(), one.target.tolist(), one.size.tolist()) for one in phases[:3]]
    assert sent == [([0], [4], [20.0]), ([0], [2], [20.0]), ([0, 2, 4], [1, 3, 5], [10.0] * 3)]


def test_trees_are_those_of_open_mpi():
    """Parents as coll_base_topo.c builds them for root 0 among 8."""

    def parents(phases: list[Phase]) -> dict[int, int]:
        return {
            int(below): int(above)
            for one in phases
            for above, below in zip(one.source, one.target, strict=True)
        }

    assert parents(made.binary(8, 1.0, 0)) == {1: 0, 2: 0, 3: 1, 5: 1, 4: 2, 6: 2, 7: 3}
    assert parents(made.binomial(8, 1.0, 0)) == {1: 0, 2: 0, 4: 0, 3: 1, 5: 1, 6: 2, 7: 3}
    assert parents(made.knomial(8, 1.0, 0)) == {1: 0, 2: 0, 3: 0, 4: 0, 5: 4, 6: 4, 7: 4}


# What libraries use by default.


@pytest.mark.parametrize(
    ("library", "collective", "ranks", "size", "name"),
    [
        ("openmpi", "all_reduce", 8, 8191, "recursive_doubling"),
        ("openmpi", "all_reduce", 8, 8192, "rabenseifner"),
        ("openmpi", "all_reduce", 128, 4096, "nonoverlapping"),
        ("openmpi", "broadcast", 8, 32767, "binomial"),
        ("openmpi", "broadcast", 8, 32768, "basic_linear"),
        ("openmpi", "broadcast", 16, MIB, "scatter_allgather"),
        ("openmpi", "all_gather", 40, 40 * 1024 - 1, "recursive_doubling"),
        ("openmpi", "all_gather", 40, 40 * 1024, "neighbor"),
        ("openmpi", "all_to_all", 8, 8 * 262_143, "linear_sync"),
        ("openmpi", "all_to_all", 8, 8 * 262_144, "linear"),
        ("openmpi", "reduce_scatter", 8, 262_144, "ring"),
        ("mpich", "all_reduce", 8, 8, "recursive_doubling"),
        ("mpich", "all_reduce", 8, 4096, "reduce_scatter_allgather"),
        ("mpich", "broadcast", 8, 12_289, "scatter_recursive_doubling_allgather"),
        ("mpich", "broadcast", 9, 12_289, "scatter_ring_allgather"),
        ("mpich", "all_to_all", 8, 8 * 256, "brucks"),
        ("mpich", "all_to_all", 7, 7 * 256, "scattered"),
        ("ucc", "broadcast", 8, 32_767, "knomial"),
        ("ucc", "all_gather", 8, 4096, "neighbor"),
        ("nccl", "all_reduce", 8, MIB, None),
    ],
)
def test_defaults_are_those_of_the_sources(
    library: str, collective: Named, ranks: int, size: int, name: str | None
):
    assert LIBRARIES[library].default(collective, ranks, size) == name


def test_every_default_is_an_algorithm_of_the_library():
    for library in LIBRARIES.values():
        for collective in library.algorithms:
            for ranks in (2, 3, 5, 8, 16, 31, 63, 100, 200, 300, 512, 1024):
                for size in SIZES:
                    name = library.default(collective, ranks, size)
                    assert name is None or library.algorithm(collective, name).name == name


# What is chosen.


def test_equal_links_need_no_table_where_the_default_is_best():
    table = predict_table(gw.topology.star(8), "openmpi", sizes=(1 << 26,))
    assert {*table.named()} == {"broadcast"}
    assert table.entries["broadcast"][-1].algorithm == "pipeline"
    assert table.entries["broadcast"][0] == Entry(0, None)  # of smaller sizes nothing is known


def test_a_trunk_makes_rings_faster_than_doubling():
    table = predict_table(racks(), "openmpi")
    large = {name: entries[-1].algorithm for name, entries in table.entries.items()}
    assert large["all_gather"] == "ring"
    assert large["broadcast"] == "pipeline"
    point = next(
        one for one in table.points if (one.collective, one.bytes) == ("all_gather", 1 << 26)
    )
    assert point.default == "recursive_doubling"
    # 16 blocks cross the trunk one way in the last exchange instead of 7 in all steps of a ring,
    # where it carries one block per step; two exchanges before that stay in racks.
    assert point.gain > 0.5


def test_the_order_of_ranks_matters():
    net = racks()
    servers = net.servers.tolist()
    turns = servers[::2] + servers[1::2]
    one, other = (predict_table(net, "openmpi", order) for order in (servers, turns))
    assert one.entries["all_gather"] != other.entries["all_gather"]


def test_what_is_named_saves_the_gain_with_and_without_message_costs():
    for gain in (0.05, 0.3):
        table = predict_table(racks(), "openmpi", gain=gain)
        for collective, entries in table.entries.items():
            ends = [*(entry.from_bytes for entry in entries[1:]), 1 << 62]
            for entry, end in zip(entries, ends, strict=True):
                inside = [
                    one
                    for one in table.points
                    if one.collective == collective and entry.from_bytes <= one.bytes < end
                ]
                if entry.algorithm is not None:
                    assert all(one.gain >= gain - 0.03 for one in inside)


def test_costly_messages_keep_the_default():
    """A second per message hides what links save on small messages."""
    slow = Runtime("slow", executor=Costs((1.0,), (1.0,)))
    table = predict_table(racks(), "openmpi", runtime=slow, sizes=(8, 1024))
    assert not table.named()


def test_measurements_decide_if_given():
    rows = [
        ("broadcast", 1024, "default", 0, 1.0),
        ("broadcast", 1024, "default", 0, 3.0),
        ("broadcast", 1024, "default", 0, 1.2),
        ("broadcast", 1024, "chain", 0, 1.18),
        ("broadcast", MIB, "default", 0, 5.0),
        ("broadcast", MIB, "pipeline", 8192, 2.0),
        ("broadcast", MIB, "pipeline", 0, 4.0),
    ]
    table = measured_table(racks(), "openmpi", rows)
    assert table.entries["broadcast"] == (Entry(0, None), Entry(MIB, "pipeline", 8192))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([("bcast", 8, "default", 0, 1.0)], "did you mean broadcast"),
        ([("broadcast", 8, "pipelin", 0, 1.0)], "did you mean pipeline"),
        ([("broadcast", 8, "pipeline", 0, 1.0)], "expected a row default"),
        ([("broadcast", 8, "default", 0, 0.0)], "above 0"),
        ([("broadcast", 8, "default", 0, float("nan"))], "above 0"),
    ],
)
def test_bad_measurements_are_refused(rows: Any, says: str):
    with pytest.raises(OptionError, match=says):
        measured_table(racks(), "openmpi", rows)


def test_bad_input_is_refused():
    net = racks()
    with pytest.raises(OptionError, match="did you mean openmpi"):
        predict_table(net, "openmp")
    with pytest.raises(OptionError, match="each of the 8 servers once"):
        predict_table(net, "openmpi", [0, 1])
    with pytest.raises(OptionError, match="gain"):
        predict_table(net, "openmpi", gain=1.0)
    with pytest.raises(TopologyError, match="2 to 512"):
        predict_table(gw.topology.star(600), "openmpi")
    table = predict_table(net, "openmpi", sizes=(8,))
    with pytest.raises(OptionError, match="did you mean openmpi"):
        to_table(table, "openmpy")
    with pytest.raises(OptionError, match="names algorithms of ucc"):
        to_table(table, "ucc")


# Each format, as its library reads it.


def table_of(library: str, ranks: int, entries: dict[str, list[Entry]]) -> Table:
    net = gw.topology.star(ranks)
    of = LIBRARIES[library]
    every: dict[Named, tuple[Entry, ...]] = {
        name: tuple(entries.get(name, [Entry(0, None)])) for name in of.algorithms
    }
    assert {*entries} <= {*every}
    return Table(of, net, tuple(range(ranks)), every, ())


def wanted(table: Table, collective: Named, size: int) -> Entry:
    return [entry for entry in table.entries[collective] if entry.from_bytes <= size][-1]


OPENMPI = {
    "all_reduce": [Entry(0, None), Entry(1024, "ring"), Entry(MIB, None)],
    "broadcast": [Entry(0, "binomial"), Entry(5000, "pipeline", 8192)],
    "all_to_all": [Entry(0, "pairwise")],
}
NUMBERS: dict[Named, int] = {"all_reduce": 2, "all_to_all": 3, "broadcast": 7}


def classic(text: str) -> dict[int, list[tuple[int, list[tuple[int, ...]]]]]:
    """Collective → communicator sizes → rules, of a file without a version."""
    numbers = iter([int(word) for word in re.sub("#.*", "", text).split()])
    rules: dict[int, list[tuple[int, list[tuple[int, ...]]]]] = {}
    for _ in range(next(numbers)):
        rows = rules.setdefault(next(numbers), [])
        for _ in range(next(numbers)):
            size, count = next(numbers), next(numbers)
            rows.append((size, [tuple(next(numbers) for _ in range(4)) for _ in range(count)]))
            assert rows[-1][1][0][0] == 0  # "must specify a rule for message size of zero"
    assert next(numbers, None) is None
    return rules


def classic_choice(rules: Any, collective: int, ranks: int, size: int) -> tuple[int, int]:
    """Number and segment; 0 if the fixed rules decide."""
    if collective not in rules:
        return 0, 0
    best = rules[collective][0]
    for row in rules[collective]:
        if row[0] > ranks:
            break
        best = row
    _, number, _, segment = [rule for rule in best[1] if rule[0] <= size][-1]
    return number, segment


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_open_mpi_reads_the_rules_for_this_number_of_ranks_only(ranks: int):
    table = table_of("openmpi", ranks, OPENMPI)
    rules = classic(to_table(table, "openmpi"))
    for collective, number in NUMBERS.items():
        for size in SIZES:
            entry = wanted(table, collective, size)
            name = entry.algorithm
            named = 0 if name is None else table.library.algorithm(collective, name).number
            segment = entry.segment_bytes if named else 0
            assert classic_choice(rules, number, ranks, size) == (named, segment)
            for other in {2, ranks - 1, ranks + 1, 1000} - {0, 1, ranks}:
                assert classic_choice(rules, number, other, size) == (0, 0)
    assert 0 not in rules  # nothing is said of collectives that keep the defaults


def test_open_mpi_6_reads_the_same_as_json():
    table = table_of("openmpi", 8, OPENMPI)
    rules = json.loads(to_table(table, "openmpi-json"))
    assert (rules["rule_file_version"], rules["module"]) == (3, "tuned")
    names = {"all_reduce": "allreduce", "broadcast": "bcast", "all_to_all": "alltoall"}
    assert {*rules["collectives"]} == {*names.values()}
    for collective in NUMBERS:
        (of_size,) = rules["collectives"][names[collective]]
        assert (of_size["comm_size_min"], of_size["comm_size_max"]) == (8, 8)
        for size in SIZES:
            fits = [
                rule
                for rule in of_size["rules"]
                if rule["msg_size_min"] <= size
                and (rule["msg_size_max"] == "inf" or size <= rule["msg_size_max"])
            ]
            entry = wanted(table, collective, size)
            named = entry.algorithm
            assert [(one["alg"], one.get("seg_size", 0)) for one in fits] == (
                []
                if named is None
                else [(table.library.algorithm(collective, named).number, entry.segment_bytes)]
            )


BASE = {
    "collective=allreduce": {
        "comm_type=intra": {
            "avg_msg_size<=8": {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}},
            "avg_msg_size=any": {
                "is_op_built_in=no": {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}},
                "is_op_built_in=yes": {
                    "algorithm=MPIR_Allreduce_intra_reduce_scatter_allgather": {}
                },
            },
        },
        "comm_type=inter": {"algorithm=MPIR_Allreduce_inter_reduce_exchange_bcast": {}},
    },
    "collective=bcast": {
        "comm_type=intra": {
            "comm_size<8": {"algorithm=MPIR_Bcast_intra_binomial": {}},
            "comm_size=pow2": {
                "avg_msg_size<=12288": {"algorithm=MPIR_Bcast_intra_binomial": {}},
                "avg_msg_size=any": {"algorithm=MPIR_Bcast_intra_scatter_ring_allgather": {}},
            },
            "comm_size=any": {"algorithm=MPIR_Bcast_intra_scatter_ring_allgather": {}},
        },
    },
    "collective=alltoall": {
        "comm_type=intra": {
            "is_sendbuf_inplace=yes": {
                "algorithm=MPIR_Alltoall_intra_pairwise_sendrecv_replace": {}
            },
            "is_sendbuf_inplace=no": {
                "comm_size<8": {"algorithm=MPIR_Alltoall_intra_scattered": {}},
                "comm_size=any": {"algorithm=MPIR_Alltoall_intra_pairwise": {}},
            },
        },
    },
    "collective=barrier": {"algorithm=MPIR_Barrier_intra_k_dissemination": {"k=2": {}}},
}
MPICH_TABLE = {
    "all_reduce": [Entry(0, None), Entry(1024, "ring"), Entry(MIB, None)],
    "broadcast": [Entry(0, None), Entry(5000, "pipelined_tree", 8192)],
    "all_to_all": [Entry(0, "scattered"), Entry(4096, None)],
}


def selected(node: Any, facts: dict[str, Any], below_sizes: bool = False) -> str:
    """The algorithm that MPICH selects. Below a condition on sizes, < of ranks means <=."""
    for key, child in node.items():
        name, sign, value = re.fullmatch(r"(\w+?)(<=|<|=)(.*)", key).groups()  # type: ignore
        if name == "algorithm":
            return key
        on_size = name.endswith("_msg_size")
        if value == "any":
            met = True
        elif value == "pow2":
            met = not facts[name] & (facts[name] - 1)
        elif sign == "=":
            met = facts[name] == value
        elif sign == "<=" or (below_sizes and name == "comm_size"):
            met = facts[name] <= int(value)
        else:
            met = facts[name] < int(value)
        if met:
            return selected(child, facts, below_sizes or on_size)
    raise AssertionError(f"MPICH aborts: no branch of {[*node]} holds")


def facts_of(collective: str, ranks: int, size: int, **more: str) -> dict[str, Any]:
    one = size // ranks if collective == "all_to_all" else size
    usual = {"is_commutative": "yes", "is_op_built_in": "yes", "is_sendbuf_inplace": "no"}
    rest = {"avg_msg_size": one, "total_msg_size": size, "comm_size": ranks}
    return {"comm_type": "intra"} | usual | rest | more


def test_mpich_selects_what_the_table_says_and_as_before_otherwise(tmp_path: Path):
    base = tmp_path / "base.json"
    base.write_text(json.dumps(BASE))
    table = table_of("mpich", 8, MPICH_TABLE)
    whole = json.loads(to_table(table, "mpich", base))
    assert [*whole] == [*BASE]
    assert whole["collective=barrier"] == BASE["collective=barrier"]
    keys = {"all_reduce": "allreduce", "broadcast": "bcast", "all_to_all": "alltoall"}
    for collective, key in keys.items():
        before, after = (one[f"collective={key}"] for one in (BASE, whole))
        for size in [one * 8 for one in SIZES]:
            for ranks in (2, 7, 9, 16):
                facts = facts_of(collective, ranks, size)
                assert selected(after, facts) == selected(before, facts)
            facts = facts_of(collective, 8, size)
            entry = wanted(table, LIBRARIES["mpich"].collective(collective), size)
            if entry.algorithm is None:
                assert selected(after, facts) == selected(before, facts)
            else:
                assert selected(after, facts).endswith(f"_intra_{entry.algorithm}")
    special = facts_of("all_reduce", 8, 4096, is_commutative="no", is_op_built_in="no")
    assert selected(whole["collective=allreduce"], special).endswith("recursive_doubling")
    in_place = facts_of("all_to_all", 8, 64, is_sendbuf_inplace="yes")
    assert selected(whole["collective=alltoall"], in_place).endswith("sendrecv_replace")


def test_mpichs_own_selection_is_found_in_its_library(tmp_path: Path):
    library, base = tmp_path / "libmpi.so.12", tmp_path / "base.json"
    other = json.dumps({"collective=bcast": {"composition=MPIDI_Bcast": {}}}).encode()
    library.write_bytes(b"\x7fELF\0" + other + b"\0" + json.dumps(BASE).encode() + b"\0\1\2")
    base.write_text(json.dumps(BASE))
    table = table_of("mpich", 8, MPICH_TABLE)
    assert to_table(table, "mpich", library) == to_table(table, "mpich", base)


def test_a_selection_does_not_fill_its_last_page(tmp_path: Path):
    """MPICH maps the file and reads on to a zero byte, which only an unfilled page has."""
    base, table = tmp_path / "base.json", table_of("mpich", 8, {})
    lengths = set()
    for padding in range(4096):
        name = "x" * padding
        base.write_text(json.dumps(BASE | {name: {"algorithm=MPIR_X": {}}}))
        lengths.add(len(to_table(table, "mpich", base)) % 4096)
    assert 0 not in lengths
    assert len(lengths) == 4095


@pytest.mark.parametrize("text", ["", "hello", "[1]", '{"collective=bcast": 3}', "\x7fELF"])
def test_a_base_without_a_selection_is_refused(tmp_path: Path, text: str):
    base = tmp_path / "base"
    base.write_text(text)
    table = table_of("mpich", 8, MPICH_TABLE)
    with pytest.raises(FileError, match="expected MPICH's selection"):
        to_table(table, "mpich", base)
    with pytest.raises(FileError, match="No such file"):
        to_table(table, "mpich", tmp_path / "none")
    with pytest.raises(OptionError, match=r"libmpi\.so"):
        to_table(table, "mpich")


NCCL = {"all_reduce": [Entry(0, None), Entry(MIB, "tree"), Entry(1 << 25, "ring")]}


def nvidia_choice(text: str, nodes: int, ranks: int, size: int) -> str | None:
    """First row that fits, with what atoi makes of words."""
    for line in text.splitlines(keepends=True):
        assert len(line) < 256  # fgets would cut it
        if line[0] in "#\n":
            continue
        fields = [word.strip() for word in line.rstrip("\n").split(",")]
        assert 8 <= len(fields) <= 10
        kind, least, most, algorithm, protocol, _channels, of_nodes, of_ranks = fields[:8]
        assert (kind, protocol) == ("allreduce", "simple")
        fits = int(least) <= size <= int(most)
        if fits and int(of_nodes) in (-1, nodes) and int(of_ranks) in (-1, ranks):
            return algorithm
    return None


MANY = [*SIZES, 1 << 33, 1 << 40]
"""Sizes, with some beyond 32 bits."""


def test_nccls_tuner_chooses_by_rows():
    table = table_of("nccl", 4, NCCL)
    text = to_table(table, "nccl-tuner", local_ranks=8)
    for size in MANY:
        assert nvidia_choice(text, 4, 32, size) == wanted(table, "all_reduce", size).algorithm
        assert nvidia_choice(text, 4, 4, size) is None
        assert nvidia_choice(text, 5, 32, size) is None


COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")


def rccl_rules(text: str) -> list[list[str]]:
    """Rules as ``loadConfig`` of RCCL's csv_tuner.cc loads them; AssertionError if it skips a line.

    It takes 255 characters at a time, leaves out lines whose first character but blanks is #, cuts
    at commas, of which several count as one, and skips a line with an empty field, with fewer than
    8 fields or with an unknown collective, algorithm or protocol. Numbers are atoi's.
    """
    rules = []
    for line in text.splitlines(keepends=True):
        for piece in (line[at : at + 255] for at in range(0, len(line), 255)):
            if piece.lstrip(" \t")[:1] in ("#", "\n", ""):
                continue
            fields = [word.strip(" \t") for word in piece.rstrip("\n").split(",") if word][:12]
            assert len(fields) >= 8 and all(fields)
            collective, least, most, algorithm, protocol, *numbers = fields
            assert collective in COLLECTIVES and algorithm in ALGORITHMS and protocol in PROTOCOLS
            assert all(re.fullmatch(r"-?\d+", word) for word in (least, most, *numbers))
            rules.append(fields)
    return rules


def test_rccls_tuner_chooses_by_rules():
    """The first rule whose sizes, of 64 bits, and whose nodes and ranks fit; -1 fits any."""
    table = table_of("nccl", 4, NCCL)
    rules = rccl_rules(to_table(table, "rccl", local_ranks=8))
    assert len(rules) == 2
    for size in MANY:
        for nodes, ranks in ((4, 32), (4, 4), (5, 32)):
            chosen = [
                rule[3]
                for rule in rules
                if rule[0] == "allreduce" and int(rule[1]) <= size <= int(rule[2]) < 1 << 64
                if int(rule[6]) in (-1, nodes) and int(rule[7]) in (-1, ranks)
            ]
            named = (
                wanted(table, "all_reduce", size).algorithm if (nodes, ranks) == (4, 32) else None
            )
            assert chosen[:1] == ([] if named is None else [named])


def ncclx_rules(text: str) -> list[list[str]]:
    """Rules as NCCLX' CsvConfigParse.h and ConfigParse.h read them; AssertionError if they refuse.

    Commas inside brackets do not separate fields. Seven or eight fields: three intervals, known
    words, and integers that are whole. Any other line fails the communicator.
    """
    rules = []
    for line in text.splitlines():
        if not line.strip() or line.strip().startswith("#"):
            continue
        fields = [word.strip() for word in re.split(r",(?![^(\[]*[)\]])", line.strip())]
        assert 7 <= len(fields) <= 8
        collective, _, algorithm, protocol, channels, *_ = fields
        assert collective in COLLECTIVES and algorithm in ALGORITHMS and protocol in PROTOCOLS
        assert re.fullmatch(r"[+-]?\d+", channels)
        assert all(re.fullmatch(INTERVAL, fields[at]) for at in (1, 5, 6))
        rules.append(fields)
    return rules


INTERVAL = r"\*|-?\d+|[\[(](?:-?\d+)?,(?:-?\d+)?[\])]"


def interval(text: str, value: int) -> bool:
    if re.fullmatch(r"-?\d+", text):
        return value == int(text)
    if text == "*":
        return True
    low, high = text[1:-1].split(",")
    assert not (low and high) or int(low) <= int(high)  # others are refused
    above = not low or (value >= int(low) if text[0] == "[" else value > int(low))
    return above and (not high or (value <= int(high) if text[-1] == "]" else value < int(high)))


def test_ncclx_counts_bytes_per_rank():
    """Of an all-reduce, its tuner counts the buffer's bytes divided by all ranks, rounded down."""
    table = table_of("nccl", 4, NCCL)
    rules = ncclx_rules(to_table(table, "ncclx", local_ranks=8))
    assert len(rules) == 2
    for size in MANY:
        for nodes, local in ((4, 8), (4, 4), (5, 8)):
            chosen = [
                rule[2]
                for rule in rules
                if rule[0] == "allreduce" and interval(rule[1], size // (nodes * local))
                if interval(rule[5], nodes) and interval(rule[6], local)
            ]
            named = (
                wanted(table, "all_reduce", size).algorithm if (nodes, local) == (4, 8) else None
            )
            assert chosen[:1] == ([] if named is None else [named])


def test_nccl_algo_has_no_sizes():
    with pytest.raises(OptionError, match="has no sizes"):
        to_table(table_of("nccl", 4, NCCL), "nccl-algo")
    table = table_of("nccl", 4, {"all_reduce": [Entry(0, None), Entry(MIB, "ring")]})
    assert to_table(table, "nccl-algo") == "NCCL_ALGO=allreduce:ring\n"


def test_small_messages_are_left_to_nccl():
    table = predict_table(racks(), "nccl")
    assert all(entries[0].algorithm is None for entries in table.entries.values())
    assert min(one.bytes for one in table.points) == MIB


def test_ucc_reads_tokens():
    entries = {
        "all_reduce": [Entry(0, None), Entry(4096, "ring")],
        "broadcast": [Entry(0, "sag_knomial"), Entry(MIB, None)],
    }
    text = to_table(table_of("ucc", 8, entries), "ucc")
    comment, line = text.splitlines()
    assert comment.startswith("#")
    name, _, value = line.partition("=")
    assert name == "UCC_TL_UCP_TUNE"
    tokens = [token.split(":") for token in value.split("#")]
    assert tokens == [
        ["allreduce", "4096-inf", "host", "[8-8]", "@ring"],
        ["bcast", f"0-{MIB}", "host", "[8-8]", "@sag_knomial"],
    ]


def test_oneccl_reads_ranges():
    entries = {
        "all_reduce": [Entry(0, "recursive_doubling"), Entry(1024, None), Entry(MIB, "ring")]
    }
    text = to_table(table_of("oneccl", 8, entries), "oneccl")
    shell = subprocess.run(
        ["sh", "-c", text + 'printf %s "$CCL_ALLREDUCE"'],
        capture_output=True,
        text=True,
        check=True,
    )
    blocks = [block.split(":") for block in shell.stdout.split(";")]
    assert blocks == [["recursive_doubling", "0-1023"], ["ring", f"{MIB}-max"]]


@pytest.mark.parametrize("format", TABLE_FORMATS)
def test_a_name_with_lines_stays_in_its_comment(format: str, tmp_path: Path):
    base = tmp_path / "base.json"
    base.write_text(json.dumps(BASE))
    net = dataclasses.replace(gw.topology.star(4), name="a\nallreduce,0,1,ring" + "x" * 300)
    if format == "nccl-algo":
        return  # without a comment
    made_for = predict_table(net, TABLE_FORMATS[format].library)
    lines = to_table(made_for, format, base, local_ranks=2).splitlines()
    assert all(len(line) < 256 for line in lines)
    assert not any(line.startswith("allreduce,0,1") for line in lines)


def test_every_format_says_how_it_is_used():
    for one in TABLE_FORMATS.values():
        assert all(text.format(file="f.csv") for text in (one.use, one.proof, one.bad))


def xla_flags(text: str) -> dict[str, str]:
    """The flags as a shell and then XLA take them: words, each a name and a value."""
    shell = ["sh", "-c", text + 'printf %s "$XLA_FLAGS"']
    run = subprocess.run(shell, capture_output=True, text=True, check=True, env={})
    return dict(word.split("=", 1) for word in run.stdout.split())


def test_xla_is_told_of_the_rings_slowest_hop():
    """Nodes at 50 GB/s with 8 GPUs; a trunk that two hops share, or one in another order."""
    link = gw.topology.Link(bandwidth_bytes_per_s=50e9, latency_s=4.6e-6, overhead_s=0.0)
    star = predict_table(gw.topology.star(4, link=link), "nccl")
    flags = xla_flags(to_table(star, "xla", local_ranks=8))
    assert flags.pop("--xla_gpu_enable_analytical_sol_latency_estimator") == "true"
    (options,) = flags.values()
    assert dict(one.split("=") for one in options.split(",")) == {
        "nic_speed_gbps": "6.25",
        "rtt_us": "18",  # two links, both ways: 18.4; XLA ignores what is not whole
        "gpus_per_node": "8",
    }
    for ranks, rate in ((None, "12.5"), ((0, 4, 1, 5, 2, 6, 3, 7), "3.125")):
        table = predict_table(racks(), "nccl", ranks)
        assert f"nic_speed_gbps={rate}," in to_table(table, "xla")


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax")
def test_xla_reads_its_options(tmp_path: Path):
    """As it writes them with ``--xla_dump_to``; a flag that it lacks would end the program."""
    file = tmp_path / "flags.sh"
    save_table(predict_table(gw.topology.star(4), "nccl"), file, "xla", local_ranks=8)
    program = "import jax; jax.jit(lambda x: x + 1)(1.0).block_until_ready()"
    shell = f'. {file}\nexport XLA_FLAGS="$XLA_FLAGS --xla_dump_to={tmp_path}/dump"\nexec "$@"'
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env=variables,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    dumped = next((tmp_path / "dump").glob("*debug_options")).read_text()
    found = dict(re.findall(r'options: \{\s*key: "(\w+)"\s*value: "([^"]*)"', dumped))
    given = {"nic_speed_gbps": "1.5625", "rtt_us": "6", "gpus_per_node": "8"}
    assert {key: found[key] for key in given} == given
    assert {value for key, value in found.items() if key not in given} <= {"-1"}  # not given


# The libraries themselves.


def sent_by_root(folder: Path) -> Iterator[tuple[int, int]]:
    """(peer, messages) that rank 0 sent within collectives, by Open MPI's counters."""
    for line in (folder / "counts.0.prof").read_text().splitlines():
        if found := re.match(r"I\t0\t(\d+)\t\d+ bytes\t(\d+) msgs", line):
            yield int(found[1]), int(found[2])


@pytest.mark.skipif(
    MPIRUN is None or importlib.util.find_spec("mpi4py") is None, reason="needs mpirun and mpi4py"
)
@pytest.mark.parametrize("ranks", [4, 3])
def test_open_mpi_uses_the_table(tmp_path: Path, ranks: int):
    """A pipeline of 8 KiB segments sends 128 messages to rank 1, and none to others."""
    entries = [Entry(0, None), Entry(1024, "pipeline", 8192)]
    rules = tmp_path / "rules.conf"
    save_table(table_of("openmpi", 4, {"broadcast": entries}), rules, "openmpi")
    program = (
        "import numpy as np\nfrom mpi4py import MPI\n"
        "MPI.COMM_WORLD.Bcast(np.zeros(1 << 20, np.uint8))\n"
    )
    options = {
        "pml_monitoring_enable": "2",
        "pml_monitoring_enable_output": "3",
        "pml_monitoring_filename": str(tmp_path / "counts"),
        "coll_tuned_use_dynamic_rules": "1",
        "coll_tuned_dynamic_rules_filename": str(rules),
    }
    command = [str(MPIRUN), "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]
    command += [word for name, value in options.items() for word in ("--mca", name, value)]
    done = subprocess.run(
        [*command, sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sent = dict(sent_by_root(tmp_path))
    assert (sent == {1: 128}) == (ranks == 4)
    assert sum(sent.values()) < 128 or ranks == 4


def han_choice(text: str, collective: str, ranks: int, size: int) -> str:
    """The algorithm that HAN takes, by the rules of coll_han_dynamic_file.c and coll_han_dynamic.c.

    The last communicator size, and then the last message size, that is not larger decides; the
    first of each must be 1 and 0. Components have names. An allgather's size is a rank's own part.
    """
    words = iter(re.sub("#.*", "", text).split())
    chosen = None
    for _ in range(int(next(words))):
        named = {"0": "allgather", "2": "allreduce", "7": "bcast"}[next(words)]
        assert (next(words), next(words)) == ("1", "2")  # one level, the program's communicator
        for place in range(int(next(words))):
            of = int(next(words))
            assert place or of == 1
            for rule in range(int(next(words))):
                least, component = int(next(words)), next(words)
                assert component == "han" and (rule or least == 0)
                words, more = itertools.tee(words)
                algorithm = "default"
                if next(more, "").startswith("@"):
                    algorithm = next(words)[1:]
                if named == collective and of <= ranks and least <= size:
                    chosen = algorithm
    assert next(words, None) is None and chosen is not None
    return chosen


HAN_TABLE = {
    "all_reduce": [Entry(0, None), Entry(MIB, "ring"), Entry(1 << 26, None)],
    "all_gather": [Entry(0, "bruck"), Entry(1000, None)],
    "all_to_all": [Entry(0, "linear")],
}


def test_hans_leaders_use_the_table():
    """Of 4 nodes with 8 ranks each; an all-gather of 1,000 bytes has 31.25 per rank."""
    text = to_table(table_of("openmpi", 4, HAN_TABLE), "openmpi-han", local_ranks=8)
    for size in (0, MIB - 1, 1 << 26):
        assert han_choice(text, "allreduce", 32, size) == "default"
    for size in (MIB, (1 << 26) - 1):
        assert han_choice(text, "allreduce", 32, size) == "simple"
        assert han_choice(text, "allreduce", 31, size) == "default"
        assert han_choice(text, "allreduce", 33, size) == "default"
    assert han_choice(text, "allgather", 32, 31) == "simple"
    assert han_choice(text, "allgather", 32, 32) == "default"
    empty = to_table(table_of("openmpi", 4, {}), "openmpi-han", local_ranks=8)
    assert han_choice(empty, "allreduce", 32, MIB) == "default"
    with pytest.raises(OptionError, match="at least 2 with openmpi-han"):
        to_table(table_of("openmpi", 4, HAN_TABLE), "openmpi-han")


@pytest.mark.skipif(
    MPIRUN is None or importlib.util.find_spec("mpi4py") is None, reason="needs mpirun and mpi4py"
)
def test_open_mpi_reads_the_rules_of_han(tmp_path: Path):
    rules = tmp_path / "han.conf"
    save_table(table_of("openmpi", 2, HAN_TABLE), rules, "openmpi-han", local_ranks=2)
    options = {
        "coll_han_use_dynamic_file_rules": "1",
        "coll_han_dynamic_rules_filename": str(rules),
        "coll_han_verbose": "5",
    }
    command = [str(MPIRUN), "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    command += [word for name, value in options.items() for word in ("--mca", name, value)]
    program = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
    done = subprocess.run(
        [*command, sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    log = done.stdout + done.stderr
    assert f"read 9 rules from {rules}" in log
    assert "coll=allreduce msg_size=1048576 : algorithm 'simple'" in log
    assert "could not fully read" not in log


NODES = 4
"""Nodes of the test below: processes of this machine with other host names."""


def can_rename() -> bool:
    """Whether processes may have a host name of their own, and a network other than loopback."""
    unshare, networks = shutil.which("unshare"), Path("/sys/class/net")
    if unshare is None or not networks.is_dir() or len([*networks.iterdir()]) < 2:
        return False
    return subprocess.run([unshare, "--uts", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(
    MPIRUN is None or importlib.util.find_spec("mpi4py") is None or not can_rename(),
    reason="needs mpirun, mpi4py and unshare, to run nodes with other names on this machine",
)
@pytest.mark.parametrize("han", [True, False])
def test_leaders_of_nodes_use_the_table_only_with_the_rules_of_han(tmp_path: Path, han: bool):
    """A ring of four leaders: 2 · 3/4 of 2 MiB from the first to the second, and no other.

    Without HAN's rules the same table changes nothing, and leaders exchange data with several.
    """
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\nhost=$1; shift\nexec unshare --uts sh -c "hostname $host; $*"\n')
    agent.chmod(0o700)
    table = table_of("openmpi", NODES, {"all_reduce": [Entry(0, None), Entry(MIB, "ring")]})
    save_table(table, tmp_path / "tuned.conf", "openmpi")
    save_table(table, tmp_path / "han.conf", "openmpi-han", local_ranks=2)
    options = {
        "pml_monitoring_enable": "2",
        "pml_monitoring_enable_output": "3",
        "pml_monitoring_filename": str(tmp_path / "counts"),
        "coll_tuned_use_dynamic_rules": "1",
        "coll_tuned_dynamic_rules_filename": str(tmp_path / "tuned.conf"),
        "coll_han_use_dynamic_file_rules": str(int(han)),
        "coll_han_dynamic_rules_filename": str(tmp_path / "han.conf"),
        "btl": "self,tcp",
    }
    command = [str(MPIRUN), "--allow-run-as-root", "-np", str(2 * NODES)]
    command += ["--host", ",".join(f"node{n}:2" for n in range(NODES))]
    command += ["--prtemca", "plm_ssh_agent", str(agent), "--prtemca", "plm_ssh_no_tree_spawn", "1"]
    command += [word for name, value in options.items() for word in ("--mca", name, value)]
    program = (
        "import numpy as np\nfrom mpi4py import MPI\nw = MPI.COMM_WORLD\n"
        "a = np.ones(1 << 19, np.float32); b = np.empty_like(a)\n"
        "w.Allreduce(a, b); assert (b == 8).all()\n"
    )
    done = subprocess.run(
        [*command, sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts = (tmp_path / "counts.0.prof").read_text()
    sent = {int(to): int(size) for to, size in re.findall(r"I\t0\t(\d+)\t(\d+) bytes", counts)}
    leaders = [rank for rank in range(2, 2 * NODES, 2) if sent.get(rank, 0) > 1000]
    if han:
        assert leaders == [2] and sent[2] == pytest.approx(2 * 3 / 4 * 2 * MIB, rel=1e-3)
    else:
        assert len(leaders) > 1


@pytest.mark.skipif(MPICH is None, reason="needs MPICH: GRADWEAVE_MPICH names its environment")
def test_mpich_uses_the_table(tmp_path: Path):
    """Its summary names the file, and all collectives still run."""
    venv = Path(str(MPICH))
    chosen = tmp_path / "selection.json"
    library = next((venv / "lib").glob("libmpi.so.*"))
    save_table(table_of("mpich", 4, MPICH_TABLE), chosen, "mpich", library)
    program = (
        "import numpy as np\nfrom mpi4py import MPI\nw = MPI.COMM_WORLD\n"
        "a = np.ones(1 << 16, np.float32); b = np.empty_like(a)\n"
        "w.Allreduce(a, b); assert (b == 4).all()\n"
        "w.Bcast(a); w.Alltoall(a, b); w.Barrier(); w.Allgather(a[: 1 << 14], b)\n"
        "w.Reduce_scatter(a, b[: 1 << 14]); assert b[0] == 4; w.Scan(a, b); w.Ibarrier().Wait()\n"
        "print('done')\n"
    )
    variables = {
        "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE": str(chosen),
        "MPIR_CVAR_DEBUG_SUMMARY": "1",
    }
    done = subprocess.run(
        [str(venv / "bin" / "mpiexec"), "-n", "4", str(venv / "bin" / "python"), "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"MPIR: {chosen}" in done.stdout
    assert done.stdout.count("done") == 4


class _Tuner(ctypes.Structure):
    """``ncclTuner_v5_t``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("init", ctypes.c_void_p),
        ("ask", ctypes.c_void_p),
        ("finalize", ctypes.c_void_p),
    )


@pytest.mark.skipif(TUNER is None, reason="needs NCCL's example: GRADWEAVE_NCCL_TUNER names it")
def test_nvidias_example_chooses_by_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Asked by its C interface, as NCCL asks: the algorithm named costs nothing."""
    table, file = table_of("nccl", 4, NCCL), tmp_path / "table.csv"
    save_table(table, file, "nccl-tuner", local_ranks=8)
    monkeypatch.setenv("NCCL_TUNER_CONFIG_FILE", str(file))
    library = ctypes.CDLL(str(TUNER))
    libc = ctypes.CDLL(None)
    libc.setenv(b"NCCL_TUNER_CONFIG_FILE", str(file).encode(), 1)  # what getenv of C sees
    tuner = _Tuner.in_dll(library, "ncclTunerPlugin_v5")
    whole, place, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    init = ctypes.CFUNCTYPE(number, place, ctypes.c_uint64, whole, whole, place, place, place)(
        tuner.init
    )
    ask = ctypes.CFUNCTYPE(
        number, place, number, whole, number, place, number, number, number, place
    )(tuner.ask)
    context = ctypes.c_void_p()
    assert init(ctypes.byref(context), 0, 32, 4, None, None, None) == 0
    algorithms, protocols, all_reduce, simple = ["tree", "ring"], 3, 4, 2
    for size in SIZES:
        costs = np.full((7, protocols), 5.0, np.float32)
        channels = ctypes.c_int(0)
        asked = context, all_reduce, size, 1, costs.ctypes.data, 7, protocols, 0
        assert ask(*asked, ctypes.byref(channels)) == 0
        free = [(int(row), int(column)) for row, column in np.argwhere(costs == 0)]
        named = wanted(table, "all_reduce", size).algorithm
        assert free == ([] if named is None else [(algorithms.index(named), simple)])
        assert channels.value == 1  # NCCL takes it for a limit, which the guide warns of
    other = ctypes.c_void_p()
    assert init(ctypes.byref(other), 0, 32, 8, None, None, None) == 0
    costs = np.full((7, protocols), 5.0, np.float32)
    asked = other, all_reduce, MIB, 1, costs.ctypes.data, 7, protocols, 0
    assert ask(*asked, ctypes.byref(ctypes.c_int(0))) == 0
    assert (costs == 5).all()  # another number of nodes
