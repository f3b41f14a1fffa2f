"""Trainings in PyTorch that go wrong in part, for `test_torch_steps.py`: processes forked from one.

Each worker descends towards a different target, by SGD with momentum.
"""

import io
import json
import os
import signal
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gradweave.aggregate import (
    DPSGD,
    ChocoSGD,
    DiLoCo,
    GASLoC,
    MaxNorm,
    MixingMatrix,
    SparseLoCo,
    TopKChunks,
)
from gradweave.aggregate.local.methods import LOCAL
from gradweave.errors import OptionError
from gradweave.torch import Compressed, Gathered, Gossip, LocalUpdates, QuorumMember

N, SIZES, RATE, MOMENTUM, STEPS, STOP = 3, (3, 4), 0.25, 0.5, 14, 7
AIMS = np.random.default_rng(0).standard_normal((N, sum(SIZES))).astype(np.float32)
WEIGHTS = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]
DILOCO = {"local_steps": 4}
STREAMING = {"local_steps": 4, "fragments": 2, "delay": 1, "keep": 0.5}
SPOILT = {1: [2], 2: [4, 5, 6, 7]}
"""Steps, from 0, with a NaN gradient of a worker: for worker 2, all between two averages."""
LATE = 6
"""The step from which the first parameter is trained."""
NAN_BUFFER = 4
"""The step in which a buffer of worker 1 is NaN."""
TRAININGS: dict[str, dict[str, Any]] = {
    "diloco": {"method": DILOCO, "spoilt": True},
    "closure": {"method": DILOCO, "spoilt": True, "closure": True},
    "streaming": {"method": STREAMING, "spoilt": True},
    "compressed": {"method": DILOCO, "spoilt": True, "compressor": True},
    "quorum": {"method": DILOCO, "spoilt": True, "kind": "quorum"},
    "gossip": {"kind": "d_psgd", "spoilt": True},
    "gossip closure": {"kind": "d_psgd", "spoilt": True, "closure": True},
    "choco": {"kind": "choco_sgd", "compressor": True},
    "noloco": {"outer": {"local_steps": 3}},
    "gasloc": {"outer": {"local_steps": 3, "consensus": 0.8}},
    "sparseloco": {"outer": {"local_steps": 3, "decay": 0.9}},
    "sparse_averaging": {"outer": {"local_steps": 4, "fragments": 2, "delay": 1}},
    "late diloco": {"method": DILOCO, "late": True},
    "late streaming": {"method": STREAMING, "late": True},
    "late gossip": {"kind": "d_psgd", "late": True},
    "late choco": {"kind": "choco_sgd", "late": True, "compressor": True},
}


class Worker:
    """One training's worker."""

    def __init__(self, name: str, rank: int, late: bool) -> None:
        self.name, self.how, self.rank = name, TRAININGS[name], rank
        self.parameters = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
        self.parameters[0].requires_grad_(not late)
        self.buffers = [torch.zeros(2), torch.zeros((), dtype=torch.int64)]
        self.optimizer = torch.optim.SGD(self.parameters, lr=RATE, momentum=MOMENTUM)
        self.hook = self.hooked()

    def hooked(self) -> Any:
        how, kind = self.how, self.how.get("kind")
        compressor = MaxNorm(bits=8) if "compressor" in how else None
        if kind in ("d_psgd", "choco_sgd"):
            rule = DPSGD() if kind == "d_psgd" else ChocoSGD()
            mixing = MixingMatrix.of(WEIGHTS)
            return Gossip(self.optimizer, rule, mixing, compressor, buffers=self.buffers,
                          strictness="ignore")  # fmt: skip
        if "outer" in how:
            sparse = self.name == "sparseloco"
            exchange = Gathered(TopKChunks(share=0.25, block=8)) if sparse else None
            method = LOCAL[self.name](**how["outer"])
            hook = LocalUpdates(self.parameters, method, exchange, buffers=self.buffers, seed=2)
            self.optimizer.register_step_post_hook(hook)
            return hook
        method = DiLoCo(**how["method"])
        if kind == "quorum":
            hook = QuorumMember(self.parameters, method, deadline_s=600, buffers=self.buffers)
        else:
            exchange = Compressed(compressor) if compressor else None
            hook = LocalUpdates(self.parameters, method, exchange, buffers=self.buffers)
        self.optimizer.register_step_post_hook(hook)
        return hook

    def step(self, number: int) -> None:
        aims = torch.from_numpy(AIMS[self.rank]).split(SIZES)
        spoilt = "spoilt" in self.how and number in SPOILT.get(self.rank, [])
        self.buffers[0] += self.rank + 1.0
        self.buffers[1] += self.rank + 1
        if number == NAN_BUFFER and self.rank == 1:
            self.buffers[0][1] = torch.nan

        def closure() -> None:
            for one, aim in zip(self.parameters, aims, strict=True):
                if one.requires_grad:
                    one.grad = one.detach() - aim
            if spoilt:
                self.parameters[1].grad[2] = torch.nan  # type: ignore[index]

        if "closure" in self.how:
            self.optimizer.step(closure)  # type: ignore[arg-type]
        else:
            closure()
            self.optimizer.step()
        if spoilt:
            assert self.parameters[1].grad is not None, "gradients are put back"

    def begun_again(self, number: int) -> "Worker":
        """Restarts from the saved state, as if the process had been killed."""
        kept = io.BytesIO()
        tensors = [one.data for one in self.parameters], self.buffers
        torch.save([tensors, self.optimizer.state_dict(), self.hook.state_dict()], kept)
        other = Worker(self.name, self.rank, late="late" in self.how)
        (parameters, buffers), optimizer, hook = torch.load(io.BytesIO(kept.getvalue()))
        with torch.no_grad():
            for one, value in zip([*other.parameters, *other.buffers], [*parameters, *buffers],
                                  strict=True):  # fmt: skip
                one.copy_(value)
        other.optimizer.load_state_dict(optimizer)
        other.hook.load_state_dict(hook)
        other.parameters[0].requires_grad_(number >= LATE or "late" not in self.how)
        return other


def trained(name: str, rank: int, stop: int | None) -> dict[str, Any]:
    """Each step's parameters and buffers, and the results at the end."""
    how = TRAININGS[name]
    worker = Worker(name, rank, late="late" in how)
    history, buffers = [], []
    for number in range(STEPS):
        if number == LATE and "late" in how:
            worker.parameters[0].requires_grad_(True)
        if number == stop:
            before, worker = worker, worker.begun_again(number)
            if how.get("kind") == "quorum":
                before.hook.close()
        worker.step(number)
        history.append([*worker.parameters[0].tolist(), *worker.parameters[1].tolist()])
        buffers.append([*worker.buffers[0].tolist(), worker.buffers[1].item()])
    found = {"x": history, "buffers": buffers, "not_finite": worker.hook.not_finite}
    if "outer" in how:
        found["sent"] = worker.hook.exchange.sent_bytes
    elif "method" in how:
        found["counted"] = worker.hook.counted
    else:
        found["sent"] = worker.hook.sent_bytes
        found["consensus"] = [one.tolist() for one in worker.hook.consensus()]
    if how.get("kind") == "quorum":
        worker.hook.close()
    return found


def said(rank: int) -> list[str]:
    """Messages about parameters that differ at the start, and about late ones under a quorum."""
    own = torch.nn.Parameter(torch.full((3,), float(rank == 2)))
    optimizer = torch.optim.SGD([own], lr=RATE)
    lines = []
    for make in (
        lambda: LocalUpdates([own], DiLoCo()),
        lambda: QuorumMember([own], DiLoCo(), deadline_s=1),
        lambda: Gossip(optimizer, DPSGD(), MixingMatrix.of(WEIGHTS), strictness="refuse"),
        lambda: LocalUpdates([own], DiLoCo(), MixingMatrix.of(WEIGHTS)),
        lambda: LocalUpdates([own], SparseLoCo(), Compressed(MaxNorm())),
        lambda: LocalUpdates([own], GASLoC(), MixingMatrix.ring(2)),
    ):
        try:
            make()
        except OptionError as error:
            lines.append(str(error))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Gossip(optimizer, DPSGD(), MixingMatrix.of(WEIGHTS))
    lines += [str(one.message) for one in caught if __file__ == one.filename]
    worker = Worker("quorum", rank, late=True)
    worker.parameters[0].requires_grad_(True)
    try:
        worker.step(0)
    except OptionError as error:
        lines.append(str(error))
    worker.hook.close()
    return lines


def main(folder: Path, patience_s: float) -> None:
    """Starts all workers, each of which writes its findings to a file named by rank."""
    rank = next((rank for rank in range(N) if not os.fork()), None)
    if rank is None:
        sys.exit(any([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(N)]))
    signal.alarm(int(patience_s))
    torch.set_num_threads(1)
    store, timeout = f"file://{folder / 'store'}", timedelta(seconds=600)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=N, timeout=timeout)
    found = {
        "trainings": {name: trained(name, rank, None) for name in TRAININGS},
        "again": {name: trained(name, rank, STOP) for name in TRAININGS},
        "said": said(rank),
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
