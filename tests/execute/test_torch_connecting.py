"""Processes that do not all connect at once try again, all of them, and say so in the end."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytest.importorskip("torch")

PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
from gradweave.errors import RunError
from gradweave.execute.torch_distributed import gloo_messages

size, failures, real = 3, int(sys.argv[1]), dist.ProcessGroupGloo


def process(rank):
    dist.init_process_group("gloo", init_method="file://" + os.getcwd() + "/store",
                            rank=rank, world_size=size)
    calls = 0

    def sometimes(*given):
        nonlocal calls
        calls += 1
        made = real(*given)
        if rank == 0 and calls <= failures:
            raise RuntimeError("connectFullMesh failed")
        return made

    dist.ProcessGroupGloo = sometimes
    try:
        _, twin = gloo_messages.pair(dist.group.WORLD)
    except RunError as error:
        return f"{calls} calls, {error}"
    got = torch.full((1,), float(rank))
    works = [twin.send([got.clone()], (rank + 1) % size, 1), twin.recv([got], (rank - 1) % size, 1)]
    for work in works:
        work.wait()
    return f"{calls} calls, got {got.item():.0f}"


for rank in range(size):
    if not os.fork():
        os.write(1, f"{rank}: {process(rank)}\\n".encode())
        os._exit(0)
for _ in range(size):
    os.wait()
"""


@pytest.mark.parametrize("failures", [0, 1, 3])
def test_a_connection_that_fails(failures: int, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(failures)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    lines = sorted(done.stdout.splitlines())
    if failures < 3:
        expected = [f"{rank}: {failures + 1} calls, got {(rank - 1) % 3}" for rank in range(3)]
        assert lines == expected, done.stderr
    else:
        assert len(lines) == 3, done.stderr
        assert all("3 calls, torch.distributed: the processes did not all" in x for x in lines)
