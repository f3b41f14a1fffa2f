"""Local updates in PyTorch, on processes of this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from gradweave.aggregate.local.methods import DiLoCo
from gradweave.aggregate.local.torch_hook import LocalUpdates
from gradweave.errors import OptionError

PATIENCE_S = 120
SIZE, RATE = 21, 0.1
PROGRAM = """
import json, sys, time
from datetime import timedelta
import numpy as np, torch, torch.distributed as dist
import gradweave as gw
from gradweave.aggregate.local.methods import DiLoCo
from gradweave.aggregate.local.quorum import QuorumMember
from gradweave.aggregate.local.torch_hook import Compressed, LocalUpdates

store, rank, size, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size,
                        timeout=timedelta(seconds=60))
aims = torch.from_numpy(np.random.default_rng(0).standard_normal((size, 21)).astype(np.float32))
x = torch.nn.Parameter(torch.zeros(21))
optimizer = torch.optim.SGD([x], lr=0.1)
method = DiLoCo(**how["method"])
if how["kind"] == "quorum":
    hook = QuorumMember([x], method, deadline_s=how["deadline_s"])
elif how["kind"] == "compressed":
    from gradweave.aggregate import MaxNorm
    hook = LocalUpdates([x], method, Compressed(MaxNorm(bits=8)))
else:
    schedule = gw.solve(gw.topology.ring(size)).schedule if how["kind"] == "schedule" else None
    hook = LocalUpdates([x], method, schedule)
optimizer.register_step_post_hook(hook)
history = []
for step in range(how["steps"]):
    if how["kind"] == "quorum":
        time.sleep(0.25 if rank == how.get("slow") else 0.02)
    optimizer.zero_grad()
    (((x - aims[rank]) ** 2).sum() / 2).backward()
    optimizer.step()
    history.append(x.detach().tolist())
    if how["kind"] == "quorum" and step % 4 == 3:
        print(json.dumps({"step": step, "counted": hook.counted, "in_time": hook.in_time}),
              flush=True)
print(json.dumps({"history": history,
                  "sent_bytes": hook.exchange.sent_bytes if how["kind"] != "quorum" else 0}),
      flush=True)
"""


def started(folder: Path, size: int, **how) -> list[subprocess.Popen]:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "JAX_PLATFORMS": "cpu"}
    program = [sys.executable, "-c", PROGRAM]
    return [
        subprocess.Popen(
            [*program, str(folder / "store"), str(rank), str(size), json.dumps(how)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def ended(process: subprocess.Popen) -> dict:
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors[-2000:]
    return json.loads(out.strip().splitlines()[-1])


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
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("schedule", {"local_steps": 8, "fragments": 2, "delay": 1, "keep": 0.5}),
        ("compressed", {"local_steps": 4}),
    ],
)
def test_hooks_by_hand(kind, options, tmp_path):
    size, steps, method = 3, 16, DiLoCo(**options)
    results = list(map(ended, started(tmp_path, size, kind=kind, method=options, steps=steps)))
    expected = by_hand(size, steps, method)
    got = np.array([result["history"] for result in results]).swapaxes(0, 1)
    np.testing.assert_allclose(got, expected, atol=1e-4 if kind == "schedule" else 0.05)
    averages = steps // method.interval
    if kind == "schedule":
        whole = averages * 4 * SIZE * 2 * (size - 1) / method.fragments
        assert sum(r["sent_bytes"] for r in results) == pytest.approx(whole, rel=0.1)
    else:
        assert results[0]["sent_bytes"] == averages * 2 * (size - 1) * (8 + 4)


@pytest.mark.slow
def test_nobody_waits_for_who_is_lost_or_slow(tmp_path):
    size, steps = 4, 24
    workers = started(
        tmp_path,
        size,
        kind="quorum",
        method={"local_steps": 4, "quorum": 2},
        deadline_s=0.4,
        steps=steps,
        slow=3,
    )
    assert workers[1].stdout is not None
    assert json.loads(workers[1].stdout.readline())["step"] == 3
    workers[1].send_signal(signal.SIGKILL)
    begun = time.monotonic()
    reports = []
    for rank in (0, 2, 3):
        out, errors = workers[rank].communicate(timeout=PATIENCE_S)
        assert workers[rank].returncode in (0, 1), errors[-1000:]
        lines = [json.loads(line) for line in out.strip().splitlines()]
        reports.append([line for line in lines if "step" in line])
        if rank in (0, 2):
            assert workers[rank].returncode == 0, errors[-1000:]
    workers[1].communicate()
    assert time.monotonic() - begun < 60
    for report in reports[:2]:
        assert len(report) == steps // 4
        assert report[-1]["counted"] == 2 and report[-1]["in_time"] == steps // 4
    assert all(line["in_time"] < steps // 4 for line in reports[2])


def test_refusals():
    x = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(OptionError, match="parameters: expected at least one that is trained"):
        LocalUpdates([], DiLoCo())
    with pytest.raises(OptionError, match="quorum: a collective waits for all its workers"):
        LocalUpdates([x], DiLoCo(quorum=2))
    with pytest.raises(OptionError, match="call init_process_group first"):
        LocalUpdates([x], DiLoCo())
