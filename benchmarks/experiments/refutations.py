"""Proofs in LRAT that no schedule has so few rounds: how large, how long, and who accepts them.

    taskset -c 0 python benchmarks/experiments/refutations.py --cadical PROGRAM \
        --lrat-check PROGRAM --cake-lpr PROGRAM

One round fewer than each all-gather of exact_proofs takes, a 4x4 mesh in 7 rounds, and what SCCL
asks of a DGX-1: chunks, steps and rounds. Most follow by counting; where that is not enough CaDiCaL
2.2 goes on. Each proof is checked by gradweave_refute, by lrat-check of drat-trim and by cake_lpr,
which is verified. Seconds are of processor time. Files of up to 300 kB are written to
benchmarks/refutations/. Then some of the same without counting, where CaDiCaL has 20 s, not 120.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import gradweave as gw
import gradweave_refute
from benchmarks.cadical import Cadical, checked_by
from benchmarks.command_line import parser_of
from benchmarks.experiments.exact_proofs import FEWEST, network
from benchmarks.record import RESULTS, printed, record
from benchmarks.unfinished import Unfinished
from gradweave.bounds.refutations import refute
from gradweave.errors import NoProofError
from gradweave.schedules.flow_tree import FlowTrees
from gradweave.topology import Topology
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.routes import shortest_path_trees

FOLDER = Path(__file__).parents[1] / "refutations"
MAX_BYTES = 300_000
TIME_LIMIT_S = 120
PASSES = 8
"""How often CaDiCaL is asked, each time about the clauses that its last proof needed."""
SCCL = [(pieces, (k, pieces + 1 - k)) for pieces in (3, 4) for k in range(1, pieces + 1)]
"""Pieces per server of a DGX-1, and the rounds of each of two steps."""
PLAIN = ("mesh:3x3", "torus:4x4", "mesh:4x4", "bcube:n=4,k=1", "dcell:n=4,k=1", "mesh:5x5")
PLAIN_TIME_LIMIT_S = 20


def questions() -> list[dict[str, Any]]:
    """Each with the specification of its network and what is asked, in words and as a question."""
    known = json.loads((RESULTS / "exact_proofs.json").read_text())["fewest"]
    rows = []
    for (spec, options), row in zip(FEWEST, known, strict=True):
        asked = {"stage": "all_gather", "rounds": row["impossible_below"] - 1}
        trees, pieces = options.get("trees", "free"), options.get("pieces_per_server", 1)
        rows.append({"network": spec, "trees": trees, "pieces": pieces, "asked": asked})
        if row["because"].startswith("CP-SAT"):
            rows[-1]["search"] = True
    for pieces, steps in SCCL:
        asked = {"stage": "all_gather", "rounds": sum(steps), "steps": list(steps)}
        row = {"network": "dgx1v", "trees": "free", "pieces": pieces, "asked": asked}
        rows.append({**row, "search": True})
    return rows


def size(net: Topology, row: dict[str, Any]) -> int:
    """What a formula grows with."""
    return net.num_servers * row["pieces"] * int(net.capacity.sum()) * row["asked"]["rounds"]


def question(net: Topology, row: dict[str, Any]) -> dict[str, Any]:
    """As `gradweave_refute` takes it, with what is to be counted."""
    asked, trees = dict(row["asked"]), row["trees"]
    if row["pieces"] > 1:
        asked["pieces"] = [row["pieces"]] * net.num_servers
    if trees == "fixed":
        asked["trees"] = shortest_path_trees(net, net.servers).tolist()
        bound = gw.bounds.fixed_trees(FlowTrees.shortest_path(net, net.servers), "all_gather")
        load = bound.certificates[0]
        asked["counters"] = [{"link": [load.source, load.target]}]
    elif trees == "shortest":
        asked["trees"] = "shortest"
    if row.get("search"):
        asked["counters"] = []
    return asked


def measure(row: dict[str, Any], programs: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A row of the table, and the file that proves it, if there is a proof."""
    net = network(row["network"])
    asked, solver = question(net, row), Cadical(programs.cadical, TIME_LIMIT_S)
    found: dict[str, Any] = {
        "network": row["network"],
        "trees": row["trees"],
        "pieces_per_server": row["pieces"],
        "rounds": asked["rounds"],
        "steps": asked.get("steps"),
    }
    begun = time.process_time()
    try:
        refutation = refute(net, asked, solver, passes=PASSES)
    except NoProofError as error:
        took_s = round(solver.took_s, 2)
        return {**found, "found": False, "because": str(error), "cadical_s": took_s}, None
    found_s = time.process_time() - begun
    topology = topology_to_object(net)
    begun = time.process_time()
    text = gradweave_refute.unpacked(gradweave_refute.packed(refutation))
    formula = gradweave_refute.Formula(topology, refutation)
    steps = gradweave_refute.check(formula.clauses, text.decode().splitlines())
    checked_s = time.process_time() - begun
    with tempfile.TemporaryDirectory() as folder:
        cnf, lrat = Path(folder, "formula.cnf"), Path(folder, "proof.lrat")
        cnf.write_text(formula.dimacs())
        lrat.write_bytes(text)
        others = {
            "lrat_check": checked_by(programs.lrat_check, "c VERIFIED", cnf, lrat),
            "cake_lpr": checked_by(programs.cake_lpr, "s VERIFIED UNSAT", cnf, lrat),
        }
    found |= {
        "found": True,
        "by": "search" if solver.took_s else "counting",
        "variables": len(formula.names),
        "clauses": len(formula.clauses),
        "proof_steps": steps,
        "proof_bytes": len(text),
        "packed_bytes": len(gradweave_refute.packed(refutation)),
        "sha256": refutation["sha256"],
        "found_s": round(found_s + solver.took_s, 2),
        "cadical_s": round(solver.took_s, 2),
        "checked_s": round(checked_s, 3),
    }
    for name, (accepted, took_s) in others.items():
        found |= {f"{name}_accepts": accepted, f"{name}_s": round(took_s, 3)}
    return found, {"topology": topology, "refutation": refutation}


def plain(spec: str, rounds: int, programs: Any) -> dict[str, Any]:
    """The formula without counters."""
    solver = Cadical(programs.cadical, PLAIN_TIME_LIMIT_S)
    asked = {"stage": "all_gather", "rounds": rounds, "counters": []}
    row = {"network": spec, "rounds": rounds}
    try:
        refutation = refute(network(spec), asked, solver)
    except NoProofError:
        return {**row, "found": False, "cadical_s": round(solver.took_s, 2), "packed_bytes": None}
    size = len(gradweave_refute.packed(refutation))
    return {**row, "found": True, "cadical_s": round(solver.took_s, 2), "packed_bytes": size}


def file_name(row: dict[str, Any]) -> str:
    """Of a proof."""
    spec = row["network"].replace(":", "-").replace("=", "").replace(",", "-")
    parts = [spec, *([row["trees"]] if row["trees"] != "free" else [])]
    parts += [f"{row['pieces_per_server']}-pieces"] if row["pieces_per_server"] > 1 else []
    parts.append("+".join(map(str, row["steps"] or [row["rounds"]])))
    return "-".join(parts) + ".json"


def in_steps(row: dict[str, Any]) -> str:
    """The rounds of each step, as a table has them."""
    return " + ".join(map(str, row["steps"]))


def keep(row: dict[str, Any], file: dict[str, Any]) -> str | None:
    """Writes a small proof; where, or None for one that is too large."""
    content = json.dumps(file, separators=(",", ":")) + "\n"
    if len(content) > MAX_BYTES:
        return None
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / file_name(row)).write_text(content)
    return f"benchmarks/refutations/{file_name(row)}"


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """By which rows are told apart."""
    steps = row["asked"].get("steps") if "asked" in row else row["steps"]
    pieces = row["pieces"] if "asked" in row else row["pieces_per_server"]
    return row["network"], row["trees"], pieces, *(steps or ())


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    for name in ("cadical", "lrat-check", "cake-lpr"):
        parser.add_argument(f"--{name}", default=name, help="the program")
    programs = parser.parse_args()
    asked = questions()
    unfinished = Unfinished("refutations", resume=programs.resume)
    known = {key(row) for row in unfinished.rows()}
    for row in sorted(asked, key=lambda row: size(network(row["network"]), row)):
        if key(row) not in known:
            measured, file = measure(row, programs)
            unfinished.add({**measured, "file": keep(measured, file) if file else None})
            print(json.dumps(measured), flush=True)
    order = [key(row) for row in asked]
    found = sorted(unfinished.rows(), key=lambda row: order.index(key(row)))
    rounds = {row["network"]: row["rounds"] for row in reversed(found) if row["trees"] == "free"}
    record(
        "refutations",
        time_limit_s=TIME_LIMIT_S,
        plain_time_limit_s=PLAIN_TIME_LIMIT_S,
        cadical="2.2.0",
        rows=[row for row in found if not row["steps"]],
        sccl=[row | {"in_steps": in_steps(row)} for row in found if row["steps"]],
        plain=list(printed(plain(spec, rounds[spec], programs) for spec in PLAIN)),
    )
    unfinished.end()


if __name__ == "__main__":
    main()
