"""One of two of Ray's machines is killed under a run, and another one comes."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optax", reason="the extra learn is not installed")
pytest.importorskip("ray", reason="the extra ray is not installed")

import numpy as np
import optax

from gradweave.aggregate.asynchronous import Task
from gradweave.aggregate.asynchronous.task import Pulled, Stepped
from tests.patience import PATIENCE_S

EACH, STEPS = 2, 60


class Counted:
    """Counts the steps of its worker, and moves each parameter by -1."""

    share = 1.0

    def __init__(self, worker: int, clock: int) -> None:
        self.state = np.zeros(1, np.int32)

    def ready(self, vector: Any) -> None: ...

    def step(self, clock: int, pull: Any) -> Stepped:
        pulled: Pulled = pull()
        self.state = self.state + 1
        return Stepped(0.0, np.ones_like(pulled.vector), int(self.state[0]))


def counted() -> Task:
    return Task(
        params=np.zeros(4, np.float32),
        gradient=None,
        computation=Counted,
        optimizer=optax.sgd(1.0),
        workers=2 * EACH,
        servers=2,
        steps=STEPS,
        consistency="async",
    )


RUN = """
import json, os, sys, time
from ray.cluster_utils import Cluster

EACH = 2
room = {"num_cpus": EACH, "object_store_memory": 80 * 2**20, "include_dashboard": False}
# A machine that does not answer is given up within seconds.
often = {"health_check_period_ms": 500, "health_check_timeout_ms": 2000,
         "health_check_failure_threshold": 5, "health_check_initial_delay_ms": 0}
cluster = Cluster(initialize_head=True, head_node_args={**room, "_system_config": often})
machines = [cluster.add_node(**room)]
os.environ["RAY_ADDRESS"] = cluster.address

# While these are imported each machine gets to know of the other.
from gradweave.aggregate.asynchronous import train_on_ray
from tests.aggregate.asynchronous.test_asynchronous_ray_nodes import counted

counts, there = {}, []

def report(told):
    counts[told.update] = told.aux[0]
    now = [worker for worker, process in enumerate(told.workers) if process]
    if now != (there[-1] if there else []):
        there.append(now)
    if len(now) == 2 * EACH and machines and told.update >= 20:
        cluster.remove_node(machines.pop(), allow_graceful=False)
    elif told.recovered and len(there[-1]) == EACH and len(cluster.list_all_nodes()) == 1:
        cluster.add_node(**room, wait=False)
    if len(now) < 2 * EACH:
        time.sleep(0.5)  # not to be done before the others are there

run = train_on_ray(counted(), folder=sys.argv[1], checkpoint_every=5, report=report,
            worker_cpus=1, min_workers=EACH)
print(json.dumps({
    "gradients": run.history.gradients, "recovered": run.recovered, "params": run.params.tolist(),
    "worker": run.history.worker.tolist(), "there": there,
    "counts": [counts[update] for update in run.history.update.tolist()]}))
cluster.shutdown()
"""


def test_a_killed_machine_costs_its_workers_until_another_one_comes(tmp_path):
    """Nobody's steps are counted twice or lost: each has the state of the checkpoint."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        here = {"RAY_TMPDIR": folder, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(tmp_path / "run")],
            cwd=Path(__file__).parents[3],
            env=os.environ | here,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["recovered"] == 1
    assert told["gradients"] == 2 * EACH * STEPS
    assert told["params"] == [-2.0 * EACH * STEPS] * 4
    assert EACH in map(len, told["there"]), "the run went on with half of the workers"
    assert len(told["there"][-1]) == 2 * EACH, "and the others came back"
    made = np.zeros(2 * EACH, int)
    for worker, count in zip(told["worker"], told["counts"], strict=True):
        made[worker] += 1
        assert count == made[worker]
