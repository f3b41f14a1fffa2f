"""Collectives by the backend ``gradweave`` beside gloo's, call by call on one machine.

    python benchmarks/experiments/torch_backend_calls.py [--processes 4 8]

Every process has three groups: gloo's, gradweave's without plans, and gradweave's with plans for a
star of as many servers, which ``gradweave job plan`` made before for the profile of gloo that comes
along. Once it is decided for every collective and size what runs, calls of the three alternate,
each behind a barrier. A time is the slowest process's, the ratio is that of the medians. Sizes are
those of all processes' parts together. Needs an otherwise idle machine.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.command_line import parser_of
from benchmarks.record import record

LIBRARIES = ("torch",)
PROCESSES = (4, 8)
SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
PLAN_S = 10
REPETITIONS = 21
DECIDE_S = 1200.0
"""How long to wait until it is decided what runs."""


def times(rank: int, size: int, folder: Path) -> list[dict[str, Any]]:
    """Rows of one process; those of rank 0 count."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    groups: dict[str, Any] = {"gloo": dist.new_group(backend="gloo")}
    groups["bare"] = dist.new_group(backend="gradweave")
    os.environ["GRADWEAVE_TOPOLOGY"] = f"star:n={size}"
    os.environ["GRADWEAVE_CACHE"] = str(folder / "cache")
    groups["planned"] = dist.new_group(backend="gradweave")
    planned = groups["planned"]
    tensors = {each: torch.zeros(each // 4) for each in SIZES}
    parts = {each: torch.zeros(each // 4 // size) for each in SIZES}

    def call(collective: str, each: int, group: Any) -> None:
        whole, part = tensors[each], parts[each]
        if collective == "all_reduce":
            dist.all_reduce(whole, group=group)
        elif collective == "all_gather":
            dist.all_gather_single(whole, part, group=group)
        else:
            dist.reduce_scatter_single(part, whole, group=group)

    kinds = [(collective, each) for collective in COLLECTIVES for each in SIZES]
    began, undecided = time.monotonic(), torch.ones(1)
    while undecided.item():
        for kind in kinds:
            for _ in range(2):
                call(*kind, planned)
        time.sleep(0.2)
        stages = {one.stage.name for one in planned.choices.listed()}
        left = not stages <= {"OWN", "PLAN"}
        undecided.fill_(float(left and time.monotonic() - began < DECIDE_S))
        dist.broadcast(undecided, 0)
    rows = []
    chosen = {(one.collective, one.size): one for one in planned.choices.listed()}
    for collective, each in kinds:
        found = torch.zeros(len(groups), REPETITIONS, dtype=torch.float64)
        for turn in range(-2, REPETITIONS):
            for number, group in enumerate(groups.values()):
                dist.barrier()
                begin = time.perf_counter()
                call(collective, each, group)
                found[number, turn] = time.perf_counter() - begin
        dist.all_reduce(found, dist.ReduceOp.MAX)
        medians = [statistics.median(row) for row in found.tolist()]
        row: dict[str, Any] = {"processes": size, "collective": collective, "bytes": each}
        row |= {f"{name}_s": median for name, median in zip(groups, medians, strict=True)}
        one = chosen[collective, each]
        row |= {"runs": one.stage.name.lower(), "trial": [one.plan_s, one.own_s]}
        row |= {"bare": medians[1] / medians[0], "planned": medians[2] / medians[0]}
        rows.append(row)
    dist.barrier()
    dist.destroy_process_group()
    return rows


def forked(size: int, folder: Path) -> None:
    """Runs all processes; rank 0 writes FOLDER/rows.json."""
    import torch  # noqa: F401  # once, before they are forked

    children = []
    for rank in range(size):
        if child := os.fork():
            children.append(child)
            continue
        status = 1
        try:
            rows = times(rank, size, folder)
            if rank == 0:
                (folder / "rows.json").write_text(json.dumps(rows))
            status = 0
        finally:
            os._exit(status)
    if any([os.waitpid(child, 0)[1] for child in children]):
        sys.exit("a process failed")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=list(PROCESSES))
    parser.add_argument("--job", nargs=2, metavar=("PROCESSES", "FOLDER"), help="one part of it")
    asked = parser.parse_args()
    if asked.job:
        forked(int(asked.job[0]), Path(asked.job[1]))
        return
    rows = []
    for size in asked.processes:
        with tempfile.TemporaryDirectory() as folder:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            plan = [sys.executable, "-m", "gradweave", "job", "plan", f"star:n={size}"]
            plan += ["--cache", f"{folder}/cache", "--time-limit", str(PLAN_S)]
            plan += ["--size", ",".join(map(str, SIZES))]
            plan += [word for each in COLLECTIVES for word in ("--collective", each)]
            subprocess.run(plan, check=True, stdout=subprocess.DEVNULL)
            job = [sys.executable, __file__, "--job", str(size), folder]
            subprocess.run(job, check=True, env=environment)
            rows += json.loads(Path(folder, "rows.json").read_text())
        for row in rows:
            print(json.dumps(row), flush=True)
    record("torch_backend_calls", libraries=LIBRARIES, rows=rows)


if __name__ == "__main__":
    main()
