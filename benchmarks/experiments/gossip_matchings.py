"""Seconds until workers agree, by which of them average in which step, on networks that differ.

    taskset -c 0 python benchmarks/experiments/gossip_matchings.py

Networks of benchmarks/unequal_networks.py of the seed below, ten of each kind, of which none was
looked at while `fast_matchings` was written. Messages are of 4 MB; a step takes what its messages
take on their links (`exchange_seconds`), and steps follow each other until the largest disagreement
is a thousandth of the first.

- all neighbours: Metropolis–Hastings weights, the same in all steps.
- in turn: the matchings of an edge colouring, `MixingMatrix.in_matchings`.
- drawn: a matching drawn anew in each step, `changing_matchings`.
- MATCHA: the colouring's matchings, drawn with the probabilities by which they mix most a second:
  the largest λ₂ of the mean of (I − W), found by multiplicative weights (Wang et al. 2019, with
  seconds for their budget of matchings).
- chosen: `fast_matchings`.

Beside them an all-reduce of the same bytes, by the plan that half a second finds, after which all
agree exactly. Milliseconds of processor time to choose are those of the second call.
"""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.intervals import mean_between
from benchmarks.timing import timed
from benchmarks.unequal_networks import KINDS, drawn_sites
from gradweave.aggregate import (
    MixingMatrix,
    changing_matchings,
    exchange_seconds,
    fast_matchings,
)

SEED, EACH, BYTES, AGREED, STEPS = 2051, 10, 4e6, 1e-3, 20_000
PLAN_S, WEIGHTS_STEPS, WEIGHTS_RATE = 0.5, 2000, 0.5
CHOSEN = "chosen"


def matcha(topology: gw.Topology, colours: MixingMatrix, steps: int = 1024) -> MixingMatrix:
    """Colours drawn by the probabilities with the most λ₂ of the mean of (I − W) a second."""
    seconds = exchange_seconds(topology, colours, BYTES)
    apart = (np.eye(colours.workers) - colours.weights) / seconds[:, None, None]
    log_share = np.zeros(colours.period)
    total, best, best_mean = np.zeros(colours.period), -1.0, 0.0
    for _ in range(WEIGHTS_STEPS):
        share = np.exp(log_share - log_share.max())
        share /= share.sum()
        total += share
        for candidate in (share, total / total.sum()):
            values, vectors = np.linalg.eigh(np.tensordot(candidate, apart, 1))
            if values[1] > best_mean:
                best, best_mean = candidate.copy(), values[1]
        gain = np.einsum("i,tij,j->t", vectors[:, 1], apart, vectors[:, 1])
        log_share += WEIGHTS_RATE * gain / apart.max()
    probability = best / seconds
    probability /= probability.sum()
    drawn = np.random.default_rng(0).choice(colours.period, steps, p=probability)
    return MixingMatrix.of(colours.weights[drawn], "MATCHA")


def until_agreed(topology: gw.Topology, mixing: MixingMatrix) -> tuple[float, int]:
    """Seconds and steps."""
    of_step = exchange_seconds(topology, mixing, BYTES)
    left: NDArray[np.float64] = np.eye(mixing.workers) - 1 / mixing.workers
    seconds = 0.0
    for step in range(STEPS):
        left = mixing.weights[step % mixing.period] @ left
        seconds += of_step[step % mixing.period]
        if np.linalg.norm(left, 2) <= AGREED:
            return float(seconds), step + 1
    raise RuntimeError(f"{mixing}: no agreement after {STEPS} steps")


def measured(kind: str, number: int) -> dict[str, Any]:
    """One network's row."""
    make = KINDS[kind] or drawn_sites
    topology = make(np.random.default_rng([SEED, list(KINDS).index(kind), number]))
    colours = MixingMatrix.in_matchings(topology)
    fast_matchings(topology, BYTES)
    cost_s, chosen = timed(lambda: fast_matchings(topology, BYTES), time.process_time)
    mixings = {
        "all neighbours": MixingMatrix.metropolis_hastings(topology),
        "in turn": colours,
        "drawn": changing_matchings(topology, 1024),
        "MATCHA": matcha(topology, colours),
        CHOSEN: chosen,
    }
    agreed = {name: until_agreed(topology, one) for name, one in mixings.items()}
    plan = gw.solve(topology, objective="seconds", gradient_bytes=BYTES, time_limit=PLAN_S)
    return {
        "network": topology.name,
        "servers": topology.num_servers,
        "choice_ms": 1e3 * cost_s,
        "all_reduce_s": plan.timing.seconds,
        "period": chosen.period,
        "seconds": {name: seconds for name, (seconds, _) in agreed.items()},
        "steps": {name: steps for name, (_, steps) in agreed.items()},
    }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By method: how many times as long as by chosen matchings, with 95 % intervals."""
    rng, said = np.random.default_rng(0), []
    for method in rows[0]["seconds"]:
        ratio = np.array([row["seconds"][method] / row["seconds"][CHOSEN] for row in rows])
        low, high = np.exp(mean_between(np.log(ratio), rng))
        said.append(
            {
                "method": method,
                "times_as_long": float(np.exp(np.log(ratio).mean())),
                "low": float(low),
                "high": float(high),
                "least": float(ratio.min()),
                "most": float(ratio.max()),
                "steps": float(np.median([row["steps"][method] for row in rows])),
                "all_reduces": float(
                    np.median([row["seconds"][method] / row["all_reduce_s"] for row in rows])
                ),
            }
        )
    return said


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(kind=KINDS, number=range(EACH)), measured),
        finish=lambda rows: {"summary": summary(rows)},
        seed=SEED,
        message_bytes=BYTES,
    )
