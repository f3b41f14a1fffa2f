"""Steps that `gradweave advise` predicts, and the same steps measured in the lab.

    python benchmarks/experiments/advice.py

Needs root, as experiments/lab.py. One PyTorch process per server sleeps for the time that a step
computes and then exchanges 1 MB of float32 by each aggregation in turn. A figure is the mean time
of a step at rank 0, over whole periods of local steps, without the first period. Processes share
the machine's cores, which the profile given to `advise` says.
"""

import dataclasses
import os
import sys
import tempfile
from pathlib import Path

import gradweave as gw
from benchmarks.experiment import Row, Rows, grid, run
from gradweave.aggregate.advice import advise
from gradweave.lab.commands import server_commands
from gradweave.lab.network import EmulatedNetwork
from gradweave.processes.children import Children
from gradweave.simulator.runtime import runtime_of

SIZE, COMPUTE_S = 1_000_000, 0.25
NETWORKS = (
    "mesh:2x3,bandwidth=40Mbit/s,latency=0s",
    "leaf_spine:leaves=2,spines=1,servers_per_leaf=2,oversubscription=2,bandwidth=40Mbit/s,latency=0us",
)
CANDIDATES = (
    "mean",
    "scheduled",
    "d_psgd",
    "choco_sgd:bits=4",
    "diloco:local_steps=4",
    "streaming_diloco:local_steps=8,fragments=4,delay=1",
)
STEPS = 32
"""Measured steps, a multiple of all local steps, after as many as one period."""

TRAINING = """
import json, pathlib, sys, time
import torch, torch.distributed as dist
import gradweave as gw
from gradweave.aggregate.spec import GossipSpec, LocalSpec, parse
from gradweave.torch import Collective, Gossip, LocalUpdates
folder, size, compute_s = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
steps = int(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo")
workers = dist.get_world_size()
network = gw.topology.read(folder / "network.json")
for candidate in sys.argv[5:]:
    weights = torch.nn.Parameter(torch.ones(size // 4))
    optimizer = torch.optim.SGD([weights], 1e-3)
    average, period, hook = None, 1, None
    if candidate == "mean":
        average = lambda gradient: dist.all_reduce(gradient)
    elif candidate == "scheduled":
        average = Collective(gw.load(folder / "plan.json"))
    else:
        spec = parse(candidate)
        if isinstance(spec, GossipSpec):
            mixing = gw.aggregate.MixingMatrix.metropolis_hastings(network)
            hook = Gossip(optimizer, spec.rule, mixing, spec.compressor)
        else:
            period = spec.method.local_steps
            hook = LocalUpdates([weights], spec.method)
            optimizer.register_step_post_hook(hook)
    for step in range(period + steps):
        if step == period:
            dist.barrier()
            begin = time.perf_counter()
        weights.grad = torch.full_like(weights, 1e-3)
        time.sleep(compute_s)
        if average:
            average(weights.grad)
        optimizer.step()
    if isinstance(hook, LocalUpdates):
        hook.state_dict()
    took = (time.perf_counter() - begin) / steps
    if dist.get_rank() == 0:
        print(json.dumps({"aggregation": candidate, "measured_s": took}), flush=True)
    dist.barrier()
"""


def measure(network: gw.Topology) -> list[Row]:
    """One row for each aggregation on a network."""
    with tempfile.TemporaryDirectory() as folder:
        return measured_in(Path(folder), network)


def measured_in(folder: Path, network: gw.Topology) -> list[Row]:
    """The same, with files in a folder."""
    cores = os.cpu_count() or 1
    runtime = dataclasses.replace(runtime_of("gloo"), processors=cores)
    advice = advise(network, SIZE, COMPUTE_S, runtime=runtime, candidates=CANDIDATES, time_limit=10)
    forecasts = {one.aggregation: one for one in advice.forecasts}
    gw.topology.save(network, folder / "network.json")
    plan = forecasts["scheduled"].schedule
    assert plan is not None
    plan.save(folder / "plan.json")
    rows: list[Row] = []
    command = [sys.executable, "-c", TRAINING, str(folder), str(SIZE), str(COMPUTE_S), str(STEPS)]
    with (
        EmulatedNetwork(network) as lab,
        Children(server_commands(lab, [*command, *CANDIDATES]), folder / "log") as children,
    ):
        for _ in CANDIDATES:
            message = children.receive(300)
            if message is None or message[1] is None:
                raise SystemExit((folder / "log").read_text()[-4000:])
            one = forecasts[message[1]["aggregation"]]
            rows.append(
                {
                    "workers": network.num_servers,
                    "aggregation": one.aggregation,
                    "predicted_s": one.step_s,
                    "exchange_s": one.exchange_s,
                    "measured_s": message[1]["measured_s"],
                    "step_bytes": one.step_bytes,
                    "reached_after": one.reached_after,
                    "advised": one is advice.advised,
                    "load": os.getloadavg()[0],
                }
            )
    return rows


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(network=map(gw.topology.from_spec, NETWORKS)), measure),
        libraries=["torch"],
        gradient_bytes=SIZE,
        compute_s=COMPUTE_S,
    )
