"""Jobs of `torch_cases` in which FSDP2 communicates by schedules.

python -m tests.execute.torch_fsdp_cases FOLDER 4 fsdp
python -m tests.execute.torch_fsdp_cases FOLDER 4 fsdp_lost RANK-WHEN-STORE...
"""

import dataclasses
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gradweave.errors import LostServerError, OptionError, ScheduleError
from gradweave.schedules import Schedule, reverse
from gradweave.torch import fsdp_hooks
from tests.execute import torch_cases
from tests.execute.torch_backend_cases import WIDTH, batch, digest, trained
from tests.execute.torch_cases import Schedules, in_the_middle, raised, short_of_patience

HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
NAMES = {2: "of two", 4: "of four"}
"""Strategies in the job, by the processes that the model is sharded over."""


@dataclasses.dataclass(frozen=True)
class Example:
    """How a model is sharded that is trained by gloo and by schedules."""

    replicas: int = 1
    all_reduce: bool = False
    """Whether replicas are averaged by a schedule, too."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of `fully_shard`."""
    by_sums: float | None = None
    """What gradients are divided by, after sums; if not given, they are means."""


EXAMPLES = {
    "resharded": Example(),
    "kept whole": Example(options={"reshard_after_forward": False}),
    "resharded in part": Example(options={"reshard_after_forward": 2}),
    "bfloat16": Example(options={"mp_policy": HALF}),
    "by sums": Example(by_sums=8.0),
    "hybrid": Example(replicas=2),
    "hybrid by schedules": Example(replicas=2, all_reduce=True),
}


def transformer(mesh: Any, options: dict[str, Any]) -> nn.Sequential:
    torch.manual_seed(3)
    layers = [
        nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        for _ in range(2)
    ]
    made = nn.Sequential(*layers)
    for layer in made:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(made, mesh=mesh, **options)  # type: ignore


def example(of: Example, schedules: Schedules | None, rank: int, size: int) -> dict[str, Any]:
    """Losses, a digest of all parameters at every rank, and the bytes that schedules sent here."""
    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", (of.replicas, size // of.replicas), mesh_dim_names=names)
    shards, replicas = mesh["shard"].get_group(), mesh["replicate"].get_group()
    by_pytorch = of.replicas > 1 and (schedules is None or not of.all_reduce)
    made: Any = transformer(mesh if by_pytorch else mesh["shard"], of.options)
    sent = {}
    if schedules is not None:
        name = NAMES[shards.size()]
        between = {"all_reduce": schedules[NAMES[2], "all_reduce"], "replicas": replicas}
        registered = fsdp_hooks(
            made,
            all_gather=schedules[name, "all_gather"],
            reduce_scatter=schedules[name, "reduce_scatter"],
            group=shards,
            **between if of.all_reduce else {},  # type: ignore
        )
        sent = {key: each.collective for key, each in vars(registered).items() if each is not None}
    if of.by_sums is not None:
        for part in made.modules():
            if part is made or part in made.children():
                part.set_gradient_divide_factor(of.by_sums)
                part.set_force_sum_reduction_for_comms(True)
    losses, _ = trained(made, rank)
    every: list[Any] = [None] * size
    dist.all_gather_object(every, digest(made))
    return {
        "losses": losses,
        "digests": every,
        "sent": {key: int(each.sent_bytes.sum()) for key, each in sent.items()},
        "parameters": sum(parameter.numel() for parameter in made.parameters()),
    }


def refused(schedules: Schedules, rank: int, size: int) -> None:
    """What cannot be registered, or fails when FSDP calls it."""
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    shards, replicas = mesh["shard"].get_group(), mesh["replicate"].get_group()
    sharded = transformer(mesh["shard"], {})
    two, four = ({s: schedules[NAMES[n], s] for _, s in schedules} for n in NAMES)
    for kind, given, said in (
        (ScheduleError, {"all_gather": four["all_gather"], "group": shards}, "there are 2 proc"),
        (ScheduleError, {"all_gather": two["all_gather"]}, "there are 4 processes"),
        (ScheduleError, {"all_gather": two["reduce_scatter"]}, "collective all_gather, got"),
        (ScheduleError, {"reduce_scatter": two["all_reduce"]}, "collective reduce_scatter, got"),
        (ScheduleError, {"all_reduce": two["all_gather"], "replicas": replicas}, "all_reduce, got"),
        (ScheduleError, {"all_reduce": four["all_reduce"], "replicas": replicas}, "there are 2"),
        (OptionError, {"all_reduce": two["all_reduce"]}, "all_reduce and replicas together"),
    ):
        assert said in raised(kind, lambda given=given: fsdp_hooks(sharded, **given))  # type: ignore
    both = {"all_reduce": two["all_reduce"], "replicas": replicas}
    hybrid = transformer(mesh, {})
    assert "two dim" in raised(OptionError, lambda: fsdp_hooks(hybrid, **both))  # type: ignore
    assert "fully_shard first" in raised(OptionError, lambda: fsdp_hooks(nn.Linear(1, 1)))
    fsdp_hooks(sharded, all_gather=two["all_gather"], group=replicas)
    assert "sharded over ranks" in raised(OptionError, lambda: sharded(batch(0)))
    divided: Any = transformer(mesh["shard"], {})
    fsdp_hooks(divided, reduce_scatter=two["reduce_scatter"], group=shards)
    divided[1].set_gradient_divide_factor(3.0)
    loss = divided(batch(0)).sum()
    assert "set_force_sum_reduction_for_comms" in raised(OptionError, loss.backward)


def asynchronous(schedules: Schedules) -> None:
    """What is asked for in advance is there when it is waited for."""
    made: Any = transformer(init_device_mesh("cpu", (4,)), {})[1]
    whole = made.linear1.weight.full_tensor()
    fsdp_hooks(made, all_gather=schedules[NAMES[4], "all_gather"])
    made.unshard(async_op=True).wait()
    assert torch.equal(made.linear1.weight, whole)


def all_examples(schedules: Schedules, _: list[tuple], rank: int) -> dict:
    """Each example under gloo and by schedules; and what has no twin under gloo."""
    size, report, seconds = dist.get_world_size(), {}, {}
    for name, each in EXAMPLES.items():
        begin = time.perf_counter()
        report[name] = [example(each, given, rank, size) for given in (None, schedules)]
        seconds[name] = round(time.perf_counter() - begin, 2)
    wrong = ""
    try:
        asynchronous(schedules)
        refused(schedules, rank, size)
    except Exception:
        wrong = traceback.format_exc()
        print(f"rank {rank}:", wrong, flush=True)
    return {"examples": report, "wrong": wrong, "seconds": seconds}


def lost(schedule: Schedule, folder: Path, own: int, rank: int, when: str) -> dict:
    """Trains on until a process is lost, and catches what forward or ``backward`` raises."""
    group = short_of_patience()
    mesh = DeviceMesh.from_group(group, "cpu")
    made = transformer(mesh, {})
    fsdp_hooks(made, all_gather=schedule, reduce_scatter=reverse(schedule), group=group)
    made(batch(0)).sum().backward()
    if own == rank:
        in_the_middle(folder, when)
    for _ in range(100_000):
        try:
            made(batch(0)).sum().backward()
        except LostServerError as error:
            return {"kind": "lost", "rank": error.rank, "server": error.server, "at": time.time()}
    return {"kind": "never"}


torch_cases.JOBS["fsdp"] = all_examples
torch_cases.LOST_JOBS["fsdp_lost"] = lost

if __name__ == "__main__":
    sys.exit(torch_cases.main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
