"""One server of a lab: a process in a network namespace that carries out tasks.

Each task is a JSON object, and so is its answer.
"""

import os
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from pyroute2 import netns

from gradweave.execute.torch_distributed.backend import Collective
from gradweave.execute.torch_distributed.gloo_messages import Pair, pair
from gradweave.lab.work import AllReduce, Exchange, OwnCalls, Work
from gradweave.processes.parent import Parent
from gradweave.schedules.file import load


class LabServer:
    """A server's state between tasks."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._works: list[Work] = []

    def prepare(self, task: dict[str, Any]) -> dict[str, Any]:
        """Connects to all other servers and runs once, to check the result."""
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
        work = self._work(task, pairs)
        work.run()
        self._works.append(work)
        return {"correct": work.right()}

    def _work(self, task: dict[str, Any], pairs: list[Pair]) -> Work:
        if task["own"] is not None:
            return OwnCalls.of(task["own"], self._rank)
        if task["file"] is None:
            return AllReduce(self._rank, self._size, task["elements"], None)
        schedule, channel = load(task["file"]), np.array(task["channel"], np.int64)
        collective = Collective(schedule, channels=(pairs, channel))
        if schedule.demand is not None:
            return Exchange(collective, int(schedule.topology.servers[self._rank]))
        return AllReduce(self._rank, self._size, task["elements"], collective)

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """Runs once, at a time by the clock that all processes of the machine share."""
        work = self._works[task["work"]]
        before = work.sent_bytes()
        while (left := task["at"] - time.monotonic()) > 0:
            time.sleep(max(left - 1e-3, 0))
        start = time.monotonic()
        work.run()
        return {
            "start": start,
            "end": time.monotonic(),
            "sent_bytes": work.sent_bytes() - before,
        }

    def finish(self, _task: dict[str, Any]) -> dict[str, Any]:
        """Closes all connections."""
        self._works = []
        dist.destroy_process_group()
        return {}


def main(namespace: str, rank: int, size: int) -> None:
    """Carries out tasks until the lab ends."""
    netns.setns(namespace, flags=0)  # does not create the namespace if the lab is gone
    torch.set_num_threads(1)
    Parent().serve(LabServer(rank, size))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
