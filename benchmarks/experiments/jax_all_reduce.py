"""The JAX executor on CPU devices: speed beside a hand-written ring, and compilation times.

    python benchmarks/experiments/jax_all_reduce.py

Speed: 8 devices, one gradient of float32 on each. `gradweave` runs schedules by
`gradweave.jax.Collective`; the ring by hand is the same ring written with
`jax.lax.ppermute`, in four variants (a loop or unrolled; pieces updated in the buffer, or a partial
sum passed on), of which the fastest counts. All take turns; ratios are taken within each turn, and
medians count. All results are checked first.

All devices share one processor's memory. The seconds therefore measure dispatch, synchronisation at
each exchange and copying, not a network: `psum`, which adds up in shared memory without exchanging
pieces, is the limit of such a machine, and no schedule is expected to reach it.

Compilation: 64 devices, three networks, six schedulers, a gradient of 100,000 floats. The
derivation of the steps from the schedule, tracing and lowering, and XLA's compilation are timed
separately. Each program is then run once and must reproduce the oracle bit for bit.
"""

import argparse
import functools
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.processes import printed_json
from benchmarks.record import record
from benchmarks.timing import timed
from gradweave import jax as jax_mesh
from gradweave.execute import play
from gradweave.execute.axis import AXIS
from gradweave.execute.jax_mesh.permutations import steps
from gradweave.schedulers.spec import from_spec
from gradweave.schedules import Schedule

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


def passed_on(x: jax.Array, *, unroll: bool) -> jax.Array:
    """The ring by hand: a received part is passed on without going through the buffer."""
    me, rows = lax.axis_index(AXIS), x.reshape(SERVERS, -1)

    def piece(number: jax.Array) -> jax.Array:
        return lax.dynamic_index_in_dim(rows, number % SERVERS, keepdims=False)

    def put(gathered: jax.Array, row: jax.Array, number: jax.Array) -> jax.Array:
        return lax.dynamic_update_index_in_dim(gathered, row, number % SERVERS, 0)

    def reduce_scatter(i: jax.Array, part: jax.Array) -> jax.Array:
        return piece(me - i - 1) + lax.ppermute(part, AXIS, FORWARD)

    def all_gather(i: jax.Array, both: tuple[jax.Array, jax.Array]) -> tuple:
        part = lax.ppermute(both[0], AXIS, FORWARD)
        return part, put(both[1], part, me - i)

    part = lax.fori_loop(0, SERVERS - 1, reduce_scatter, piece(me), unroll=unroll)
    gathered = put(jnp.zeros_like(rows), part, me + 1)
    return lax.fori_loop(0, SERVERS - 1, all_gather, (part, gathered), unroll=unroll)[1].reshape(
        x.shape
    )


BY_HAND = {
    f"by hand, {words}, {'unrolled' if unroll else 'loop'}": functools.partial(ring, unroll=unroll)
    for words, ring in (("in buffer", in_buffer), ("handed on", passed_on))
    for unroll in (False, True)
}


def lowered(run: Callable, mesh: jax.sharding.Mesh, size: int) -> tuple[Any, float]:
    """A lowered program, and the seconds of tracing and lowering."""
    mapped = jax.shard_map(
        lambda x: run(x[0])[None], mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False
    )
    shape = jax.ShapeDtypeStruct(
        (mesh.size, size), jnp.float32, sharding=NamedSharding(mesh, P(AXIS))
    )
    seconds, program = timed(lambda: jax.jit(mapped).lower(shape))
    return program, seconds


def gradients(mesh: jax.sharding.Mesh, size: int) -> tuple[np.ndarray, jax.Array]:
    """Gradients on the host, and the same on the devices."""
    host = np.random.default_rng(SEED).standard_normal((mesh.size, size)).astype(np.float32)
    return host, jax.device_put(host, NamedSharding(mesh, P(AXIS)))


def seconds_per_turn(
    programs: dict[str, Callable[[jax.Array], jax.Array]], x: jax.Array
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(TURNS + 3):
        for name, program in programs.items():
            taken, _ = timed(lambda program=program: program(x).block_until_ready())
            if turn >= 3:  # after warming up
                seconds[name].append(taken)
    return seconds


def speed(size: int) -> dict[str, Any]:
    network = gw.topology.ring(SERVERS)
    schedules = {name: from_spec(name).schedule(network, seed=SEED) for name in SCHEDULERS}
    mesh = jax_mesh.server_mesh(schedules["ring"])
    runs: dict[str, Callable] = {name: jax_mesh.Collective(s) for name, s in schedules.items()}
    runs |= BY_HAND | {"psum": lambda x: lax.psum(x, AXIS)}
    host, x = gradients(mesh, size)
    programs = {name: lowered(run, mesh, size)[0].compile() for name, run in runs.items()}
    for name, program in programs.items():
        if name in schedules:
            assert np.asarray(program(x)).tobytes() == play(schedules[name], host).tobytes()
        else:
            assert np.allclose(program(x), host.sum(0), atol=1e-3)
    seconds = seconds_per_turn(programs, x)
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
    mesh = jax_mesh.server_mesh(schedule)
    run = jax_mesh.Collective(schedule)
    steps_s, plan = timed(lambda: steps(schedule))
    program, trace_s = lowered(run, mesh, LARGE_SIZE)
    compile_s, compiled = timed(program.compile)
    host, x = gradients(mesh, LARGE_SIZE)
    run_s, reduced = timed(lambda: compiled(x).block_until_ready())
    assert np.asarray(reduced).tobytes() == play(schedule, host).tobytes()
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
    """Rows of another process, with its own number of devices."""
    return printed_json([sys.executable, __file__, "--one", part])


def measure(part: str) -> list[dict[str, Any]]:
    jax.config.update("jax_num_cpu_devices", SERVERS if part == "speed" else LARGE_SERVERS)
    rows = []
    cases = itertools.product(LARGE_NETWORKS, LARGE_SCHEDULERS)
    for case in [(size,) for size in SIZES] if part == "speed" else cases:
        rows.append(speed(*case) if part == "speed" else compilation(*case))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--one", choices=("speed", "compilation"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one)))
        return
    load = os.getloadavg()[0]
    record(
        "jax_all_reduce",
        libraries=("jax", "jaxlib"),
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
