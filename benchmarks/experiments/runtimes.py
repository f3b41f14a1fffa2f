"""Runtime profiles: measured beside predicted times, and plans beside the runtime's own all-reduce.

    python benchmarks/experiments/runtimes.py [--resume]

Needs an otherwise idle machine, and root for the lab. For gloo and MPI, with 4 and 8 processes, a
profile is measured first (`gradweave bench --write-runtime`); then, on a star of equal links and on
one with a slow port, `solve` picks a schedule for each size and profile, which runs beside the
runtime's own all-reduce. On one machine processes share memory, so the links are given far more
bandwidth than it has: what is predicted is what messages cost. The lab has slow links, on gloo.
Last, a step of DDP with the hook and without, on four hosts of which one has a slow link.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import record, show
from benchmarks.unfinished import Unfinished
from gradweave.schedulers.solving.own import own_schedule
from gradweave.simulator.runtime import Runtime, runtime_of

BIN = Path(sys.executable).parent
BACKENDS = {"torch": "gloo", "mpi": "mpi"}
SERVERS = (4, 8)
SIZES = tuple(1 << k for k in (10, 12, 14, 16, 18, 20, 22, 24, 26, 28))
LAB_SIZES = (1 << 16, 1 << 20, 1 << 22)
FAST, SLOW_PART = "400Gbit/s", 0.25
LAB = "100Mbit/s"
SOLVE_S = 5.0
REPETITIONS = 15
LIBRARIES = ("torch", "mpi4py")
DDP_BYTES = 4_000_000
Row = dict[str, Any]

DDP = """
import statistics, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gradweave as gw
from gradweave.torch import ddp_hook
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
def trained(file):
    model = DistributedDataParallel(torch.nn.Linear(1000, 1000))
    if file:
        ddp_hook(model, gw.load(file))
    return model
models = [trained(file) for file in (None, *sys.argv[1:])]
times = [[] for _ in models]
batch = torch.randn(8, 1000)
for step in range(45):
    for place, model in enumerate(models):
        dist.barrier()
        began = time.perf_counter()
        model(batch).square().mean().backward()
        slowest = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        times[place].append(float(slowest))
if dist.get_rank() == 0:
    print(*[statistics.median(each[5:]) for each in times])
"""


def networks(servers: int, bandwidth: str) -> dict[str, gw.Topology]:
    """A star of equal links, and one with a slow port."""
    equal = gw.topology.from_spec(f"star:n={servers},bandwidth={bandwidth},latency=0us")
    rates = equal.bandwidth_bytes_per_s.copy()
    rates[(equal.source == 0) | (equal.target == 0)] *= SLOW_PART
    return {"equal": equal, "unequal": dataclasses.replace(equal, bandwidth_bytes_per_s=rates)}


def run(schedule: gw.Schedule, backend: str, size: int, *more: str) -> Row:
    """What `gradweave bench` says."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "schedule.json")
        schedule.save(file)
        command = [str(BIN / "gradweave"), "bench", str(file), "--backend", backend, "--json"]
        often = ["--repetitions", str(REPETITIONS), "--size", str(size)]
        done = subprocess.run(
            [*command, *often, *more], check=True, stdout=subprocess.PIPE, text=True
        )
    return json.loads(done.stdout)


def profile(backend: str, servers: int, folder: Path) -> Runtime:
    """The runtime's, measured."""
    file = folder / f"{BACKENDS[backend]}{servers}.toml"
    if not file.exists():
        ring = gw.schedulers.Ring().schedule(networks(servers, FAST)["equal"])
        run(ring, backend, 1 << 20, "--write-runtime", str(file))
    return runtime_of(file)


def picked(network: gw.Topology, runtime: Runtime, size: int) -> gw.schedulers.Solution:
    """For a size, in the time that people have."""
    return gw.solve(
        network,
        objective="seconds",
        gradient_bytes=size,
        runtime=runtime,
        time_limit=SOLVE_S,
    )


def predicted(found: gw.schedulers.Solution, runtime: Runtime, size: int) -> Row:
    """Of the pick and of the runtime's own."""
    assert found.timing is not None
    own = own_schedule(found.schedule.topology, runtime, size)
    assert own is not None
    beside = found.runtime
    return {
        "own_chosen": bool(beside and beside.own_chosen),
        "scheduler": found.scheduler.name,
        "messages": found.schedule.num_transfers,
        "predicted_s": found.timing.seconds,
        "own_predicted_s": runtime.own_seconds(own, size),
    }


def loopback_row(backend: str, name: str, network: gw.Topology, runtime: Runtime, size: int) -> Row:
    found = picked(network, runtime, size)
    measured = run(found.schedule, backend, size)
    return {
        "where": "loopback",
        "runtime": runtime.name,
        "servers": network.num_servers,
        "links": name,
        "bytes": size,
        **predicted(found, runtime, size),
        "measured_s": measured["schedule"]["median_s"],
        "own_measured_s": measured["own"]["median_s"],
    }


def lab_rows(name: str, network: gw.Topology, runtime: Runtime) -> Iterator[Row]:
    from gradweave.lab.measure import laboratory

    with laboratory(network) as lab:
        for size in LAB_SIZES:
            found = picked(network, runtime, size)
            beside = predicted(found, runtime, size)
            own = lab.measure("own", None, size, 5, lambda _: None)
            plan = own
            if not beside["own_chosen"]:
                plan = lab.measure("pick", found.schedule, size, 5, lambda _: None)
            yield {
                "where": "lab",
                "runtime": runtime.name,
                "servers": network.num_servers,
                "links": name,
                "bytes": size,
                **beside,
                "measured_s": plan.measured_s,
                "own_measured_s": own.measured_s,
            }


def ddp(folder: Path) -> Row:
    """A step of four hosts, one at 10 Gbit/s and three at 25: plain, planned for no runtime, and
    for gloo as it is here."""
    network = gw.topology.from_spec("star:n=4,bandwidth=25Gbit/s")
    rates = network.bandwidth_bytes_per_s.copy()
    rates[(network.source == 0) | (network.target == 0)] *= 0.4
    hosts = dataclasses.replace(network, bandwidth_bytes_per_s=rates)
    runtime = profile("torch", 4, folder)
    files = []
    for place, each in enumerate((gw.simulator.runtime.IDEAL, runtime)):
        files.append(str(folder / f"plan{place}.json"))
        picked(hosts, each, DDP_BYTES).schedule.save(files[-1])
    script = folder / "ddp.py"
    script.write_text(DDP)
    launcher = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node=4"]
    tries = []
    for _ in range(3):
        done = subprocess.run(
            [*launcher, str(script), *files], check=True, stdout=subprocess.PIPE, text=True
        )
        tries.append([float(word) for word in done.stdout.split()])
    plain, ideal, for_gloo = (statistics.median(each) for each in zip(*tries, strict=True))
    return {"bytes": DDP_BYTES, "plain_s": plain, "ideal_s": ideal, "for_gloo_s": for_gloo}


def rows(unfinished: Unfinished, folder: Path) -> Iterator[Row]:
    keys = ("where", "runtime", "servers", "links", "bytes")
    done = {tuple(row[key] for key in keys) for row in unfinished.rows()}
    for backend, name in BACKENDS.items():
        for servers in SERVERS:
            for links, network in networks(servers, FAST).items():
                for size in SIZES:
                    if ("loopback", name, servers, links, size) not in done:
                        runtime = profile(backend, servers, folder)
                        yield loopback_row(backend, links, network, runtime, size)
    if os.geteuid() != 0:
        print("no root: the lab is left out")
        return
    for servers in SERVERS:
        for links, network in networks(servers, LAB).items():
            if ("lab", "gloo", servers, links, LAB_SIZES[-1]) not in done:
                yield from lab_rows(links, network, profile("torch", servers, folder))


def in_order(row: Row) -> tuple[Any, ...]:
    """Where a row stands in the tables: the lab last."""
    return (row["where"] == "lab", row["runtime"], row["servers"], row["links"], row["bytes"])


def main() -> None:
    asked = parser_of(__doc__, resumes=True).parse_args()
    unfinished = Unfinished("runtimes", resume=asked.resume, libraries=LIBRARIES, from_record=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for row in rows(unfinished, folder):
            show(row)
            unfinished.add(row)
        steps = ddp(folder)
        show(steps)
    record(
        "runtimes",
        libraries=LIBRARIES,
        seeds=[0],
        rows=sorted(unfinished.rows(), key=in_order),
        ddp=steps,
    )
    unfinished.end()


if __name__ == "__main__":
    main()
