"""Two ranks that ask for gloo, or leave the choice to PyTorch, and what they get.

    python -m tests.execute.torch_default_cases FOLDER

Run with and without ``GRADWEAVE_DEFAULT``. Each way is tried in separate processes, forked from a
process that has loaded PyTorch; rank 0 writes the names of the groups' backends to
FOLDER/found.json.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import init_process_group
from torch.distributed.device_mesh import init_device_mesh

from tests.execute.forked import forked

SIZE = 2


def from_the_map() -> None:
    """The entry that a program can set itself, and that Lightning reads."""
    dist.Backend.default_device_backend_map["cpu"] = "gradweave"
    dist.init_process_group()


WAYS: dict[str, Callable[[], object]] = {
    "gloo": lambda: dist.init_process_group("gloo"),
    "keyword": lambda: init_process_group(backend="GLOO"),
    "none": lambda: dist.init_process_group(),
    "mesh": lambda: init_device_mesh("cpu", (SIZE,)),
    "devices": lambda: dist.init_process_group("cpu:gloo"),
    "map": from_the_map,
}


def process(folder: Path, way: str, rank: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = (folder / "port").read_text()
    WAYS[way]()
    ones = torch.ones(3)
    dist.all_reduce(ones)
    assert ones.tolist() == [SIZE] * 3
    group: Any = dist.new_group(backend="gloo")
    side = dist.get_backend(group)
    if rank == 0:
        found = folder / "found.json"
        known = json.loads(found.read_text()) if found.exists() else {}
        known[way] = [type(dist.group.WORLD).__name__, side]
        found.write_text(json.dumps(known))
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    status = 0
    for way in WAYS:
        made: Any = dist
        store = made.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (folder / "port").write_text(str(store.port))
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # so that rank 0 does not listen itself
        status |= max(forked(SIZE, partial(process, folder, way)))
    return int(bool(status))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
