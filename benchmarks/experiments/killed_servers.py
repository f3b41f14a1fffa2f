"""Asynchronous trainings whose servers, or whose Ray processes, are killed by SIGKILL.

    python benchmarks/experiments/killed_servers.py [--kills 50] [--seed 0]
    python benchmarks/experiments/killed_servers.py --ray 5
    python benchmarks/experiments/killed_servers.py --shrink [--kills 50] [--seed 0]

Servers: two of them and a worker under `sync`, a checkpoint after each update. A random server is
killed at a random moment of a random update; the command is then paused, and the checkpoint is
read: it must exist and equal the uninterrupted run's after as many updates. The run resumes from it
by itself and must end bit for bit the same. A kill counts as inside a save where shards newer than
the checkpoint exist, and as inside a file where the killed server left one half written. All
processes share JAX's compilation cache.

Ray: the raylet or the GCS is killed, in a new run each time; the seconds until the command ended.

Shrink: DDP on four servers, and HSDP on four replicas of two, with ``on_loss="shrink"``. Of each
job, servers are killed until one server or replica is left; two of five are started again. The
seconds are those from a kill until all others have completed the step in progress, or the next.
All parameters are compared with each other, and at the end with a training in one process that
leaves the same gradients out.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.command_line import parser_of
from benchmarks.processes import with_compilation_cache
from benchmarks.record import record
from gradweave.aggregate.asynchronous import Task, checkpoint, train_on_ray
from gradweave.aggregate.asynchronous.shard import initial_shard
from gradweave.common.atomic import unfinished

SERVERS, WORKERS = 2, 1
UPDATES = 300
WIDTH = 50_000
"""Number of parameters."""
UPDATES_APART = 4
"""Most updates between a recovery and the next kill."""
SETTLED_S = 0.05
"""Time for the surviving server to finish writing while the command is paused."""
PLACES = 4
"""Servers, or replicas, of a job whose members are killed."""
KILLS_A_JOB, RETURNS_AT = 5, (0, 2)
"""Kills in each of these jobs, and after which of them the server is started again."""
MOMENTS_S = 0.5
"""Longest time from a recovery to the next kill: several steps."""
AT_UPDATE = 10
"""Update after which Ray is killed."""


def task() -> Task:
    def loss(params: Any, draw: Any) -> Any:
        x = jax.random.normal(draw.key, (WIDTH,))
        return jnp.mean((params["w"] - x) ** 2)

    return Task(
        params={"w": jnp.zeros(WIDTH)},
        gradient=jax.value_and_grad(loss),
        optimizer=optax.adam(1e-2),
        workers=WORKERS,
        servers=SERVERS,
        steps=UPDATES,
    )


def digest(vector: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(vector).tobytes()).hexdigest()[:16]


def drive(folder: str, keep: bool) -> None:
    """The command: prints a line per update, and one at the end."""

    def report(progress: Any) -> None:
        print(json.dumps({"update": progress.update, "servers": progress.servers}), flush=True)

    begin = time.monotonic()
    run = train_on_ray(
        task(), folder=folder, checkpoint_every=1, keep_every=int(keep), report=report
    )
    end = {
        "params": digest(run.params["w"]),
        "losses": digest(run.history.loss),
        "recovered": run.recovered,
        "replaced": run.replaced,
        "seconds": time.monotonic() - begin,
        "kept": [digest(kept.params["w"]) for kept in run.kept],
    }
    print(json.dumps(end), flush=True)


class Command:
    """A run in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.updates, self.end = folder, [], {}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--drive", str(folder), *options],
            env=with_compilation_cache(folder.parent / "compiled"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            report = json.loads(line)
            if "update" in report:
                self.updates.append(report)
            else:
                self.end = report

    def wait_for(self, update: int, other_than: list[int] | None = None) -> list[int]:
        """Waits for an update by other servers than these; returns the servers."""
        while True:
            if self.updates:
                latest = self.updates[-1]
                if latest["update"] >= update and latest["servers"] != other_than:
                    return latest["servers"]
            if self.process.poll() is not None:
                sys.exit(f"ended with {self.process.returncode}: {self.errors()}")
            time.sleep(0.0005)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def finished(self) -> dict[str, Any]:
        if self.process.wait():
            sys.exit(f"ended with {self.process.returncode}: {self.errors()}")
        while not self.end:
            time.sleep(0.01)
        return self.end


def state_of(command: Command, kept: list[str]) -> dict[str, Any]:
    """The checkpoint in the folder of a paused command, beside the uninterrupted run's."""
    import psutil  # Ray's copy, if there is no other

    time.sleep(SETTLED_S)
    training, folder = task(), command.folder
    cut = checkpoint.load_snapshot(folder, training.digest(), WORKERS)
    if cut is None:
        sys.exit("there is no checkpoint")
    parts = []
    for server, (begin, end) in enumerate(training.ranges()):
        like = initial_shard(training.optimizer, np.zeros(end - begin, np.float32))
        path = checkpoint.shard_path(folder, server, cut.updates)
        parts.append(np.asarray(checkpoint.load_shard(path, like).parameters))
    open_paths = {file.path for file in psutil.Process(command.process.pid).open_files()}
    half_written = [path for path in unfinished(folder) if str(path) not in open_paths]
    newer = [path for path, updates in checkpoint.parts(folder) if updates > cut.updates]
    return {
        "checkpoint": cut.updates,
        "same": digest(np.concatenate(parts)) == kept[cut.updates - 1],
        "inside_a_save": bool(newer or half_written),
        "inside_a_file": bool(half_written),
    }


def servers_killed(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    whole = Command(folder / "whole", "--keep").finished()
    print(f"uninterrupted in {whole['seconds']:.0f} s", flush=True)
    update_s = whole["seconds"] / UPDATES
    rng, rows = random.Random(seed), []
    command = Command(folder / "broken")
    servers = None
    while len(rows) < kills:
        servers = command.wait_for(1, servers)
        command.wait_for(command.updates[-1]["update"] + rng.randint(0, UPDATES_APART))
        time.sleep(rng.uniform(0, update_s))
        os.kill(rng.choice(servers), signal.SIGKILL)
        with command.paused():
            rows.append(state_of(command, whole["kept"]))
        print(f"kill {len(rows)}: {rows[-1]}", flush=True)
    end = command.finished()
    return {
        "updates": UPDATES,
        "kills": kills,
        "recovered": end["recovered"],
        "replaced": end["replaced"],
        "same": all(end[name] == whole[name] for name in ("params", "losses")),
        "inside_a_save": sum(row["inside_a_save"] for row in rows),
        "inside_a_file": sum(row["inside_a_file"] for row in rows),
        "readable_and_same": sum(row["same"] for row in rows),
        "killed_at": rows,
    }


def ray_killed(part: str, folder: Path) -> float:
    """Seconds from killing a Ray process to the end of the command."""
    command = Command(folder)
    command.wait_for(AT_UPDATE)
    import psutil  # Ray's copy, if there is no other

    children = psutil.Process(command.process.pid).children(recursive=True)
    victim = next(child for child in children if child.name() == part)
    victim.kill()
    begin = time.monotonic()
    command.process.wait()
    seconds = time.monotonic() - begin
    last = command.errors().strip().splitlines()[-1]
    print(f"{part}: {seconds:.2f} s: {last}", flush=True)
    if "updates up to" not in last:
        sys.exit(f"{part}: it did not say how to resume: {last}")
    return seconds


def members_killed(kind: str, jobs: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Jobs of PyTorch each of which loses `KILLS_A_JOB` servers."""
    from tests.execute.forked import forked
    from tests.execute.torch_shrink_cases import SHARDS, Job, compared

    def whole(number: int, place: Path) -> None:
        import torch

        torch.set_num_threads(1)
        rng = random.Random(f"{seed} {kind} {number}")
        job = Job(place, kind, PLACES * (SHARDS if kind == "hsdp" else 1))
        for rank in job.children:
            job.wait_for(rank, 3)
        kills = [member_killed(job, rng, turn in RETURNS_AT) for turn in range(KILLS_A_JOB)]
        found = compared(kind, place, job.end())
        more = [max(end[i] - begun[i] for begun, end in found["left"]) for i in range(2)]
        row = {"kind": kind, "kills": kills, "alike": found["alike"], "apart": found["apart"]}
        row |= {"statuses": found["statuses"], "more_threads": more[0], "more_files": more[1]}
        (place / "row.json").write_text(json.dumps(row))

    rows = []
    for number in range(jobs):
        place = folder / f"{kind}-{number}"
        place.mkdir()
        # Servers are forked from a process that has not computed, which would leave it threads.
        if forked(1, lambda _, number=number, place=place: whole(number, place)) != [0]:
            sys.exit(f"{kind}, job {number} failed")
        rows.append(json.loads((place / "row.json").read_text()))
        print(f"{kind}, job {number}: {rows[-1]}", flush=True)
    return rows


def member_killed(job: Any, rng: random.Random, returns: bool) -> dict[str, Any]:
    """Kills a server at a random moment; waits for the others, and for the one that returns."""
    rank = rng.choice(sorted(job.children))
    time.sleep(rng.uniform(0, MOMENTS_S))
    at = time.time()
    lost = set(job.kill(rank))
    row: dict[str, Any] = {"rank": rank, "seconds": job.completed_without(lost, at)}
    if returns:
        begin = time.time()
        for other in lost:
            job.start(other)
        for other in lost:
            job.wait_for(other, 1)
        row["back_s"] = time.time() - begin
    return row


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ray", type=int, default=0)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        return drive(arguments.drive, arguments.keep)
    common: dict[str, Any] = {
        "libraries": ("jax", "optax", "ray"),
        "load_at_start": os.getloadavg()[0],
    }
    program = "python benchmarks/experiments/killed_servers.py"
    with tempfile.TemporaryDirectory() as name:
        if arguments.shrink:
            jobs = arguments.kills // KILLS_A_JOB
            kinds = {"ddp": (jobs + 1) // 2, "hsdp": jobs // 2}
            rows = [
                row
                for kind, count in kinds.items()
                for row in members_killed(kind, count, arguments.seed, Path(name))
            ]
            common["libraries"] = ("torch",)
            command = f"{program} --shrink --kills {arguments.kills}"
            record("killed_members", command, **common, seed=arguments.seed, rows=rows)
            return
        if arguments.ray:
            rows = {
                part: [
                    ray_killed(part, Path(name) / f"{part}-{run}") for run in range(arguments.ray)
                ]
                for part in ("raylet", "gcs_server")
            }
            record(
                "killed_ray", f"{program} --ray {arguments.ray}", **common, seconds_to_the_end=rows
            )
            return
        row = servers_killed(arguments.kills, arguments.seed, Path(name))
        command = f"{program} --kills {arguments.kills}"
        record("killed_servers", command, **common, seed=arguments.seed, rows=[row])
    if not row["same"] or row["readable_and_same"] != row["kills"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
