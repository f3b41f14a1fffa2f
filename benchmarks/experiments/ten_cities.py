"""Decentralized training between ten cities: loss against seconds and against bytes.

    python benchmarks/experiments/ten_cities.py [--small] [--resume]

The training of `diloco.py` by ten workers, one in each of the ten cities of `cities`, from random
parameters, on a text that ships with Python (pydoc's topics). Every aggregation sends something in
one of ten steps, except synchronous training. The inner optimizer's rate is searched on a seed of
its own, for each method.

Seconds are the steps' measured computing, plus predictions: for averages over all workers, of an
all-reduce by the best schedule found in three seconds; for others, of messages that all leave at
once by shortest routes (`exchange_seconds`). An average that workers do not wait for costs what it
exceeds the computing of the steps in its delay. The workers compute side by side on one device.
``--small`` trains a model of an eighth of the parameters, and records it on its own.
"""

import functools
import pydoc_data.topics
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.experiments import diloco
from benchmarks.intervals import mean_between
from benchmarks.record import record, show
from benchmarks.unfinished import Unfinished
from gradweave.aggregate import MixingMatrix, Uncompressed, exchange_seconds
from gradweave.aggregate.messages import message_bytes, messages_sent
from gradweave.aggregate.spec import GossipSpec, LocalSpec, parse

NAME, SEEDS, SEARCHED = "ten_cities", 5, 100
"""Number of seeds, and the seed on which rates are searched."""
SETTING = {"WORKERS": 10, "STEPS": 200, "SEGMENT": 20, "BATCH": 1, "CONTEXT": 64, "JUDGED": 32}
SMALL = {"LAYERS": 2, "WIDTH": 64, "HEADS": 2, "CONTEXT": 32}
PAIRS = "mixing=fast_matchings,distinct=8,message_bytes=BYTES,network=cities"
OUTER = "local_steps=10,outer_rate=1,outer_momentum=0.7"
"""As `outer_settings` has it for twenty averages."""
METHODS = {
    "synchronous": "mean",
    "D-PSGD, chosen pairs": f"d_psgd:local_steps=10,strictness=ignore,{PAIRS}",
    "CHOCO, 4 bits, ring": "choco_sgd:bits=4,local_steps=10,strictness=ignore",
    "DiLoCo": f"diloco:{OUTER}",
    "NoLoCo, random pairs": "noloco:local_steps=10,outer_rate=1,outer_momentum=0.5",
    "GASLoC, random pairs": f"gasloc:{OUTER},mixing=changing_matchings,steps=16,network=cities",
    "GASLoC, chosen pairs": f"gasloc:{OUTER},{PAIRS}",
    "SparseLoCo": "sparseloco:local_steps=10",
    "sparse averaging": "sparse_averaging:local_steps=40,fragments=4,delay=5",
}
"""Aggregations, with BYTES for those of all parameters."""
RATES = (2e-3, 6e-3, 4e-3)
"""Of the inner optimizer; each method has the best of them on the seed of the search."""


def parameters() -> int:
    """Number of the model's parameters."""
    shapes = jax.eval_shape(diloco.new_parameters, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def content() -> np.ndarray:
    """[length] bytes below 128."""
    text = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(np.int32)


def fresh(seed: int, _: np.ndarray) -> dict[str, Any]:
    """The parameters with which all runs of a seed begin."""
    return diloco.new_parameters(jax.random.key(seed))


def best(rows: list[dict[str, Any]], name: str) -> float:
    """The rate with the least loss on the seed of the search."""
    of = [row for row in rows if (row["name"], row["seed"]) == (name, SEARCHED)]
    return min(of, key=lambda row: row["loss"] if np.isfinite(row["loss"]) else np.inf)["rate"]


def plan(kept: Unfinished, rates: int, seeds: int) -> Iterator[tuple[str, float, int]]:
    """Name, rate and seed of the runs that are left, the search first."""
    there = {(row["name"], row["rate"], row["seed"]) for row in kept.rows()}
    searched = [(name, rate, SEARCHED) for rate in RATES[:rates] for name in METHODS]
    yield from (one for one in searched if one not in there)
    for seed in range(seeds):
        for name in METHODS:
            if (name, best(kept.rows(), name), seed) not in there:
                yield name, best(kept.rows(), name), seed


def run(name: str, rate: float, seed: int) -> dict[str, Any]:
    """One training."""
    diloco.RATE = rate
    made = diloco.trained(spec_of(name), False, seed, content())
    return {"name": name, "rate": rate, "seed": seed, "spec": spec_of(name)} | made


def spec_of(name: str) -> str:
    """The aggregation as text."""
    return METHODS[name].replace("BYTES", str(4 * parameters()))


@functools.cache
def all_reduce_s(size: float) -> float:
    """Predicted seconds of an all-reduce of so many bytes, by a schedule for the cities."""
    cities = gw.topology.from_spec("cities")
    schedule = gw.solve(cities, gradient_bytes=size, time_limit=3).schedule
    return float(gw.simulator.seconds(schedule, size, "events"))


def exchanges() -> list[dict[str, Any]]:
    """One communication of each method: bytes of the busiest worker, and predicted seconds."""
    cities, workers = gw.topology.from_spec("cities"), diloco.WORKERS
    whole = jax.ShapeDtypeStruct((parameters(),), jnp.float32)
    found = []
    for name in METHODS:
        of, every, delay = parse(spec_of(name)), 1, 0
        if isinstance(of, LocalSpec):
            every, delay = of.method.interval, of.method.delay
        if isinstance(of, LocalSpec) and of.method.feeds_back:
            mixing = MixingMatrix.complete(workers)
        elif isinstance(of, GossipSpec) or (isinstance(of, LocalSpec) and of.method.mixes):
            mixing = of.mixing_matrix(workers)
            every = of.local_steps if isinstance(of, GossipSpec) else every
        else:
            mixing = None
        if mixing is None:
            fragments = of.method.fragments if isinstance(of, LocalSpec) else 1
            size = 4.0 * parameters() / fragments
            seconds = all_reduce_s(size)
            sent = 2 * (workers - 1) / workers * size
        else:
            assert isinstance(of, GossipSpec | LocalSpec)
            each = message_bytes(of.compressor or Uncompressed(), [whole])
            seconds = float(exchange_seconds(cities, mixing, each).mean())
            sent = float(each * messages_sent(mixing).max(1).mean())
        row = {"name": name, "bytes_a_worker": sent, "seconds": seconds}
        found.append(row | {"steps_between": every, "delay": delay})
    return found


def measured_step_s() -> float:
    """The least of a worker's step, its gradient and its optimizer, of twenty."""
    params, optimizer = fresh(0, content()), diloco.inner_optimizer(1e-3)
    tokens = diloco.batches(content(), np.arange(diloco.BATCH) * 1000)

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        gradient = jax.grad(diloco.loss_of)(params, tokens)
        updates, state = optimizer.update(gradient, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    carry, found = (params, optimizer.init(params)), []
    for _ in range(21):
        begun = time.perf_counter()
        carry = jax.block_until_ready(step(*carry))
        found.append(time.perf_counter() - begun)
    return min(found[1:])


def summary(
    rows: list[dict[str, Any]], step_s: float, exchanges: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Each method over the seeds, and what it needs to reach DiLoCo's loss at the end."""
    of = {
        name: [
            row
            for row in rows
            if (row["name"], row["rate"]) == (name, best(rows, name)) and row["seed"] != SEARCHED
        ]
        for name in dict.fromkeys(row["name"] for row in rows)
    }
    waited = {
        one["name"]: diloco.STEPS
        // one["steps_between"]
        * max(0.0, one["seconds"] - one["delay"] * step_s)
        for one in exchanges
    }
    of = {name: some for name, some in of.items() if some}
    if "DiLoCo" not in of:
        return []
    level, found = np.mean([row["loss"] for row in of["DiLoCo"]]), []
    for name, some in of.items():
        losses = [row["loss"] for row in some]
        curve = np.mean([row["losses"] for row in some], 0)
        steps, seconds = diloco.STEPS, diloco.STEPS * step_s + waited[name]
        segments = reached(curve, float(level))
        share = None if segments is None else segments * diloco.SEGMENT / steps
        found.append(
            {
                "name": name,
                "rate": some[0]["rate"],
                "seeds": len(some),
                "loss": float(np.mean(losses)),
                "between": mean_between(losses, np.random.default_rng(0)),
                "bytes_a_worker": some[0]["bytes_a_worker"],
                "seconds": seconds,
                "exchange_s": waited[name],
                "to": share
                and {
                    "share": share,
                    "seconds": share * seconds,
                    "bytes_a_worker": share * some[0]["bytes_a_worker"],
                },
            }
        )
    return found


def reached(curve: np.ndarray, level: float) -> float | None:
    """Number of segments until a loss is reached, between two by a line; None if it never is."""
    below = np.flatnonzero(curve <= level)
    if not len(below):
        return None
    after = int(below[0])
    if after == 0:
        return 1.0
    return after + float((curve[after - 1] - level) / (curve[after - 1] - curve[after]))


def main() -> None:
    """Makes the runs that are not kept yet, and records when all are."""
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--finish", action="store_true", help="record what an ended run kept")
    parser.add_argument("--small", action="store_true", help="train the small model")
    parser.add_argument("--rates", type=int, default=len(RATES), help="number of rates searched")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of seeds")
    asked = parser.parse_args()
    name = NAME + "_small" * asked.small
    command = f"python benchmarks/experiments/{NAME}.py" + " --small" * asked.small
    if (asked.rates, asked.seeds) != (len(RATES), SEEDS):
        command += f" --rates {asked.rates} --seeds {asked.seeds}"
    for key, value in (SETTING | (SMALL if asked.small else {})).items():
        setattr(diloco, key, value)
    diloco.started = fresh
    resume = asked.resume or asked.finish
    kept = Unfinished(name, command, resume=resume, libraries=("jax", "optax"))
    while not asked.finish and (left := next(plan(kept, asked.rates, asked.seeds), None)):
        row = run(*left)
        kept.add(row)
        show({key: value for key, value in row.items() if key not in ("losses", "spec")})
    rows, step_s, each = kept.rows(), measured_step_s(), exchanges()
    record(
        name,
        command,
        libraries=("jax", "optax"),
        parameters=parameters(),
        workers=diloco.WORKERS,
        steps=diloco.STEPS,
        segment=diloco.SEGMENT,
        step_s=step_s,
        seeds=sorted({row["seed"] for row in rows} - {SEARCHED}),
        searched=SEARCHED,
        exchanges=each,
        summary=summary(rows, step_s, each),
        rows=rows,
    )
    if rows and not asked.finish:
        kept.end()


if __name__ == "__main__":
    main()
