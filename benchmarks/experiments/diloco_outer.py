"""DiLoCo's outer rate and momentum, by number of steps, on two texts that ship with Python.

    python benchmarks/experiments/diloco_outer.py [--resume]

The training of `diloco.py` with a smaller model (two layers of width 64, contexts of 32), averages
every ten steps in 4 bits. Texts: `topics`, pydoc's topics, and `asyncio`, that package's sources.
Losses beside synchronous training of as many steps, by seed.
"""

import asyncio
import pydoc_data.topics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import parser_of
from benchmarks.experiments import diloco
from benchmarks.record import record, show
from benchmarks.unfinished import Unfinished

SMALLER = {"LAYERS": 2, "WIDTH": 64, "HEADS": 2, "CONTEXT": 32}
OUTER = {"paper": (0.7, 0.9), "less momentum": (1.0, 0.7), "half": (0.7, 0.5), "mean": (1.0, 0.0)}
"""Outer rate and momentum; the last is the mean of the workers as it is."""
PLAN = (
    (300, 2, ("topics", "asyncio"), tuple(OUTER)),
    (1200, 1, ("topics",), ("paper", "less momentum")),
)
"""Steps, seeds, texts, and which of `OUTER`."""


def texts() -> dict[str, np.ndarray]:
    """By name, [length] bytes below 128."""
    sources = sorted(Path(asyncio.__file__).parent.glob("*.py"))
    contents = {
        "topics": "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items())),
        "asyncio": "\n".join(source.read_text() for source in sources),
    }
    return {
        name: np.frombuffer(content.encode("ascii", "replace"), np.uint8).astype(np.int32)
        for name, content in contents.items()
    }


def runs() -> list[dict[str, Any]]:
    """What is trained, the synchronous training first."""
    return [
        {"steps": steps, "text": text, "seed": seed, "outer": outer}
        for steps, seeds, names, outers in PLAN
        for seed in range(seeds)
        for text in names
        for outer in ("synchronous", *outers)
    ]


def main() -> None:
    """Makes the runs that are not kept yet, and records when all are."""
    asked = parser_of(__doc__, resumes=True).parse_args()
    kept = Unfinished("diloco_outer", resume=asked.resume, libraries=("jax", "optax"))
    for name, value in SMALLER.items():
        setattr(diloco, name, value)
    contents, synchronous = texts(), {}
    with tempfile.TemporaryDirectory() as folder:
        for one in runs():
            place = one["steps"], one["text"], one["seed"]
            there = [row for row in kept.rows() if row.items() >= one.items()]
            if not there:
                diloco.STEPS, diloco.RESULTS = one["steps"], Path(folder, one["text"])
                diloco.RESULTS.mkdir(exist_ok=True)
                rate, momentum = OUTER.get(one["outer"], (1.0, 0.0))
                spec = f"diloco:local_steps=10,bits=4,outer_rate={rate},outer_momentum={momentum}"
                if one["outer"] == "synchronous":
                    spec = "mean"
                made = diloco.trained(spec, False, one["seed"], contents[one["text"]])
                loss = made["loss"]
                beside = loss / synchronous.get(place, loss) - 1
                there = [one | {"spec": spec, "loss": loss, "beside": beside}]
                kept.add(there[0])
                show(there[0])
            if one["outer"] == "synchronous":
                synchronous[place] = there[0]["loss"]
    seeds = sorted({row["seed"] for row in kept.rows()})
    record("diloco_outer", libraries=("jax", "optax"), seeds=seeds, rows=kept.rows())
    kept.end()


if __name__ == "__main__":
    main()
