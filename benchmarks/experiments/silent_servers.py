"""Trainings with the DDP hook of which one server is killed, stopped or asleep: who is named.

    python benchmarks/experiments/silent_servers.py [--cases 200] [--seed 31]

Four processes train a small model by the hook on a ring, in process groups whose timeout is 3 s.
One of them, each rank in turn and the one that holds the store too, is killed (SIGKILL) or stopped
(SIGSTOP) at a random moment, or sleeps: at the top of the loop, in the middle of `forward` or of
`backward`. Half of the models have batch normalization, so that DDP has collectives of its own in
every `forward`; their group's timeout is as short, or long. A case is

- *named right* where all others name that server and no other one, by the error that ``backward``
  raises, or, where a collective of DDP's own failed first, in the log;
- *named others* where one of them names another server;
- *torch's error alone* where one of them ends with an error of PyTorch's own and names nobody;
- *late* where it took longer than the timeout (that of DDP's own collective, where one failed
  first), twice the time to agree, and 5 s.
"""

import atexit
import collections
import contextlib
import datetime
import importlib
import json
import logging
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.command_line import parser_of
from benchmarks.record import record
from gradweave import torch as td
from gradweave.errors import LostServerError
from gradweave.schedulers import Ring
from gradweave.schedules import Schedule
from gradweave.topology import ring

SERVERS = 4
TIMEOUT_S, AGREE_S = 3.0, 2.0
LATE_S = 5.0
LONG_S = 12.0
"""The other timeout of DDP's own collectives."""
SLEEP_S = 60.0
KINDS = ("killed", "stopped", "asleep")
PLACES = ("loop", "forward", "backward")
AT_ONCE = 4
"""Cases side by side: most of the time all wait."""
GIVE_UP_S = 45.0
WARM = 3
"""Steps before the fault: DDP arranges its buckets after the first."""
Case = dict[str, Any]


def drawn(number: int, seed: int) -> Case:
    """A case: each rank of each kind in turn, the rest at random."""
    rng = random.Random(f"{seed} {number}")
    kind = KINDS[number % len(KINDS)]
    return {
        "kind": kind,
        "rank": number // len(KINDS) % SERVERS,
        "place": rng.choice(PLACES) if kind == "asleep" else "any",
        "after_s": rng.uniform(0, 0.4),
        "normalization": rng.random() < 0.5,
        "short_for_all": rng.random() < 0.5,
    }


class Sleeper(torch.nn.Module):
    """A layer that can be told to sleep in `forward`, or in `backward`."""

    def __init__(self) -> None:
        super().__init__()
        self.place = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.place == "forward":
            time.sleep(SLEEP_S)
        if self.place == "backward":
            x.register_hook(lambda gradient: time.sleep(SLEEP_S))
        return x


def model(normalization: bool) -> tuple[torch.nn.Module, Sleeper]:
    torch.manual_seed(0)
    sleeper = Sleeper()
    layers = [torch.nn.Linear(150, 150), sleeper, torch.nn.Linear(150, 150)]
    if normalization:
        layers.insert(1, torch.nn.BatchNorm1d(150))
    return torch.nn.Sequential(*layers), sleeper


def fail(case: Case, folder: Path, sleeper: Sleeper) -> None:
    """Has this process fail, at once or a little later."""

    def now(number: int) -> None:
        (folder / "failed").write_text(str(time.time()))
        os.kill(os.getpid(), number)

    if case["kind"] == "asleep":
        (folder / "failed").write_text(str(time.time()))
        sleeper.place = case["place"]
        if case["place"] == "loop":
            time.sleep(SLEEP_S)
        return
    number = signal.SIGKILL if case["kind"] == "killed" else signal.SIGSTOP
    threading.Timer(case["after_s"], now, [number]).start()


def train(case: Case, schedule: Schedule, folder: Path, rank: int) -> None:
    """Trains until an error, and writes what it says."""

    def note(text: str, by: str) -> None:
        with (folder / f"{rank}.jsonl").open("a") as file:
            file.write(json.dumps({"by": by, "said": text, "at": time.time()}) + "\n")

    handler = logging.Handler()
    handler.emit = lambda entry: note(entry.getMessage(), "log")
    logging.getLogger("gradweave").addHandler(handler)
    layers, sleeper = model(case["normalization"])
    ddp = DistributedDataParallel(layers, bucket_cap_mb=0.05)  # type: ignore[call-arg]
    group = dist.new_group(timeout=datetime.timedelta(seconds=TIMEOUT_S))
    assert isinstance(group, dist.ProcessGroup)
    td.ddp_hook(ddp, schedule, group)
    for step in range(100_000):
        if step == WARM and rank == case["rank"]:
            fail(case, folder, sleeper)
        try:
            ddp(torch.ones(8, 150)).sum().backward()
        except LostServerError as error:
            note(str(error), "error")
            break
        except RuntimeError as error:
            sys.last_value = error  # as where nobody catches it
            note(str(error).splitlines()[0], "torch")
            break
        time.sleep(0.01)
    atexit._run_exitfuncs()


def connected(case: Case, folder: Path, rank: int) -> None:
    """Joins the processes by a store in the first one."""
    place, long = folder / "port", datetime.timedelta(seconds=LONG_S)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, SERVERS, True, long, wait_for_workers=False)
        (folder / "port.new").write_text(str(store.port))
        (folder / "port.new").rename(place)
    else:
        while not place.exists():
            time.sleep(0.01)
        store = dist.TCPStore("127.0.0.1", int(place.read_text()), SERVERS, False, long)
    timeout = datetime.timedelta(seconds=TIMEOUT_S) if case["short_for_all"] else long
    dist.init_process_group("gloo", store=store, rank=rank, world_size=SERVERS, timeout=timeout)


def forked(work: Callable[[], None]) -> int:
    """Runs a function in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def process(case: Case, schedule: Schedule, folder: Path, rank: int) -> None:
    output = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    atexit._clear()  # what the process registered that this one was forked from
    torch.set_num_threads(1)
    connected(case, folder, rank)
    train(case, schedule, folder, rank)


def run(case: Case, schedule: Schedule, folder: Path) -> Case:
    """Plays a case, and judges it."""
    folder.mkdir()
    ids = [forked(lambda r=rank: process(case, schedule, folder, r)) for rank in range(SERVERS)]
    left, until = set(range(SERVERS)) - {case["rank"]}, time.monotonic() + GIVE_UP_S
    while left and time.monotonic() < until:
        for rank in sorted(left):
            if os.waitpid(ids[rank], os.WNOHANG)[0]:
                left.discard(rank)
        time.sleep(0.02)
    for rank in left | {case["rank"]}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ids[rank], signal.SIGKILL)
        os.waitpid(ids[rank], 0)
    if not (folder / "failed").exists():
        logs = [(folder / f"{rank}.log").read_text(errors="replace") for rank in range(SERVERS)]
        return case | {"verdict": "did not start", "logs": [log[-1500:] for log in logs]}
    return case | judged(case, folder)


def judged(case: Case, folder: Path) -> Case:
    """What the servers that are left said."""
    failed_at = float((folder / "failed").read_text())
    found: Case = {"named": {}, "seconds": 0.0, "errors_of_torch": 0}
    for rank in sorted(set(range(SERVERS)) - {case["rank"]}):
        path = folder / f"{rank}.jsonl"
        said = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        ours = [each for each in said if each["by"] != "torch"]
        found["errors_of_torch"] += len(ours) < len(said)
        found["named"][rank] = sorted(
            set[int]().union(*(servers_in(each["said"]) for each in ours))
        )
        found["seconds"] = max([found["seconds"], *(each["at"] - failed_at for each in ours)])
    named = list(found["named"].values())
    if any(set(names) - {case["rank"]} for names in named):
        found["verdict"] = "named others"
    elif all(named):
        alone = found["errors_of_torch"] and not case["short_for_all"]
        limit_s = (LONG_S if alone else TIMEOUT_S) + 2 * AGREE_S + LATE_S
        found["verdict"] = "late" if found["seconds"] > limit_s else "named right"
    else:
        found["verdict"] = "torch's error alone"
    return found


def servers_in(text: str) -> set[int]:
    """Ids of the servers that an error names."""
    return {
        int(number)
        for each in re.findall(r"servers? ([\d, ]+)", text)
        for number in each.replace(",", " ").split()
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--no-record", action="store_true")
    arguments = parser.parse_args()
    for name in ("torch.distributed.fsdp", "torch._dynamo"):
        importlib.import_module(name)  # DDP does: once, not in each process
    schedule = Ring().schedule(ring(SERVERS))
    begin, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory() as name:
        pipes: dict[int, Path] = {}
        for number in range(arguments.cases + AT_ONCE):
            while len(pipes) >= AT_ONCE or (pipes and number >= arguments.cases):
                child, _ = os.wait()
                rows.append(json.loads((pipes.pop(child) / "row.json").read_text()))
                print(rows[-1], flush=True)
            if number < arguments.cases:
                folder = Path(name) / str(number)
                case = {"case": number} | drawn(number, arguments.seed)
                pipes[forked(lambda c=case, f=folder: write(c, schedule, f))] = folder
    rows.sort(key=lambda row: row["case"])
    counts = {
        kind: dict(collections.Counter(row["verdict"] for row in rows if row["kind"] == kind))
        for kind in KINDS
    }
    print(counts, f"{time.monotonic() - begin:.0f} s")
    if not arguments.no_record:
        command = f"python benchmarks/experiments/silent_servers.py --cases {arguments.cases} "
        command += f"--seed {arguments.seed}"
        record(
            "silent_servers",
            command,
            ("torch",),
            seed=arguments.seed,
            servers=SERVERS,
            timeout_s=TIMEOUT_S,
            counts=counts,
            rows=rows,
        )


def write(case: Case, schedule: Schedule, folder: Path) -> None:
    row = run(case, schedule, folder)
    (folder / "row.json").write_text(json.dumps(row))


if __name__ == "__main__":
    main()
