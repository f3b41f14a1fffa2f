"""The JAX executor on forced processor devices: its speed beside a ring by hand, and compilation.

    python benchmarks/experiments/jax_all_reduce.py

Speed: 8 devices, one gradient of float32 on each. `gradweave` runs schedules by
`gradweave.execute.jax_mesh.all_reduce`; the ring by hand is the same ring written with
`jax.lax.ppermute`, in four ways (a loop or unrolled; pieces updated in the buffer, or a partial sum
handed on), of which the fastest counts. All take turns; a ratio is taken within each turn, and
medians count. Results of all are checked before.

All devices are one processor's memory here. So the seconds say what starting a program, meeting at
each exchange and copying cost, and nothing about a network: `psum`, which adds up in shared memory
without exchanging pieces at all, shows what such a machine can do, and no schedule is expected to
reach it.

Compilation: 64 devices, three networks, six schedulers, a gradient of 100,000 floats. Tracing,
lowering and XLA's part are timed apart, as is the derivation of the steps from the schedule. Each
program is then run once, and has to give the bits of the oracle.
"""

import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from record import record, versions

import gradweave as gw
from gradweave.execute import jax_mesh, play
from gradweave.execute.jax_mesh.steps import steps
from gradweave.schedule import Schedule
from gradweave.schedulers.spec import from_spec

SEED = 0
SERVERS, TURNS = 8, 60
SIZES = (10_000, 100_000, 1_000_000)
SCHEDULERS = ("ring", "merged", "symmetric", "halving_doubling", "central_parameter_server")
LARGE_SERVERS, LARGE_SIZE = 64, 100_000
LARGE_NETWORKS = ("ring:64", "torus:8x8", "bcube:n=8,k=1")
LARGE_SCHEDULERS = (
    "ring",
    "merged",
    "grown:restarts=10",
    "symmetric:restarts=10",
    "parameter_server",
    "central_parameter_server",
)
AXIS = jax_mesh.AXIS
FORWARD = [(i, (i + 1) % SERVERS) for i in range(SERVERS)]


def in_buffer(x: jax.Array, *, unroll: bool) -> jax.Array:
    """The ring by hand: every piece is kept in the buffer."""
    me, rows = lax.axis_index(AXIS), x.reshape(SERVERS, -1)

    def piece(rows: jax.Array, number: jax.Array) -> jax.Array:
        return lax.dynamic_index_in_dim(rows, number % SERVERS, keepdims=False)

    def put(rows: jax.Array, row: jax.Array, number: jax.Array) -> jax.Array:
        return lax.dynamic_update_index_in_dim(rows, row, number % SERVERS, 0)

    def reduce_scatter(i: jax.Array, rows: jax.Array) -> jax.Array:
        came = lax.ppermute(piece(rows, me - i), AXIS, FORWARD)
        return put(rows, piece(rows, me - i - 1) + came, me - i - 1)

    def all_gather(i: jax.Array, rows: jax.Array) -> jax.Array:
        return put(rows, lax.ppermute(piece(rows, me + 1 - i), AXIS, FORWARD), me - i)

    for stage in (reduce_scatter, all_gather):
        rows = lax.fori_loop(0, SERVERS - 1, stage, rows, unroll=unroll)
    return rows.reshape(x.shape)


def handed_on(x: jax.Array, *, unroll: bool) -> jax.Array:
    """The ring by hand: what is received is handed on, and read from the buffer by no one."""
    me, rows = lax.axis_index(AXIS), x.reshape(SERVERS, -1)

    def piece(number: jax.Array) -> jax.Array:
        return lax.dynamic_index_in_dim(rows, number % SERVERS, keepdims=False)

    def put(whole: jax.Array, row: jax.Array, number: jax.Array) -> jax.Array:
        return lax.dynamic_update_index_in_dim(whole, row, number % SERVERS, 0)

    def reduce_scatter(i: jax.Array, part: jax.Array) -> jax.Array:
        return piece(me - i - 1) + lax.ppermute(part, AXIS, FORWARD)

    def all_gather(i: jax.Array, both: tuple[jax.Array, jax.Array]) -> tuple:
        part = lax.ppermute(both[0], AXIS, FORWARD)
        return part, put(both[1], part, me - i)

    part = lax.fori_loop(0, SERVERS - 1, reduce_scatter, piece(me), unroll=unroll)
    whole = put(jnp.zeros_like(rows), part, me + 1)
    return lax.fori_loop(0, SERVERS - 1, all_gather, (part, whole), unroll=unroll)[1].reshape(
        x.shape
    )


BY_HAND = {
    f"by hand, {words}, {'unrolled' if unroll else 'loop'}": functools.partial(ring, unroll=unroll)
    for words, ring in (("in buffer", in_buffer), ("handed on", handed_on))
    for unroll in (False, True)
}


def lowered(run: Callable, mesh: jax.sharding.Mesh, size: int) -> tuple[Any, float]:
    """A program not compiled yet, and the seconds that it took to get so far."""
    begin = time.perf_counter()
    spread = jax.shard_map(
        lambda x: run(x[0])[None], mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False
    )
    shape = jax.ShapeDtypeStruct(
        (mesh.size, size), jnp.float32, sharding=NamedSharding(mesh, P(AXIS))
    )
    program = jax.jit(spread).lower(shape)
    return program, time.perf_counter() - begin


def gradients(mesh: jax.sharding.Mesh, size: int) -> tuple[np.ndarray, jax.Array]:
    """The same on the host and on the devices."""
    host = np.random.default_rng(SEED).standard_normal((mesh.size, size)).astype(np.float32)
    return host, jax.device_put(host, NamedSharding(mesh, P(AXIS)))


def seconds_a_turn(
    programs: dict[str, Callable[[jax.Array], jax.Array]], x: jax.Array
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(TURNS + 3):
        for name, program in programs.items():
            begin = time.perf_counter()
            program(x).block_until_ready()
            if turn >= 3:  # before, caches warm up
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def speed(size: int) -> dict[str, Any]:
    network = gw.topology.ring(SERVERS)
    schedules = {name: from_spec(name).schedule(network, seed=SEED) for name in SCHEDULERS}
    mesh = jax_mesh.mesh(schedules["ring"])
    runs: dict[str, Callable] = {name: jax_mesh.all_reduce(s) for name, s in schedules.items()}
    runs |= BY_HAND | {"psum": lambda x: lax.psum(x, AXIS)}
    host, x = gradients(mesh, size)
    programs = {name: lowered(run, mesh, size)[0].compile() for name, run in runs.items()}
    for name, program in programs.items():
        if name in schedules:
            assert np.asarray(program(x)).tobytes() == play(schedules[name], host).tobytes()
        else:
            assert np.allclose(program(x), host.sum(0), atol=1e-3)
    seconds = seconds_a_turn(programs, x)
    median = {name: statistics.median(s) for name, s in seconds.items()}
    best = min(BY_HAND, key=lambda name: median[name])

    def ratio(name: str, other: str) -> float:
        pairs = zip(seconds[name], seconds[other], strict=True)
        return statistics.median(one / two for one, two in pairs)

    return {
        "elements": size,
        "median_ms": {name: 1e3 * s for name, s in median.items()},
        "best_by_hand": best,
        "times_best_by_hand": {name: ratio(name, best) for name in (*SCHEDULERS, "psum")},
        "times_psum": {name: ratio(name, "psum") for name in (*SCHEDULERS, best)},
    }


def compilation(spec: str, scheduler: str) -> dict[str, Any]:
    network = gw.topology.from_spec(spec)
    schedule: Schedule = from_spec(scheduler).schedule(network, seed=SEED)
    mesh = jax_mesh.mesh(schedule)
    run = jax_mesh.all_reduce(schedule)
    begin = time.perf_counter()
    plan = steps(schedule)
    steps_s = time.perf_counter() - begin
    program, trace_s = lowered(run, mesh, LARGE_SIZE)
    begin = time.perf_counter()
    compiled = program.compile()
    compile_s = time.perf_counter() - begin
    host, x = gradients(mesh, LARGE_SIZE)
    begin = time.perf_counter()
    got = compiled(x).block_until_ready()
    run_s = time.perf_counter() - begin
    assert np.asarray(got).tobytes() == play(schedule, host).tobytes()
    forms = [form for loop in plan.loops for form in loop.forms]
    return {
        "network": spec,
        "scheduler": scheduler,
        "rounds": schedule.rounds,
        "transfers": schedule.num_transfers,
        "loops": len(plan.loops),
        "forms": len(forms),
        "ppermutes": sum(len(form.permutations) for form in forms),
        "steps_s": steps_s,
        "trace_and_lower_s": trace_s,
        "compile_s": compile_s,
        "first_run_s": run_s,
    }


def in_own_process(part: str) -> list[dict[str, Any]]:
    """What another process measures, which has another number of devices."""
    done = subprocess.run(
        [sys.executable, __file__, part], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def measured(part: str) -> list[dict[str, Any]]:
    jax.config.update("jax_num_cpu_devices", SERVERS if part == "speed" else LARGE_SERVERS)
    rows = []
    cases = itertools.product(LARGE_NETWORKS, LARGE_SCHEDULERS)
    for case in [(size,) for size in SIZES] if part == "speed" else cases:
        rows.append(speed(*case) if part == "speed" else compilation(*case))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measured(sys.argv[1])))
        return
    load = os.getloadavg()[0]
    record(
        "jax_all_reduce",
        "python benchmarks/experiments/jax_all_reduce.py",
        versions=versions() | {name: version(name) for name in ("jax", "jaxlib")},
        seeds=[SEED],
        load_at_start=load,
        devices=SERVERS,
        turns=TURNS,
        speed=in_own_process("speed"),
        compilation_devices=LARGE_SERVERS,
        compilation_elements=LARGE_SIZE,
        compilation=in_own_process("compilation"),
    )


if __name__ == "__main__":
    main()
