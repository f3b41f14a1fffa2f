"""Local updates in PyTorch, on processes of this machine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from gradweave.aggregate import DiLoCo, GASLoC, SparseLoCo
from gradweave.errors import OptionError
from gradweave.torch import LocalUpdates
from tests.patience import PATIENCE_S

SIZE, RATE = 21, 0.1
PROGRAM = """
import json, sys, time
from datetime import timedelta
import numpy as np, torch, torch.distributed as dist
import gradweave as gw
from gradweave.aggregate import DiLoCo
from gradweave.torch import QuorumMember
from gradweave.torch import Compressed, LocalUpdates

store, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size,
                        timeout=timedelta(seconds=600))
aims = torch.from_numpy(np.random.default_rng(0).standard_normal((size, 21)).astype(np.float32))

def hook_of(x):
    method = DiLoCo(**how["method"])
    if how["kind"] == "quorum":
        return QuorumMember([x], method, deadline_s=how["deadline_s"])
    if how["kind"] == "compressed":
        from gradweave.aggregate import MaxNorm
        return LocalUpdates([x], method, Compressed(MaxNorm(bits=8)))
    return LocalUpdates([x], method, gw.solve(gw.topology.ring(size)).schedule)

def train():
    x = torch.nn.Parameter(torch.zeros(21))
    optimizer = torch.optim.SGD([x], lr=0.1)
    hook = hook_of(x)
    optimizer.register_step_post_hook(hook)
    history = []
    slow = rank == how.get("slow")
    for step in range(how["steps"] * (10 if slow else 1)):
        if how["kind"] == "quorum":
            time.sleep(1.2 if slow else 0.02)
        optimizer.zero_grad()
        (((x - aims[rank]) ** 2).sum() / 2).backward()
        optimizer.step()
        history.append(x.detach().tolist())
        if how["kind"] == "quorum" and step % 4 == 3:
            print(json.dumps({"step": step, "counted": hook.counted, "in_time": hook.in_time}),
                  flush=True)
    if how["kind"] != "quorum":
        print(json.dumps({"history": history, "sent_bytes": hook.exchange.sent_bytes}), flush=True)

for how in json.loads(sys.argv[4]):
    train()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., list[subprocess.Popen]]]:
    """Starts processes; none of them outlives the test, however it ends."""
    processes: list[subprocess.Popen] = []

    def begin(size: int, *trainings: dict) -> list[subprocess.Popen]:
        processes.extend(started(tmp_path, size, *trainings))
        return processes

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def started(folder: Path, size: int, *trainings: dict) -> list[subprocess.Popen]:
    """Processes that train one way after the other."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "JAX_PLATFORMS": "cpu"}
    program = [sys.executable, "-c", PROGRAM, str(folder / "store")]
    return [
        subprocess.Popen(
            [*program, str(rank), str(size), json.dumps(trainings)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def ended(process: subprocess.Popen) -> list[dict]:
    """What it printed, line by line."""
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors[-2000:]
    return [json.loads(line) for line in out.strip().splitlines()]


def by_hand(size: int, steps: int, method: DiLoCo) -> np.ndarray:
    """[steps, size, SIZE] as test_local.by_hand has it, of workers that are all in time."""
    aims = np.random.default_rng(0).standard_normal((size, SIZE)).astype(np.float32)
    x, shared, m = np.zeros((size, SIZE)), np.zeros(SIZE), np.zeros(SIZE)
    length, history = -(-SIZE // method.fragments), []
    for step in range(1, steps + 1):
        x = x + RATE * (aims - x)
        turn = (step // method.interval - 1) % method.fragments
        part = slice(turn * length, (turn + 1) * length)
        if step % method.interval == 0:
            change = (x - shared)[:, part].mean(0)
        if step % method.interval == method.delay and step >= method.interval:
            m[part] = 0.9 * m[part] + change
            shared[part] += 0.7 * (change + 0.9 * m[part])
            x[:, part] = method.keep * x[:, part] + (1 - method.keep) * shared[part]
        history.append(x.copy())
    return np.array(history)


@pytest.mark.slow
def test_hooks_by_hand(start):
    size = 2
    streaming = {"local_steps": 8, "fragments": 2, "delay": 1, "keep": 0.5}
    trainings = (
        {"kind": "schedule", "method": streaming, "steps": 17},  # so that the last one arrives
        {"kind": "compressed", "method": {"local_steps": 4}, "steps": 16},
    )
    results = list(map(ended, start(size, *trainings)))
    for number, training in enumerate(trainings):
        got = np.array([one[number]["history"] for one in results]).swapaxes(0, 1)
        expected = by_hand(size, training["steps"], DiLoCo(**training["method"]))
        np.testing.assert_allclose(got, expected, atol=0.05 if number else 1e-4)
    # Twice each of two fragments of half of the elements; four parts, eight bits an element.
    assert sum(one[0]["sent_bytes"] for one in results) == 2 * 4 * SIZE * 2 * (size - 1)
    assert results[0][1]["sent_bytes"] == 4 * 2 * (size - 1) * (12 + 4)


@pytest.mark.slow
def test_nobody_waits_for_who_is_lost_or_slow(start):
    size, steps = 4, 16
    training = {
        "kind": "quorum",
        "method": {"local_steps": 4, "quorum": 2},
        "deadline_s": 2.0,  # seconds between who is in time and who is not, for busy machines
        "steps": steps,
        "slow": 3,
    }
    workers = start(size, training)
    assert workers[1].stdout is not None
    assert json.loads(workers[1].stdout.readline())["step"] == 3
    workers[1].send_signal(signal.SIGKILL)
    for rank in (0, 2):
        report = ended(workers[rank])
        assert len(report) == steps // 4
        assert report[-1]["counted"] == 2 and report[-1]["in_time"] == steps // 4
    # The slow one goes on until it sends to the first, which has ended.
    out, errors = workers[3].communicate(timeout=PATIENCE_S)
    assert workers[3].returncode == 1 and "lost worker 0, which averages" in errors
    lines = [json.loads(line) for line in out.strip().splitlines()]
    assert lines and all(line["in_time"] < (line["step"] + 1) // 4 for line in lines)


def test_refusals():
    x = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(OptionError, match="parameters: expected at least one that is trained"):
        LocalUpdates([], DiLoCo())
    with pytest.raises(OptionError, match="quorum: a collective waits for all its workers"):
        LocalUpdates([x], DiLoCo(quorum=2))
    for method in (DiLoCo(), GASLoC(), SparseLoCo()):
        with pytest.raises(OptionError, match="call init_process_group first"):
            LocalUpdates([x], method)
