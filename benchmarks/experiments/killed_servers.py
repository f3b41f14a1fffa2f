"""An asynchronous training whose servers are killed by SIGKILL, and one whose Ray is.

    python benchmarks/experiments/killed_servers.py [--kills 50] [--seed 0]
    python benchmarks/experiments/killed_servers.py --ray 5

Servers: two of them and a worker under `sync`, a checkpoint after each update. A kill comes at a
random moment of a random update, to a random server; then the command is stopped for a moment, and
the checkpoint is read: it must be there, and be what the unkilled run had after as many updates.
The run goes on from it by itself, and must end in the same bits. A kill counts as inside a save
where shards newer than the checkpoint were there, and as inside a file where the killed server left
one half written. JAX keeps what it compiled, in a folder that all processes share.

Ray: the raylet, or the GCS, of a run of its own each time; the seconds until the command ended.
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
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from record import record, versions

from gradweave.aggregate.asynchronous import Task, checkpoint, train
from gradweave.aggregate.asynchronous.shard import initial_shard
from gradweave.atomic import unfinished

SERVERS, WORKERS = 2, 1
UPDATES = 300
WIDTH = 50_000
"""Parameters."""
UPDATES_APART = 4
"""The most that a kill comes after the first update since the last one."""
SETTLED_S = 0.05
"""Until the server that lives has written what it was told to, while the command is stopped."""
AT_UPDATE = 10
"""When Ray is killed."""


def given() -> Task:
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
    """The command: a line for each update, and one at the end."""

    def report(told: Any) -> None:
        print(json.dumps({"update": told.update, "servers": told.servers}), flush=True)

    begun = time.monotonic()
    run = train(given(), folder=folder, checkpoint_every=1, keep_every=int(keep), report=report)
    end = {
        "params": digest(run.params["w"]),
        "losses": digest(run.history.loss),
        "recovered": run.recovered,
        "replaced": run.replaced,
        "seconds": time.monotonic() - begun,
        "kept": [digest(kept.params["w"]) for kept in run.kept],
    }
    print(json.dumps(end), flush=True)


class Command:
    """A run in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.told, self.end = folder, [], {}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--drive", str(folder), *options],
            env=os.environ
            | {
                "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "update" in said:
                self.told.append(said)
            else:
                self.end = said

    def wait_for(self, update: int, other_than: list[int] | None = None) -> list[int]:
        """Waits until an update is done, by other servers than these; the servers."""
        while True:
            if self.told:
                now = self.told[-1]
                if now["update"] >= update and now["servers"] != other_than:
                    return now["servers"]
            if self.process.poll() is not None:
                sys.exit(f"ended with {self.process.returncode}: {self.said()}")
            time.sleep(0.0005)

    def said(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def finished(self) -> dict[str, Any]:
        if self.process.wait():
            sys.exit(f"ended with {self.process.returncode}: {self.said()}")
        while not self.end:
            time.sleep(0.01)
        return self.end


def found(command: Command, kept: list[str]) -> dict[str, Any]:
    """What is in the folder of a command that is stopped."""
    import psutil  # Ray's, if there is no other

    time.sleep(SETTLED_S)
    task, folder = given(), command.folder
    cut = checkpoint.load_snapshot(folder, task.digest(), WORKERS)
    if cut is None:
        sys.exit("there is no checkpoint")
    parts = []
    for server, (begin, end) in enumerate(task.ranges()):
        like = initial_shard(task.optimizer, np.zeros(end - begin, np.float32))
        path = checkpoint.shard_path(folder, server, cut.updates)
        parts.append(np.asarray(checkpoint.load_shard(path, like).parameters))
    own = {file.path for file in psutil.Process(command.process.pid).open_files()}
    left = [path for path in unfinished(folder) if str(path) not in own]
    newer = [path for path, updates in checkpoint.shards(folder) if updates > cut.updates]
    return {
        "checkpoint": cut.updates,
        "same": digest(np.concatenate(parts)) == kept[cut.updates - 1],
        "inside_a_save": bool(newer or left),
        "inside_a_file": bool(left),
    }


def servers_killed(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    whole = Command(folder / "whole", "--keep").finished()
    print(f"unkilled in {whole['seconds']:.0f} s", flush=True)
    update_s = whole["seconds"] / UPDATES
    draw, rows = random.Random(seed), []
    command = Command(folder / "broken")
    servers = None
    while len(rows) < kills:
        servers = command.wait_for(1, servers)
        command.wait_for(command.told[-1]["update"] + draw.randint(0, UPDATES_APART))
        time.sleep(draw.uniform(0, update_s))
        os.kill(draw.choice(servers), signal.SIGKILL)
        with command.stopped():
            rows.append(found(command, whole["kept"]))
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
    """Seconds from the death of a part of Ray to the end of the command."""
    command = Command(folder)
    command.wait_for(AT_UPDATE)
    import psutil  # Ray's, if there is no other

    children = psutil.Process(command.process.pid).children(recursive=True)
    victim = next(child for child in children if child.name() == part)
    victim.kill()
    begun = time.monotonic()
    command.process.wait()
    seconds = time.monotonic() - begun
    last = command.said().strip().splitlines()[-1]
    print(f"{part}: {seconds:.2f} s: {last}", flush=True)
    if "updates up to" not in last:
        sys.exit(f"{part}: it did not say how to go on: {last}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ray", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drive:
        return drive(asked.drive, asked.keep)
    about: dict[str, Any] = {
        "versions": versions() | {name: version(name) for name in ("jax", "optax", "ray")},
        "load_at_start": os.getloadavg()[0],
    }
    program = "python benchmarks/experiments/killed_servers.py"
    with tempfile.TemporaryDirectory() as name:
        if asked.ray:
            rows = {
                part: [ray_killed(part, Path(name) / f"{part}-{run}") for run in range(asked.ray)]
                for part in ("raylet", "gcs_server")
            }
            record("killed_ray", f"{program} --ray {asked.ray}", **about, seconds_to_the_end=rows)
            return
        row = servers_killed(asked.kills, asked.seed, Path(name))
        command = f"{program} --kills {asked.kills}"
        record("killed_servers", command, **about, seed=asked.seed, rows=[row])
    if not row["same"] or row["readable_and_same"] != row["kills"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
