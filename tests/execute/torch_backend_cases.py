"""Examples that differ in the backend's name alone, in processes forked from one that has PyTorch.

    python -m tests.execute.torch_backend_cases FOLDER N EXAMPLE...

Runs each example under gloo and under gradweave, there with the plans FOLDER/plan-*.json for all
that they can run, and writes what rank 0 ended with to FOLDER/EXAMPLE.json: losses, a digest of
every rank's parameters, and what ran by plans.
"""

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from gradweave.torch import call_class, choice, equal_parts, offers, plans
from gradweave.torch.calls import SizeClass
from tests.execute.forked import forked

WIDTH, STEPS = 32, 3
Example = Callable[[int, int], tuple[list[float], nn.Module]]


def all_by_plan() -> None:
    """Has the plan taken from the first call on, and without a trial."""

    class Decided(call_class.Trial):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.lengths, self.decided, self.best = (0, 0), True, given[0][0]
            self.seconds = dict.fromkeys(given[0], 1.0)

    state = offers.Offers.state

    def ready(self: offers.Offers, of: SizeClass) -> int:
        while not state(self, of):
            time.sleep(0.005)
        return state(self, of)

    choice.RECURS, choice.VOTE_EVERY, choice.VOTE_FOR = 1, 0, 0
    call_class.Trial, offers.Offers.state = Decided, ready
    plans.Plans.hopeless = lambda self, plan, of: None
    equal_parts.VOTE_EVERY, equal_parts.VOTE_FOR = 1, 0


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


def batch(step: int, place: int = 0) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + place))


def trained(made: nn.Module, place: int) -> tuple[list[float], nn.Module]:
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        loss = made(batch(step, place)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    means = torch.stack(losses)
    dist.all_reduce(means, dist.ReduceOp.AVG)
    return means.tolist(), made


def ddp(rank: int, size: int) -> tuple[list[float], nn.Module]:
    return trained(DistributedDataParallel(model()), rank)


def fsdp2(rank: int, size: int) -> tuple[list[float], nn.Module]:
    torch.manual_seed(3)
    layers = [
        nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        for _ in range(2)
    ]
    made = nn.Sequential(*layers)
    mesh = init_device_mesh("cpu", (size,))
    for layer in made:
        fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    return trained(made, rank)


def hsdp(rank: int, size: int) -> tuple[list[float], nn.Module]:
    made = model()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(made, mesh=mesh)
    return trained(made, rank)


def tensor_parallel(rank: int, size: int) -> tuple[list[float], nn.Module]:
    made = model()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "tensor"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(made, mesh["tensor"], plan)
    fully_shard(made, mesh=mesh["data"])
    return trained(made, mesh.get_local_rank("data"))


def pipeline(rank: int, size: int) -> tuple[list[float], nn.Module]:
    torch.manual_seed(3)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(size)]
    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = torch.optim.SGD(layers[rank].parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        of_parts: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(batch(step))
        elif rank == size - 1:
            schedule.step(target=batch(step, 1), losses=of_parts)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        loss = torch.stack(of_parts).mean().detach() if of_parts else torch.zeros(())
        dist.all_reduce(loss)
        losses.append(loss.item())
    return losses, nn.Module()


def compiled(rank: int, size: int) -> tuple[list[float], nn.Module]:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(tensor: torch.Tensor) -> torch.Tensor:
        summed = functional.all_reduce(tensor * 2, "sum", list(range(size)))
        part = functional.reduce_scatter_tensor(summed, "sum", 0, list(range(size)))
        return functional.all_gather_tensor(part, 0, list(range(size))).sum()

    return [step(batch(turn, rank)).item() for turn in range(STEPS)], nn.Module()


def compiled_ddp(rank: int, size: int) -> tuple[list[float], nn.Module]:
    made = DistributedDataParallel(model())
    whole: Any = torch.compile(made, backend="aot_eager")
    losses, _ = trained(whole, rank)
    return losses, made


def others(rank: int, size: int) -> tuple[list[float], nn.Module]:
    found = []
    for step in range(STEPS):
        mine = batch(step, rank)
        got = torch.empty_like(mine)
        dist.all_to_all_single(got, mine)
        theirs = got.clone()
        dist.broadcast(theirs, 1)
        dist.broadcast(mine, 2)  # of which there is no plan
        dist.reduce(got, 2)
        found += [theirs.sum(), mine.sum(), got.sum() if rank == 2 else torch.zeros(())]
    sums = torch.stack(found)
    dist.all_reduce(sums)
    return sums.tolist(), nn.Module()


EXAMPLES: dict[str, Example] = {
    one.__name__: one
    for one in (ddp, fsdp2, hsdp, tensor_parallel, pipeline, compiled, compiled_ddp, others)
}


KEPT: list[Any] = []
"""Until the process ends: where a DDP model is the last to hold a gloo group, PyTorch joins its
threads with the interpreter's lock held, and one of them may wait for that."""


def digest(made: nn.Module) -> str:
    """Of all parameters, whole."""
    found = hashlib.sha256()
    for parameter in made.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()


def process(folder: Path, example: str, backend: str, rank: int, size: int) -> dict[str, Any]:
    """One rank of an example; what rank 0 reports."""
    if backend == "gradweave":
        all_by_plan()
        os.environ["GRADWEAVE_PLAN"] = os.pathsep.join(map(str, folder.glob("plan-*.json")))
    store = f"file://{folder}/store-{example}-{backend}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=size)
    losses, made = EXAMPLES[example](rank, size)
    KEPT.extend((made, dist.group.WORLD))
    every: list[Any] = [None] * size
    dist.all_gather_object(every, digest(made))
    choices = getattr(dist.group.WORLD, "choices", None)
    listed = choices.listed() if choices else []
    by_plan = [[one.collective, one.size] for one in listed if one.stage.name == "PLAN"]
    dist.barrier()
    dist.destroy_process_group()
    return {"losses": losses, "digests": every, "by_plan": by_plan}


def main(folder: Path, size: int, examples: list[str]) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # PyTorch's of its own inner works

    def run(example: str, backend: str, rank: int) -> None:
        report = process(folder, example, backend, rank, size)
        if rank == 0:
            (folder / f"{example}-{backend}.json").write_text(json.dumps(report))

    status = 0
    for example in examples:
        for backend in ("gloo", "gradweave"):
            status |= max(forked(size, partial(run, example, backend)))
    return int(bool(status))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
