"""Rules for the pieces that the improvement leaves out: by size, at random, by chains, learned.

    taskset -c 0 python benchmarks/experiments/fewer_pieces.py [--resume]

Every rule improves the same schedules, those of `gradweave.solve` at 25 MB with a limit of 6 s, on
networks that no choice was made on: direct links at 100, 200 or 400 Gbit/s as in `improvement.py`,
and unequal networks. Each gets 15 s of processor time, compilation left out.

- ``none``: only sizes and orders change;
- ``smallest``: roughly by size, which is what ships;
- ``any``: at random;
- ``chains``: those with the fewest bytes for each message on a chain of transfers that ends late;
- ``bandit``: one of these three at random, with probabilities that follow the gains so far on this
  network (exponential weights, Auer et al., "The nonstochastic multiarmed bandit problem", 2002).

``gain`` is the share of the schedule's time that is saved; the interval is of the mean difference
from ``smallest``, by the bootstrap over networks.
"""

import statistics
import time
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.intervals import mean_between
from benchmarks.record import record, show
from benchmarks.unequal_networks import unequal_network
from benchmarks.unfinished import Unfinished
from gradweave.common.stop import Stop
from gradweave.schedulers.improving.improve import Steps, improved
from gradweave.simulator import seconds

NAME = "fewer_pieces"
SIZE = 25e6
START_S, LIMIT_S = 6.0, 15.0
FIRST = 20261215
DIRECT = ("complete:8", "hypercube:4", "torus:4x4", "torus:4x5", "mesh:3x3x3", "mesh:4x4")
RULES = ("none", "smallest", "any", "chains", "bandit")
ARMS = RULES[1:4]
RATE = 0.3
"""Of the bandit's weights."""


class Rule:
    """Says which pieces to leave out first, and learns from what that gained."""

    def __init__(self, name: str) -> None:
        self._name, self._weight = name, dict.fromkeys(ARMS, 1.0)
        self._smallest, self._step = Steps.leave_first, Steps.with_fewer_pieces
        self._drawn = name

    def leave_first(self, steps: Any, state: Any) -> NDArray[np.int64]:
        name = self._drawn
        if name == "smallest":
            return self._smallest(steps, state)
        if name == "any":
            return steps._rng.permutation(len(state.size))
        messages = (state.replay.chains(state.size).per_byte > 0).sum(axis=0)
        return np.argsort(state.size / (1 + messages), kind="stable")

    def step(self, steps: Any, state: Any) -> Any:
        if self._name == "bandit":
            whole = sum(self._weight.values())
            chances = [one / whole for one in self._weight.values()]
            self._drawn = str(steps._rng.choice(ARMS, p=chances))
        found = state if self._name == "none" else self._step(steps, state)
        if self._name == "bandit":
            gained = found.seconds < state.seconds
            whole = sum(self._weight.values())
            chance = self._weight[self._drawn] / whole
            self._weight[self._drawn] *= np.exp(RATE * gained / chance / len(self._weight))
        return found


def networks() -> list[gw.Topology]:
    from benchmarks.experiments.improvement import direct

    made = [direct(spec, FIRST + place) for place, spec in enumerate(DIRECT)]
    return made + [unequal_network(FIRST + place)[1] for place in range(6)]


def measure(network: gw.Topology, turn: int) -> dict[str, Any]:
    start = gw.solve(network, objective="seconds", gradient_bytes=SIZE, seed=0, time_limit=START_S)
    begun_s = seconds(start.schedule, SIZE, "events")
    row: dict[str, Any] = {"network": network.name, "servers": network.num_servers}
    row |= {"gap": start.gap, "pieces": start.schedule.pieces}
    for name in (RULES[(turn + k) % len(RULES)] for k in range(len(RULES))):
        rule, least_s, left = Rule(name), begun_s, start.schedule.pieces
        with (
            mock.patch.object(Steps, "leave_first", lambda *asked, r=rule: r.leave_first(*asked)),
            mock.patch.object(Steps, "with_fewer_pieces", lambda *asked, r=rule: r.step(*asked)),
        ):
            for one in improved(start.schedule, SIZE, seed=1, stop=Stop.after(LIMIT_S)):
                least_s, left = seconds(one, SIZE, "events"), one.pieces
        row[name], row[f"{name}_pieces"] = 1 - least_s / begun_s, left
    return row


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    kept = Unfinished(NAME, resume=parser.parse_args().resume)
    every = networks()
    gw.solve(every[0], objective="seconds", gradient_bytes=1e6, time_limit=START_S)  # compiles
    time.monotonic = time.process_time  # of which time limits are, from here on
    for turn, network in enumerate(every):
        if any(row["network"] == network.name for row in kept.rows()):
            continue
        kept.add(measure(network, turn))
        show(kept.rows()[-1])
    rows = kept.rows()
    summaries = []
    for name in RULES:
        more = [row[name] - row["smallest"] for row in rows]
        low, high = mean_between(more, np.random.default_rng(0))
        gain = statistics.mean(row[name] for row in rows)
        summaries.append({"rule": name, "gain": gain, "more_low": low, "more_high": high})
        show(summaries[-1])
    record(NAME, seeds=[0, 1], limit_s=LIMIT_S, summaries=summaries, rows=rows)
    kept.end()


if __name__ == "__main__":
    main()
