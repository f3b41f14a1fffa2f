"""Faults in jobs of the backend ``gradweave``: whether the culprit is named, and how soon.

    python benchmarks/experiments/torch_backend_faults.py [--cases 200] [--steps 10000]

Needs root, as experiments/lab.py, for the slow links. Four processes all-reduce two tensors and
all-gather a third, step by step, with ``GRADWEAVE_SLOW_AFTER=2``, by gloo's own collectives or by a
plan (a ring), in turn. At a random moment one of them, each rank in turn and the one that holds the
store too, is stopped (SIGSTOP) or killed (SIGKILL), sleeps, calls something else in place of a
collective, or leaves one out; or one direction of a link of an emulated network (``gradweave lab``)
lets through a hundredth of what it did. A case is

- *right* where the first line that any rank logs names that rank and no other one (or the link's
  two ends), and no later line names others;
- *late* where that line came later than the patience and 5 s after the fault;
- *others* or *nothing* where other ranks are named, or none.

Lines before the fault are counted apart: on a busy machine a job's processes may begin so far apart
that one of them does hold the others up.

Ranks that can go on do so after the verdict, and end; then no process, thread, namespace or file of
theirs may be left. Healthy jobs run so many steps in all, with a plan and without; any line that
they log is a false alarm. What the recording costs is the time of a call of a group that does
nothing, recorded and not.
"""

import atexit
import collections
import contextlib
import json
import logging
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
import torch.distributed as dist
from pyroute2 import netns

import gradweave as gw
import gradweave.torch.group  # before there are processes: all of one tree
from benchmarks.command_line import parser_of
from benchmarks.record import record
from benchmarks.unfinished import Unfinished
from gradweave.lab.commands import PORT
from gradweave.lab.forwarding import shortest_paths
from gradweave.lab.network import EmulatedNetwork
from gradweave.schedulers import Ring
from gradweave.topology.spec import as_topology
from gradweave.torch.record import Recorder
from gradweave.torch.recorded import GroupRecord, RecordedGroup
from tests.execute.torch_backend_cases import all_by_plan

LIBRARIES = ("torch",)
RANKS = 4
PATIENCE_S, LATE_S = 2.0, 5.0
KINDS = ("stopped", "killed", "asleep", "slow link", "another call", "left out")
LASTS = ("stopped", "asleep", "slow link")
"""Faults that end, so that the job goes on."""
WRONG_CALLS = ("another call", "left out")
ELEMENTS = (1 << 16, 1 << 14, 1 << 10)
LINK_ELEMENTS = (1 << 19, 1 << 14, 1 << 10)
"""Of the tensors of a step, elsewhere and on the emulated network."""
LINK_BYTES_PER_S, SLOWER = 20e6, 100
WARM = 3
"""Steps before a fault."""
AT_ONCE = 3
"""Cases side by side: most of the time all wait."""
WAIT_S, END_S = 15.0, 60.0
"""How long to wait for a verdict, and for the end of a job that goes on."""
MOST_STEPS = 100_000
CALLS = 20_000
Case = dict[str, Any]


def drawn(number: int, seed: int) -> Case:
    """A case: each kind, rank and way in turn, the moment at random."""
    rng = random.Random(f"{seed} {number}")
    rank = number // len(KINDS) % RANKS
    case = {
        "case": number,
        "kind": KINDS[number % len(KINDS)],
        "rank": rank,
        "plan": number // len(KINDS) // RANKS % 2 == 1,
        "step": WARM + rng.randrange(20),
        "place": rng.randrange(len(ELEMENTS)),
        "instead": rng.choice(("broadcast", "barrier", "reduce_scatter")),
    }
    if (
        case["kind"] == "slow link"
    ):  # one that the all-reduce uses: gloo's own goes round the other way
        case["to"] = (rank + (1 if case["plan"] else RANKS - 1)) % RANKS
    return case


class Step:
    """The collectives of a step, of which one can be made wrong."""

    def __init__(self, elements: tuple[int, ...]) -> None:
        self._tensors = [torch.zeros(each) for each in elements]
        self._all = torch.zeros(RANKS * elements[2])
        self._rest = torch.zeros(elements[2] // RANKS)

    def __call__(self, case: Case, wrong: bool) -> None:
        for place in range(len(self._tensors)):
            if not wrong or place != case["place"] or case["kind"] not in WRONG_CALLS:
                self._right(place)
            elif case["kind"] == "another call":
                self._instead(case["instead"])

    def _right(self, place: int) -> None:
        if place < 2:
            dist.all_reduce(self._tensors[place])
        else:
            gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the new name
            gather(self._all, self._tensors[2])

    def _instead(self, call: str) -> None:
        if call == "broadcast":
            dist.broadcast(self._tensors[0], 0)
        elif call == "barrier":
            dist.barrier()
        else:
            dist.reduce_scatter_tensor(self._rest, self._tensors[2])


def train(case: Case, rank: int, folder: Path, steps: int) -> None:
    """Steps until the parent says that it is enough."""
    step = Step(LINK_ELEMENTS if case.get("kind") == "slow link" else ELEMENTS)
    stop = torch.zeros(1)
    for number in range(steps):
        wrong = number == case.get("step") and rank == case["rank"]
        if wrong:
            fail(case, folder)
        step(case, wrong)
        if number % 10 == 9 and "kind" in case:  # all end at the same step
            stop.fill_(float((folder / "enough").exists()))
            dist.all_reduce(stop, dist.ReduceOp.MAX)
            if stop.item():
                return


def fail(case: Case, folder: Path) -> None:
    """The fault, as far as this process has it, and when it was."""
    (folder / "failed.new").write_text(str(time.time()))
    (folder / "failed.new").rename(folder / "failed")
    if case["kind"] in ("stopped", "killed"):
        kill = signal.SIGSTOP if case["kind"] == "stopped" else signal.SIGKILL
        os.kill(os.getpid(), kill)
    until = time.monotonic() + WAIT_S + LATE_S
    while case["kind"] == "asleep" and not (folder / "enough").exists():
        time.sleep(0.05)
        assert time.monotonic() < until


def process(case: Case, rank: int, folder: Path, steps: int, place: str, plan: bool) -> None:
    """One rank: what it logs, and what is left of it at its end."""
    output = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    atexit._clear()  # what the process registered that this one was forked from
    torch.set_num_threads(1)

    def note(record: logging.LogRecord) -> None:
        with (folder / f"{rank}.jsonl").open("a") as file:
            file.write(json.dumps({"said": record.getMessage(), "at": time.time()}) + "\n")

    handler = logging.Handler()
    handler.emit = note
    logging.getLogger("gradweave").addHandler(handler)
    host, port = place.rsplit(":", 1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": host}
    os.environ |= {"MASTER_PORT": port, "GRADWEAVE_SLOW_AFTER": str(PATIENCE_S)}
    if plan:
        all_by_plan()
        os.environ["GRADWEAVE_PLAN"] = str(folder / "plan.json")
    dist.init_process_group("gradweave")
    try:
        train(case, rank, folder, steps)
    except RuntimeError as error:  # a connection broke
        sys.last_value = error  # as where nobody catches it
        atexit._run_exitfuncs()
        raise
    dist.destroy_process_group()
    time.sleep(0.5)
    ours = "gradweave-monitor" if plan else "gradweave"  # a plan's own threads end with the process
    left = [each.name for each in threading.enumerate() if each.name.startswith(ours)]
    (folder / f"{rank}.left").write_text(json.dumps(left))


def forked(work: Callable[[], None]) -> int:
    """Runs a function in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def run(case: Case, folder: Path) -> Case:
    """Plays a case, and judges it."""
    folder.mkdir()
    Ring().schedule(gw.topology.complete(RANKS)).save(folder / "plan.json")
    if case["kind"] != "slow link":
        place = f"127.0.0.1:{free_port()}"
        ids = [
            forked(lambda r=rank: process(case, r, folder, MOST_STEPS, place, case["plan"]))
            for rank in range(RANKS)
        ]
        return case | played(case, folder, ids, lambda: None, lambda: None)
    topology = as_topology(f"complete:n={RANKS},bandwidth={LINK_BYTES_PER_S * 8 / 1e6:.0f}Mbit/s")
    with EmulatedNetwork(topology) as network:
        network.route(shortest_paths(topology))
        os.environ["GLOO_SOCKET_IFNAME"] = network.interface(0)
        place, names = f"{network.address(0, 0)}:{PORT}", [network.name(r) for r in range(RANKS)]

        def inside(rank: int) -> None:
            netns.setns(names[rank])
            process(case, rank, folder, MOST_STEPS, place, case["plan"])

        ids = [forked(lambda r=rank: inside(r)) for rank in range(RANKS)]
        link = int(topology.find_links([case["rank"]], [case["to"]])[0])
        return case | played(
            case,
            folder,
            ids,
            lambda: network.limit(link, LINK_BYTES_PER_S / SLOWER),
            lambda: network.limit(link, LINK_BYTES_PER_S),
        )


def played(
    case: Case,
    folder: Path,
    ids: list[int],
    begin: Callable[[], None],
    end: Callable[[], None],
) -> Case:
    """Waits for the fault, the verdict and the end."""
    failed = folder / "failed"
    wait(lambda: failed.exists() or len(alive(ids)) < RANKS, END_S)
    begin()
    wait(lambda: bool(judged(case, folder).get("seconds")) if failed.exists() else True, WAIT_S)
    time.sleep(1.0)  # for lines of the others
    end()
    (folder / "enough").touch()
    if case["kind"] == "stopped":
        with contextlib.suppress(ProcessLookupError):
            os.kill(ids[case["rank"]], signal.SIGCONT)
    if case["kind"] in (*LASTS, "killed"):
        wait(lambda: not alive(ids), END_S)
    hung = alive(ids) if case["kind"] in (*LASTS, "killed") else []
    for child in alive(ids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    wait(lambda: not alive(ids), END_S)
    if not (folder / "failed").exists():
        logs = [(folder / f"{r}.log").read_text(errors="replace") for r in range(RANKS)]
        return {"verdict": "did not start", "logs": [log[-300:] for log in logs]}
    found = judged(case, folder)
    if case["kind"] in LASTS:
        files = [folder / f"{rank}.left" for rank in range(RANKS)]
        found["ended"] = all(file.exists() for file in files)
        found["left"] = sum(len(json.loads(f.read_text())) for f in files if f.exists())
    return found | {"hung": len(hung)}


def wait(until: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not until() and time.monotonic() < end:
        time.sleep(0.02)


def alive(ids: list[int]) -> list[int]:
    """Those of the processes that have not ended."""
    left = []
    for child in ids:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                left.append(child)
    return left


def said(folder: Path) -> list[Case]:
    """All lines of all ranks, by time, without those that say that it goes on."""
    lines = [
        json.loads(line) | {"by": int(path.stem)}
        for path in folder.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    lines = [line for line in lines if not line["said"].startswith("the job goes on")]
    return sorted(lines, key=lambda line: line["at"])


def named(text: str) -> list[int] | None:
    """The ranks that a line names as those that hold the others up; None: it names none."""
    link = re.match(r"the link from rank (\d+) \(.*?\) to rank (\d+) ", text)
    if link:
        return [int(link[1]), int(link[2])]
    first = re.match(r"ranks? ([\d, and]+) \(", text)
    return [int(number) for number in re.findall(r"\d+", first[1])] if first else None


def judged(case: Case, folder: Path) -> Case:
    """What the ranks said."""
    failed_at = float((folder / "failed").read_text())
    every = said(folder)
    lines = [line for line in every if line["at"] >= failed_at]
    culprit = [case["rank"], case["to"]] if case["kind"] == "slow link" else [case["rank"]]
    names = [ranks for line in lines if (ranks := named(line["said"])) is not None]
    found: Case = {"said": [line["said"] for line in lines][:3]}
    found["before"] = [line["said"] for line in every if line["at"] < failed_at]
    if not names:
        return found | {"verdict": "nothing"}
    first = next(line for line in lines if named(line["said"]) is not None)
    found["seconds"] = first["at"] - failed_at
    if any(each != culprit for each in names):
        return found | {"verdict": "others"}
    return found | {"verdict": "late" if found["seconds"] > PATIENCE_S + LATE_S else "right"}


def healthy(steps: int, plan: bool, folder: Path) -> Case:
    """Runs a job without faults."""
    folder.mkdir()
    Ring().schedule(gw.topology.complete(RANKS)).save(folder / "plan.json")
    place = f"127.0.0.1:{free_port()}"
    begin = time.monotonic()
    ids = [
        forked(lambda r=rank: process({}, r, folder, steps, place, plan)) for rank in range(RANKS)
    ]
    failed = any([os.waitpid(child, 0)[1] for child in ids])
    if failed:
        sys.exit("\n".join((folder / f"{rank}.log").read_text()[-2000:] for rank in range(RANKS)))
    row = {"steps": steps, "plan": plan, "alarms": len(said(folder))}
    return row | {"seconds": time.monotonic() - begin, "said": [x["said"] for x in said(folder)]}


class Nothing:
    """A group whose collectives are over at once."""

    def is_completed(self) -> bool:
        return True

    def wait(self) -> bool:
        return True

    def allreduce(self, tensors: Any, options: Any) -> Any:
        return self


def cost() -> Case:
    """Seconds that recording adds to a call: the median of rounds of many calls."""
    own = dist.ProcessGroup(dist.HashStore(), 0, 1)  # type: ignore[attr-defined]
    recorded: Any = RecordedGroup(GroupRecord(Recorder(), "cost", (0,)), own)
    recorded._inner = plain = Nothing()
    tensor, options = torch.zeros(1000), dist.AllreduceOptions()
    rounds = []
    for _ in range(11):
        times = []
        for group in (plain, recorded):
            begin = time.perf_counter()
            for _ in range(CALLS):
                group.allreduce([tensor], options).wait()
            times.append((time.perf_counter() - begin) / CALLS)
        rounds.append(times[1] - times[0])
    return {"calls": CALLS, "seconds_a_call": statistics.median(rounds)}


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="these cases, recorded nowhere")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if asked.only:
            faults(asked.only, asked.seed, Path(name), lambda row: None)
            return
        kept = Unfinished(
            "torch_backend_faults", resume=asked.resume, libraries=LIBRARIES, from_record=True
        )
        there = {row["case"] for row in kept.rows() if "case" in row}
        left = [number for number in range(asked.cases) if number not in there]
        faults(left, asked.seed, Path(name), kept.add)
        for plan in (False, True):
            if not any(row.get("steps") and row["plan"] == plan for row in kept.rows()):
                kept.add(healthy(asked.steps // 2, plan, Path(name, f"healthy {plan}")))
    rows = sorted((row for row in kept.rows() if "case" in row), key=lambda row: row["case"])
    healthy_rows = [row for row in kept.rows() if "steps" in row]
    record(
        "torch_backend_faults",
        libraries=LIBRARIES,
        seed=asked.seed,
        ranks=RANKS,
        patience_s=PATIENCE_S,
        cost=cost(),
        kinds=[summary(kind, rows) for kind in KINDS],
        right=sum(row["verdict"] == "right" for row in rows),
        healthy_steps=sum(row["steps"] for row in healthy_rows),
        alarms=sum(row["alarms"] for row in healthy_rows),
        rows=[*rows, *healthy_rows],
    )
    kept.end()


def faults(left: list[int], seed: int, folder: Path, keep: Callable[[Case], None]) -> None:
    """Plays cases, some side by side."""
    left, playing = list(left), dict[int, Path]()
    while left or playing:
        while left and len(playing) < AT_ONCE:
            number = left.pop(0)
            place = folder / str(number)
            child = forked(lambda n=number, p=place: write(drawn(n, seed), p))
            playing[child] = place
        child, _ = os.wait()
        row = json.loads((playing.pop(child) / "row.json").read_text())
        print(json.dumps(row), flush=True)
        keep(row)


def write(case: Case, folder: Path) -> None:
    row = run(case, folder)
    (folder / "row.json").write_text(json.dumps(row))


def summary(kind: str, rows: list[Case]) -> Case:
    """Of one kind of fault."""
    some = [row for row in rows if row["kind"] == kind]
    verdicts = collections.Counter(row["verdict"] for row in some)
    after = [row["seconds"] for row in some if row["verdict"] == "right"]
    return {
        "kind": kind,
        "cases": len(some),
        "right": verdicts["right"],
        "verdicts": dict(verdicts),
        "median_s": statistics.median(after) if after else None,
        "most_s": max(after, default=None),
        "lines_before": sum(bool(row.get("before")) for row in some),
        "not_ended": sum(not row.get("ended", True) for row in some),
        "left": sum(row.get("left", 0) for row in some),
        "hung": sum(row["hung"] for row in some if "hung" in row),
    }


if __name__ == "__main__":
    main()
