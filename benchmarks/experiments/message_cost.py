"""What a message costs beside its bytes: back-to-back messages between two processes here.

python benchmarks/experiments/message_cost.py

Needs an otherwise idle machine. *A runtime's own*: one process sends messages of one size to
another, and the last one is answered; a message takes what all took, divided by their number.
*Through the executors*: the ring's all-reduce on two servers, in more and more pieces of 64 bytes
and of 16 KiB, by `gradweave bench`: what a further message takes on a link, if each direction
has as many. Both are fitted as overhead + bytes / bandwidth, by the least of several runs; the
one-way time of a message that is answered at once is recorded beside them.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import record
from gradweave.schedulers.solving.variants import split

BIN = Path(sys.executable).parent
RUNTIMES = {"MPI": ("mpi", "mpi4py"), "gloo": ("torch", "torch")}
SIZES = (1, 1 << 10, 1 << 14, 1 << 16, 1 << 18)
PARTS = (1, 8, 16, 32)
PIECE_BYTES = (64, 1 << 14)
REPETITIONS = 40

ALONE = """
import sys, time
import numpy as np
sizes = [int(size) for size in sys.argv[2:]]
if sys.argv[1] == "mpi":
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    rank, array = world.rank, lambda size: np.zeros(size, np.uint8)
    send, receive = world.Send, world.Recv
else:
    import os, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank, array = dist.get_rank(), lambda size: torch.zeros(size, dtype=torch.uint8)
    send, receive = dist.send, dist.recv
other = 1 - rank

def passed(buffer, answer, count):
    "Seconds of so many messages from process 0 to process 1, of which the last is answered."
    began = time.perf_counter()
    for _ in range(count):
        (send if rank == 0 else receive)(buffer, other)
    (receive if rank == 0 else send)(answer, other)
    return (time.perf_counter() - began) / count

for size in sizes:
    buffer, answer = array(size), array(1)
    count = 1000 if size < 1 << 16 else 100
    each = min(passed(buffer, answer, count) for _ in range(9))
    trip = min(passed(buffer, buffer, 1) for _ in range(200)) / 2
    if rank == 0:
        print(size, each, trip, flush=True)
"""


def fitted(sizes: Any, seconds: Any) -> dict[str, float]:
    """Overhead and bandwidth by least squares of relative errors."""
    sizes, seconds = np.asarray(sizes, float), np.asarray(seconds, float)
    design = np.stack([1 / seconds, sizes / seconds], axis=1)
    overhead_s, per_byte = np.linalg.lstsq(design, np.ones(len(sizes)), rcond=None)[0]
    error = np.abs(design @ [overhead_s, per_byte] - 1).max()
    return {
        "overhead_s": float(overhead_s),
        "bandwidth_bytes_per_s": float(1 / per_byte),
        "worst_relative_error": float(error),
    }


def alone(runtime: str) -> dict[str, Any]:
    """Messages of a runtime, without an executor."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "alone.py")
        script.write_text(ALONE)
        launcher = (
            ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
            if runtime == "mpi"
            else ["torchrun", "--standalone", "--nproc-per-node=2"]
        )
        command = [str(BIN / launcher[0]), *launcher[1:], str(script), runtime, *map(str, SIZES)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    return {
        "messages": [dict(zip(("bytes", "each_s", "one_way_s"), row, strict=True)) for row in rows],
        **fitted([row[0] for row in rows], [row[1] for row in rows]),
    }


def through_executor(backend: str) -> dict[str, Any]:
    """A further message of a schedule, by the slope over the number of messages."""
    ring = gw.schedulers.Ring().schedule(gw.topology.complete(2))
    rows, slopes = [], []
    for piece_bytes in PIECE_BYTES:
        times = []
        for parts in PARTS:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "ring.json")
                made = split(ring, parts)
                made.save(file)
                size = ["--size", str(made.pieces * piece_bytes)]
                often = ["--repetitions", str(REPETITIONS), "--json"]
                command = [str(BIN / "gradweave"), "bench", str(file), "--backend", backend]
                done = subprocess.run(
                    [*command, *size, *often], check=True, capture_output=True, text=True
                )
            measured = json.loads(done.stdout)["schedule"]
            messages = made.num_transfers // 2  # on each direction of the link
            times.append(measured["min_s"])
            rows.append({"piece_bytes": piece_bytes, "messages": messages} | measured)
        messages = [2 * parts for parts in PARTS]
        slopes.append(float(np.polyfit(messages, times, 1)[0]))
    return {"runs": rows, "further_message_s": slopes, **fitted(PIECE_BYTES, slopes)}


def main() -> None:
    parser_of(__doc__).parse_args()
    own = {}
    for name, (runtime, _) in RUNTIMES.items():
        own[name] = alone(runtime)
        print(name, {key: own[name][key] for key in own[name] if key != "messages"}, flush=True)
    executors = {}
    for backend in ("mpi", "jax", "torch"):
        executors[backend] = through_executor(backend)
        print(backend, executors[backend]["further_message_s"], flush=True)
    record(
        "message_cost",
        libraries=[*(library for _, library in RUNTIMES.values()), "jax"],
        default_s=gw.topology.Link().overhead_s,
        own=own,
        executors=executors,
    )


if __name__ == "__main__":
    main()
