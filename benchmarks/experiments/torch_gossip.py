"""Gossip in PyTorch beside gossip in JAX: the same parameters, and the same after a kill.

    python benchmarks/experiments/torch_gossip.py

Eight workers on scikit-learn's digits, of which each has those of two or three kinds: a logistic
regression and a small convolutional network, by each rule. In JAX all workers are on one device, in
PyTorch each is a process, by gloo. Both begin from the same parameters, draw the same batches and
round messages by the same random numbers; what differs is the order in which sums are rounded.

Every training of PyTorch's is made twice: through, and by processes that keep their states in files
now and then, are killed with SIGKILL on the way, and begin again from the files.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiment import Rows, run

WORKERS, STEPS, BATCH, RATE, MOMENTUM, SEED = 8, 150, 16, 0.05, 0.9, 5
KEPT_EVERY, KILLED_AT = 50, 120
"""Steps."""


class Method(NamedTuple):
    """How workers average."""

    rule: str
    bits: int = 0
    matchings: bool = False

    def parts(self) -> tuple[Any, Any, Any]:
        """The rule, the mixing matrix and the compressor, which both frameworks take."""
        from gradweave.aggregate import MaxNorm, MixingMatrix
        from gradweave.aggregate.mixing import ring_graph
        from gradweave.aggregate.rules import RULES

        of = MixingMatrix.in_matchings if self.matchings else MixingMatrix.metropolis_hastings
        compressor = MaxNorm(bits=self.bits) if self.bits else None
        options = {"consensus": 0.3} if self.rule == "choco_sgd" else {}
        return RULES[self.rule](**options), of(ring_graph(WORKERS)), compressor


METHODS = {
    "d_psgd": Method("d_psgd"),
    "d_psgd, pairs in turn": Method("d_psgd", matchings=True),
    "choco_sgd, 4 bits": Method("choco_sgd", 4),
    "dcd_psgd, 8 bits": Method("dcd_psgd", 8),
}
MODELS = ("logistic regression", "convolutional")


class Data(NamedTuple):
    """Of all workers."""

    images: NDArray[np.float32]
    """[N, samples, 1, 8, 8]"""
    labels: NDArray[np.int64]
    """[N, samples]"""
    batches: NDArray[np.int64]
    """[steps, N, BATCH] samples of each step."""


def data_of_digits() -> Data:
    """Sorted by kind and dealt out in a row, so that workers' data differ."""
    try:
        from sklearn import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        sys.exit("the digits are scikit-learn's: .venv/bin/python -m pip install scikit-learn")
    digits = datasets.load_digits()
    order = np.argsort(digits.target, kind="stable")
    order = order[: len(order) // WORKERS * WORKERS].reshape(WORKERS, -1)
    images = (digits.images[order] / 8 - 1).astype(np.float32)[:, :, None]
    drawn = np.random.default_rng(0).integers(order.shape[1], size=(STEPS, WORKERS, BATCH))
    return Data(images, digits.target[order], drawn)


def start_of(model: str) -> list[NDArray[np.float32]]:
    """Weights and biases, as PyTorch has them."""
    rng = np.random.default_rng(1)
    shapes = [(10, 64)] if model == MODELS[0] else [(8, 1, 3, 3), (16, 8, 3, 3), (10, 64)]
    made = []
    for shape in shapes:
        scale = np.prod(shape[1:]) ** -0.5
        made += [scale * rng.standard_normal(shape), np.zeros(shape[0])]
    return [one.astype(np.float32) for one in made]


def by_jax(model: str, method: Method, data: Data) -> tuple[list[NDArray], float, float]:
    """Parameters [N, …], the mean parameters' loss on all data, and bytes that worker 0 sent."""
    import jax
    import jax.numpy as jnp
    import optax

    from gradweave import aggregate

    rule, mixing, compressor = method.parts()
    optimizer = aggregate.gossip(
        rule, optax.sgd(RATE, MOMENTUM), mixing, compressor, seed=SEED, strictness="ignore"
    )

    def loss(params: Sequence[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        *convolutions, weight, bias = params
        for kernel, add in zip(convolutions[::2], convolutions[1::2], strict=True):
            stride = (2, 2) if kernel.shape[1] > 1 else (1, 1)
            x = jax.lax.conv_general_dilated(x, kernel, stride, "VALID")
            x = jax.nn.relu(x + add[:, None, None])
        logits = x.reshape(len(x), -1) @ weight.T + bias
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jax.jit
    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any]:
        gradients = jax.vmap(jax.grad(loss))(params, x, y)
        updates, state = jax.vmap(optimizer.update, axis_name="server")(gradients, state, params)
        return jax.vmap(optax.apply_updates)(params, updates), state

    params = [jnp.broadcast_to(one, (WORKERS, *one.shape)) for one in start_of(model)]
    state, sent, rows = jax.vmap(optimizer.init)(params), 0.0, np.arange(WORKERS)[:, None]
    for batch in data.batches:
        params, state = step(params, state, data.images[rows, batch], data.labels[rows, batch])
        sent += float(state.sent_bytes[0])
    x, y = jnp.asarray(data.images.reshape(-1, 1, 8, 8)), jnp.asarray(data.labels.reshape(-1))
    whole = float(loss([one.mean(0) for one in params], x, y))
    return [np.asarray(one) for one in params], whole, sent


def by_torch(
    model: str, method: Method, data: Data, folder: Path, *, killed_at: int | None = None
) -> None:
    """Processes that write what they come to into a folder; killed, they go on from its states."""
    (folder / "store").unlink(missing_ok=True)
    children = []
    for rank in range(WORKERS):
        if not (child := os.fork()):
            try:
                _work(model, method, data, folder, rank, killed_at)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    wanted = 0 if killed_at is None else -signal.SIGKILL
    if set(codes) != {wanted}:
        sys.exit(f"processes ended with {codes}, not with {wanted}")


def _work(
    model: str, method: Method, data: Data, folder: Path, rank: int, killed_at: int | None
) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn import functional

    from gradweave.torch import Gossip

    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORKERS)
    params = [torch.nn.Parameter(torch.from_numpy(one)) for one in start_of(model)]
    optimizer = torch.optim.SGD(params, RATE, MOMENTUM)
    gossip = Gossip(optimizer, *method.parts(), seed=SEED, strictness="ignore")
    state = folder / f"state-{rank}.pt"
    if state.exists():
        kept = torch.load(state, weights_only=True)
        for one, value in zip(params, kept["params"], strict=True):
            one.data.copy_(value)
        optimizer.load_state_dict(kept["optimizer"])
        gossip.load_state_dict(kept["gossip"])
    images, labels = torch.from_numpy(data.images[rank]), torch.from_numpy(data.labels[rank])
    for number in range(gossip.steps, STEPS):
        if number == killed_at:
            dist.barrier()  # so that all have kept the same steps
            os.kill(os.getpid(), signal.SIGKILL)
        batch = data.batches[number, rank]
        *convolutions, weight, bias = params
        x = images[batch]
        for kernel, add in zip(convolutions[::2], convolutions[1::2], strict=True):
            x = functional.conv2d(x, kernel, add, stride=2 if kernel.shape[1] > 1 else 1).relu()
        optimizer.zero_grad()
        functional.cross_entropy(x.flatten(1) @ weight.T + bias, labels[batch]).backward()
        optimizer.step()
        if killed_at is not None and gossip.steps % KEPT_EVERY == 0:
            states = {"optimizer": optimizer.state_dict(), "gossip": gossip.state_dict()}
            torch.save({"params": [one.data for one in params], **states}, state)
    arrays = [one.detach().numpy() for one in params]
    np.savez(folder / f"{rank}.npz", *arrays, sent=gossip.sent_bytes)


def read(folder: Path) -> tuple[list[NDArray], int]:
    """Parameters [N, …] and the bytes that worker 0 sent."""
    files = [np.load(folder / f"{rank}.npz") for rank in range(WORKERS)]
    names = sorted(name for name in files[0].files if name != "sent")
    return [np.stack([file[name] for file in files]) for name in names], int(files[0]["sent"])


def measure() -> list[dict[str, Any]]:
    """One a model and method. PyTorch's come first: a process that has run JAX is not forked."""
    data, rows = data_of_digits(), list[dict[str, Any]]()
    found: list[tuple[str, str, list[NDArray], int, bool, float]] = []
    for model in MODELS:
        for name, method in METHODS.items():
            with tempfile.TemporaryDirectory() as place:
                folder, began = Path(place), time.monotonic()
                by_torch(model, method, data, folder)
                took = time.monotonic() - began
                whole, sent = read(folder)
                by_torch(model, method, data, folder, killed_at=KILLED_AT)
                by_torch(model, method, data, folder)
                again, _ = read(folder)
            same = all(np.array_equal(*pair) for pair in zip(whole, again, strict=True))
            found.append((model, name, whole, sent, same, took))
    for model, name, whole, sent, same, took in found:
        expected, loss, sent_by_jax = by_jax(model, METHODS[name], data)
        difference = max(np.abs(a - b).max() for a, b in zip(whole, expected, strict=True))
        largest = max(np.abs(one).max() for one in expected)
        spread = max(np.abs(one - one.mean(0)).max() for one in expected)
        rows.append(
            {
                "model": model,
                "parameters": sum(one[0].size for one in expected),
                "method": name,
                "loss": loss,
                "largest_parameter": float(largest),
                "largest_difference": float(difference),
                "workers_differ_by": float(spread),
                "bytes": sent,
                "bytes_in_jax": sent_by_jax,
                "same_after_kill": same,
                "wall_s": took,
            }
        )
    return rows


if __name__ == "__main__":
    run(
        __doc__,
        Rows([{}], measure),
        libraries=("torch", "jax", "optax", "scikit-learn"),
        workers=WORKERS,
        steps=STEPS,
        seed=SEED,
    )
