"""DDP on the backend gradweave, whose rank 1 is killed, in processes forked from one with PyTorch.

    python -m tests.execute.torch_lost_cases FOLDER

All gradients go by the plan FOLDER/plan.json. Each rank that is left writes to FOLDER/RANK.json
which error ``loss.backward()`` raised, without a hook and with a communication hook of PyTorch's.
"""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from gradweave.errors import LostServerError
from tests.execute.forked import forked
from tests.execute.torch_backend_cases import all_by_plan

SIZE, LOST = 3, 1


def process(rank: int, folder: Path, hooked: bool) -> None:
    all_by_plan()
    torch.set_num_threads(1)
    os.environ["GRADWEAVE_PLAN"] = str(folder / "plan.json")
    store = f"file://{folder}/store-{hooked}"
    dist.init_process_group("gradweave", init_method=store, rank=rank, world_size=SIZE)
    layers = [torch.nn.Linear(32, 32) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.001)
    if hooked:
        model.register_comm_hook(None, fp16_compress_hook)
    for step in range(4):
        loss = model(torch.ones(4, 32)).square().mean()
        if (rank, step) == (LOST, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            loss.backward()
        except LostServerError as lost:
            report = {"rank": lost.rank, "step": step}
            (folder / f"{rank}-{hooked}.json").write_text(json.dumps(report))
            return


def main(folder: Path) -> int:
    status = 0
    for hooked in (False, True):
        ended = forked(SIZE, partial(process, folder=folder, hooked=hooked))
        status |= max(ended[:LOST] + ended[LOST + 1 :])
    return status


if __name__ == "__main__":
    sys.exit(bool(main(Path(sys.argv[1]))))
