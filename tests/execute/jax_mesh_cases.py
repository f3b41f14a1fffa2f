"""Cases that need many devices, run in one process that has them from its start.

    python -m tests.execute.jax_mesh_cases GROUP

Prints a JSON object: what went wrong, by case.
"""

import functools
import json
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import gradweave as gw
from gradweave import jax as jax_mesh
from gradweave.errors import OptionError
from gradweave.execute import play
from gradweave.execute.axis import AXIS
from gradweave.execute.reference import meaningful
from gradweave.schedules import Schedule
from gradweave.schedules.schedule import Collective
from tests.conformance.networks import TABLE_2
from tests.execute.cases import IN_SHARES
from tests.execute.demands import ends, planned
from tests.execute.launch import made

DEVICES, ON_NETWORKS = 12, 42
"""The most that any case takes: a mesh of two axes, and the largest network's servers."""
NETWORKS = (
    *TABLE_2,
    "torus:4x4",
    "jellyfish:switches=5,degree=3,servers_per_switch=2,seed=1",
    "irregular",
)
ALWAYS = ("merged", "parameter server")
IN_TURN = (
    "grown",
    "ring",
    "halving and doubling",
    "recursive doubling",
    "binomial",
    "ring, both ways",
    "merged, overlap",
)
SMALL = ("bcube:n=3,k=1", "irregular")
"""Networks on which a central server takes no time worth mentioning."""
DTYPES = ("float32", "int32", "bfloat16", "float32", "complex64", "uint16", "float16", "int8")
SIZES = (10007, 1, 1009, 33)

GROUPS: dict[str, dict[str, Callable[[], None]]] = {"networks 1": {}, "networks 2": {}}


def case(group: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Puts a function among a group's cases."""

    def put(function: Callable[[], None]) -> Callable[[], None]:
        GROUPS.setdefault(group, {})[function.__name__] = function
        return function

    return put


def contributions(servers: int, size: int, dtype: str, seed: int = 0) -> np.ndarray:
    """[servers, size] Numbers whose sums are rounded, where the type rounds."""
    rng = np.random.default_rng(seed)
    dtype_ = jnp.dtype(dtype)
    if dtype == "bool":
        return rng.random((servers, size)) < 0.5
    if jnp.issubdtype(dtype_, jnp.integer):
        return rng.integers(0, 100, (servers, size)).astype(dtype_)
    real = rng.standard_normal((servers, size))
    if jnp.issubdtype(dtype_, jnp.complexfloating):
        real = real + 1j * rng.standard_normal((servers, size))
    return real.astype(dtype_)


def on_servers(run: Callable[[Any], Any], schedule: Schedule, **options: Any) -> Callable:
    """A function of arrays whose first axis is the servers, each of which gets its own part."""

    def one(tree: Any) -> Any:
        out = run(jax.tree.map(lambda leaf: leaf[0], tree))
        return jax.tree.map(lambda leaf: leaf[None], out)

    options = {"check_vma": False} | options
    return jax.shard_map(
        one,
        mesh=jax_mesh.server_mesh(schedule),
        in_specs=P("server"),
        out_specs=P("server"),
        **options,
    )


def reduced(schedule: Schedule, tree: Any, reduction: str = "sum") -> Any:
    run = jax_mesh.Collective(schedule, reduction=reduction)  # pyright: ignore[reportArgumentType]
    placed = jax.device_put(tree, NamedSharding(jax_mesh.server_mesh(schedule), P("server")))
    return jax.tree.map(np.asarray, jax.jit(on_servers(run, schedule))(placed))


def check(schedule: Schedule, tree: dict[str, np.ndarray], reduction: str = "sum") -> None:
    """Raises where a device ends with other bits than the oracle, in what means anything."""
    for name, got in reduced(schedule, tree, reduction).items():
        expected = play(schedule, tree[name], reduction)  # pyright: ignore[reportArgumentType]
        counts = meaningful(schedule, expected.shape[1])
        assert got.dtype == expected.dtype, (name, got.dtype, expected.dtype)
        assert got[counts].tobytes() == expected[counts].tobytes(), name
        exact = jnp.issubdtype(got.dtype, jnp.integer) and reduction == "sum"
        if exact and schedule.collective == "all_reduce":
            assert (got == tree[name].sum(0, dtype=got.dtype)).all(), name


def conformance(name: str, strategy: str, turn: int) -> None:
    schedule = made(name, strategy)
    dtype, size = DTYPES[turn % len(DTYPES)], SIZES[turn % len(SIZES)]
    tree = {dtype: contributions(schedule.topology.num_servers, size, dtype)}
    check(schedule, tree)


for turn, name in enumerate(NETWORKS):
    several = [*ALWAYS, *(IN_TURN[(2 * turn + i) % len(IN_TURN)] for i in range(2))]
    if name in SMALL:
        several.append("central")
    for i, strategy in enumerate(several):
        group = GROUPS[f"networks {1 + turn % 2}"]
        group[f"{name}, {strategy}"] = functools.partial(conformance, name, strategy, 5 * turn + i)

SEVERAL = ("ring:6", "grown")
"""Several slots a round, pieces that get several contributions in one, servers that idle."""
SWITCHED = ("ring:7", "parameter server")
"""One loop with a branch for each form, reduces and copies in one write."""
RING = ("ring:6", "ring")
EACH = (SEVERAL, SWITCHED, RING)


@case("large")
def a_million_floats() -> None:
    for strategy in ("ring", "merged", "binomial"):
        check(made("ring:8", strategy), {"f": contributions(8, 1_000_000, "float32")})


@case("large")
def shares() -> None:
    for collective in ("all_reduce", "reduce_scatter", "all_gather"):
        schedule = made("ring:8", "ring" + IN_SHARES, collective)
        tree = {str(size): contributions(8, size, "float32") for size in (1, 10_007)}
        for gradient in tree.values():
            check(schedule, {"f": gradient})
    for strategy in ("grown", "merged"):
        check(made("ring:6", strategy + IN_SHARES), {"f": contributions(6, 1_000_000, "float32")})


@case("large")
def all_types() -> None:
    for pair, dtypes in ((SEVERAL, DTYPES), (SWITCHED, DTYPES[3:5])):
        schedule = made(*pair)
        servers = schedule.topology.num_servers
        check(schedule, {dtype: contributions(servers, 101, dtype) for dtype in dtypes})


@case("large")
def all_reductions() -> None:
    means = ("float32", "float16", "bfloat16", "complex64")
    check(made(*SEVERAL), {dtype: contributions(6, 101, dtype) for dtype in means}, "mean")
    extremes = ("float32", "float16", "int32", "bool")
    check(made(*SEVERAL), {dtype: contributions(6, 101, dtype) for dtype in extremes}, "max")
    check(made(*SWITCHED), {dtype: contributions(7, 101, dtype) for dtype in extremes[1:3]}, "min")


@case("large")
def wide_types() -> None:
    with jax.enable_x64(True):
        schedule = made(*SEVERAL)
        wide = {dtype: contributions(6, 101, dtype) for dtype in ("float64", "complex128")}
        check(schedule, wide, "mean")
        check(schedule, {"int64": contributions(6, 101, "int64")})


@case("large")
def one_stage() -> None:
    # Each with a mean once: it is that of both networks and of both stages.
    stages: tuple[Collective, ...] = ("reduce_scatter", "all_gather")
    for network_, strategy, averaged in (
        ("bcube:n=3,k=1", "merged", "reduce_scatter"),
        ("ring:8", "ring", "all_gather"),
    ):
        for collective in stages:
            schedule = made(network_, strategy, collective)
            servers = schedule.topology.num_servers
            tree = {dtype: contributions(servers, 1009, dtype) for dtype in ("float32", "int32")}
            check(schedule, tree)
            if collective == averaged:
                check(schedule, {"float32": tree["float32"]}, "mean")


@case("large")
def small_sizes() -> None:
    # Each type is a gradient of its own, so all sizes can be in one program.
    sizes = {"uint16": 0, "float32": 1, "int32": 5, "float16": 6, "bfloat16": 7}
    check(made(*SEVERAL), {dtype: contributions(6, size, dtype) for dtype, size in sizes.items()})
    check(made(*SEVERAL), {"float32": contributions(6, 0, "float32")})  # nothing else in it


@case("large")
def pytrees() -> None:
    schedule, rng = made(*SEVERAL), np.random.default_rng(0)
    tree = {
        "layers": [
            (rng.standard_normal((6, 3, 4)).astype(np.float32), rng.integers(0, 9, (6, 2))),
            (rng.standard_normal((6,)).astype(np.float32), None),
        ],
        "empty": np.zeros((6, 0, 3), np.float32),
        "half": rng.standard_normal((6, 2, 1, 5)).astype(np.float16),
    }
    got = reduced(schedule, jax.tree.map(jnp.asarray, tree))
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(tree), strict=True):
        assert one.shape == other.shape
        assert np.allclose(one, np.broadcast_to(other.sum(0), other.shape), rtol=1e-2)


@case("transformations")
def all_with_all() -> None:
    for servers, radix in ((4, 64), (9, 3), (12, 3)):  # in the last, some are folded
        network = gw.topology.from_spec(f"complete:{servers}")
        schedule = gw.schedulers.RecursiveDoubling(radix=radix).schedule(network)
        for dtype, reduction in (("float32", "sum"), ("int32", "max")):
            check(schedule, {dtype: contributions(servers, 33, dtype)}, reduction)


@case("large")
def same_bits_everywhere_and_again() -> None:
    schedule = made("bcube:n=3,k=1", "merged")
    assert gw.execute.same_bits(schedule)
    tree = {"f": contributions(9, 10007, "float32")}
    runs = [reduced(schedule, tree)["f"] for _ in range(3)]
    assert all((run == runs[0][0]).all() for run in runs)


def dense(schedule: Schedule, size: int) -> np.ndarray:
    """[N·size, N·size] The matrix of a sum, the oracle's answers to unit vectors as columns."""
    servers = schedule.topology.num_servers
    columns = []
    for i in range(servers * size):
        unit = np.zeros(servers * size)
        unit[i] = 1
        columns.append(play(schedule, unit.reshape(servers, size)).reshape(-1))
    return np.array(columns).T


@case("derivatives")
def like_those_of_psum() -> None:
    for pair, reduction, theirs in zip(
        EACH, ("sum", "mean", "sum"), (lax.psum, lax.pmean, lax.psum), strict=True
    ):
        schedule = made(*pair)
        servers = schedule.topology.num_servers
        run = jax_mesh.Collective(schedule, reduction=reduction)
        mine = on_servers(functools.partial(through, run), schedule)
        other = on_servers(functools.partial(through, lambda x, f=theirs: f(x, AXIS)), schedule)
        x, v = (jnp.asarray(contributions(servers, 23, "float32", seed)) for seed in (0, 1))
        for got, expected in zip(derivatives(mine, x, v), derivatives(other, x, v), strict=True):
            assert np.allclose(got, expected, atol=1e-4)


def through(run: Callable, x: jax.Array) -> jax.Array:
    return jnp.sin(run(x) * x)


@functools.partial(jax.jit, static_argnums=0)
def derivatives(run: Callable, x: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """In reverse mode and in forward mode."""
    return jax.vjp(run, x)[1](v)[0], jax.jvp(run, (x,), (v,))[1]


@case("derivatives")
def transposes_by_ppermutes() -> None:
    schedule = made(*SEVERAL)
    run = on_servers(jax_mesh.Collective(schedule), schedule)
    x = jnp.ones((6, 11))
    back = jax.jit(lambda v: jax.linear_transpose(run, x)(v)[0])
    text = back.lower(x).as_text()
    assert "collective_permute" in text
    assert "all_reduce" not in text and "all_to_all" not in text
    v = contributions(6, 11, "float32")
    assert np.asarray(back(jnp.asarray(v))).tobytes() == play(schedule, v).tobytes()


@case("derivatives")
def of_one_stage() -> None:
    for collective in ("reduce_scatter", "all_gather"):
        schedule = made("ring:8", "merged", collective)
        matrix = dense(schedule, 9)
        run = jax.jit(on_servers(jax_mesh.Collective(schedule), schedule))
        x, v = (contributions(8, 9, "float32", seed) for seed in (0, 1))
        (got,) = jax.jit(jax.linear_transpose(run, jnp.asarray(x)))(jnp.asarray(v))
        assert np.allclose(got.reshape(-1), matrix.T @ v.reshape(-1), atol=1e-4)
        _, forth = jax.jvp(run, (jnp.asarray(x),), (jnp.asarray(v),))
        assert np.allclose(forth.reshape(-1), matrix @ v.reshape(-1), atol=1e-4)


@case("derivatives")
def of_the_maximum() -> None:
    schedule = made(*SEVERAL)
    run = on_servers(jax_mesh.Collective(schedule, reduction="max"), schedule)
    x = contributions(6, 9, "float32")
    got = jax.jit(jax.grad(lambda x: (run(x) ** 2).sum()))(jnp.asarray(x))
    expected = jax.grad(lambda x: 6 * (x.max(0) ** 2).sum())(jnp.asarray(x))
    assert np.allclose(got, expected, atol=1e-4)


@case("derivatives")
def of_integers_beside_floats() -> None:
    schedule = made(*SEVERAL)
    run = on_servers(jax_mesh.Collective(schedule), schedule)
    tree = {"x": jnp.ones((6, 3)), "count": jnp.ones((6, 2), jnp.int32)}

    def loss(x: jax.Array) -> jax.Array:
        out = run({"x": x, "count": tree["count"]})
        return (out["x"].sum(1) * out["count"][:, 0]).sum()

    assert np.allclose(jax.jit(jax.grad(loss))(tree["x"]), 36)


@case("transformations")
def demands() -> None:
    devices = jax.sharding.Mesh(np.array(jax.devices()[:6]).reshape(2, 3), ("dp", "tp"))
    axes = P(("dp", "tp"))
    for schedule, reduction in zip(planned(), ("mean", "sum", "max"), strict=True):
        every = ends(schedule, "float32", reduction)
        most = [max(map(len, each)) for each in zip(*every, strict=True)]
        send, expected = (
            np.stack([np.pad(part, (0, longest - len(part))) for part in parts])
            for parts, longest in zip(zip(*every, strict=True), most, strict=True)
        )
        run = jax_mesh.Collective(schedule, ("dp", "tp"), reduction=reduction)  # pyright: ignore[reportArgumentType]
        on_mesh = jax.jit(
            jax.shard_map(
                lambda x, f=run: f(x[0])[None], mesh=devices, in_specs=axes, out_specs=axes
            )
        )
        assert np.asarray(on_mesh(send)).tobytes() == expected.tobytes()
    (back,) = jax.vjp(on_mesh, send)[1](expected)
    assert back.shape == send.shape
    try:
        on_mesh(send[:, 1:])
    except OptionError as error:
        assert "expected a vector of 200 elements of float32" in str(error)
    else:
        raise AssertionError("no error")


@case("transformations")
def without_jit() -> None:
    schedule = made("ring:8", "ring")
    x = contributions(8, 11, "float32")
    got = on_servers(jax_mesh.Collective(schedule), schedule)(jnp.asarray(x))
    assert np.asarray(got).tobytes() == play(schedule, x).tobytes()


@case("transformations")
def batches() -> None:
    for pair in EACH:
        schedule = made(*pair)
        servers = schedule.topology.num_servers
        x = np.stack([contributions(servers, 17, "float32", seed) for seed in range(3)])
        run = jax_mesh.Collective(schedule)
        expected = np.stack([play(schedule, each) for each in x])
        outside = jax.jit(jax.vmap(on_servers(run, schedule)))(x)
        assert np.asarray(outside).tobytes() == expected.tobytes()
        inside = jax.jit(on_servers(jax.vmap(run), schedule))(x.swapaxes(0, 1)).swapaxes(0, 1)
        assert np.asarray(inside).tobytes() == expected.tobytes()


@case("transformations")
def derivatives_of_batches() -> None:
    schedule = made(*SEVERAL)
    run = jax.vmap(on_servers(jax_mesh.Collective(schedule), schedule))
    x = jnp.asarray(np.stack([contributions(6, 7, "float32", seed) for seed in range(2)]))
    got = jax.jit(jax.grad(lambda x: (run(x) ** 2).sum()))(x)
    assert np.allclose(got, jnp.broadcast_to(12 * x.sum(1, keepdims=True), x.shape), atol=1e-4)


@case("transformations")
def in_loops() -> None:
    for pair in EACH:
        schedule = made(*pair)
        servers = schedule.topology.num_servers
        run = jax_mesh.Collective(schedule, reduction="mean")

        def repeatedly(x: jax.Array, run: Callable = run) -> jax.Array:
            return lax.scan(lambda x, _: (run(3 * x), None), x, length=3)[0]

        x = expected = contributions(servers, 17, "float32")
        for _ in range(3):
            expected = play(schedule, expected * np.float32(3), "mean")
        got = jax.jit(on_servers(repeatedly, schedule))(jnp.asarray(x))
        assert np.asarray(got).tobytes() == expected.tobytes()


@case("transformations")
def with_the_checks_of_shard_map() -> None:
    for pair in EACH:
        schedule = made(*pair)
        servers = schedule.topology.num_servers
        run = jax_mesh.Collective(schedule)
        x = contributions(servers, 17, "float32")
        got = jax.jit(on_servers(run, schedule, check_vma=True))(jnp.asarray(x))
        assert np.asarray(got).tobytes() == play(schedule, x).tobytes()
        # What all servers share counts as often as there are servers.
        shared = jax.shard_map(
            lambda x, run=run: run(x)[None],
            mesh=jax_mesh.server_mesh(schedule),
            in_specs=P(),
            out_specs=P("server"),
        )
        assert (np.asarray(jax.jit(shared)(jnp.ones(9))) == servers).all()


@case("transformations")
def beside_other_axes() -> None:
    schedule = made(*SEVERAL)
    run = jax_mesh.Collective(schedule)
    x = np.stack([contributions(6, 11, "float32", seed) for seed in range(2)])
    expected = np.stack([play(schedule, each) for each in x])
    grid = np.array(jax.devices()[:12])
    for devices, axes, name in (
        (grid.reshape(2, 6), ("batch", "server"), "server"),
        (grid.reshape(2, 2, 3), ("batch", "host", "core"), ("host", "core")),
    ):
        run = jax_mesh.Collective(schedule, name)
        for check_vma in (False, True):
            spread = jax.shard_map(
                lambda x, run=run: run(x),
                mesh=jax.sharding.Mesh(devices, axes),
                in_specs=P("batch", name),
                out_specs=P("batch", name),
                check_vma=check_vma,
            )
            assert np.asarray(jax.jit(spread)(x)).tobytes() == expected.tobytes()


def main(group: str) -> None:
    devices = ON_NETWORKS if group.startswith("networks") else DEVICES
    jax.config.update("jax_num_cpu_devices", devices)
    wrong, seconds = {}, {}
    for name, run in GROUPS[group].items():
        begin = time.perf_counter()
        try:
            run()
        except Exception:
            wrong[name] = traceback.format_exc()
        seconds[name] = round(time.perf_counter() - begin, 2)
    print(json.dumps({"wrong": wrong, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1])
