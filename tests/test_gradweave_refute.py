"""Formulas and proofs that no schedule has so few rounds: what is proved is so."""

import ast
import copy
import json
import random
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradweave as gw
import gradweave_check as checker
import gradweave_refute as refuter
from gradweave.bounds.refutations import certify_refutation, refute
from gradweave.errors import InvalidCertificateError, NoProofError
from gradweave.schedulers.spec import from_spec
from gradweave.schedules.file import to_bytes
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.routes import shortest_path_trees

FILE = Path(refuter.__file__)
PROOFS = Path(__file__).parents[1] / "benchmarks" / "refutations"


def network(spec: str) -> gw.topology.Topology:
    return gw.topology.gpu_boxes("dgx1v") if spec == "dgx1v" else gw.topology.from_spec(spec)


def test_it_imports_the_standard_library_alone():
    tree = ast.parse(FILE.read_text())
    names = {x.name for node in ast.walk(tree) if isinstance(node, ast.Import) for x in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names


class Meaning:
    """What each variable of a formula says of a schedule, so that every clause must hold of it."""

    def __init__(self, schedule: gw.schedules.Schedule, formula: refuter.Formula) -> None:
        self.formula = formula
        self.arrived, first = {}, {}
        for row in range(schedule.num_transfers):
            piece, target = int(schedule.piece[row]), int(schedule.target[row])
            at = int(schedule.round[row])
            if target != schedule.root[piece] and at < first.get((piece, target), (1 << 30,))[0]:
                first[piece, target] = at, tuple(schedule.route(row))
        names = self._names(schedule, first)
        for (piece, server), (at, _) in first.items():
            self.arrived[names[piece], server] = at
        passing = defaultdict(list)
        for (piece, target), (at, route) in first.items():
            for link in pairwise(route):
                passing[link, at].append((names[piece], target))
        channel = {
            (*one, link): (*link, k)
            for (link, _), all_ in passing.items()
            for k, one in enumerate(sorted(all_))
        }
        self.sent, self.joined = set(), set()
        for (piece, target), (at, route) in first.items():
            taken = [channel[names[piece], target, link] for link in pairwise(route)]
            self.sent |= {(names[piece], c, at) for c in taken}
            self.joined |= {(*pair, at) for pair in pairwise(taken)}

    @staticmethod
    def _names(schedule: gw.schedules.Schedule, first: dict[Any, Any]) -> dict[int, int]:
        """Pieces of a root by when they come to the first other server, roots in order of id."""

        def key(piece: int) -> tuple[int, int]:
            root = int(schedule.root[piece])
            watched = min(v for v in schedule.topology.servers.tolist() if v != root)
            return root, first[piece, watched][0]

        order = sorted(range(schedule.pieces), key=key)
        return {piece: name for name, piece in enumerate(order)}

    def inside(self, counter: refuter.Counter, i: int, t: int, n: int) -> bool:
        piece, servers = counter.items[i - 1]
        ways = counter.ways[t][:n] if t < len(counter.ways) else []
        came = any((piece, c, t) in self.sent for c in ways)
        return came or any(
            self.formula.root[piece] == v or self.arrived[piece, v] < t for v in servers
        )

    def true(self, kind: str, *at: Any) -> bool:
        if kind == "yes":
            return True
        if kind == "holds":
            piece, server, t = at
            return self.arrived[piece, server] < t
        if kind == "sent":
            return at in self.sent
        if kind == "used":
            piece, channel, t = at
            return any((p, channel, t) in self.sent for p in range(piece + 1))
        if kind == "joins":
            return at in self.joined
        counter = next(one for one in self.formula.counted if one.key == at[0])
        if kind == "among":
            t, n, i, k = at[1:]
            return sum(self.inside(counter, j, t, n) for j in range(1, i + 1)) >= k
        if kind == "within":
            return self.inside(counter, *at[1:])
        i, t = at[1:]
        coming = [
            self.inside(counter, j, t + 1, 0) and not self.inside(counter, j, t, 0)
            for j in range(1, i + 1)
        ]
        return any(coming) if kind == "brought until" else not coming[-1]


@pytest.mark.parametrize(
    ("spec", "strategy", "counters"),
    [
        ("mesh:3x3", "grown", [{"nodes": [0]}, {"nodes": [0, 1, 3]}]),
        ("bcube:n=3,k=1", "grown", [{"nodes": [0]}, {"nodes": [0, 1, 2, 9]}]),
        ("dgx1v", "grown:pieces_per_server=2", [{"nodes": [0]}]),
        ("jellyfish:reference=J10,seed=0", "grown", [{"nodes": [0]}]),
        ("leaf-spine:leaves=2,spines=1,servers_per_leaf=3", "grown", [{"nodes": [0, 1, 2, 6]}]),
        ("bcube:n=3,k=1", "merged", [{"link": [0, 12]}]),
    ],
)
def test_a_schedule_satisfies_its_formula(spec: str, strategy: str, counters: list[Any]):
    net = network(spec)
    made = from_spec(strategy).schedule(net, collective="all_gather")
    pieces = np.bincount(net.rank[made.root]).tolist()
    asked: dict[str, Any] = {"stage": "all_gather", "rounds": made.rounds, "pieces": pieces}
    if strategy == "merged":
        asked["trees"] = shortest_path_trees(net, net.servers).tolist()
    formula = refuter.Formula(topology_to_object(net), {**asked, "counters": counters})
    meaning = Meaning(made, formula)
    names = [((k,) if isinstance(k, str) else k, x) for k, x in formula.names.items()]
    true = {x if meaning.true(*key) else -x for key, x in names}
    assert all(not true.isdisjoint(clause) for clause in formula.clauses)


@pytest.mark.parametrize("spec", ["mesh:3x3", "torus:3x3", "bcube:n=3,k=1", "hypercube:3", "dgx1v"])
def test_the_optimum_is_not_refuted(spec: str):
    net = network(spec)
    least = gw.bounds.free_trees(net, "all_gather").rounds
    found = refute(net, {"stage": "all_gather", "rounds": least - 1})
    assert refuter.proved(topology_to_object(net), found) > 0
    with pytest.raises(NoProofError):
        refute(net, {"stage": "all_gather", "rounds": least})


def hints_of(line: str) -> tuple[list[str], list[str]]:
    words = line.split()
    end = words.index("0")
    return words[: end + 1], words[end + 1 : -1]


def test_mutated_proofs_are_refused():
    found = refute(network("mesh:3x3"), {"stage": "all_gather", "rounds": 3})
    clauses = refuter.Formula(topology_to_object(network("mesh:3x3")), found).clauses
    proof = refuter.unpacked(refuter.packed(found)).decode().splitlines()
    assert refuter.check(clauses, proof) == len(proof)
    rng = random.Random(0)

    def without_a_line(lines: list[str]) -> list[str]:
        k = rng.randrange(len(lines))
        return lines[:k] + lines[k + 1 :]

    def without_a_hint(lines: list[str]) -> list[str]:
        k = rng.randrange(len(lines))
        clause, hints = hints_of(lines[k])
        del hints[rng.randrange(len(hints))]
        return [*lines[:k], " ".join([*clause, *hints, "0"]), *lines[k + 1 :]]

    def another_hint(lines: list[str]) -> list[str]:
        k = rng.randrange(len(lines))
        clause, hints = hints_of(lines[k])
        hints[-1] = str(int(hints[-1]) + rng.choice((-3, -2, -1, 1, 2, 3)))
        return [*lines[:k], " ".join([*clause, *hints, "0"]), *lines[k + 1 :]]

    for edit in (without_a_line, without_a_hint, another_hint):
        for _ in range(40):
            with pytest.raises(refuter.Wrong):
                refuter.check(clauses, edit(proof))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 4},
        {"counters": []},
        {"counters": [{"nodes": [1]}]},
        {"counters": [{"link": [0, 1]}]},
        {"pieces": [0] + [1] * 8},
        {"pieces": [-(10**9), 10**9 + 1] + [1] * 7},
        {"counters": [{"nodes": [0], "again": k} for k in range(100_000)]},
        {"trees": "fixed"},
        {"steps": [1, 2]},
        {"sha256": "0" * 64},
        {"lrat_xz": ""},
        {"stage": "all_reduce"},
        {"rounds": 10**9},
    ],
)
def test_a_proof_of_another_question_is_refused(wrong: dict[str, Any]):
    found = refute(network("mesh:3x3"), {"stage": "all_gather", "rounds": 3})
    with pytest.raises((refuter.Wrong, *refuter.BROKEN)):
        refuter.proved(topology_to_object(network("mesh:3x3")), {**found, **wrong})


def test_a_proof_of_another_network_is_refused():
    found = refute(network("mesh:3x3"), {"stage": "all_gather", "rounds": 3})
    with pytest.raises(refuter.Wrong):
        refuter.proved(topology_to_object(network("torus:3x3")), found)


def test_a_schedules_file_carries_it(tmp_path: Path):
    net = network("mesh:3x3")
    found = refute(net, {"stage": "all_gather", "rounds": 3})
    proof = certify_refutation(net, "all_gather", found)
    assert proof.least == 4
    made = (
        from_spec("grown")
        .schedule(net, collective="all_gather")
        .replace(certificates=(proof.certificate,))
    )
    content = json.loads(to_bytes(made))
    assert checker.check(content)[1] == (
        True,
        "certificate 0",
        "proved for schedules that root a piece at each server and route through no other server: "
        "at least 4 rounds; the schedule takes 4 rounds: optimal in rounds among such schedules",
    )
    bad = copy.deepcopy(proof.certificate)
    bad["proof"][0]["rounds"] = 4
    with pytest.raises(InvalidCertificateError, match="refutation: "):
        gw.bounds.check_certificate(bad, net)


def test_the_command(tmp_path: Path):
    net = network("ring:4")
    found = refute(net, {"stage": "reduce_scatter", "rounds": 1})
    path = tmp_path / "ring.json"
    path.write_text(json.dumps({"topology": topology_to_object(net), "refutation": found}))

    def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-S", str(FILE), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True)

    assert run(path).stdout.startswith("proved: no reduce_scatter in 1 rounds; ")
    (tmp_path / "proof.lrat").write_text(run(path, "--lrat").stdout)
    assert run(path, "--dimacs").stdout.startswith("p cnf ")
    assert run(path, tmp_path / "proof.lrat").returncode == 0
    (tmp_path / "proof.lrat").write_text("")
    assert run(path, tmp_path / "proof.lrat").returncode == 1
    assert run(tmp_path / "none.json").returncode == 2


SMALL = [path for path in sorted(PROOFS.glob("*.json")) if path.stat().st_size < 10_000]


@pytest.mark.parametrize("path", SMALL, ids=[path.stem for path in SMALL])
def test_a_proof_that_is_kept_is_accepted(path: Path):
    file = json.loads(path.read_text())
    assert refuter.proved(file["topology"], file["refutation"]) > 0


def test_proofs_of_all_kinds_are_kept():
    kept = [json.loads(path.read_text())["refutation"] for path in SMALL]
    assert any(one.get("steps") for one in kept)
    assert any(one.get("trees") == "shortest" for one in kept)
    assert any(not one["counters"] for one in kept)
