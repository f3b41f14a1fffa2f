"""Steps of DDP and FSDP2 on emulated networks: the backend ``gradweave`` beside gloo.

    python benchmarks/experiments/torch_backend_lab.py

Needs root, as experiments/lab.py; the load of the last minute is recorded with each network. A
transformer of ten million parameters is trained by one process per server, 16 tokens each: by DDP,
and by FSDP2 with a group per layer, both as PyTorch has them. The default group is gradweave's, and
another is gloo's. Plans are made before, by ``gradweave job plan``. Steps are taken under gradweave
until it is decided what every size runs by; then steps under the two alternate. A step is forward,
backward and the optimizer's; its time is the slowest process's, and the ratio that of the medians.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import gradweave as gw
from benchmarks.experiment import Row, Rows, run
from benchmarks.unequal_networks import network
from gradweave.lab.commands import server_commands
from gradweave.lab.network import EmulatedNetwork
from gradweave.processes.children import Children
from gradweave.schedulers.solving.own import own_schedule
from gradweave.simulator.runtime import runtime_of

LIBRARIES = ("torch",)
MBIT = 100.0
"""Of a link of the equal networks; others have such bottlenecks, or up to three times that."""
PARAMETERS = 10_000_000
STEPS = 5
MOST_TRIED = 60
PLAN_S = 10
SIZES = {
    "all_reduce": "2MiB,16MiB,32MiB",
    "all_gather": "2MiB,16MiB",
    "reduce_scatter": "2MiB,16MiB",
}
"""For which plans are made: DDP's buckets and FSDP2's groups, and what they are rounded up to."""
PATIENCE_S = 900

TRAINING = """
import json, os, statistics, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
kind, steps, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gradweave")
groups = {"gradweave": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
def made(group):
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True) for _ in range(3)]
    model = nn.Sequential(nn.Linear(512, 512), *layers, nn.Linear(512, 512))
    if kind == "ddp":
        return DistributedDataParallel(model, process_group=group)
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)
models = {name: made(group) for name, group in groups.items()}
optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-3) for name, model in models.items()}
batch = torch.randn(1, 16, 512)
def step(name):
    dist.barrier(groups["gloo"])
    begin = time.perf_counter()
    models[name](batch).square().mean().backward()
    optimizers[name].step()
    optimizers[name].zero_grad()
    took = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX, groups["gloo"])
    return took.item()
choices, seen = groups["gradweave"].choices, set()
def of(call, of=choices.of):
    seen.add((call.collective, 1 << (call.whole.nbytes - 1).bit_length()))
    return of(call)
choices.of = of
def listed():
    return [x for x in choices.listed() if (x.collective, x.size) in seen and x.size >= 1 << 20]
tried, left = 0, torch.ones(1)
while left.item() and tried < most:
    seen.clear()  # DDP makes its buckets anew after a step
    step("gradweave")
    tried += 1
    undecided = [one for one in listed() if one.stage.name in ("RARE", "WAITING", "TRIAL")]
    left.fill_(float(bool(undecided) or tried < 3))
    dist.broadcast(left, 0, groups["gloo"])
step("gloo")
times = {name: [] for name in groups}
for _ in range(steps):
    for name in groups:
        times[name].append(step(name))
if dist.get_rank() == 0:
    runs = [[one.collective, one.size, one.stage.name, one.plan_s, one.own_s] for one in listed()]
    print(json.dumps({"steps_s": times, "tried": tried, "runs": runs}), flush=True)
dist.barrier(groups["gloo"])
os._exit(0)
"""


def star(slow: float = 1.0) -> gw.Topology:
    """Eight servers on a switch, the first with a part of the others' bandwidth."""
    links = [(s, 8, 0.0, MBIT / slow * (slow if s == 0 else 1.0)) for s in range(8)]
    return network("star of 8" + (", one at a quarter" if slow < 1 else ""), 8, 1, links)


def racks() -> gw.Topology:
    """Two racks of four, named in turn, as a launcher that sorts hosts may have it."""
    links = [(s, 8 + s % 2, 0.0, 3 * MBIT) for s in range(8)]
    return network("two racks of 4, 4:1, ranks in turn", 8, 2, [*links, (8, 9, 0.0, 3 * MBIT)])


def sites() -> gw.Topology:
    """Two sites of four, 10 ms apart, with half of a server's bandwidth between them."""
    links = [(s, 8 + s // 4, 0.0, 2 * MBIT) for s in range(8)]
    return network("two sites of 4, 10 ms", 8, 2, [*links, (8, 9, 10.0, MBIT)])


def of_family(spec: str) -> gw.Topology:
    """A network of equal links."""
    return gw.topology.from_spec(f"{spec},bandwidth={MBIT:g}Mbit/s,latency=0us")


NETWORKS: dict[str, Callable[[], gw.Topology]] = {
    "bcube": lambda: of_family("bcube:n=3,k=1"),
    "dcell": lambda: of_family("dcell:n=4,k=1"),
    "racks": racks,
    "sites": sites,
    "slow": lambda: star(0.25),
    "torus": lambda: of_family("torus:3x4"),
    "ring": lambda: of_family("ring:n=8"),
    "star": star,
}


def plans(file: Path, cache: Path) -> None:
    """Made for all sizes that will be asked for."""
    for collective, sizes in SIZES.items():
        command = [sys.executable, "-m", "gradweave", "job", "plan", str(file)]
        command += ["--cache", str(cache)]
        command += ["--collective", collective, "--size", sizes]
        subprocess.run([*command, "--time-limit", str(PLAN_S)], check=True)


def trained(lab: EmulatedNetwork, kind: str) -> Row:
    """What rank 0 says of one training."""
    command = [sys.executable, "-c", TRAINING, kind, str(STEPS), str(MOST_TRIED)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with Children(server_commands(lab, command), log) as children:
            message = children.receive(PATIENCE_S)
        if message is None or message[1] is None:
            raise SystemExit(log.read_text()[-4000:])
        return message[1]


def measure(network: gw.Topology) -> list[Row]:
    """Both trainings on one network."""
    topology = network
    gradient = 4 * PARAMETERS
    gloo = runtime_of("gloo")
    own = own_schedule(topology, gloo, gradient)
    assert own is not None
    leaves = gloo.own_seconds(own, gradient) / gw.bounds.least_seconds(topology, gradient).seconds
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file, cache = Path(folder, "network.json"), Path(folder, "plans")
        gw.topology.save(topology, file)
        plans(file, cache)
        os.environ |= {"GRADWEAVE_TOPOLOGY": str(file), "GRADWEAVE_CACHE": str(cache)}
        for kind in ("ddp", "fsdp2"):
            load = os.getloadavg()[0]
            with EmulatedNetwork(topology) as lab:
                said = trained(lab, kind)
            steps = {name: statistics.median(times) for name, times in said["steps_s"].items()}
            row = {"servers": topology.num_servers, "kind": kind}
            row |= {"load": load, "leaves": leaves, **said}
            row |= {f"{name}_s": seconds for name, seconds in steps.items()}
            rows.append(row | {"times_as_fast": steps["gloo"] / steps["gradweave"]})
    return rows


if __name__ == "__main__":
    run(
        __doc__,
        Rows(lambda: [{"network": make()} for make in NETWORKS.values()], measure),
        libraries=LIBRARIES,
        steps=STEPS,
        mbit_per_s=MBIT,
    )
