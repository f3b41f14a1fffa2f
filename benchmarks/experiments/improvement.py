"""Gains from the improvement of order, of piece sizes and of both, at 25 MB.

    taskset -c 0 python benchmarks/experiments/improvement.py [--resume]

`gradweave.solve` with ``objective="seconds"`` and its defaults, with parts of the improvement left
out, on networks that no choice was made on: 12 of benchmarks/unequal_networks.py, and 12 of direct
links at 100, 200 or 400 Gbit/s with 2 us latency and 1.25 us for each message. The limit is
processor time of one process, compilation left out; variants take turns. ``gap`` is over the
largest bound that any variant proved for the schedule that it found.
"""

import contextlib
import dataclasses
import statistics
import time
from typing import Any
from unittest import mock

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import record, show
from benchmarks.unequal_networks import unequal_network
from benchmarks.unfinished import Unfinished
from gradweave.schedulers.improving.improve import Steps
from gradweave.schedulers.solving.strategy_search import Search

NAME = "improvement"
SIZE = 25e6
LIMIT_S = 10.0
SEED, FIRST = 0, 20261129
RATES = (100, 200, 400)
"""In Gbit/s."""
DIRECT = ("complete:8", "hypercube:4", "torus:4x4", "torus:4x5", "mesh:3x3x3", "mesh:4x4")
VARIANTS = ("none", "order", "sizes", "both")


def networks() -> list[tuple[str, gw.Topology]]:
    made = [("links in ms", unequal_network(FIRST + place)[1]) for place in range(12)]
    return made + [("direct", direct(DIRECT[place // 2], FIRST + place)) for place in range(12)]


def direct(spec: str, seed: int) -> gw.Topology:
    """A network whose links have rates drawn from `RATES`, the same in both directions."""
    network, rng = gw.topology.from_spec(spec), np.random.default_rng(seed)
    ends = np.sort([network.source, network.target], axis=0)
    _, pair = np.unique(ends, axis=1, return_inverse=True)
    rate = rng.choice(RATES, pair.max() + 1)[pair.reshape(-1)] * 125e6
    return dataclasses.replace(
        network,
        name=f"{spec}, rates of seed {seed}",
        bandwidth_bytes_per_s=rate,
        latency_s=np.full(len(rate), 2e-6),
        overhead_s=np.full(len(rate), 1.25e-6),
    )


def without(variant: str) -> contextlib.ExitStack:
    """Leaves out what is not in the variant."""
    left_out = contextlib.ExitStack()
    # results/fewer_pieces.json is about this step.
    left_out.enter_context(mock.patch.object(Steps, "with_fewer_pieces", lambda _, state: state))
    if variant == "none":
        left_out.enter_context(mock.patch.object(Search, "improve", lambda *_: None))
    for name, step in (("order", "with_other_sizes"), ("sizes", "in_other_order")):
        if variant == name:
            left_out.enter_context(mock.patch.object(Steps, step, lambda _, state: state))
    return left_out


def measure(kind: str, network: gw.Topology, turn: int) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": kind, "network": network.name, "servers": network.num_servers}
    found = {}
    for variant in (VARIANTS[(turn + k) % len(VARIANTS)] for k in range(len(VARIANTS))):
        with without(variant):
            found[variant] = gw.solve(
                network, objective="seconds", gradient_bytes=SIZE, seed=SEED, time_limit=LIMIT_S
            )
    least = max(one.value / (1 + one.gap) for one in found.values())
    for variant, one in found.items():
        row[variant] = one.value / least - 1
        row[f"{variant}_s"] = one.wall_s
    return row | {"winner": found["both"].scheduler.name}


def summary(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    gaps = {name: statistics.mean(row[name] for row in rows) for name in VARIANTS}
    spent = {f"{name}_s": statistics.mean(row[f"{name}_s"] for row in rows) for name in VARIANTS}
    worst = max(row["both"] for row in rows)
    return {"kind": kind, "networks": len(rows), **gaps, **spent, "worst": worst}


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    asked = parser.parse_args()
    kept = Unfinished(NAME, resume=asked.resume)
    every = networks()
    for _, network in (every[0], every[-1]):
        gw.solve(network, objective="seconds", gradient_bytes=1e6, time_limit=LIMIT_S)  # compiles
    time.monotonic = time.process_time  # of which time limits are, from here on
    for turn, (kind, network) in enumerate(every):
        if any(row["network"] == network.name for row in kept.rows()):
            continue
        kept.add(measure(kind, network, turn))
        show(kept.rows()[-1])
    rows = kept.rows()
    kinds = dict.fromkeys(row["kind"] for row in rows)
    summaries = [summary(kind, [row for row in rows if row["kind"] == kind]) for kind in kinds]
    summaries.append(summary("all", rows))
    for one in summaries:
        show(one)
    record(NAME, seeds=[SEED], limit_s=LIMIT_S, summaries=summaries, rows=rows)
    kept.end()


if __name__ == "__main__":
    main()
