"""DDP whose servers are killed and started again, forked from a process that holds the store.

    python -m tests.execute.torch_shrink_cases FOLDER CASE

Each process writes a line per step to FOLDER/RANK-START.jsonl: the step, whose gradients were
averaged, the digest of its parameters, and the time. `Job` kills and starts them.
"""

import contextlib
import faulthandler
import hashlib
import json
import logging
import os
import random
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradweave as gw
from gradweave.schedulers import Ring
from gradweave.torch import Returning, ddp_hook

WIDTH, RATE = 24, 0.05
TIMEOUT = timedelta(seconds=20)
NAME = "members"


def model() -> torch.nn.Module:
    """Several buckets, with batch normalization, in double precision."""
    torch.manual_seed(7)
    layers: list[torch.nn.Module] = []
    for _ in range(3):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1)).double()


def batch(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, WIDTH, generator=generator, dtype=torch.double)


def loss_of(made: Any, rank: int, step: int) -> torch.Tensor:
    x = batch(rank, step)
    return (made(x) - x.sum(1, keepdim=True)).square().mean()


def optimizer_of(made: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(made.parameters(), lr=RATE, momentum=0.9)


def vector(made: torch.nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().reshape(-1) for one in made.parameters()])


def digest(made: torch.nn.Module) -> str:
    return hashlib.sha256(vector(made).numpy().tobytes()).hexdigest()[:16]


def reference(averaged: list[list[int]]) -> torch.Tensor:
    """The parameters after steps that average the gradients of these ranks."""
    made = model()
    optimizer = optimizer_of(made)
    for step, ranks in enumerate(averaged):
        optimizer.zero_grad()
        for rank in ranks:
            (loss_of(made, rank, step) / len(ranks)).backward()
        optimizer.step()
    return vector(made)


def train(rank: int, size: int, port: int, start: int, folder: Path, steps: int) -> None:
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(25, exit=False)  # DEBUG
    logging.basicConfig(format=f"rank {rank}: %(message)s", level=logging.INFO)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)  # pyright: ignore
    if start:
        alone = dist.HashStore()  # pyright: ignore
        dist.init_process_group("gloo", store=alone, rank=0, world_size=1)
        place = Returning(store, rank, size, TIMEOUT)
    else:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        place = None
    module = model()
    made = DistributedDataParallel(module, bucket_cap_mb=0.004)
    optimizer = optimizer_of(module)
    schedule = Ring().schedule(gw.topology.complete(size))
    state: Any = ddp_hook(made, schedule, place, on_loss="shrink", optimizer=optimizer)
    with (folder / f"{rank}-{start}.jsonl").open("w") as file:
        while state.steps < steps and not (folder / "stop").exists():
            step = state.steps
            optimizer.zero_grad()
            loss_of(made, rank, step).backward()
            averaged, at = state.averaged, time.time()
            optimizer.step()
            file.write(json.dumps([step, list(averaged), digest(module), at]) + "\n")
            file.flush()
    torch.save(vector(module), folder / f"{rank}-{start}.pt")
    state.means.close()


class Job:
    """The processes of a job.

    Args:
        folder: for their files.
        size: number of servers.
        steps: number of steps to train.
    """

    def __init__(self, folder: Path, size: int, steps: int) -> None:
        self.folder, self.size, self._steps = folder, size, steps
        made: Any = dist
        self._store = made.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.children: dict[int, int] = {}
        self.starts = dict.fromkeys(range(size), -1)
        for rank in range(size):
            self.start(rank)

    def start(self, rank: int) -> None:
        self.starts[rank] += 1
        if child := os.fork():
            self.children[rank] = child
            return
        status = 1
        try:
            train(rank, self.size, self._store.port, self.starts[rank], self.folder, self._steps)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.children[rank], number)
        if number == signal.SIGKILL:
            os.waitpid(self.children.pop(rank), 0)

    def lines(self, rank: int) -> list[Any]:
        path = self.folder / f"{rank}-{self.starts[rank]}.jsonl"
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in path.read_text().splitlines() if line[-1:] == "]"]
        return []

    def wait_for(self, rank: int, steps: int, within_s: float = 30.0) -> float:
        """Waits until a rank has made that many more steps; returns the seconds."""
        begin, before = time.time(), len(self.lines(rank))
        while len(self.lines(rank)) < before + steps:
            if time.time() - begin > within_s:
                raise TimeoutError(f"rank {rank} made no step in {within_s:g} s")
            time.sleep(0.002)
        return time.time() - begin

    def end(self) -> list[int]:
        """Lets all end after their step; returns their exit statuses."""
        (self.folder / "stop").write_text("")
        return [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in self.children.values()]


def main(folder: Path, kills: int, returns: int, size: int, seed: int) -> int:
    rng = random.Random(seed)
    job = Job(folder, size, 100_000)
    job.wait_for(0, 1)
    for number in range(kills):
        rank = rng.choice(sorted(job.children))
        time.sleep(rng.uniform(0, 0.05))
        at = time.time()
        job.kill(rank)
        other = min(job.children)
        took = job.wait_for(other, 2)
        print(f"kill {number} of rank {rank}: {took:.2f} s", flush=True)
        if number < returns or len(job.children) < 3:
            job.start(rank)
            job.wait_for(rank, 1)
            print(f"  back after {time.time() - at:.2f}", flush=True)
    print(job.end())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *map(int, sys.argv[2:])))
