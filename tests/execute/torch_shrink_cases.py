"""DDP and HSDP whose servers are killed and started again, forked from one process with the store.

    python -m tests.execute.torch_shrink_cases FOLDER ddp 3
    python -m tests.execute.torch_shrink_cases FOLDER hsdp 4

Each process writes a line per step to FOLDER/RANK-START.jsonl: the step, whose gradients were
averaged, a digest of its parameters, and the time. `Job` kills and starts processes.
"""

import contextlib
import gc
import hashlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import gradweave as gw
from gradweave.schedulers import Ring
from gradweave.torch import Returning, ddp_hook, fsdp_hooks
from tests.execute.forked import fork

WIDTH, RATE = 24, 0.002
TIMEOUT = timedelta(seconds=20)
SHARDS = 2
"""Servers of a replica under HSDP."""
Moment = tuple[int, int]
"""A step, and the number of its tensors that have been averaged."""
Made = tuple[Any, torch.nn.Module, torch.optim.Optimizer, Any]
"""What is called, the module, its optimizer, and its `Shrinking`."""


def model(kind: str) -> torch.nn.Sequential:
    """A model in double precision; under DDP, with buffers that DDP keeps equal."""
    torch.manual_seed(7)
    layers: list[torch.nn.Module] = []
    for _ in range(3):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
        if kind == "ddp":
            layers.append(torch.nn.BatchNorm1d(WIDTH))
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1)).double()


def batch(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, WIDTH, generator=generator, dtype=torch.double)


def loss_of(made: Any, rank: int, step: int) -> torch.Tensor:
    x = batch(rank, step)
    return (made(x) - x.sum(1, keepdim=True)).square().mean()


def optimizer_of(made: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(made.parameters(), lr=RATE, momentum=0.9)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().reshape(-1)


def vector(made: torch.nn.Module) -> torch.Tensor:
    return torch.cat([whole(one) for one in made.parameters()])


def digest(made: torch.nn.Module) -> str:
    every = [whole(one).numpy().tobytes() for one in made.state_dict().values()]
    return hashlib.sha256(b"".join(every)).hexdigest()[:16]


def reference(kind: str, averaged: list[list[int]]) -> torch.Tensor:
    """The parameters after steps that average the gradients of these ranks, in one process."""
    made = model(kind)
    optimizer = optimizer_of(made)
    for step, ranks in enumerate(averaged):
        optimizer.zero_grad()
        for rank in ranks:
            (loss_of(made, rank, step) / len(ranks)).backward()
        optimizer.step()
    return vector(made)


def ddp(rank: int, size: int, store: Any, returns: bool) -> Made:
    place = None
    if returns:
        alone: Any = dist.HashStore()  # pyright: ignore
        dist.init_process_group("gloo", store=alone, rank=0, world_size=1)
        place = Returning(store, rank, size, TIMEOUT)
    else:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    module = model("ddp")
    made = DistributedDataParallel(module, bucket_cap_mb=0.004)
    optimizer = optimizer_of(module)
    schedule = Ring().schedule(gw.topology.complete(size))
    state: Any = ddp_hook(made, schedule, place, on_loss="shrink", optimizer=optimizer)
    return made, module, optimizer, state.means


def hsdp(rank: int, size: int, store: Any, returns: int) -> Made:
    """Replicas of `SHARDS` servers; a replica that returns is a job of its own."""
    replica, shard = divmod(rank, SHARDS)
    if returns:
        own = dist.PrefixStore(f"replica {replica} {returns}", store)
        dist.init_process_group("gloo", store=own, rank=shard, world_size=SHARDS, timeout=TIMEOUT)
        mesh = init_device_mesh("cpu", (SHARDS,))
        replicas: Any = Returning(store, rank, size, TIMEOUT)
    else:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        names = ("replicate", "shard")
        both = init_device_mesh("cpu", (size // SHARDS, SHARDS), mesh_dim_names=names)
        mesh, replicas = both["shard"], both["replicate"].get_group()
    made: Any = model("hsdp")
    for layer in made:
        fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    optimizer = optimizer_of(made)
    registered = fsdp_hooks(
        made,
        group=mesh.get_group(),
        all_reduce=Ring().schedule(gw.topology.complete(size // SHARDS)),
        replicas=replicas,
        on_loss="shrink",
        optimizer=optimizer,
    )
    between: Any = registered.all_reduce
    return made, made, optimizer, between.means


def resources() -> list[int]:
    """The numbers of threads and of open files of this process."""
    gc.collect()  # errors refer to what failed, and that to the errors
    return [len(os.listdir(f"/proc/self/{kind}")) for kind in ("task", "fd")]


def die_at(means: Any, dies: Moment) -> Callable[[torch.Tensor], torch.Tensor]:
    """`Shrinking.mean`, in which the process is killed at some moment."""
    original = means.mean

    def mean(source: torch.Tensor) -> torch.Tensor:
        if (means.steps, len(means.results())) == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(source)

    return mean


def train(
    kind: str, rank: int, size: int, port: int, start: int, folder: Path, dies: Moment | None
) -> None:
    torch.set_num_threads(1)
    logging.basicConfig(format=f"rank {rank}: %(message)s", level=logging.INFO)
    connect: Any = dist
    store = connect.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    made, module, optimizer, means = {"ddp": ddp, "hsdp": hsdp}[kind](rank, size, store, start)
    begun: list[int] = []
    if dies is not None:
        means.mean = die_at(means, dies)
    with (folder / f"{rank}-{start}.jsonl").open("w") as file:
        while True:
            step = means.steps
            optimizer.zero_grad()
            loss_of(made, rank, step).backward()
            averaged, at = means.averaged, time.time()
            optimizer.step()
            file.write(json.dumps([step, list(averaged), digest(module), at]) + "\n")
            file.flush()
            begun = begun or resources()
            if (folder / "stop").exists() and step >= int((folder / "stop").read_text()):
                break
    torch.save(vector(module), folder / f"{rank}-{start}.pt")
    (folder / f"{rank}-{start}.left").write_text(json.dumps([begun, resources()]))
    means.close()


class Job:
    """The processes of a job.

    Args:
        folder: for their files.
        kind: ``ddp`` or ``hsdp``.
        size: number of servers.
        dies: when processes kill themselves, by rank.
    """

    def __init__(
        self, folder: Path, kind: str, size: int, dies: Mapping[int, Moment] = MappingProxyType({})
    ) -> None:
        self.folder, self.kind, self.size, self._dies = folder, kind, size, dies
        self.block = SHARDS if kind == "hsdp" else 1
        made: Any = dist
        self._store = made.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.children: dict[int, int] = {}
        self.starts = dict.fromkeys(range(size), -1)
        for rank in range(size):
            self.start(rank)

    def start(self, rank: int) -> None:
        self.starts[rank] += 1
        port, start = self._store.port, self.starts[rank]
        dies = None if start else self._dies.get(rank)
        self.children[rank] = fork(
            lambda: train(self.kind, rank, self.size, port, start, self.folder, dies)
        )

    def kill(self, rank: int) -> list[int]:
        """Kills a server; returns the ranks that are lost, whose processes have ended."""
        os.kill(self.children[rank], signal.SIGKILL)
        return self.lost(rank)

    def lost(self, rank: int) -> list[int]:
        """Waits until the process of a server has ended, and those that are lost with it."""
        first = rank - rank % self.block
        lost = list(range(first, first + self.block))
        for other in lost:
            os.waitpid(self.children.pop(other), 0)
        return lost

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

    def completed_without(self, lost: set[int], since: float, within_s: float = 30.0) -> float:
        """Seconds from a time until the last of the others has completed a step without some."""
        until = time.time() + within_s
        while time.time() < until:
            ends = [
                [
                    at
                    for _, ranks, _, at in self.lines(rank)
                    if at > since and lost.isdisjoint(ranks)
                ]
                for rank in self.children
            ]
            if all(ends):
                return max(end[0] for end in ends) - since
            time.sleep(0.01)
        raise TimeoutError(f"no step without {lost} in {within_s:g} s")

    def end(self) -> list[int]:
        """Lets all end after the same step; returns their exit statuses."""
        last = max(self.lines(rank)[-1][0] for rank in self.children) + 20
        (self.folder / "stop.new").write_text(str(last))
        (self.folder / "stop.new").rename(self.folder / "stop")
        return [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in self.children.values()]


def compared(kind: str, folder: Path, statuses: Sequence[int]) -> dict[str, Any]:
    """Compares what the servers wrote with each other and with a reference in one process."""
    steps: dict[int, set[tuple[Any, ...]]] = {}
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # its process was killed
                step, averaged, sha, _ = json.loads(line)
                steps.setdefault(step, set()).add((*averaged, sha))
    alike = all(len(each) == 1 for each in steps.values())
    averaged = [[*next(iter(steps[step]))[:-1]] for step in range(len(steps))]
    expected = reference(kind, averaged)
    ends = [torch.load(path) for path in folder.glob("*.pt")]
    apart = max(float((end - expected).abs().max()) for end in ends)
    return {
        "alike": alike,
        "apart": apart,
        "averaged": averaged,
        "statuses": list(statuses),
        "left": [json.loads(path.read_text()) for path in folder.glob("*.left")],
    }


def main(folder: Path, kind: str, size: int) -> int:
    """Two servers are lost, one of which returns."""
    torch.set_num_threads(1)
    last = size - 1
    # Under DDP, the first bucket has been averaged, and must be averaged again.
    job = Job(folder, kind, size, {last: (3, 1 if kind == "ddp" else 0)})
    lost = job.lost(last)
    job.wait_for(0, 2)
    for rank in lost:
        job.start(rank)
    for rank in lost:
        job.wait_for(rank, 2)
    lost = job.kill(0)
    job.wait_for(last, 2)
    found = compared(kind, folder, job.end())
    kept = [*found["averaged"]]
    kept[3] = list(range(size))
    found["kept"] = float((reference(kind, kept) - reference(kind, found["averaged"])).abs().max())
    (folder / "found.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
