"""A job of two ranks that records its calls, in processes forked from one that has PyTorch.

    python -m tests.execute.torch_waiting_cases FOLDER

Rank 1 sleeps for longer than the patience; then come calls of many kinds, in a smaller group too,
by a plan and by gloo. Each rank writes what it logged, and which threads were left.
"""

import json
import logging
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.execute.forked import forked
from tests.execute.torch_backend_cases import KEPT, all_by_plan

SIZE = 2


def calls(rank: int) -> None:
    """One of each kind."""
    ones, parts = torch.ones(8), [torch.zeros(8) for _ in range(SIZE)]
    dist.all_reduce(ones)
    dist.broadcast(ones, 1)
    dist.reduce(ones, 0)
    dist.all_gather(parts, ones)
    dist.gather(ones, parts if rank == 0 else None)
    dist.scatter(ones, parts if rank == 0 else None)
    dist.all_to_all_single(torch.zeros(8), ones)
    dist.reduce_scatter(torch.zeros(8), parts)
    dist.barrier()
    if rank:
        dist.send(ones, 0)
    else:
        dist.recv(ones, 1)
    both = dist.new_group([1, 0], backend="gradweave")
    dist.all_reduce(ones, dist.ReduceOp.MAX, group=both)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(4, 4)).sum().backward()
    KEPT.append(model)
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3)]
    for work in works:
        assert work is not None
        work.wait()


def process(rank: int, folder: Path) -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("gradweave").addHandler(handler)
    torch.set_num_threads(1)
    all_by_plan()
    os.environ |= {"GRADWEAVE_SLOW_AFTER": "0.5", "GRADWEAVE_TRACE": str(folder / "calls")}
    os.environ["GRADWEAVE_PLAN"] = str(folder / "plan.json")
    store = f"file://{folder}/store"
    dist.init_process_group("gradweave", init_method=store, rank=rank, world_size=SIZE)
    dist.all_reduce(torch.ones(100))
    if rank:
        time.sleep(4)
    dist.all_reduce(torch.ones(100))
    calls(rank)
    dist.destroy_process_group()
    left = [one.name for one in threading.enumerate() if one.name == "gradweave-monitor"]
    (folder / f"{rank}.json").write_text(json.dumps({"said": said, "left": left}))


def main(folder: Path) -> int:
    return max(forked(SIZE, lambda rank: process(rank, folder)))


if __name__ == "__main__":
    sys.exit(bool(main(Path(sys.argv[1]))))
