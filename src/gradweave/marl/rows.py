"""Rows of a training's log, one per update, and their curves in TensorBoard."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from gradweave.marl.learners.learner import Metrics
from gradweave.training.log import Log


def row(metrics: Metrics, update: int, steps: int, agents: tuple[str, ...]) -> dict[str, Any]:
    """The log row of one update, with a value per seed.

    Args:
        metrics: the update's metrics, [S, ...].
        update: number of updates so far.
        steps: environment steps so far, summed over all games.
        agents: names of the [A] agents.

    Returns:
        A list over seeds by the name of the metric, or None if no episode ended whose mean it would
        be.
    """

    def mean(total: Any) -> list[float | None]:
        pairs = zip(total.tolist(), metrics.episodes.tolist(), strict=True)
        return [round(one / number, 6) if number else None for one, number in pairs]

    return {
        "update": update,
        "steps": steps,
        "episodes": metrics.episodes.tolist(),
        "return": mean(np.asarray(metrics.returns, np.float64).mean(-1)),
        "returns": {agent: mean(metrics.returns[:, i]) for i, agent in enumerate(agents)},
        "length": mean(metrics.lengths),
        **{name: mean(np.asarray(x, np.float64)) for name, x in metrics.measures.items()},
        **{name: np.asarray(x, np.float64).tolist() for name, x in metrics.figures.items()},
    }


def write(log: Log, metrics: Metrics, updates: int, steps: int, agents: tuple[str, ...]) -> None:
    """Logs every update of a call, and adds it to the curves.

    Args:
        log: log of the training.
        metrics: metrics of the updates, [U, S, ...].
        updates: number of updates so far, including these.
        steps: environment steps per update, summed over all games.
        agents: names of the [A] agents.
    """
    first = updates - len(metrics.episodes) + 1
    lines = [
        row(jax.tree.map(lambda x, i=i: x[i], metrics), update, update * steps, agents)
        for i, update in enumerate(range(first, updates + 1))
    ]
    log.write(lines)
    for line in lines:
        plot(log, line)


def plot(log: Log, row: Mapping[str, Any]) -> None:
    """Adds a row to the curves over steps: means over seeds, and the return of each seed."""
    for name, value in row.items():
        if name not in ("update", "steps", "seconds"):
            _plot(log, name, value, row["steps"])


def _plot(log: Log, name: str, value: Any, step: int) -> None:
    if isinstance(value, dict):
        for part, of_part in value.items():
            _plot(log, f"{name}/{part}", of_part, step)
        return
    real = [each for each in value if each is not None]
    if real:
        log.plot(name, float(np.mean(real)), step)
    for seed, each in enumerate(value if len(value) > 1 and name == "return" else ()):
        if each is not None:
            log.plot(f"{name}/seed_{seed}", each, step)
