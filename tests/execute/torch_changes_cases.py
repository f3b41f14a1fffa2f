"""A job of three ranks in which messages between ranks 0 and 1 seem slow, in forked processes.

    python -m tests.execute.torch_changes_cases FOLDER

The rates are made up; reports, location, search, votes and trials are real. Each rank writes the
calls after which its plans changed to FOLDER/RANK.json, with the last result.
"""

import json
import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist

from gradweave.torch import changes, choice, plans, rates
from tests.execute.forked import forked

SIZE, ELEMENTS = 3, 1 << 16
SLOW_AFTER = 40
"""Calls by the first plan until rates change."""
PATIENCE_S = 60.0
QUICK = {0: 1.0, 1: 1.0, 2: 1.0}
SLOW = [QUICK | {1: 0.25}, QUICK | {0: 0.25}, QUICK]
"""By rank, the ratios of its messages' rates, by receiver."""


class Rates(rates.SentRates):
    """Rates that the case sets."""

    now: ClassVar[dict[int, float]] = {}

    def ratios(self) -> dict[int, float]:
        return dict(Rates.now)

    @property
    def slower(self) -> bool:
        return min(Rates.now.values(), default=1.0) < rates.LOW

    @property
    def faster(self) -> bool:
        return max(Rates.now.values(), default=1.0) > rates.HIGH


def process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    changes.SentRates = Rates
    changes.TICK_S, changes.SETTLE_S = 0.05, 0.2
    choice.RECURS, choice.VOTE_EVERY, choice.VOTE_S = 1, 2, 0.05
    plans.AGAIN_S, of_group = 1, plans.Sources.of_group
    plans.Sources.of_group = lambda *of: replace(of_group(*of), search_s=1, first=False)
    plans.Plans.hopeless = lambda self, plan, of: None
    plans.Plans.measured_cost = lambda self, plan, of, timed: 1
    os.environ |= {"GRADWEAVE_TOPOLOGY": "complete:3,bandwidth=1Gbit/s", "GRADWEAVE_REPLAN": "1"}
    os.environ["GRADWEAVE_CACHE"] = str(folder / "plans")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log = logging.getLogger("gradweave")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    store = f"file://{folder}/store"
    dist.init_process_group("gradweave", init_method=store, rank=rank, world_size=SIZE)
    group, tensor, end = dist.group.WORLD, torch.empty(ELEMENTS), torch.zeros(1)
    until, begun, stages, last = time.monotonic() + PATIENCE_S, 0, [], None
    for call in range(1 << 20):
        tensor.fill_(rank + 1)
        dist.all_reduce(tensor)
        assert (tensor == 6).all(), call
        (one, *_) = [x for x in group.choices.listed() if x.size == 4 * ELEMENTS]  # type: ignore[union-attr]
        if (one.stage.name, one.change) != last:
            last = one.stage.name, one.change
            stages.append([call, *last])
        if one.stage.name in ("PLAN", "OWN"):
            begun = begun or call + SLOW_AFTER
        if begun and call == begun:
            Rates.now = SLOW[rank]
        if one.change == 1:
            Rates.now = {}
        if call % 10 == 0:
            done = one.stage.name in ("PLAN", "OWN") and one.change == 1
            end.fill_(float(done or time.monotonic() > until))
            dist.all_reduce(end, dist.ReduceOp.MAX)
            if end.item():
                break
    (folder / f"{rank}.json").write_text(json.dumps({"stages": stages, "lines": lines}))


def main(folder: Path) -> int:
    return max(forked(SIZE, lambda rank: process(rank, folder)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
