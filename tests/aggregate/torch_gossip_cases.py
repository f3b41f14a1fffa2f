"""Trainings by gossip that PyTorch's processes make for `test_torch_gossip.py`, forked from one."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gradweave.aggregate import Grid, MaxNorm, RandomKUnscaled, TopK
from gradweave.aggregate.mixing import MixingMatrix, ring_graph
from gradweave.aggregate.rules import RULES
from gradweave.errors import OptionError, RunError
from gradweave.torch import Gossip

N, SIZES, RATE, MOMENTUM, STEPS, SEED = 4, (15, 25), 0.1, 0.5, 12, 3
AIMS = np.random.default_rng(0).standard_normal((N, sum(SIZES))).astype(np.float32)
"""[N, size] Where each worker alone would go."""
COMPRESSORS = {
    "max_norm": MaxNorm(bits=5, block=16),
    "grid": Grid(step=0.01),
    "top_k": TopK(share=0.2),
    "random_k_unscaled": RandomKUnscaled(share=0.5),
    None: None,
}
CHANGE_STEP = 8
"""Before which ``then`` is what is mixed by."""
SPOILT_STEP, SPOILT_WORKER = 5, 2
TRAININGS: list[dict[str, Any]] = [
    {"rule": "d_psgd", "mixing": "matchings", "then": "ring"},
    {"rule": "d_psgd", "mixing": "ring", "local_steps": 3, "spoilt": True},
    {"rule": "dcd_psgd", "mixing": "ring", "compressor": "max_norm", "spoilt": True},
    {"rule": "ecd_psgd", "mixing": "ring", "compressor": "grid"},
    {"rule": "choco_sgd", "mixing": "ring", "compressor": "top_k", "local_steps": 2},
    {"rule": "choco_sgd", "mixing": "ring", "compressor": "max_norm", "dtype": "bfloat16"},
    {"rule": "choco_sgd", "mixing": "ring", "compressor": "random_k_unscaled"},
]


def mixing_of(name: str, workers: int = N) -> MixingMatrix:
    """Of a ring."""
    make = MixingMatrix.in_matchings if name == "matchings" else MixingMatrix.metropolis_hastings
    return make(ring_graph(workers))


class Worker:
    """One training's worker: two parameters, that are to go to its aim."""

    def __init__(self, how: dict[str, Any], rank: int) -> None:
        dtypes = (torch.float32, getattr(torch, how.get("dtype", "float32")))
        self.rank, self.how = rank, how
        self.parameters = [
            torch.nn.Parameter(torch.zeros(size, dtype=dtype))
            for size, dtype in zip(SIZES, dtypes, strict=True)
        ]
        self.optimizer = torch.optim.SGD(self.parameters, lr=RATE, momentum=MOMENTUM)
        self.gossip = Gossip(
            self.optimizer,
            RULES[how["rule"]](),
            mixing_of(how["mixing"]),
            COMPRESSORS[how.get("compressor")],
            local_steps=how.get("local_steps", 1),
            seed=SEED,
            strictness="ignore",
        )

    def step(self, number: int = 0) -> None:
        """One of the optimizer's."""
        aims = torch.from_numpy(AIMS[self.rank]).split(SIZES)
        for one, aim in zip(self.parameters, aims, strict=True):
            one.grad = (one.detach() - aim).to(one.dtype)
        spoilt = self.how.get("spoilt") and number == SPOILT_STEP and self.rank == SPOILT_WORKER
        if spoilt and (gradient := self.parameters[0].grad) is not None:
            gradient[3] = torch.nan
        self.optimizer.step()

    def begun_again(self) -> "Worker":
        """As if the process had been killed, from what it kept."""
        other = Worker(self.how, self.rank)
        for one, value in zip(other.parameters, self.parameters, strict=True):
            one.data.copy_(value.data)
        other.optimizer.load_state_dict(self.optimizer.state_dict())
        other.gossip.load_state_dict(self.gossip.state_dict())
        return other


def flat(tensors: list[Any]) -> list[float]:
    """All elements."""
    return torch.cat([one.detach().float() for one in tensors]).tolist()


def trained(how: dict[str, Any], rank: int) -> dict[str, Any]:
    """What comes of a training, killed half-way."""
    worker = Worker(how, rank)
    for number in range(STEPS):
        if number == STEPS // 2:
            worker = worker.begun_again()
        if number == CHANGE_STEP and "then" in how:
            worker.gossip.mix_by(mixing_of(how["then"]))
        worker.step(number)
    gossip = worker.gossip
    return {
        "x": flat(worker.parameters),
        "sent": gossip.sent_bytes,
        "left_out": gossip.not_finite,
        "consensus": flat(gossip.consensus()),
    }


def refusals(rank: int) -> list[str]:
    """What is said of parameters and matrices that are not alike, and of others that do not fit."""
    start = torch.nn.Parameter(torch.full((3,), float(rank == 1)))
    said = []
    for rule, mixing in (("choco_sgd", mixing_of("ring")), ("d_psgd", mixing_of("ring", 5))):
        try:
            Gossip(torch.optim.SGD([start]), RULES[rule](), mixing, strictness="ignore")
        except OptionError as error:
            said.append(str(error))
    for rule, mixing in (("d_psgd", "ring" if rank == 2 else "matchings"), ("choco_sgd", "ring")):
        worker = Worker({"rule": rule, "mixing": "ring"}, rank)
        try:
            worker.gossip.mix_by(mixing_of(mixing))
        except OptionError as error:
            said.append(str(error))
    return said


def said_of_a_lost_worker(rank: int) -> str:
    """What others say once the last one has gone."""
    worker = Worker(TRAININGS[1], rank)
    worker.step()
    if rank == N - 1:
        os._exit(0)
    try:
        while True:
            worker.step()
    except RunError as error:
        return str(error)


def main(folder: Path, patience_s: float) -> None:
    """Starts all workers, each of which writes what it found to a file of its rank."""
    rank = next((rank for rank in range(N) if not os.fork()), None)
    if rank is None:
        sys.exit(any([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(N)]))
    signal.alarm(int(patience_s))
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=N)
    found = {
        "trainings": [trained(how, rank) for how in TRAININGS],
        "refusals": refusals(rank),
        "lost": said_of_a_lost_worker(rank),
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(0)  # gloo waits for workers that have gone


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
