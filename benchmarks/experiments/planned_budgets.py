"""60 networks that no choice was made on: what learning adds to `planned`, at each effort.

    taskset -c 0 python benchmarks/experiments/planned_budgets.py [--resume] [--part N]

Networks of benchmarks/unequal_networks.py of the seeds below, which were written down before
anything was measured on them; wide areas (sites drawn from GÉANT's) and two halves are of kinds
that the training has none of. benchmarks/plans/ holds the weights of `planned_training.py`, trained
with three seeds each: messages0 to messages2, and with --constants constants0 to constants2, eleven
numbers that as many plans were spent on. Gaps are to the certified bound; gradients have 25 MB,
256 MB and 4 GB.

At 50 ms one plan is decoded; beyond, plans are drawn around it. Its parts: what is decided of each
server and link (*upper*: shares and duals) or of the whole network (*whole*: how trees grow, and
the order) is the message passing's, and the rest the constants'. Beside them decisions of 0, random
ones, and `packed` in as much time. At 3 s seed 0 alone, for 256 MB, on 18 of the networks.

Two processes, with --part 0 and 1, share the networks; what they have done is kept, and a run
without it, with --resume, adds what is missing and records.
"""

import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.intervals import mean_between
from benchmarks.record import record, show
from benchmarks.timing import timed
from benchmarks.unequal_networks import KINDS, SMALL_LATENCY, drawn_sites
from benchmarks.unfinished import Unfinished
from gradweave.bounds import least_seconds
from gradweave.common.stop import Stop
from gradweave.learning.policies.plan import Weights, decided, read_weights
from gradweave.schedulers import Packed
from gradweave.schedulers.greedy.decisions import Decisions, graph_of, noise, plain, proposal_of
from gradweave.schedulers.greedy.decoding import EFFORT_S, Wiring, decode
from gradweave.schedulers.greedy.search import search
from gradweave.simulator import seconds

SEED, EACH, TRAININGS = 2040, 10, 3
SIZES = (25e6, 256e6, 4e9)
SEARCHED_S = 0.5
LONG_S, LONG_SIZE, LONG_NUMBERS = 3.0, 256e6, 3
PLANS = Path(__file__).parents[1] / "plans"
COMMAND = "taskset -c 0 python benchmarks/experiments/planned_budgets.py"
ABOUT = ("kind", "number", "gradient_bytes")


def networks() -> Iterable[tuple[str, int, gw.Topology]]:
    """Kind, number and network."""
    for number in range(EACH):
        for kind, make in KINDS.items():
            yield kind, number, (make or drawn_sites)(np.random.default_rng([SEED, number]))


def plans(wiring: Wiring, weights: dict[str, Weights], number: int) -> dict[str, Decisions]:
    """The first plans that are compared, by name."""
    rng = np.random.default_rng([SEED, number, 1])
    found = {"zero": plain(wiring), "random": noise(graph_of(wiring), rng)}
    found |= {name: decided(wiring, one) for name, one in weights.items()}
    for seed in range(TRAININGS):
        full, same = found[f"messages {seed}"], found[f"constants {seed}"]
        found[f"upper {seed}"] = full._replace(whole=same.whole)
        found[f"whole {seed}"] = same._replace(whole=full.whole)
    return found


def measure(
    topology: gw.Topology, size: float, weights: dict[str, Weights], number: int
) -> dict[str, Any]:
    """Gaps of one network and size, by plan and effort."""
    least = least_seconds(topology, size)
    wiring = Wiring(topology, "all_reduce", size)
    row: dict[str, Any] = {"latency_share": least.latency_s / least.seconds}
    first, spent = plans(wiring, weights, number), []
    for name, plan in first.items():
        took, found = timed(
            lambda plan=plan: decode(wiring, proposal_of(wiring, plan)), time.process_time
        )
        row[f"{name}, {EFFORT_S:g} s"] = found.seconds / least.seconds - 1
        spent.append(took)
    row["ms"] = 1e3 * statistics.median(spent)
    searched = [name for name in first if name.split()[0] in ("zero", "messages", "constants")]
    efforts = {SEARCHED_S: searched}
    if size == LONG_SIZE and number < LONG_NUMBERS:
        efforts[LONG_S] = ["zero", "messages 0", "constants 0"]
    for effort_s, names in efforts.items():
        spent = []
        for name in names:
            took, found = timed(
                lambda plan=first[name], effort_s=effort_s: search(
                    wiring, plan, effort_s, 0, Stop()
                ),
                time.process_time,
            )
            row[f"{name}, {effort_s:g} s"] = found.seconds / least.seconds - 1
            spent.append(took)
        row[f"ms, {effort_s:g} s"] = 1e3 * statistics.median(spent)
        packed = Packed(gradient_bytes=size).schedule(topology, time_limit=effort_s)
        row[f"packed, {effort_s:g} s"] = seconds(packed, size, "events") / least.seconds - 1
    return row


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean gaps by plan and effort; networks count alike, as do seeds."""
    small = [row for row in rows if row["latency_share"] < SMALL_LATENCY]
    groups = {kind: [row for row in small if row["kind"] == kind] for kind in KINDS}
    groups |= {"all where latency is small": small, "all": rows}
    return [
        {"rows": name, "count": len(group), "effort_s": effort_s, **of(group, effort_s)}
        for name, group in groups.items()
        for effort_s in (EFFORT_S, SEARCHED_S, LONG_S)
    ]


def of(rows: list[dict[str, Any]], effort_s: float) -> dict[str, Any]:
    """Means of a group at an effort, and what messages gain on constants, with its interval."""
    end = f", {effort_s:g} s"
    rows = [row for row in rows if f"zero{end}" in row]
    names = sorted({key[: -len(end)] for row in rows for key in row if key.endswith(end)} - {"ms"})
    kinds = {name: name.split()[0] for name in names}
    line: dict[str, Any] = {"cases": len(rows)}
    by_network: dict[str, dict[Any, list[float]]] = {kind: {} for kind in kinds.values()}
    for row in rows:
        for name in names:
            places = by_network[kinds[name]].setdefault((row["kind"], row["number"]), [])
            places.append(row[name + end])
    for kind, gaps in by_network.items():
        line[kind] = statistics.mean(gap for one in gaps.values() for gap in one)
    for kind in ("messages", "upper", "whole", "constants"):
        seeds = [name for name in names if kinds[name] == kind]
        line[f"{kind}_by_seed"] = [
            statistics.mean(row[name + end] for row in rows) for name in seeds
        ]
    rng = np.random.default_rng(0)
    for kind in ("messages", "upper", "whole"):
        if kind not in by_network:
            continue
        gains = np.array(
            [
                np.mean(by_network["constants"][place]) - np.mean(gaps)
                for place, gaps in by_network[kind].items()
            ]
        )
        line[f"{kind}_gain"] = float(gains.mean())
        line[f"{kind}_gain_between"] = mean_between(gains, rng)
    return line


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--part", type=int, choices=(0, 1), help="every second network alone")
    asked = parser.parse_args()
    weights = {
        f"{policy} {seed}": read_weights(str(PLANS / f"{policy}{seed}.safetensors"))
        for policy in ("messages", "constants")
        for seed in range(TRAININGS)
    }
    parts = [0, 1] if asked.part is None else [asked.part]
    rows: list[dict[str, Any]] = []
    for part in parts:
        kept = Unfinished(f"planned_budgets.{part}", COMMAND, resume=asked.resume)
        done = {tuple(row[key] for key in ABOUT) for row in kept.rows()}
        for kind, number, topology in networks():
            if number % 2 != part:
                continue
            for size in SIZES:
                if (kind, number, size) in done:
                    continue
                row = dict(zip(ABOUT, (kind, number, size), strict=True))
                row |= {"network": topology.name, "servers": topology.num_servers}
                row |= measure(topology, size, weights, number)
                kept.add(row)
                show(row)
        rows += kept.rows()
    if asked.part is None:
        record(
            "planned_budgets",
            COMMAND,
            seeds=[SEED],
            summaries=summaries(rows),
            rows=rows,
        )
        for part in parts:
            Unfinished(f"planned_budgets.{part}", COMMAND, resume=True).end()


if __name__ == "__main__":
    main()
