"""One server of a lab: a process in a network namespace that carries out tasks.

Each task is a JSON object, answered by one.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from pyroute2 import netns

from gradweave.execute.pattern import contribution, expected
from gradweave.execute.torch_distributed.backend import Collective
from gradweave.execute.torch_distributed.gloo_messages import Pair, pair
from gradweave.processes.parent import Parent
from gradweave.schedule.file import load


class LabServer:
    """A server's state between tasks."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._tensor = torch.empty(0)
        self._run: Callable[[], object] = lambda: None
        self._collective: Collective | None = None

    def prepare(self, task: dict[str, Any]) -> dict[str, Any]:
        """Connects to all others and runs once, to see whether the result is right."""
        pairs: list[Pair] = []
        for channel in task["interfaces"]:
            os.environ["GLOO_SOCKET_IFNAME"] = channel
            if not dist.is_initialized():
                dist.init_process_group(
                    "gloo",
                    init_method=f"file://{task['store']}",
                    rank=self._rank,
                    world_size=self._size,
                )
                group = dist.group.WORLD
            else:
                group = dist.new_group(backend="gloo")
            assert isinstance(group, dist.ProcessGroup)
            pairs.append(pair(group))
        self._tensor = torch.from_numpy(contribution(self._rank, task["elements"]))
        if task["file"] is None:
            self._run = lambda: dist.all_reduce(self._tensor)
        else:
            channel = np.array(task["channel"], np.int64)
            self._collective = Collective(load(task["file"]), channels=(pairs, channel))
            collective = self._collective
            self._run = lambda: collective(self._tensor)
        self._run()
        right = expected(self._size, task["elements"], "sum")
        return {"correct": bool((self._tensor.numpy() == right).all())}

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """Runs once, at a time of the clock that all processes of the machine share."""
        self._tensor.zero_()
        before = self._sent_bytes()
        while (left := task["at"] - time.monotonic()) > 0:
            time.sleep(max(left - 1e-3, 0))
        start = time.monotonic()
        self._run()
        return {
            "start": start,
            "end": time.monotonic(),
            "sent_bytes": self._sent_bytes() - before,
        }

    def finish(self, _task: dict[str, Any]) -> dict[str, Any]:
        """Closes all connections."""
        self._run = lambda: None
        self._collective = None
        dist.destroy_process_group()
        return {}

    def _sent_bytes(self) -> int:
        return int(self._collective.sent_bytes.sum()) if self._collective else 0


def main(namespace: str, rank: int, size: int) -> None:
    """Does tasks until the lab ends."""
    netns.setns(namespace, flags=0)  # and makes none where the lab is gone
    torch.set_num_threads(1)
    Parent().serve(LabServer(rank, size))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
