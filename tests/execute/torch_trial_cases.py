"""A job of three ranks, of which the last is killed during a trial, in forked processes.

    python -m tests.execute.torch_trial_cases FOLDER

Each remaining rank writes the error of its call to FOLDER/RANK.json, with the group's calls so far.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gradweave.torch import choice, offers, plans
from gradweave.torch.calls import SizeClass
from tests.execute.forked import forked

SIZE = 3
BEFORE = 5
"""Calls of the trial before the call by gloo in which a rank is lost."""


def process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    state = offers.Offers.state

    def ready(self: offers.Offers, of: SizeClass) -> int:
        while not state(self, of):
            time.sleep(0.005)
        return state(self, of)

    choice.RECURS, choice.VOTE_EVERY, choice.VOTE_FOR = 1, 0, 0
    offers.Offers.state = ready
    plans.Plans.hopeless = lambda self, plan, of: None
    os.environ["GRADWEAVE_PLAN"] = str(folder / "plan.json")
    store = f"file://{folder}/store"
    dist.init_process_group("gradweave", init_method=store, rank=rank, world_size=SIZE)
    group = dist.group.WORLD
    for call in range(BEFORE):
        ones = torch.ones(100)
        dist.all_reduce(ones)
        assert ones[0] == SIZE, call
    stage = group.choices.listed()[0].stage.name  # type: ignore[union-attr]
    if rank == SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(2):  # it may have done its part of the first call
            dist.all_reduce(torch.ones(100))
    except Exception as error:
        said = {"kind": type(error).__name__, "text": str(error), "stage": stage}
        (folder / f"{rank}.json").write_text(json.dumps(said))


def main(folder: Path) -> int:
    forked(SIZE, lambda rank: process(rank, folder))  # the last is killed
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
