"""Bytes at the busiest worker, counted, against the number of workers.

    python benchmarks/experiments/bytes_sent.py

Each aggregation averages (or mixes) one million float32 among 2 to 32 devices, and reports what
each worker sent: the sizes of the arrays passed to `jax.lax.ppermute`, message by message. The
runtime's own mean cannot be counted in this way and is left out.
"""

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

from benchmarks.experiment import Rows, grid, run
from benchmarks.pictures import Picture, figure_with
from gradweave import aggregate

ELEMENTS, WORKERS = 1_000_000, (2, 4, 8, 16, 32)
AGGREGATIONS = {
    "central parameter server": "parameter_server",
    "ring all-reduce": "ring",
    "D-PSGD on a ring": "d_psgd",
    "CHOCO on a ring, 4 bits": "choco_sgd:bits=4",
}


def counted(spec: str, workers: int) -> np.ndarray:
    """[N] bytes that each worker sends in one update."""
    optimizer = aggregate.aggregator(spec, workers)(optax.sgd(1.0))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:workers]), ("server",))

    def update(gradient):
        x = gradient[0]
        state = optimizer.update(x, optimizer.init(x), x)[1]
        return aggregate.sent_bytes(state)[None]

    mapped = jax.shard_map(
        update, mesh=mesh, in_specs=P("server"), out_specs=P("server"), check_vma=False
    )
    return np.asarray(jax.jit(mapped)(jnp.ones((workers, ELEMENTS))), np.float64)


def measure(aggregation: str, workers: int) -> dict[str, Any]:
    spec = AGGREGATIONS[aggregation]
    sent = counted(spec, workers)
    return {
        "spec": spec,
        "busiest_sent": sent.max(),
        "mean_sent": sent.mean(),
        "of_the_gradient": sent.max() / (4 * ELEMENTS),
    }


def draw(result: dict[str, Any], path: Path) -> None:
    rows = result["rows"]
    figure, axes = figure_with((6.4, 4.2), dpi=140)
    for name in AGGREGATIONS:
        curve = [row for row in rows if row["aggregation"] == name]
        line = axes.plot(
            [row["workers"] for row in curve], [row["of_the_gradient"] for row in curve], "o-"
        )
        axes.annotate(
            name, (curve[-1]["workers"], curve[-1]["of_the_gradient"]),
            (6, -7 if name == "ring all-reduce" else 5 if "D-PSGD" in name else 0), va="center",
            textcoords="offset points", color=line[0].get_color(), fontsize=9,
        )  # fmt: skip
    axes.set(
        xscale="log", yscale="log", xlabel="workers",
        ylabel="sent by the busiest worker / gradient",
        xticks=WORKERS, xticklabels=WORKERS, xlim=(1.8, 130),
    )  # fmt: skip
    axes.xaxis.minorticks_off()
    figure.savefig(path)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", max(WORKERS))
    warnings.simplefilter("ignore", aggregate.ValidityWarning)
    run(
        __doc__,
        Rows(grid(aggregation=AGGREGATIONS, workers=WORKERS), measure),
        picture=Picture("bytes_sent", draw),
        libraries=("jax", "jaxlib", "optax"),
        gradient_bytes=4 * ELEMENTS,
    )
