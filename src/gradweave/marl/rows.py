"""What a training's log says of an update, and how TensorBoard shows it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradweave.marl.learners.learner import Metrics
from gradweave.training.log import Log


def row(metrics: Metrics, update: int, steps: int, agents: tuple[str, ...]) -> dict[str, Any]:
    """What one update came to, of every seed.

    Args:
        metrics: [S, ...].
        update: number of updates so far.
        steps: steps so far, of all games.
        agents: [A] names.

    Returns:
        By name, a list over seeds; None stands for the mean of no episode.
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
        **{name: np.asarray(x, np.float64).tolist() for name, x in metrics.figures.items()},
    }


def plot(log: Log, row: Mapping[str, Any]) -> None:
    """Adds a row to the curves, by steps: means over seeds, and each seed's return."""
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
