"""Results that other tools publish, imported and judged: which are valid, and what they take.

    taskset -c 0 python benchmarks/experiments/library_imports.py [--others FOLDER]

FOLDER has a checkout of each, none of which is needed for anything else: `TE-CCL`
(github.com/microsoft/TE-CCL, MIT), `msccl-scheduler` (github.com/Azure/msccl-scheduler, MIT) and
`ForestColl` (github.com/liangyuRain/ForestColl, Apache-2.0), whose `trees` has what
`spanning_trees_to_xml` of its `pipeline_allgather.py` prints.

Of TE-CCL the 154 solved files of its experiments and the meshes of its examples, on its machines;
of msccl-scheduler the algorithms for eight A100, on their switch; of ForestColl the trees of one
and two boxes of eight A100. Seconds are those of the event model, in which switches copy nothing; a
file's own seconds stand beside them. Files of NDv2 of two boxes take GPU 0 for a switch: they are
judged on that network as well.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradweave as gw
import gradweave_check as checker
from benchmarks.command_line import parser_of
from benchmarks.experiments import te_ccl
from benchmarks.library.instances import (  # pyright: ignore[reportMissingImports]
    machine_of_te_ccl as machine,
)
from benchmarks.record import record, show
from gradweave.errors import GradweaveError
from gradweave.library.importers import imported
from gradweave.schedules.file import to_bytes
from gradweave.schedules.jobs import Job, demand_of
from gradweave.topology import Topology

SIZES = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
MACHINES = {"DGX2": te_ccl.dgx2, "NDv2": te_ccl.ndv2}
"""By name in TE-CCL's folders."""
Case = tuple[str, Path, Topology, str, int, float | None]
"""Tool, file, network, collective, bytes, and the seconds that the file states."""


def te_ccl_cases(folder: Path) -> Iterator[Case]:
    """The solved files, and those of the examples."""
    provided = folder / "teccl" / "examples" / "experiments" / "output_provided"
    for path in sorted(provided.rglob("*.json")):
        name, chassis, collective = path.relative_to(provided).parts[:3]
        name = name.removesuffix("_output")
        size = re.fullmatch(r"(\d+)([KMG]B)", path.stem)
        assert size is not None
        network = machine(MACHINES[name], int(chassis[0]), name)()
        amount = int(size[1]) * SIZES[size[2]]
        stated = json.loads(path.read_bytes())["4-Collective_Finish_Time"]
        yield "TE-CCL", path, network, te_ccl.NAMES[collective], amount, stated
    for side in (4, 6):
        path = folder / "teccl" / "examples" / "schedules" / f"mesh_{side}.json"
        network = machine(te_ccl.mesh, side, "mesh of joined rows")()
        yield "TE-CCL", path, network, "all_gather", te_ccl.MESH_BYTES * side * side, None


def msccl_cases(folder: Path) -> Iterator[Case]:
    """Algorithms for a box of eight A100."""
    names = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
    network = gw.topology.from_spec("a100")
    for path in sorted((folder / "tools" / "msccl-algorithms" / "ndv4").glob("*.xml")):
        found = re.search(r'coll="(\w+)"', path.read_text())
        assert found is not None
        yield "MSCCL", path, network, names[found[1]], 10**9, None


def forest_coll_cases(folder: Path) -> Iterator[Case]:
    """Trees of one and two boxes of eight A100."""
    for name, spec in (("a100_1", "a100"), ("a100_2", "a100:boxes=2,rails=2")):
        network = gw.topology.from_spec(spec)
        for collective in ("all_gather", "all_reduce"):
            yield "ForestColl", folder / "trees" / f"{name}.xml", network, collective, 10**9, None


def judged(case: Case) -> dict[str, Any]:
    """What comes of a file."""
    tool, path, network, collective, size, stated = case
    row: dict[str, Any] = {"tool": tool, "file": "/".join(path.parts[-5:])}
    row |= {"network": network.name, "collective": collective, "bytes": size}
    row |= {"stated_s": stated}
    demand = None
    if collective == "all_to_all":
        demand = demand_of(network, [Job(collective, size)])
    begun = time.process_time()
    try:
        made = imported(path.read_bytes(), path.name, network, collective, demand, size)
        data = json.loads(to_bytes(made))
        there = checker.Network(data["topology"])
        asked = checker.Asked(data["collective"], data.get("demand"), there)
        plan = checker.Plan(data, there, asked, False)
        unit = 1 if demand is not None else size
        taken = plan.seconds(there, unit, [0] * len(there.servers))
        row |= {"valid": True, "rounds": plan.rounds, "seconds": taken}
        row |= {"pieces": made.pieces, "transfers": made.num_transfers}
    except (GradweaveError, checker.Wrong) as error:
        row |= {"valid": False, "why": str(error).removeprefix(f"{path.name}: ")}
    return row | {"processor_s": round(time.process_time() - begun, 2)}


def as_solved(case: Case) -> dict[str, Any]:
    """What comes of a file of NDv2 on the network that it takes it for, GPU 0 a switch."""
    tool, path, _, collective, size, stated = case
    network = te_ccl.ndv2_as_solved(2).topology("NDv2, 2 boxes, GPU 0 a switch")
    return judged((tool, path, network, collective, size, stated))


def main() -> None:
    asking = parser_of(__doc__)
    asking.add_argument("--others", type=Path, default=Path("others"))
    asked = asking.parse_args()
    cases = [
        *te_ccl_cases(asked.others / "TE-CCL"),
        *msccl_cases(asked.others / "msccl-scheduler"),
        *forest_coll_cases(asked.others / "ForestColl"),
    ]
    rows = [judged(case) for case in cases]
    solved = [as_solved(case) for case in cases if "NDv2_output/2" in str(case[1])]
    tools = tools_of(rows, solved)
    for row in tools:
        show(row)
    record("library_imports", tools=tools, rows=rows, as_solved=solved)


def tools_of(rows: list[dict[str, Any]], solved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many files of each kind are valid."""
    boxes = {"DGX2_output": "DGX-2, two boxes", "NDv2_output/2": "NDv2, two boxes"}
    boxes |= {"NDv2_output/4": "NDv2, four boxes", "schedules": "meshes"}
    kinds = [("TE-CCL", f"{name}", part) for part, name in boxes.items()]
    kinds += [("MSCCL", "one box of eight A100", ""), ("ForestColl", "boxes of eight A100", "")]
    found = []
    for tool, what, part in kinds:
        some = [row for row in rows if row["tool"] == tool and part in row["file"]]
        found.append({"tool": tool, "network": what, "files": len(some)})
        found[-1]["valid"] = sum(row["valid"] for row in some)
    valid = sum(row["valid"] for row in solved)
    beside = {"tool": "TE-CCL", "network": "NDv2, two boxes, GPU 0 a switch"}
    return [*found, {**beside, "files": len(solved), "valid": valid}]


if __name__ == "__main__":
    main()
