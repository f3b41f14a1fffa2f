"""Talking less: a small GPT on eight workers, by DiLoCo and its kin beside synchronous training.

    python benchmarks/experiments/diloco.py

A character-level transformer of about a million parameters on the text of this repository's
documentation and sources; eight workers with batches of their own, all on one device by `vmap`. The
synchronous training averages gradients in every step. The others are `gradweave.aggregate`'s, with
the same inner optimizer, steps, and batches. Loss is that of the workers' mean parameters on text
that is held out.

As in DiLoCo's own paper all begin from a model that was trained before, here by one worker alone
with the batches of all; bytes are those of the steps that follow.

The sizes are small, so that all runs together take about half an hour of one core: the figures say
what the methods cost beside synchronous training at the same length, not what larger models do. A
run that is done is kept in a file beside the results until all are; ``--resume`` goes on with
those, and ``--finish`` records them. The text is that of the day, so that
losses of different days are not compared: with ``--add`` recorded runs of other texts stay beside.
"""

import functools
import hashlib
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.command_line import parser_of
from benchmarks.record import RESULTS, record, recorded, show
from benchmarks.unfinished import Unfinished
from gradweave import aggregate
from gradweave.aggregate.decentralized import GossipState
from gradweave.aggregate.local.updates import LocalState

ROOT = Path(__file__).parents[2]
WORKERS = 8
LAYERS, WIDTH, HEADS, CONTEXT = 5, 128, 4, 64
BATCH, STEPS, RATE = 2, 300, 1e-3
BEFORE, WARM_UP, RATE_BEFORE = 300, 30, 2e-3
"""Steps before, of a model alone: all of them, and those in which its rate grows."""
HELD_OUT, JUDGED = 0.1, 64
"""Share of the text, its end; sequences of it that are judged."""
SEGMENT = 100
"""Steps between two losses that are kept."""
SLOW, KILLED_AT = 5, 0.25
"""The slow worker makes one step of so many; when another is killed, as a share of the training."""
AXIS = "server"
OUTER = "bits=4,outer_rate=1,outer_momentum=0.7"
"""Forty averages are few for the momentum 0.9 that DiLoCo recommends."""
RUNS: dict[str, tuple[str, bool, int]] = {
    "synchronous": ("mean", False, 3),
    "DiLoCo, 7 steps, 4 bits, outer momentum 0.7": (f"diloco:local_steps=7,{OUTER}", False, 3),
    "DiLoCo, 10 steps, 4 bits, outer momentum 0.7": (f"diloco:local_steps=10,{OUTER}", False, 1),
    "Streaming DiLoCo, 10 steps, 4 bits, outer momentum 0.7": (
        f"streaming_diloco:local_steps=10,fragments=5,delay=1,{OUTER}",
        False,
        1,
    ),
    "quorum of 6, one killed, one slow by 5, 7 steps, outer momentum 0.7": (
        f"diloco:local_steps=7,quorum=6,in_time=1,{OUTER}",
        True,
        1,
    ),
}
"""By name: the aggregation, whether a worker is killed and another slow, and how many seeds. The
steps and the momentum of the second were chosen on the first seed; tried there besides: momentum
0.8 (2.8 % above synchronous), and 5 steps in 3 bits with momentum 0.6 (2.4 %)."""


def text() -> np.ndarray:
    """[length] the repository's documentation and sources as bytes below 128."""
    files = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src").rglob("*.py"))]
    content = "\n".join(file.read_text() for file in files).encode("ascii", "replace")
    return np.frombuffer(content, np.uint8).astype(np.int32)


def new_parameters(key: jax.Array) -> dict[str, Any]:
    """A transformer before training."""
    keys = iter(jax.random.split(key, 3 + 4 * LAYERS))

    def matrix(rows: int, columns: int, scale: float = 1.0) -> jax.Array:
        return scale * jax.random.normal(next(keys), (rows, columns)) / np.sqrt(rows)

    def block() -> dict[str, jax.Array]:
        small = 1 / np.sqrt(2 * LAYERS)
        return {
            "qkv": matrix(WIDTH, 3 * WIDTH),
            "out": matrix(WIDTH, WIDTH, small),
            "up": matrix(WIDTH, 4 * WIDTH),
            "down": matrix(4 * WIDTH, WIDTH, small),
            "scales": jnp.ones((2, WIDTH)),
        }

    return {
        "embedding": matrix(128, WIDTH, np.sqrt(128) * 0.1),
        "places": matrix(CONTEXT, WIDTH, np.sqrt(CONTEXT) * 0.1),
        "blocks": [block() for _ in range(LAYERS)],
        "scale": jnp.ones(WIDTH),
        "head": matrix(WIDTH, 128, 0.5),
    }


def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def attended(x: jax.Array, block: dict[str, jax.Array]) -> jax.Array:
    """[B, T, WIDTH] causal attention."""
    batch, length, _ = x.shape
    q, k, v = jnp.split((x @ block["qkv"]).reshape(batch, length, HEADS, -1), 3, axis=-1)
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(WIDTH // HEADS)
    scores = jnp.where(np.tril(np.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    return mixed.reshape(batch, length, WIDTH) @ block["out"]


def loss_of(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
    """Mean cross entropy in nats a character of sequences [B, T + 1]."""
    x = params["embedding"][tokens[:, :-1]] + params["places"]
    for block in params["blocks"]:
        x = x + attended(normed(x, block["scales"][0]), block)
        hidden = jax.nn.gelu(normed(x, block["scales"][1]) @ block["up"])
        x = x + hidden @ block["down"]
    logits = normed(x, params["scale"]) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def batches(content: np.ndarray, starts: np.ndarray) -> jax.Array:
    return jnp.asarray(content[starts[..., None] + np.arange(CONTEXT + 1)])


def inner_optimizer(rate: float | jax.Array) -> optax.GradientTransformation:
    falling = optax.cosine_decay_schedule(rate, STEPS, 0.1)  # pyright: ignore[reportArgumentType]
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(falling, weight_decay=0.01))


def started(seed: int, content: np.ndarray) -> dict[str, Any]:
    """The model that all runs of a seed begin with; kept in a file while there are some left."""
    fresh = new_parameters(jax.random.key(seed))
    leaves, structure = jax.tree.flatten(fresh)
    file = RESULTS / f"diloco.start-{seed}.npz"
    if not file.exists():
        rate = optax.linear_schedule(0.0, RATE_BEFORE, WARM_UP)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate))
        rng = np.random.default_rng(1000 + seed)
        starts = rng.integers(0, len(content) - CONTEXT - 1, (BEFORE, WORKERS * BATCH))

        def step(carry: Any, tokens: jax.Array) -> Any:
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss_of)(params, tokens), state, params)
            return (optax.apply_updates(params, updates), state), None

        begin = fresh, optimizer.init(fresh)
        (after, _), _ = jax.jit(lambda tokens: jax.lax.scan(step, begin, tokens))(
            batches(content, starts)
        )
        arrays = {str(n): np.asarray(leaf) for n, leaf in enumerate(jax.tree.leaves(after))}
        np.savez(file, **arrays)
    with np.load(file) as kept_arrays:
        return structure.unflatten([jnp.asarray(kept_arrays[str(n)]) for n in range(len(leaves))])


def axes_of(state: Any) -> Any:
    """Where the workers' axis is in an optimizer's state; steps are the same at all workers.

    So `lax.cond` on the step stays a condition, and nothing is exchanged in the steps between.
    """
    if not isinstance(state, LocalState | GossipState):
        return 0
    return jax.tree.map(lambda _: 0, state)._replace(step=None)


def active_at(step: int, faulty: bool) -> jax.Array:
    """[WORKERS] which workers make a step."""
    active = jnp.ones(WORKERS, bool)
    if not faulty:
        return active
    active = active.at[3].set(step < KILLED_AT * STEPS)
    return active.at[5].set(step % SLOW == SLOW - 1)


@functools.cache
def programs(sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """The workers' gradients and the loss of their mean, compiled once for all aggregations."""
    del sizes

    def gradients(params: Any, tokens: jax.Array) -> Any:
        # One worker after the other, which a processor does faster than all side by side.
        return jax.lax.map(lambda one: jax.grad(loss_of)(*one), (params, tokens))

    return jax.jit(gradients), jax.jit(lambda params, to: loss_of(aggregate.consensus(params), to))


@functools.cache
def step_of(spec: str, steps: int, workers: int) -> Any:
    """A step of all workers after their gradients, compiled once for all seeds and rates."""
    del steps  # a constant of this module, on which the inner optimizer depends

    @jax.jit
    def step(
        gradients: Any, params: Any, state: Any, active: jax.Array, rate: jax.Array
    ) -> tuple[Any, Any, jax.Array]:
        optimizer = aggregate.aggregator(spec, workers)(inner_optimizer(rate))
        axes, local = axes_of(state), isinstance(state, LocalState)

        def one(gradient: Any, params: Any, state: Any, active: jax.Array) -> Any:
            extra = {"active": active} if local else {}
            updates, state = optimizer.update(gradient, state, params, **extra)
            return optax.apply_updates(params, updates), state, aggregate.sent_bytes(state)

        every = jax.vmap(one, (0, 0, axes, 0), (0, axes, 0), axis_name=AXIS)
        return every(gradients, params, state, active)

    return step


def trained(spec: str, faulty: bool, seed: int, content: np.ndarray) -> dict[str, Any]:
    """One run: losses of the mean parameters, bytes sent by each worker, and its time."""
    begun = time.monotonic()
    cut = int(len(content) * (1 - HELD_OUT))
    rng = np.random.default_rng(seed)
    judged = batches(
        content[cut:], np.linspace(0, len(content) - cut - CONTEXT - 2, JUDGED).astype(int)
    )
    params = aggregate.replicate(started(seed, content[:cut]), WORKERS)
    gradients, judge = programs((WORKERS, LAYERS, WIDTH, HEADS))
    step = step_of(spec, STEPS, WORKERS)
    optimizer = aggregate.aggregator(spec, WORKERS)(inner_optimizer(RATE))
    state = jax.vmap(optimizer.init)(params)
    if isinstance(state, LocalState | GossipState):
        state = state._replace(step=state.step[0])
    losses, sent = [], []
    for first in range(0, STEPS, SEGMENT):
        starts = rng.integers(0, cut - CONTEXT - 1, (SEGMENT, WORKERS, BATCH))
        tokens = batches(content[:cut], starts)
        for number, batch in enumerate(tokens, first):
            active = active_at(number, faulty)
            params, state, bytes_ = step(
                gradients(params, batch), params, state, active, jnp.float32(RATE)
            )
            sent.append(np.asarray(bytes_, np.float64))
        losses.append(float(judge(params, judged)))
    by_step = np.stack(sent)
    return {
        "losses": losses,
        "loss": losses[-1],
        "bytes_a_worker": float(by_step.sum(0).max()),
        "peak_bytes_a_step": float(by_step.max()),
        "not_finite": int(np.asarray(aggregate.not_finite(state)).sum()),
        "wall_s": time.monotonic() - begun,
    }


def forget_starts() -> None:
    """Removes what `started` kept."""
    for file in RESULTS.glob("diloco.start-*.npz"):
        file.unlink()


def main() -> None:
    """Makes the runs that are not kept yet, and records when all are."""
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--finish", action="store_true", help="record what an ended run kept")
    parser.add_argument("--add", action="store_true", help="keep recorded runs of other texts")
    asked = parser.parse_args()
    kept = Unfinished("diloco", resume=asked.resume or asked.finish, libraries=("jax", "optax"))
    if not (asked.resume or asked.finish):
        forget_starts()
    content = text()
    digest = hashlib.sha256(content.tobytes()).hexdigest()[:16]
    for name, (spec, faulty, seeds) in RUNS.items():
        for seed in range(0 if asked.finish else seeds):
            if any((row["name"], row["seed"]) == (name, seed) for row in kept.rows()):
                continue
            row = {"name": name, "spec": spec, "seed": seed, "text": digest}
            row |= trained(spec, faulty, seed, content)
            kept.add(row)
            show({key: value for key, value in row.items() if key != "losses"})
    known, _ = recorded("diloco", ["rows"]) if asked.add else ({}, {})
    others = [row for row in known.get("rows", []) if row["text"] != digest]
    shapes = jax.eval_shape(new_parameters, jax.random.key(0))
    record(
        "diloco",
        "python benchmarks/experiments/diloco.py" + " --add" * asked.add,
        libraries=("jax", "optax"),
        workers=WORKERS,
        steps=STEPS,
        steps_before=BEFORE,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(shapes)),
        model={"layers": LAYERS, "width": WIDTH, "heads": HEADS, "context": CONTEXT},
        batch_a_worker=BATCH,
        rate=RATE,
        slow=SLOW,
        killed_at=KILLED_AT,
        runs_planned=sum(seeds for _, _, seeds in RUNS.values()),
        text={"characters": len(content), "sha256_16": digest},
        rows=kept.rows() + others,
    )
    kept.end()
    forget_starts()


if __name__ == "__main__":
    main()
