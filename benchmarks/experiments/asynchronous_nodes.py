"""The asynchronous server on two of Ray's machines, one of which is taken away on the way.

    python benchmarks/experiments/asynchronous_nodes.py [--part throughput|taken] [--resume]

Two machines of Ray's cluster utility on this one, each with room for eight workers of one
processor; a worker's step is planned to take 50 ms, asleep, since two cores cannot compute for
sixteen. 100,000 parameters, a linear model, four servers.

throughput: gradients a second by 1 to 16 workers, over the whole run after the first update, and
the bytes that the busiest server moves for each gradient.

taken: sixteen workers learn, of which four begin and the others join; at a third of the updates the
second machine is taken away, with its workers and servers: all resume from the checkpoint, with as
many workers as there is room for, and at two thirds another machine comes. The loss at the end
beside that of three seeds that nothing happened to.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import optax
from command_line import parser_of
from record import record, recorded, show

from gradweave.aggregate import asynchronous

NAME = "asynchronous_nodes"
WORKERS, SERVERS, EACH = (1, 2, 4, 8, 16), 4, 8
WIDTH, RATE, STEP_S = 100_000, 0.2, 0.05
GRADIENTS, LONG, SEEDS = 480, 1920, 3
PARTS = ("throughput", "taken")


def loss(params: Any, draw: asynchronous.Draw) -> Any:
    x = jax.random.normal(draw.key, (8, WIDTH)) / jnp.sqrt(WIDTH)
    return jnp.mean((x @ (params["w"] - 1.0)) ** 2)


def task(workers: int, rule: str, gradients: int, seed: int = 0) -> asynchronous.Task:
    return asynchronous.Task(
        params={"w": jnp.zeros(WIDTH)},
        gradient=jax.value_and_grad(loss),
        optimizer=optax.sgd(RATE * WIDTH / 8),
        workers=workers,
        servers=SERVERS,
        steps=gradients // workers,
        consistency=rule,
        seed=seed,
        stragglers=asynchronous.Stragglers(STEP_S),
    )


def throughput(rule: str, workers: int) -> dict[str, Any]:
    """One run on both machines."""
    run = asynchronous.train(task(workers, rule, GRADIENTS), worker_cpus=1)
    seconds = run.history.seconds
    moved = (run.traffic.pushed_bytes + run.traffic.pulled_bytes).sum(0).max()
    return {
        "rule": rule,
        "workers": workers,
        "gradients_per_s": float((len(seconds) - workers) / (seconds[-1] - seconds[workers - 1])),
        "server_bytes": float(moved / len(seconds)),
    }


def taken(machines: Any, away: bool, seed: int) -> dict[str, Any]:
    """A run that loses a machine, and gets one; or one that does not."""
    of = task(16, "async", LONG, seed)
    second: list[Any] = (
        [machines.add_node(num_cpus=EACH)]
        if not machines.worker_nodes
        else list(machines.worker_nodes)
    )
    there: list[int] = []

    def on_update(made: asynchronous.UpdateReport) -> None:
        there.append(sum(process > 0 for process in made.workers))
        if away and made.update >= LONG // 3 and second:
            node = second.pop()
            threading.Thread(target=machines.remove_node, args=(node, False)).start()
        elif away and made.update >= 2 * LONG // 3 and not machines.worker_nodes:
            machines.add_node(num_cpus=EACH)

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = asynchronous.train(
            of,
            folder=folder,
            checkpoint_every=40,
            report=on_update,
            worker_cpus=1,
            min_workers=4,
            timeout_s=120,
        )
    key = jax.random.key(10_000 + seed)
    zero = jnp.zeros((), jnp.int32)
    return {
        "machine_taken": away,
        "seed": seed,
        "loss": float(loss(run.params, asynchronous.Draw(key, zero, zero))),
        "replaced": run.replaced,
        "recovered": run.recovered,
        "fewest_workers": min(there),
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    parts, kept = recorded(NAME, PARTS) if given.part or given.resume else ({}, {})
    import ray
    from ray.cluster_utils import Cluster

    machines = Cluster(
        initialize_head=True, head_node_args={"num_cpus": EACH, "include_dashboard": False}
    )
    machines.add_node(num_cpus=EACH)
    ray.init(address=machines.address, log_to_driver=False)
    try:
        if given.part != "taken":
            parts["throughput"] = []
            for rule in ("sync", "async"):
                for workers in WORKERS:
                    parts["throughput"].append(throughput(rule, workers))
                    show(parts["throughput"][-1])
        if given.part != "throughput":
            parts["taken"] = []
            for away, seed in [*((False, seed) for seed in range(SEEDS)), (True, 0)]:
                parts["taken"].append(taken(machines, away, seed))
                show(parts["taken"][-1])
    finally:
        ray.shutdown()
        machines.shutdown()
    kept = {name: source for name, source in kept.items() if name != given.part and given.part}
    record(NAME, libraries=("jax", "optax", "ray"), kept=kept, **parts)


if __name__ == "__main__":
    main()
