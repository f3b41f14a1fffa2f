"""Is the planner as good and as fast as at an earlier commit? Both take turns, case by case.

    python benchmarks/experiments/gates.py COMMIT
    python benchmarks/experiments/gates.py COMMIT --tables unequal small --limit 5 --every 4

For changes of the planner that may change schedules; `same_schedules.py` is for those that must
not. COMMIT is checked out beside this tree, and must have this script. Two processes, one per tree,
solve every case with the defaults, the same seed and the same limit of processor time.

A table passes if the mean gap is at most 0.2 points above that of COMMIT, no case is more than 1 %
worse (2 % where another seed already moves COMMIT by more than 1 %), no bound is smaller and the
sum of processor seconds is at most 10 % larger. The exit status is 1 if a table fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradweave as gw
from benchmarks.box_networks import boxes
from benchmarks.cluster_networks import cluster_network
from benchmarks.command_line import parser_of
from benchmarks.experiments import (
    anytime,
    boxes_in_seconds,
    jobs_together,
    random_networks_gap,
    small_messages,
)
from benchmarks.random_networks import random_network
from benchmarks.record import show
from gradweave.schedules import Job
from gradweave.simulator import seconds
from gradweave.simulator.seconds import event_seconds

HERE = Path(__file__).resolve()
GAP, WORSE, WORSE_IF_UNSTABLE, SLOWER = 0.002, 0.01, 0.02, 0.1
ROUNDING = 1e-9
LIMIT_S = 20.0
EQUAL = (
    *("ring:8", "torus:4x4", "hypercube:4", "bcube:n=4,k=1", "dcell:n=4,k=1"),
    *(
        "jellyfish:reference=J15",
        "fat_tree:4",
        "dragonfly:groups=3,routers_per_group=2,servers_per_router=2",
    ),
)
Case = dict[str, Any]
"""The name of a case, and what `gradweave.solve` is asked for."""


def unequal() -> Iterator[Case]:
    for seed in range(2 * anytime.COUNT + len(anytime.NAMED)):
        network = anytime.network_of(seed)[1]
        for size in (25e6, anytime.SIZE):
            yield in_seconds(network, size)


def in_boxes() -> Iterator[Case]:
    for case in boxes_in_seconds.cases():
        if case["boxes"] <= 32:
            network = boxes(case["kind"], case["boxes"], case["fabric"], slow=case["slow"])
            yield in_seconds(network, case["gradient_bytes"])


def equal() -> Iterator[Case]:
    for spec in EQUAL:
        for size in (1e6, 1e8):
            yield in_seconds(gw.topology.from_spec(spec), size)


def small() -> Iterator[Case]:
    for network in small_messages.networks():
        for size in small_messages.SIZES:
            yield in_seconds(network, size)


def rounds() -> Iterator[Case]:
    for seed in range(random_networks_gap.COUNT):
        for network in (random_network(seed), cluster_network(seed)[1]):
            yield {"name": network.name, "network": network, "objective": "rounds"}


def jobs() -> Iterator[Case]:
    for case in jobs_together.CASES:
        part, spec, name, size = (case[key] for key in ("part", "network", "kind", "size"))
        network = gw.topology.from_spec(spec)
        if part == "mesh":
            asked = jobs_together.jobs_of(network, jobs_together.MESHES[spec], name, size)
        else:
            asked = [Job(name, size, root=int(network.servers[0]))]
        yield {"name": f"{spec} {name} {size:.0e}", "network": network, "jobs": asked}


TABLES: dict[str, Callable[[], Iterator[Case]]] = {
    "rounds": rounds,
    "unequal": unequal,
    "boxes": in_boxes,
    "equal": equal,
    "small": small,
    "jobs": jobs,
}


def in_seconds(network: gw.Topology, size: float) -> Case:
    return {
        "name": f"{network.name} {size:.0e}",
        "network": network,
        "objective": "seconds",
        "gradient_bytes": size,
    }


def serve() -> None:
    """Solves the cases that come on standard input, each as soon as it comes."""
    cases: dict[str, list[Case]] = {}
    for warm in (anytime.network_of(0)[1], gw.topology.from_spec("mesh:2x3")):
        gw.solve(warm, objective="seconds", gradient_bytes=1e6, time_limit=5)  # compiles
    gw.solve("mesh:2x3", jobs=[Job("all_reduce", 10**6), Job("all_to_all", 10**6)], time_limit=5)
    time.monotonic = time.process_time  # of which time limits are, from here on
    for line in sys.stdin:
        table, number, limit_s, seed = json.loads(line)
        asked = dict(cases.setdefault(table, list(TABLES[table]()))[number])
        name, network = asked.pop("name"), asked.pop("network")
        solution = gw.solve(network, **asked, seed=seed, time_limit=limit_s)
        schedule = solution.schedule
        if "jobs" in asked:
            value = float(event_seconds(schedule)[1].max())
        elif asked["objective"] == "seconds":
            value = seconds(schedule, asked["gradient_bytes"], "events")
        else:
            value = schedule.rounds
        row = {"name": name, "value": value, "gap": solution.gap, "seconds": solution.wall_s}
        print(json.dumps(row), flush=True)


def started(tree: Path) -> subprocess.Popen[str]:
    script = tree / HERE.relative_to(HERE.parents[2])
    return subprocess.Popen(
        [sys.executable, str(script), "serve", "--serve"],
        env={**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(server: subprocess.Popen[str], *asked: Any) -> dict[str, Any]:
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    line = server.stdout.readline()
    if not line:
        raise SystemExit(f"the process of {server.args[1]} ended")  # pyright: ignore
    return json.loads(line)


def judged(rows: list[dict[str, Any]], table: str) -> dict[str, Any]:
    """The figures of one table, and the conditions that fail."""
    mean = {tree: sum(row[tree]["gap"] for row in rows) / len(rows) for tree in ("base", "new")}
    spent = {tree: sum(row[tree]["seconds"] for row in rows) for tree in ("base", "new")}
    failures = []
    if mean["new"] > mean["base"] + GAP:
        failures.append(f"mean gap {mean['base']:.2%} to {mean['new']:.2%}")
    for row in rows:
        base, new, name = row["base"], row["new"], row["new"]["name"]
        worse = new["value"] / base["value"] - 1
        if worse > (WORSE_IF_UNSTABLE if row["unstable"] else WORSE):
            failures.append(f"{name} is {worse:.1%} worse")
        bounds = [one["value"] / (1 + one["gap"]) for one in (base, new)]
        if bounds[1] < bounds[0] * (1 - ROUNDING):
            failures.append(f"the bound of {name} is {1 - bounds[1] / bounds[0]:.2%} smaller")
    if spent["new"] > spent["base"] * (1 + SLOWER):
        failures.append(f"{spent['base']:.0f} s to {spent['new']:.0f} s of processor time")
    return {
        "table": table,
        "cases": len(rows),
        "base_gap": mean["base"],
        "new_gap": mean["new"],
        "base_s": spent["base"],
        "new_s": spent["new"],
        "better": sum(row["new"]["value"] < row["base"]["value"] * (1 - 1e-6) for row in rows),
        "worse": sum(row["new"]["value"] > row["base"]["value"] * (1 + 1e-6) for row in rows),
        "verdict": "; ".join(failures) or "passes",
    }


def compared(trees: dict[str, Any], table: str, limit_s: float, every: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(0, sum(1 for _ in TABLES[table]()), every):
        turns = ("base", "new") if number // every % 2 else ("new", "base")
        row: dict[str, Any] = {"unstable": False}
        for tree in turns:
            row[tree] = answer(trees[tree], table, number, limit_s, 0)
        if row["new"]["value"] > row["base"]["value"] * (1 + WORSE):
            again = answer(trees["base"], table, number, limit_s, 1)["value"]
            row["unstable"] = abs(again / row["base"]["value"] - 1) > WORSE
        rows.append(row)
        base, new = row["base"], row["new"]
        change = new["value"] / base["value"] - 1
        print(f"{table}: {new['name']}: {base['gap']:.2%} to {new['gap']:.2%} ({change:+.2%})")
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=list(TABLES))
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="processor seconds of a case")
    parser.add_argument("--every", type=int, default=1, help="every N-th case only")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve()
        return
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        git = ("git", "-C", str(HERE.parents[2]), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(base), asked.commit], check=True)
        try:
            trees = {"base": started(base), "new": started(HERE.parents[2])}
            verdicts = []
            for table in asked.tables:
                rows = compared(trees, table, asked.limit, asked.every)
                verdicts.append(judged(rows, table))
            for verdict in verdicts:
                show(verdict)
        finally:
            subprocess.run([*git, "remove", "--force", str(base)], check=True)
    sys.exit(any(verdict["verdict"] != "passes" for verdict in verdicts))


if __name__ == "__main__":
    main()
