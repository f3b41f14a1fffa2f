"""Aggregations on eight devices. Run by test_devices.py in a process that has so many."""

import functools

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params
from jax.sharding import PartitionSpec as P

import gradweave as gw
from gradweave import aggregate
from gradweave.aggregate import decentralized
from gradweave.aggregate.local.updates import counted
from gradweave.errors import OptionError, ScheduleError

N, SIZE = 8, 1003
AXIS = "server"
RNG = np.random.default_rng(0)
GRADIENTS = {
    "a": RNG.standard_normal((N, 17, 59)).astype(np.float32),
    "b": [
        RNG.standard_normal((N, 0)).astype(np.float32),
        RNG.standard_normal(N).astype(np.float32),
    ],
}
GRADIENT_BYTES = 4 * (17 * 59 + 1)


def mesh(workers: int = N) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(jax.devices()[:workers]), (AXIS,))


def on_devices(function, workers: int = N):
    """The same function on all devices, each with its part of arguments that begin with [N]."""

    def one(*arguments):
        mine = jax.tree.map(lambda leaf: leaf[0], arguments)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], function(*mine))

    spec = {"mesh": mesh(workers), "in_specs": P(AXIS), "out_specs": P(AXIS), "check_vma": False}
    return jax.jit(jax.shard_map(one, **spec))


SCHEDULED = {
    name: gw.solve(gw.topology.from_spec(name)).schedule
    for name in ("ring:8", "hypercube:dimension=3", "torus:2x4", "bcube:n=2,k=2")
}
EXACT = {
    "mean": aggregate.mean(),
    "ring": aggregate.ring_mean(),
    "parameter_server": aggregate.parameter_server(),
    "parameter_server:server=5": aggregate.parameter_server(server=5),
    **{f"scheduled:{name}": aggregate.scheduled(one) for name, one in SCHEDULED.items()},
}


@pytest.mark.parametrize("steps", [1, 2])
def test_the_checks_of_shard_map_find_nothing(steps):
    method = aggregate.d_psgd(optax.sgd(0.1), aggregate.MixingMatrix.ring(N), local_steps=steps)

    def one(params):
        return method.update(params, method.init(params), params)[0]

    checked = jax.shard_map(one, mesh=mesh(), in_specs=P(AXIS), out_specs=P(AXIS), check_vma=True)
    assert jax.jit(checked)(jnp.ones(N)).tolist() == pytest.approx([-0.1] * N)


@pytest.mark.parametrize("name", EXACT)
def test_the_mean_of_all_gradients(name):
    one = EXACT[name]
    given = aggregate.aggregator(name, N)
    assert given.exact
    for optimizer in (one, given(optax.identity())):

        def run(gradient, optimizer=optimizer):
            updates, state = optimizer.update(gradient, optimizer.init(gradient), gradient)
            return updates, aggregate.sent_bytes(state)

        updates, sent = on_devices(run)(GRADIENTS)
        for got, had in zip(jax.tree.leaves(updates), jax.tree.leaves(GRADIENTS), strict=True):
            expected = np.broadcast_to(had.astype(np.float64).mean(0), had.shape)
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
        assert sent.shape == (N,)
        # What pads pieces to equal length is an element a transfer at most.
        slack = 4 * 2 * N
        if name.startswith("parameter_server"):
            server = 5 if "5" in name else 0
            assert sent[server] == pytest.approx((N - 1) * GRADIENT_BYTES, abs=N * slack)
            others = np.delete(np.asarray(sent), server)
            np.testing.assert_allclose(others, GRADIENT_BYTES, atol=slack)
        elif name in ("ring", "mean"):
            np.testing.assert_allclose(sent, 2 * (N - 1) / N * GRADIENT_BYTES, atol=slack)
        else:
            transfers = SCHEDULED[name.removeprefix("scheduled:")].num_transfers
            whole = transfers / N * GRADIENT_BYTES
            assert whole <= float(sent.sum()) <= whole + 4 * transfers


def regression():
    """A small network's loss, its parameters, and each worker's data."""
    keys = jax.random.split(jax.random.key(1), 4)
    params = {
        "hidden": jax.random.normal(keys[0], (6, 16)) / 3,
        "out": jax.random.normal(keys[1], (16, 1)) / 4,
    }
    x = jax.random.normal(keys[2], (N, 32, 6))
    y = jnp.sin(x.sum(-1, keepdims=True)) + 0.1 * jax.random.normal(keys[3], (N, 32, 1))

    def loss(params, x, y):
        return ((jnp.tanh(x @ params["hidden"]) @ params["out"] - y) ** 2).mean()

    return loss, params, (x, y)


@functools.cache
def curve(name: str) -> np.ndarray:
    """[steps] loss while training."""
    loss, params, data = regression()
    optimizer = aggregate.aggregator(name, N)(optax.adam(1e-2))

    def train(x, y):
        def step(carry, _):
            params, state = carry
            value, gradient = jax.value_and_grad(loss)(params, x, y)
            updates, state = optimizer.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), jax.lax.pmean(value, AXIS)

        return jax.lax.scan(step, (params, optimizer.init(params)), None, 100)[1]

    return np.asarray(on_devices(train)(*data)[0])


@pytest.mark.parametrize("name", ["ring", "parameter_server:server=5", "scheduled:torus:2x4"])
def test_training_takes_the_same_way(name):
    assert curve("mean")[-1] < 0.6 * curve("mean")[0]
    np.testing.assert_allclose(curve(name), curve("mean"), rtol=0, atol=1e-5)


MIXINGS = {
    "ring": aggregate.MixingMatrix.ring(N),
    "complete": aggregate.MixingMatrix.complete(N),
    "irregular": aggregate.MixingMatrix.metropolis_hastings(nx.lollipop_graph(4, 4)),
    "matchings": aggregate.MixingMatrix.in_matchings(nx.cycle_graph(N)),
    "clusters": aggregate.MixingMatrix.in_clusters(gw.topology.from_spec("bcube:n=2,k=2")),
}
COMPRESSORS = {
    "exact": aggregate.Uncompressed(),
    "max_norm": aggregate.MaxNorm(bits=6, block=32),
    "grid": aggregate.Grid(step=0.01),
    "random_k": aggregate.RandomK(share=0.5),
    "top_k": aggregate.TopK(share=0.2),
}
STEPS, RATE, SEED = 7, 0.1, 3
TARGETS = RNG.standard_normal((N, 61)).astype(np.float32)


def gradient(x, target):
    return x - target


def trained(optimizer) -> tuple[np.ndarray, np.ndarray]:
    """Parameters [STEPS, N, size] after each step and bytes sent [STEPS, N]."""

    def run(target):
        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(gradient(params["x"], target), state, params["x"])
            params = {"x": optax.apply_updates(params["x"], updates)}
            return (params, state), (params["x"], aggregate.sent_bytes(state))

        begin = jnp.zeros(target.shape)
        return jax.lax.scan(step, ({"x": begin}, optimizer.init(begin)), None, STEPS)[1]

    x, sent = on_devices(run)(TARGETS)
    return np.asarray(x).swapaxes(0, 1), np.asarray(sent).swapaxes(0, 1)


@functools.cache
def compressed(compressor):
    """(vector, time, worker) -> what comes out at the other end, compiled once."""

    def one(vector, time, worker):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), time), worker)
        payload = compressor.compress(jax.random.fold_in(key, 0), vector)
        return compressor.decompress(payload, vector.size, vector.dtype)

    return jax.jit(one)


def by_hand(method, mixing, compressor, local_steps=1) -> np.ndarray:
    """The same, told worker by worker, with estimates of every neighbour's parameters."""
    size = TARGETS.shape[1]
    consensus = aggregate.check_validity(method, mixing, compressor, size).consensus
    x = np.zeros((N, size))
    last, known = x.copy(), x.copy()  # after the last communication; what all know of a worker
    history = []

    def c(vector, time, worker):
        got = compressed(compressor)(vector.astype(np.float32), time, worker)
        return np.asarray(got, np.float64)

    def each(vectors, time):
        return np.stack([c(vector, time, worker) for worker, vector in enumerate(vectors)])

    for step in range(1, STEPS + 1):
        u = -RATE * gradient(x, TARGETS)
        if step % local_steps:
            x = x + u
            history.append(x.copy())
            continue
        t = step // local_steps
        w = mixing.weights[(t - 1) % mixing.period]
        if method == "d_psgd":
            x = w @ x + u
        elif method == "naive_psgd":
            x = w @ each(x, t) + u
        elif method == "dcd_psgd":
            known = known + each(w @ known + (x + u - last) - known, t)
            x = known.copy()
        elif method == "ecd_psgd":
            ahead = w @ known + (x + u - last)
            z = (1 - t / 2) * last + t / 2 * ahead
            known = (1 - 2 / t) * known + 2 / t * each(z, t)
            x = ahead
        else:
            x = x + u
            known = known + each(x - known, t)
            x = x + consensus * (w @ known - known)
        last = x.copy()
        history.append(x.copy())
    return np.stack(history)


def close(got: np.ndarray, expected: np.ndarray, compressor) -> None:
    """Equal, except where rounding made a compressor choose otherwise."""
    apart = np.abs(got - expected)
    if isinstance(compressor, aggregate.Uncompressed):
        assert apart.max() < 1e-5
    else:
        assert np.median(apart) < 1e-5 and (apart > 1e-4).mean() < 0.05


@pytest.mark.parametrize(
    ("mixing", "local_steps"), [*((mixing, 1) for mixing in MIXINGS), ("matchings", 3)]
)
def test_d_psgd_by_hand(mixing, local_steps):
    optimizer = aggregate.d_psgd(optax.sgd(RATE), MIXINGS[mixing], local_steps=local_steps)
    x, sent = trained(optimizer)
    close(
        x,
        by_hand("d_psgd", MIXINGS[mixing], aggregate.Uncompressed(), local_steps),
        aggregate.Uncompressed(),
    )
    for step in range(STEPS):
        if (step + 1) % local_steps:
            assert not sent[step].any()
        else:
            turn = ((step + 1) // local_steps - 1) % MIXINGS[mixing].period
            neighbours = (MIXINGS[mixing].weights[turn] > 0).sum(0) - 1
            np.testing.assert_array_equal(sent[step], neighbours * 4 * 61)


@pytest.mark.parametrize("method", ["dcd_psgd", "ecd_psgd"])
def test_without_loss_they_are_d_psgd(method):
    make = getattr(aggregate, method)
    x, _ = trained(make(optax.sgd(RATE), MIXINGS["irregular"], aggregate.Uncompressed()))
    expected, _ = trained(aggregate.d_psgd(optax.sgd(RATE), MIXINGS["irregular"]))
    np.testing.assert_allclose(x, expected, atol=1e-5)


TALKS = [("irregular", 1), ("ring", 2)]
"""Mixing matrices, and after how many steps they talk."""


@pytest.mark.filterwarnings("ignore::gradweave.aggregate.ValidityWarning")
@pytest.mark.parametrize(
    ("method", "compressor", "mixing", "local_steps"),
    [
        (method, compressor, *TALKS[(i + j) % 2])  # each of them with half of the pairs
        for i, method in enumerate(["naive_psgd", "dcd_psgd", "ecd_psgd", "choco_sgd"])
        for j, compressor in enumerate(COMPRESSORS)
    ],
)
def test_compressed_methods_by_hand(method, compressor, mixing, local_steps):
    make = getattr(decentralized, method)
    c, w = COMPRESSORS[compressor], MIXINGS[mixing]
    optimizer = make(optax.sgd(RATE), w, c, local_steps=local_steps, seed=SEED)
    x, sent = trained(optimizer)
    close(x, by_hand(method, w, c, local_steps), c)
    payload = jax.eval_shape(c.compress, jax.random.key(0), jnp.zeros(61))
    each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(payload))
    talks = sent[local_steps - 1 :: local_steps]
    np.testing.assert_array_equal(talks[0], ((w.weights[0] > 0).sum(0) - 1) * each)
    assert (talks == talks[0]).all() and sent.sum() == talks.sum()


def handed_on(jaxpr, workers: int = N) -> np.ndarray:
    """[N] bytes that each device sends by what JAX is about to compile, which has no loops."""
    sent = np.zeros(workers, np.int64)
    for equation in jaxpr.eqns:
        assert equation.primitive.name not in ("scan", "while", "cond")
        if equation.primitive.name == "ppermute":
            for source, _ in equation.params["perm"]:
                sent[source] += sum(v.aval.size * v.aval.dtype.itemsize for v in equation.invars)
        for inner in jaxprs_in_params(equation.params):
            sent += handed_on(inner, workers)
    return sent


@pytest.mark.filterwarnings("ignore::gradweave.aggregate.ValidityWarning")
@pytest.mark.parametrize("method", ["d_psgd", "dcd_psgd", "choco_sgd"])
def test_counted_bytes_are_those_of_the_program(method):
    options = () if method == "d_psgd" else (aggregate.MaxNorm(bits=3),)
    optimizer = getattr(aggregate, method)(optax.sgd(RATE), MIXINGS["irregular"], *options)

    def run(x):
        return aggregate.sent_bytes(optimizer.update(x, optimizer.init(x), x)[1])

    program = on_devices(run)
    expected = handed_on(jax.make_jaxpr(program)(TARGETS).jaxpr)
    assert len(set(expected)) > 1
    np.testing.assert_array_equal(program(TARGETS), expected)


def test_bits_save_bytes():
    def sent(compressor):
        optimizer = aggregate.choco_sgd(optax.sgd(RATE), MIXINGS["ring"], compressor)
        return trained(optimizer)[1].sum()

    whole = sent(aggregate.Uncompressed())
    assert whole == STEPS * N * 2 * 61 * 4
    # Four or eight to a word, and one scale.
    assert sent(aggregate.MaxNorm(bits=8, block=None)) * 61 == whole * (16 + 1)
    assert sent(aggregate.MaxNorm(bits=4, block=None)) * 61 == whole * (8 + 1)


def test_parameters_of_several_types():
    optimizer = aggregate.dcd_psgd(
        optax.sgd(RATE), MIXINGS["complete"], aggregate.MaxNorm(), strictness="ignore"
    )

    def run(target):
        params = {"a": jnp.zeros((5, 2)), "b": jnp.zeros(7, jnp.bfloat16)}
        state = optimizer.init(params)
        grads = jax.tree.map(lambda leaf: leaf - target[0].astype(leaf.dtype), params)
        updates, _ = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates)

    after = on_devices(run)(TARGETS)
    assert after["b"].dtype == jnp.bfloat16
    for leaf in jax.tree.leaves(after):
        for got, target in zip(leaf.astype(np.float32), TARGETS[:, 0], strict=True):
            np.testing.assert_allclose(got, RATE * target, atol=0.01)


def test_a_wrong_number_of_workers():
    with pytest.raises(OptionError, match=r"d_psgd's mixing matrix is for 8 workers.* 4 devices"):
        on_devices(
            lambda x: aggregate.d_psgd(optax.sgd(1.0), MIXINGS["ring"]).update(
                x, aggregate.d_psgd(optax.sgd(1.0), MIXINGS["ring"]).init(x), x
            )[0],
            4,
        )(TARGETS[:4])
    with pytest.raises(ScheduleError, match="8 servers"):
        on_devices(lambda x: EXACT["scheduled:ring:8"].update(x, EXACT["ring"].init(x))[0], 4)(
            TARGETS[:4]
        )


@pytest.mark.parametrize(
    "name",
    [
        "diloco:local_steps=3",
        "diloco:local_steps=3,compressor=max_norm,bits=8,block=1",
        "streaming_diloco:local_steps=4,fragments=2,delay=1",
        "noloco:local_steps=2",
        "gasloc:local_steps=2",
        "sparseloco:local_steps=2,share=0.2,block=8",
        "sparse_averaging:local_steps=4,fragments=2,delay=1",
    ],
)
def test_local_updates_are_the_same_on_devices_as_on_one(name):
    optimizer = aggregate.aggregator(name, N)(optax.sgd(RATE))

    def run(target):
        def step(carry, _):
            x, state = carry
            updates, state = optimizer.update(x - target, state, x)
            return (x + updates, state), aggregate.sent_bytes(state)

        begin = jnp.zeros_like(target)
        (x, state), sent = jax.lax.scan(step, (begin, optimizer.init(begin)), None, 12)
        return x, sent, counted(state)

    many = on_devices(run)(TARGETS)
    one = jax.jit(jax.vmap(run, axis_name=AXIS))(TARGETS)
    for got, expected in zip(many, one, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
    assert many[1].sum() > 0 and (np.asarray(many[1][:, 0]) == 0).all()


@pytest.mark.parametrize(
    "name",
    [
        *("mean", "ring", "parameter_server", "d_psgd", "dcd_psgd"),
        *("diloco:local_steps=2", "noloco:local_steps=2", "sparseloco:local_steps=2,share=1"),
    ],
)
def test_one_worker_alone(name):
    optimizer = aggregate.aggregator(name, 1)(optax.sgd(RATE))

    def run(x):
        updates, state = optimizer.update(x, optimizer.init(x), x)
        return updates, aggregate.sent_bytes(state)

    updates, sent = on_devices(run, 1)(TARGETS[:1])
    np.testing.assert_allclose(updates, -RATE * TARGETS[:1], atol=1e-2 if "dcd" in name else 1e-6)
    assert not sent.any()
