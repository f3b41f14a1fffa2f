"""A training that takes seconds, once its two programs are compiled."""

import atexit
import dataclasses
import functools
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from gradweave.learning.config import parse_config
from gradweave.learning.hierarchical import CompiledUpdate, Trainer
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.training import Report, train

TEXT = """
seed = 3
iterations = 8
tree_updates = 2
workload_updates = 3
seeds = 2
draws = 3

[rewards]
sent = 0.0
selected = 0.0
done = 0.0
unfinished = 0.0
workload = 0.0
rounds = 1.0

[tree]
learning_rate = 2e-2

[workload]
learning_rate = 1e-2

[[groups]]
at_once = 2
episodes = 8
exercises = [
    { topology = "bcube:n=2,k=1" },
    { topology = "ring:n=5" },
    { topology = "star:n=4", collective = "reduce_scatter", trees = "fixed" },
]
"""

CONFIG = parse_config(TEXT.encode(), "tiny")

PROGRAMS: dict[tuple, Any] = {}
"""Every compiled update of this process."""


def compiled_once(trainer: Trainer, agent: Any, devices: Sequence) -> Any:
    """As `CompiledUpdate`, which makes a new program for every training."""
    key = trainer, agent, tuple(devices)
    if key not in PROGRAMS:
        PROGRAMS[key] = CompiledUpdate(trainer, agent, devices)
    return PROGRAMS[key]


@dataclasses.dataclass(frozen=True)
class Trained:
    """A training that came to its end."""

    folder: Path
    reports: list[Report]
    policy: HierarchicalPolicy


@functools.cache
def trained() -> Trained:
    """The training from its start to its end."""
    folder, reports = Path(tempfile.mkdtemp(prefix="gradweave-training-")), []
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    policy = train(CONFIG, folder, report=reports.append, devices=1)
    return Trained(folder, reports, policy)


def arrays(path: Path) -> dict[str, np.ndarray]:
    """What a file of arrays holds."""
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in list(file.keys())}


def about(path: Path) -> dict[str, str]:
    """What a file of arrays says of itself."""
    with safe_open(path, framework="numpy") as file:
        return file.metadata()


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether two of them are the same, bit for bit."""
    return one.keys() == other.keys() and all(
        one[name].tobytes() == other[name].tobytes() for name in one
    )


def rows(folder: Path) -> list[dict]:
    """The log, without what the clock said."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
