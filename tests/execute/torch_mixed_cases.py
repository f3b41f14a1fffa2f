"""Random calls whose tensors differ by rank in layout, mode and storage, under gloo and plans.

    python -m tests.execute.torch_mixed_cases FOLDER N SEQUENCES SEED forced|natural

Every rank makes each call twice: in a group of gloo's and in one of the backend gradweave, there by
the plans FOLDER/plan-*.json, always (forced) or by votes and trials (natural). Shared values come
from the seed, all others from the seed and the rank. Values are small integers, so that every order
of additions ends with the same bits; all memory is compared, not only the tensors.
"""

import contextlib
import json
import os
import random
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.execute.forked import forked
from tests.execute.torch_backend_cases import all_by_plan

CALLS = 12
"""Number of calls in a sequence."""
SHAPES = ((4,), (8, 3), (2, 4, 5), (64,))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
OPERATIONS = (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN)


class Local:
    """Choices that each rank makes for itself; drawn once, used for any number of calls."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.mode = draw.choice(("inference", "no_grad", "grad"))
        self.future = draw.random() < 0.3
        self.bare = draw.random() < 0.5

    def entered(self) -> contextlib.AbstractContextManager[None]:
        return {
            "inference": torch.inference_mode,
            "no_grad": torch.no_grad,
            "grad": contextlib.nullcontext,
        }[self.mode]()

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, *, kinds: str = "") -> "Made":
        seed, layout = self.draw.getrandbits(30), self.draw.choice(("plain", *kinds.split()))
        kind = self.draw.choice(("inference", "parameter", "plain"))
        if kind == "inference" and self.mode != "inference":
            kind = "plain" if "inferred" not in kinds else kind
        if kind == "parameter" and ("inferred" not in kinds or not dtype.is_floating_point):
            kind = "plain"
        return Made(seed, shape, dtype, layout if layout != "inferred" else "offset", kind)


class Made:
    """A tensor that can be made again."""

    def __init__(
        self, seed: int, shape: tuple[int, ...], dtype: torch.dtype, layout: str, kind: str
    ) -> None:
        self.seed, self.shape, self.dtype = seed, shape, dtype
        self.layout, self.kind = layout, kind

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The tensor, and all memory behind it."""
        with torch.inference_mode(self.kind == "inference"):
            elements = torch.Size(self.shape).numel()
            values = torch.Generator().manual_seed(self.seed)
            base = torch.randint(0, 9, (3 * elements + 5,), generator=values).to(self.dtype)
            if self.layout == "offset":
                tensor = base[3 : 3 + elements].view(self.shape)
            elif self.layout == "permuted":
                tensor = (
                    base[:elements].view(self.shape[::-1]).permute(*range(len(self.shape))[::-1])
                )
            elif self.layout == "gaps":
                tensor = base[: 2 * elements : 2].view(self.shape)
            elif self.layout == "overlapping":
                tensor = base.as_strided(self.shape, (1,) * len(self.shape))
            else:
                tensor = base[:elements].view(self.shape)
            if self.kind == "parameter":
                tensor = torch.nn.Parameter(tensor)
        return tensor, base


ALL = "offset permuted gaps overlapping inferred"


def one(shared: random.Random, mine: random.Random, rank: int, size: int) -> tuple[str, Any]:
    """A call: its name, and a function of a group that makes it and returns all memory."""
    name = shared.choice(
        ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "other")
    )
    shape, dtype = shared.choice(SHAPES), shared.choice(DTYPES)
    operation, root = shared.choice(OPERATIONS), {"broadcast": 1, "reduce": 2}.get(name, 0)
    local = Local(mine)
    count = shape[0] * 4
    if name in ("all_reduce", "broadcast", "reduce"):
        made = [local.tensor(shape, dtype, kinds=ALL)]
    elif name == "all_gather":
        sizes = (size * count, count)
        made = [local.tensor((each,), dtype, kinds="offset gaps") for each in sizes]
    elif name == "reduce_scatter":
        sizes = (count, size * count)
        made = [local.tensor((each,), dtype, kinds="offset gaps") for each in sizes]
    else:
        kinds = ("offset gaps", "offset")
        made = [local.tensor((size * count,), dtype, kinds=each) for each in kinds]
    splits = [count] * size if mine.random() < 0.5 else None
    unequal = name == "all_to_all" and shared.random() < 0.3
    if unequal:  # ranks 0 and 1 exchange other parts than the others, which cannot know it
        splits = splits if rank > 1 else [count] * size
        less = shared.randrange(1, count)
        if rank < 2:
            splits = list(splits or [])
            splits[1 - rank] -= less
            splits[rank] += less

    def call(group: Any) -> list[torch.Tensor]:
        tensors, bases = zip(*(each() for each in made), strict=True)
        own: Any = dist  # whose older names PyTorch warns of
        run = {
            "all_reduce": lambda: own.all_reduce(tensors[0], operation, group, async_op=True),
            "bare": lambda: group.allreduce(tensors[0].detach(), operation),
            "broadcast": lambda: own.broadcast(tensors[0], root, group, async_op=True),
            "reduce": lambda: own.reduce(tensors[0], root, operation, group, async_op=True),
            "all_gather": lambda: own.all_gather_into_tensor(*tensors, group, async_op=True),
            "reduce_scatter": lambda: own.reduce_scatter_tensor(
                *tensors, operation, group, async_op=True
            ),
            "all_to_all": lambda: own.all_to_all_single(
                *tensors, splits, splits, group, async_op=True
            ),
            "other": lambda: own.all_gather(
                list(tensors[0].view(size, count)), tensors[1][:count], group, async_op=True
            ),
        }["bare" if name == "all_reduce" and local.bare else name]
        with local.entered():
            work = run()
            if local.future and name in ("all_reduce", "broadcast"):
                work.get_future().wait()
            else:
                work.wait()
        if name == "reduce" and rank != root:
            return []  # gloo leaves there what passed by
        return [base.clone() for base in bases]

    said = f"{name} {shape} {dtype} {[(one.layout, one.kind) for one in made]} {local.mode}"
    return f"{said} splits {splits}", call


def process(folder: Path, rank: int, size: int, sequences: int, seed: int, how: str) -> None:
    if how == "forced":
        all_by_plan()
    os.environ["GRADWEAVE_PLAN"] = os.pathsep.join(map(str, folder.glob("plan-*.json")))
    store = f"file://{folder}/store-{how}"
    dist.init_process_group("gradweave", init_method=store, rank=rank, world_size=size)
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    assert ours is not None and hasattr(ours, "choices")
    counts = Counter[str]()
    for sequence in range(seed, seed + sequences):
        shared, mine = random.Random(sequence), random.Random(f"{sequence} of {rank}")
        for turn in range(CALLS):
            said, call = one(shared, mine, rank, size)
            want, got = call(gloo), call(ours)
            counts[said.split()[0]] += 1
            for wanted, found in zip(want, got, strict=True):
                same = torch.equal(wanted, found)
                assert same, (
                    f"rank {rank}, sequence {sequence}, call {turn}: {said}\n{wanted}\n{found}"
                )
    dist.barrier()
    if rank == 0:
        listed: Any = ours
        stages = [[one.collective, one.size, one.stage.name] for one in listed.choices.listed()]
        report = {"calls": counts, "stages": stages}
        (folder / f"mixed-{how}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


def main(folder: Path, size: int, *asked: Any) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # names that PyTorch has changed
    return int(any(forked(size, lambda rank: process(folder, rank, size, *asked))))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), *map(int, sys.argv[3:5]), sys.argv[5]))
