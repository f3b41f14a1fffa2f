"""Links that become slower during a job, with plans that follow (``GRADWEAVE_REPLAN``), in the lab.

    python benchmarks/experiments/changing_network.py [--resume] [--only NAME ...] [--steady]

Needs root, as experiments/lab.py. One process per server all-reduces 1 MiB again and again under
the backend ``gradweave``, whose plan was made before. Then links are slowed while it runs, later
restored. Times are medians of calls at rank 0. *Nothing done* is the old plan on the slower
network; *truth* is a plan that a search of 20 s makes from the true bandwidths, timed in turns with
the plan that the job has adopted. With ``--steady``, 10,000 calls of 64 KiB run on links that do
not change, and on links whose rates vary by 20 %; plans follow changes in every second turn of 50
calls, which shows what that costs a call.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from command_line import parser_of
from intervals import mean_between
from record import record
from unequal_networks import network
from unfinished import Unfinished

import gradweave as gw
from gradweave.lab.commands import server_commands
from gradweave.lab.network import EmulatedNetwork
from gradweave.processes.children import Children
from gradweave.topology.faults import slowed

NAME, LIBRARIES = "changing_network", ("torch",)
SIZE = 1 << 20
MBIT = 40.0
PLAN_S, TRUTH_S = 10, 20
REFERENCE_S, STEADY_S, PATIENCE_S, RECOVERY_S = 9.0, 4.0, 90.0, 60.0
"""Seconds without news before the links change, and after the new plan is adopted, until it must
be, and until the job must have returned to the old plan."""
STEPS, STEP_BYTES, TURN = 10_000, 1 << 16, 50
JITTER, JITTER_S = 0.2, 1.0
Fault = dict[tuple[int, int], float]
Row = dict[str, Any]

TRAINING = """
import json, logging, os, pathlib, statistics, sys, time
import torch, torch.distributed as dist
import gradweave as gw, gradweave.torch
from gradweave.torch.calls import SizeClass
from gradweave.execute.signature import digest
from gradweave.torch.predicted import plan_seconds
from gradweave.simulator.runtime import runtime_of
folder, size, first = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(os.environ["RANK"]) == 0
steps, turn = int(sys.argv[3]), int(sys.argv[4])
def say(**told):
    if first:
        print(json.dumps({"at": time.time(), **told}), flush=True)
class Told(logging.Handler):
    def emit(self, record):
        say(line=record.getMessage())
log = logging.getLogger("gradweave")
log.addHandler(Told())
log.setLevel(logging.INFO)
log.propagate = False
torch.set_num_threads(1)
dist.init_process_group("gradweave")
gloo = dist.new_group(backend="gloo")
group, tensor, asked = dist.group.WORLD, torch.ones(size // 4), torch.zeros(1)
last, times, until = None, [], ("compare", "end")
def timed(run):
    begin = time.perf_counter()
    run()
    tensor.fill_(1)
    times.append((time.time(), time.perf_counter() - begin))
    return times[-1][1]
def compared():
    truth = gw.torch.Collective(gw.load(folder / "truth.json"), gloo)
    runs = [lambda: dist.all_reduce(tensor), lambda: truth(tensor)]
    took = [[timed(run) for run in runs] for _ in range(9)][1:]
    plan = next(one.plan for of, one in group.choices._classes.items() if of.size == size)
    of = SizeClass("all_reduce", size)
    predicted = plan and plan_seconds(plan.schedule, runtime_of("gloo"), of)
    say(compared=[statistics.median(each) for each in zip(*took)], predicted=predicted)
choices, begun = group.choices, None
following = choices._offers.changes
for call in range(10**9):
    timed(lambda: dist.all_reduce(tensor))
    one = next(x for of, x in choices._classes.items() if of.size == size)
    stage = [one.stage.name, one.change, one.plan and str(digest(one.plan.schedule))]
    if stage != last:
        last = stage
        say(stage=stage)
    if begun is None and steps and stage[0] in ("PLAN", "OWN"):
        begun = call + 1
    if begun is not None and (call + 1 - begun) % turn == 0:
        if call + 1 - begun == steps:
            times = times[-steps:]
            break
        follows = (call + 1 - begun) // turn % 2 == 0
        choices._offers.changes = following if follows else None
        choices._open, choices._vote_at = True, choices._calls + 2
    if steps or call % 5:
        continue
    asked.fill_(float(first and (folder / until[0]).exists()))
    dist.broadcast(asked, 0)
    if asked.item():
        done, *until = until
        if done == "end":
            break
        compared()
say(times=times)
dist.barrier()
os._exit(0)
"""


def of_family(spec: str) -> gw.Topology:
    """A network of equal links."""
    return gw.topology.from_spec(f"{spec},bandwidth={MBIT:g}Mbit/s,latency=0us")


def racks() -> gw.Topology:
    """Two racks of three hosts, named in turn, and a trunk twice as fast as a host."""
    links = [(s, 6 + s % 2, 0.0, MBIT) for s in range(6)]
    return network("two racks of 3, ranks in turn", 6, 2, [*links, (6, 7, 0.0, 2 * MBIT)])


def mixed() -> gw.Topology:
    """Five hosts with direct links of two rates."""
    links = [(a, b, 0.0, MBIT * (1 + (a + b) % 2)) for a in range(5) for b in range(a)]
    return network("five direct hosts, two rates", 5, 0, links)


def nic(topology: gw.Topology, server: int, factor: float) -> Fault:
    """All links of a server."""
    neighbours = topology.target[topology.source == server].tolist()
    return {(server, other): factor for other in neighbours}


def cases() -> Iterator[tuple[str, gw.Topology, Fault]]:
    """The faults of all networks."""
    complete, torus, bcube = (
        of_family("complete:4"),
        of_family("torus:3x3"),
        of_family("bcube:n=3,k=1"),
    )
    for each, link in ((complete, (0, 1)), (torus, (0, 1)), (bcube, (0, 9)), (mixed(), (1, 2))):
        yield "a link at a half", each, {link: 0.5}
        yield "a link at a quarter", each, {link: 0.25}
        yield "a server's links at a quarter", each, nic(each, 2, 0.25)
        yield "a link at a 50th", each, {link: 0.02}
    yield "the trunk at 0.3", racks(), {(6, 7): 0.3}
    yield "a host at a quarter", racks(), nic(racks(), 2, 0.25)
    dcell = of_family("dcell:n=3,k=1")
    yield "a link at a quarter", dcell, {(int(dcell.source[0]), int(dcell.target[0])): 0.25}
    yield "a server's links at a quarter", dcell, nic(dcell, 2, 0.25)


class Job:
    """A running job, as its first process tells of it."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self.told: list[Row] = []

    def until(
        self,
        key: str,
        accept: Callable[[Any], bool] = lambda told: True,
        patience_s: float = PATIENCE_S,
    ) -> Row | None:
        """The next thing of a kind that it says, or None if there is none in time."""
        end = time.monotonic() + patience_s
        while (left_s := end - time.monotonic()) > 0:
            message = self._children.receive(left_s)
            if message is None:
                return None
            if message[1] is None:
                raise SystemExit("a process has ended")
            self.told.append(message[1])
            if key in message[1] and accept(message[1][key]):
                return message[1]
        return None

    def settled(self, quiet_s: float, patience_s: float = PATIENCE_S) -> list[Any] | None:
        """The last stage, once it is decided and none has followed for some seconds; or None."""
        end = time.monotonic() + patience_s
        while (left_s := end - time.monotonic()) > 0:
            stages = [told["stage"] for told in self.told if "stage" in told]
            found = bool(stages) and stages[-1][0] in ("PLAN", "OWN")
            if self.until("stage", patience_s=quiet_s if found else left_s) is None and found:
                return stages[-1]
        return None


def change(lab: EmulatedNetwork, bandwidth: Any) -> float:
    """Gives all links their bandwidth; returns the time."""
    for link, rate in enumerate(bandwidth.tolist()):
        lab.limit(link, rate)
    return time.time()


def prepared(topology: gw.Topology, folder: Path, size: int) -> None:
    """Makes the plan, and sets the environment of the job."""
    gw.topology.save(topology, folder / "network.json")
    options = ["--size", str(size), "--cache", str(folder / "plans"), "--time-limit", str(PLAN_S)]
    plan = [sys.executable, "-m", "gradweave", "job", "plan", str(folder / "network.json")]
    subprocess.run([*plan, *options], check=True, stdout=subprocess.DEVNULL)
    os.environ |= {
        "GRADWEAVE_TOPOLOGY": str(folder / "network.json"),
        "GRADWEAVE_CACHE": str(folder / "plans"),
        "GRADWEAVE_REPLAN": "1",
    }


def steady(topology: gw.Topology, jitter: float, folder: Path) -> Row:
    """A job on links that do not change, or whose rates vary all the time."""
    prepared(topology, folder, STEP_BYTES)
    command = [sys.executable, "-c", TRAINING, str(folder), *map(str, (STEP_BYTES, STEPS, TURN))]
    ended, source = threading.Event(), random.Random(1)
    rates = topology.bandwidth_bytes_per_s.tolist()

    def vary(lab: EmulatedNetwork) -> None:
        while not ended.wait(JITTER_S):
            for link, rate in enumerate(rates):
                lab.limit(link, rate * source.uniform(1 - jitter, 1 + jitter))

    with (
        EmulatedNetwork(topology) as lab,
        Children(server_commands(lab, command), folder / "log") as children,
    ):
        job = Job(children)
        thread = threading.Thread(target=vary, args=(lab,))
        if jitter:
            thread.start()
        try:
            told = job.until("times", patience_s=STEPS)
        finally:
            ended.set()
            if jitter:
                thread.join()
    assert told is not None
    took = [seconds for _, seconds in told["times"]]
    turns = [sum(took[at : at + TURN]) for at in range(0, STEPS, TURN)]
    ratios = [on / off for on, off in zip(turns[::2], turns[1::2], strict=True)]
    low, high = mean_between(ratios, np.random.default_rng(0))
    return {
        "network": topology.name,
        "servers": topology.num_servers,
        "steps": STEPS,
        "step_s": statistics.median(took),
        "cost": [statistics.mean(ratios) - 1, low - 1, high - 1],
        "changes": sum("the network has changed" in one.get("line", "") for one in job.told),
    }


def measured(topology: gw.Topology, fault: Fault, folder: Path) -> Row:
    """One fault in one job."""
    truth = slowed(topology, fault).topology
    prepared(topology, folder, SIZE)
    wanted: Any = {"objective": "seconds", "gradient_bytes": SIZE, "runtime": "gloo"}
    gw.solve(truth, **wanted, time_limit=TRUTH_S).schedule.save(folder / "truth.json")
    command = [sys.executable, "-c", TRAINING, str(folder), str(SIZE), "0", "1"]
    with (
        EmulatedNetwork(topology) as lab,
        Children(server_commands(lab, command), folder / "log") as children,
    ):
        job = Job(children)
        if (before := job.settled(REFERENCE_S)) is None:
            raise SystemExit((folder / "log").read_text()[-4000:])
        at = change(lab, truth.bandwidth_bytes_per_s)
        noticed = job.until("line", lambda line: "the network has changed" in line)
        decided = noticed and job.until(
            "stage", lambda stage: stage[0] in ("PLAN", "OWN") and stage[1] > before[1]
        )
        adopted = job.settled(STEADY_S)
        (folder / "compare").touch()
        compared = job.until("compared")
        back_at = change(lab, topology.bandwidth_bytes_per_s)
        stayed = adopted is not None and adopted[2] == before[2]
        back = stayed or job.until(
            "stage",
            lambda stage: stage[0] in ("PLAN", "OWN") and stage[2] == before[2],
            RECOVERY_S,
        )
        job.until("nothing", patience_s=STEADY_S)
        (folder / "end").touch()
        ended = job.until("times")
    assert compared is not None and ended is not None
    trial = next(
        (
            told["at"]
            for told in job.told
            if told.get("stage", [""])[0] == "TRIAL" and told["at"] > at
        ),
        None,
    )
    calls = ended["times"]

    def median(begin: float, end: float) -> float:
        took = sorted(s for when, s in calls if begin + s <= when <= end)
        return took[len(took) // 2] if took else float("nan")

    adapted_s, truth_s = compared["compared"]
    return {
        "network": topology.name,
        "servers": topology.num_servers,
        "before_s": median(at - REFERENCE_S, at),
        "nothing_s": median(at + 0.5, trial or (decided or compared)["at"] - STEADY_S),
        "adapted_s": adapted_s,
        "truth_s": truth_s,
        "predicted_s": compared["predicted"],
        "bound_s": float(gw.bounds.least_seconds(truth, SIZE).seconds),
        "noticed_s": noticed and noticed["at"] - at,
        "adopted_s": decided and decided["at"] - at,
        "said": noticed and noticed["line"],
        "stayed": stayed,
        "back_s": 0.0 if stayed else back and back["at"] - back_at,
        "after_s": median(calls[-1][0] - STEADY_S, calls[-1][0]),
        "changes": sum("the network has changed" in told.get("line", "") for told in job.told),
    }


def main() -> None:
    """Measures what is not kept yet, and records when all is."""
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--only", nargs="+", help="networks whose name contains one of these")
    parser.add_argument("--steady", action="store_true", help="only links that do not change")
    asked = parser.parse_args()
    kept = Unfinished(NAME, resume=asked.resume, libraries=LIBRARIES, from_record=True)
    names = (
        ("unchanged", of_family("complete:4"), 0.0),
        ("20 % jitter", of_family("complete:4"), JITTER),
    )
    for fault, topology, links in (*cases(), *names):
        if asked.steady and isinstance(links, dict):
            continue
        known = any(
            row["network"] == topology.name and row["fault"] == fault for row in kept.rows()
        )
        if known or (asked.only and not any(each in topology.name for each in asked.only)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            run = measured if isinstance(links, dict) else steady
            row = {"fault": fault, "load": os.getloadavg()[0], **run(topology, links, Path(folder))}
        print(json.dumps(row), flush=True)
        kept.add(row)
    record(NAME, libraries=LIBRARIES, bytes=SIZE, mbit_per_s=MBIT, rows=kept.rows())
    kept.end()


if __name__ == "__main__":
    main()
