"""The asynchronous server on several of Ray's machines, which come and go.

    python benchmarks/experiments/asynchronous_nodes.py [--part PART] [--resume]

Ray's machines are processes of this one: two of its cluster utility, each with room for eight
workers of one processor. A few cores cannot compute for sixteen workers, so steps are planned to
take a while, asleep.

game: sixteen workers learn a game by policy gradients. Two agents see one of 16 signs; each chooses
one of 8 actions. They are paid 1 where both choose the sign's own action, 0.5 where both choose
another one, else 0. At a third of the updates the second machine is killed, with its workers and
servers: all resume from the checkpoint, with as many workers as there is room for. Beside it the
same training that nothing happens to, by several seeds, on the simulator of the same protocol.

throughput: a linear model of 100,000 parameters, four servers: gradients a second by 1 to 16
workers whose steps take 0.5 s, after the first update; the processor's time for a gradient, of all
processes; and the bytes that the busiest server moves for each.
"""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import optax
from command_line import parser_of
from record import record, recorded, show

from gradweave.aggregate import asynchronous
from gradweave.processes.jax_start import start_jax

NAME = "asynchronous_nodes"
PARTS = ("game", "throughput")
WORKERS, EACH = 16, 8
"""Workers at most, and processors of a machine."""
MIN_WORKERS = 4
ROOM = {"num_cpus": EACH, "object_store_memory": 200 * 2**20}

SIGNS, ACTIONS, EPISODES, GAME_RATE, GAME_STEP_S = 16, 8, 64, 2.0, 0.25
GAME_GRADIENTS, SEEDS, KILLED_SEEDS = 1_600, 5, 1

WIDTH, FEATURES, RATE, STEP_S, SERVERS = 100_000, 50, 0.2, 0.5, 4
COUNTS, STEPS_EACH = (1, 2, 4, 8, 16), 30


def paid() -> Any:
    """[sign, action, action] what both agents get."""
    alike = jnp.eye(ACTIONS)
    own = jax.nn.one_hot(jnp.arange(SIGNS) % ACTIONS, ACTIONS)
    return alike / 2 + jnp.einsum("sa,sb->sab", own, own) / 2


def earned(params: Any) -> float:
    """The return that policies expect."""
    one, other = jax.nn.softmax(params["policy"])
    return float(jnp.einsum("sa,sb,sab->s", one, other, paid()).mean())


def policy_gradient(params: Any, draw: asynchronous.Draw) -> Any:
    """Of REINFORCE, with the mean as its baseline; beside it the return played, negated."""
    signs, actions = jax.random.split(draw.key)
    sign = jax.random.randint(signs, (EPISODES,), 0, SIGNS)
    action = jax.random.categorical(actions, params["policy"][:, sign])
    reward = paid()[sign, action[0], action[1]]

    def surrogate(params: Any) -> Any:
        chosen = jnp.take_along_axis(
            jax.nn.log_softmax(params["policy"])[:, sign], action[..., None], -1
        )
        return -jnp.mean((reward - reward.mean()) * chosen[..., 0].sum(0))

    return -reward.mean(), jax.grad(surrogate)(params)


def game(seed: int) -> asynchronous.Task:
    return asynchronous.Task(
        params={"policy": jnp.zeros((2, SIGNS, ACTIONS))},
        gradient=policy_gradient,
        optimizer=optax.sgd(GAME_RATE),
        workers=WORKERS,
        servers=SERVERS,
        steps=GAME_GRADIENTS // WORKERS,
        consistency="async",
        seed=seed,
        stragglers=asynchronous.Stragglers(GAME_STEP_S, pause_rate=0.2, pause_s=GAME_STEP_S),
    )


def played(where: str, seed: int, run: asynchronous.Run) -> dict[str, Any]:
    return {
        "on": where,
        "seed": seed,
        "return": earned(run.params),
        "gradients": run.history.gradients,
        "seconds": float(run.history.seconds[-1]),
        "staleness_mean": float(run.history.staleness.mean()),
        "replaced": run.replaced,
        "recovered": run.recovered,
    }


def killed_game(seed: int) -> dict[str, Any]:
    """The second of two machines is killed."""
    there: list[tuple[float, int]] = []
    events: dict[str, float] = {}
    with machines() as cluster, tempfile.TemporaryDirectory() as folder:
        second = [cluster.add_node(**ROOM)]

        def on_update(made: asynchronous.UpdateReport) -> None:
            there.append((made.seconds, sum(process > 0 for process in made.workers)))
            if made.update % 100 == 0:
                print(f"update {made.update}, {there[-1]}", flush=True)
            if second and made.update >= GAME_GRADIENTS // 3:
                events["killed_s"] = made.seconds
                threading.Thread(target=cluster.remove_node, args=(second.pop(), False)).start()
            if made.recovered and "resumed_s" not in events:
                events["resumed_s"] = made.seconds

        run = asynchronous.train(
            game(seed),
            address=cluster.address,
            folder=folder,
            checkpoint_every=40,
            report=on_update,
            worker_cpus=1,
            min_workers=MIN_WORKERS,
            timeout_s=600,
        )
    return played("two machines, one killed", seed, run) | {"workers": spans(there), **events}


def spans(there: list[tuple[float, int]]) -> list[list[float]]:
    """Seconds from which on so many workers were there."""
    found: list[list[float]] = []
    for seconds, count in there:
        if not found or found[-1][1] != count:
            found.append([round(seconds, 1), count])
    return found


@contextlib.contextmanager
def machines() -> Iterator[Any]:
    """Ray's machines, the first one there."""
    from ray.cluster_utils import Cluster

    first = {**ROOM, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=first)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def loss(params: Any, draw: asynchronous.Draw) -> Any:
    """Of a linear model of few features, each of whose weights is a sum of many parameters."""
    x = jax.random.normal(draw.key, (8, FEATURES))
    weights = params["w"].reshape(FEATURES, -1).sum(1) / (WIDTH / FEATURES) ** 0.5
    return jnp.mean((x @ (weights - 1.0)) ** 2)


def task(workers: int, rule: str, steps: int) -> asynchronous.Task:
    return asynchronous.Task(
        params={"w": jnp.zeros(WIDTH)},
        gradient=jax.value_and_grad(loss),
        optimizer=optax.sgd(RATE / (1 if rule == "sync" else workers)),
        workers=workers,
        servers=SERVERS,
        steps=steps,
        consistency=rule,
        stragglers=asynchronous.Stragglers(STEP_S),
    )


def throughput(address: str, rule: str, workers: int) -> dict[str, Any]:
    """One run on both machines."""
    used: list[float] = []

    def on_update(made: asynchronous.UpdateReport) -> None:
        if made.gradients in (workers, workers * STEPS_EACH):
            used.append(processor_s())

    run = asynchronous.train(
        task(workers, rule, STEPS_EACH), address=address, worker_cpus=1, report=on_update
    )
    seconds = run.history.seconds
    moved = (run.traffic.pushed_bytes + run.traffic.pulled_bytes).sum(0).max()
    made = len(seconds) - workers
    rate = made / float(seconds[-1] - seconds[workers - 1])
    return {
        "rule": rule,
        "workers": workers,
        "gradients_per_s": rate,
        "of_planned": rate * STEP_S / workers,
        "processor_s": (used[1] - used[0]) / made,
        "server_bytes": float(moved / len(seconds)),
    }


def processor_s() -> float:
    """Processor time of this process and all that it has started."""
    import psutil

    total, here = 0.0, psutil.Process()
    for process in (here, *here.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--part", choices=PARTS, help="the others stay as recorded")
    asked = parser.parse_args()
    start_jax(1)
    os.environ["RAY_worker_niceness"] = "0"  # as all else here: workers are most of the work
    parts, kept = recorded(NAME, PARTS) if asked.part or asked.resume else ({}, {})
    for part in [asked.part] if asked.part else PARTS:
        rows = list(parts.get(part, [])) if asked.resume else []
        for row in lacking(part, rows):
            rows += row
            for one in row:
                show(one)
            parts[part] = rows
            kept.pop(part, None)
            record(NAME, libraries=("ray", "jax", "jaxlib", "optax"), kept=kept, **parts)


def lacking(part: str, rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Measures what a part has no rows of."""
    if part == "game":
        done = {(one["on"], one["seed"]) for one in rows}
        for seed in range(KILLED_SEEDS):
            if ("two machines, one killed", seed) not in done:
                yield [killed_game(seed)]
        for seed in range(SEEDS):
            if ("simulator", seed) not in done:
                yield [played("simulator", seed, asynchronous.simulate(game(seed)))]
    else:
        with machines() as cluster:
            cluster.add_node(**ROOM)
            for rule in ("async", "sync"):
                for workers in COUNTS:
                    if not any((one["rule"], one["workers"]) == (rule, workers) for one in rows):
                        yield [throughput(cluster.address, rule, workers)]


if __name__ == "__main__":
    main()
