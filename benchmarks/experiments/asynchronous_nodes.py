"""The asynchronous server on several of Ray's machines, which come and go.

    python benchmarks/experiments/asynchronous_nodes.py [--part PART] [--resume]

Ray's machines are processes of this one: two of its cluster utility, each with room for eight
workers of one processor. A few cores cannot compute for sixteen workers, so steps are planned to
take a while, asleep.

game: sixteen workers learn a game by policy gradients. Two agents see one of 16 signs; each chooses
one of 8 actions. They are paid 1 where both choose the sign's own action, 0.5 where both choose
another one, else 0. At a third of the updates the second machine is killed, with its workers and
servers: all resume from the checkpoint, with as many workers as there is room for. Beside it the
same training that nothing happens to, on the simulator of the same protocol: by sixteen workers, as
it began, and by eight, as it went on, whose parameters are less stale.

autoscaler: the same game by twelve workers; it begins with four, for which the first machine has
room. Ray's autoscaler, with its provider of machines that are processes of this one, brings up to
two others of four processors for the workers that wait, which join. Then one of these is killed,
and it brings another one; after the end it takes away those that are idle.

throughput: a linear model of 100,000 parameters, four servers: gradients a second by 1 to 16
workers whose steps take 0.5 s, after the first update; the processor's time for a gradient, of all
processes; and the bytes that the busiest server moves for each.
"""

import contextlib
import itertools
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.command_line import parser_of
from benchmarks.record import record, recorded, show
from gradweave.aggregate import asynchronous
from gradweave.processes.jax_start import start_jax

NAME = "asynchronous_nodes"
PARTS = ("game", "throughput", "autoscaler")
WORKERS, EACH = 16, 8
"""Workers at most, and processors of a machine."""
MIN_WORKERS = 4
ROOM = {"num_cpus": EACH, "object_store_memory": 200 * 2**20}

SIGNS, ACTIONS, EPISODES, GAME_RATE, GAME_STEP_S = 16, 8, 64, 2.0, 0.25
GAME_GRADIENTS, SEEDS = 1_600, 5

SCALED_WORKERS, SCALED_EACH, SCALED_MACHINES = 12, 4, 2
"""Workers at most, processors of a machine, and machines that the autoscaler may bring."""
IDLE_S, IDLE_MOST_S = 12.0, 120.0
"""After which the autoscaler takes an idle machine away, and how long that is waited for."""

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


def game(seed: int, workers: int = WORKERS) -> asynchronous.Task:
    return asynchronous.Task(
        params={"policy": jnp.zeros((2, SIGNS, ACTIONS))},
        gradient=policy_gradient,
        optimizer=optax.sgd(GAME_RATE),
        workers=workers,
        servers=SERVERS,
        steps=GAME_GRADIENTS // workers,
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


def trained(task: asynchronous.Task, cluster: Any, folder: str, report: Any) -> asynchronous.Run:
    """On Ray's machines, of which each worker takes a processor."""
    return asynchronous.train_on_ray(
        task,
        address=cluster.address,
        folder=folder,
        checkpoint_every=40,
        report=report,
        worker_cpus=1,
        min_workers=MIN_WORKERS,
        timeout_s=600,
    )


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

        run = trained(game(seed), cluster, folder, on_update)
    return played(KILLED, seed, run) | {"workers": spans(there), **events}


def scaled_game(seed: int) -> dict[str, Any]:
    """Machines come and go by Ray's autoscaler; one of its machines is killed."""
    there: list[tuple[float, int]] = []
    events: dict[str, float] = {}
    with autoscaler() as cluster, tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()

        def since() -> float:
            return time.perf_counter() - begin

        def on_update(made: asynchronous.UpdateReport) -> None:
            there.append((since(), sum(process > 0 for process in made.workers)))
            if made.update % 100 == 0:
                print(f"update {made.update}, {there[-1]}", flush=True)
            complete = there[-1][1] == SCALED_WORKERS
            if complete and made.update >= GAME_GRADIENTS // 3 and "killed_s" not in events:
                brought(cluster)[-1].kill()
                events["killed_s"] = since()

        with counted(cluster, since) as machines_there:
            run = trained(game(seed, SCALED_WORKERS), cluster, folder, on_update)
            events["trained_s"] = since()
            while machines_there[-1][1] > 1 and since() < events["trained_s"] + IDLE_MOST_S:
                time.sleep(1)
    return played(SCALED, seed, run) | {
        "workers": spans(there),
        "machines": spans(machines_there),
        **events,
    }


@contextlib.contextmanager
def counted(cluster: Any, since: Callable[[], float]) -> Iterator[list[tuple[float, int]]]:
    """Seconds and Ray's machines then, by another thread."""
    found: list[tuple[float, int]] = [(0.0, 1)]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            nodes = cluster.global_state.node_table()
            found.append((since(), sum(node["Alive"] for node in nodes)))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def spans(there: list[tuple[float, int]]) -> list[list[float]]:
    """Seconds from which on so many workers were there."""
    found: list[list[float]] = []
    for seconds, count in there:
        if not found or found[-1][1] != count:
            found.append([round(seconds, 1), count])
    return found


@contextlib.contextmanager
def machines(**head: Any) -> Iterator[Any]:
    """Ray's machines, the first one there, by options of its own."""
    from ray.cluster_utils import Cluster

    first = {**ROOM, "include_dashboard": False, **head}
    cluster = Cluster(initialize_head=True, head_node_args=first)
    try:
        yield cluster
    finally:
        cluster.shutdown()


@contextlib.contextmanager
def autoscaler() -> Iterator[Any]:
    """One of Ray's machines, with its autoscaler.

    As `ray.cluster_utils.AutoscalingCluster` has it, which ends all that is Ray's on this machine
    and reads a file that Ray's package lacks.
    """
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID
    from ray.util import get_node_ip_address

    os.environ |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    resources = {"CPU": SCALED_EACH, "object_store_memory": ROOM["object_store_memory"]}
    head, more = "ray.head.default", {"resources": resources, "node_config": {}}
    commands = ("initialization", "setup", "head_setup", "worker_setup")
    starts = ("head_start_ray", "worker_start_ray")
    config = {
        "cluster_name": NAME,
        "max_workers": SCALED_MACHINES,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": IDLE_S / 60,
        "provider": {
            "type": "fake_multinode",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "gcs_address": f"{get_node_ip_address()}:{port}",
        },
        "head_node_type": head,
        "available_node_types": {
            head: more | {"max_workers": 0},
            "more": more | {"min_workers": 0, "max_workers": SCALED_MACHINES},
        },
        **{f"{name}_commands": [] for name in (*commands, *starts)},
        **{"auth": {}, "docker": {}, "file_mounts": {}, "file_mounts_sync_continuously": False},
        **{"cluster_synced_files": [], "rsync_exclude": [], "rsync_filter": []},
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(config))
        file.flush()
        first = {
            "num_cpus": SCALED_EACH,
            "gcs_server_port": port,
            "autoscaling_config": file.name,
            "env_vars": {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID},
        }
        left: list[Any] = []
        try:
            with machines(**first) as cluster:
                try:
                    yield cluster
                finally:
                    left = brought(cluster)
        finally:
            for process in left:
                with contextlib.suppress(Exception):
                    process.kill()


def brought(cluster: Any) -> list[Any]:
    """Processes of the machines that the autoscaler has brought: their raylets, oldest first."""
    import psutil

    own = cluster.head_node.all_processes["raylet"][0].process.pid
    children = psutil.Process().children(recursive=True)
    found = [one for one in children if one.name() == "raylet" and one.pid != own]
    return sorted(found, key=lambda one: one.create_time())


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

    run = asynchronous.train_on_ray(
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


KILLED, SCALED = "two machines, one killed", "machines by the autoscaler, one killed"
GAMES = {
    "game": (killed_game, KILLED, 3, {"simulator": WORKERS, "simulator, 8 workers": EACH}),
    "autoscaler": (scaled_game, SCALED, 1, {"simulator": SCALED_WORKERS}),
}
"""What happens, its name, by how many seeds; and undisturbed trainings of so many workers."""


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
    if part in GAMES:
        disturbed, where, seeds, alone = GAMES[part]
        done = {(one["on"], one["seed"]) for one in rows}
        for seed in range(seeds):
            if (where, seed) not in done:
                yield [disturbed(seed)]
        for (name, workers), seed in itertools.product(alone.items(), range(SEEDS)):
            if (name, seed) not in done:
                yield [played(name, seed, asynchronous.simulate_training(game(seed, workers)))]
    else:
        with machines() as cluster:
            cluster.add_node(**ROOM)
            for rule in ("async", "sync"):
                for workers in COUNTS:
                    if not any((one["rule"], one["workers"]) == (rule, workers) for one in rows):
                        yield [throughput(cluster.address, rule, workers)]


if __name__ == "__main__":
    main()
