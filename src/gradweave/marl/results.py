"""The results of a training: its reports, the rows of its log, and the outcome as JSON."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from gradweave.common.atomic import atomic_write
from gradweave.marl.config import Config
from gradweave.marl.evaluation import HOWS, Returns, evaluate
from gradweave.marl.fairness.measures import summary
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.render import episode, save_gif
from gradweave.marl.learners.learner import Learner, Metrics
from gradweave.schedules.schedule import Schedule
from gradweave.training.log import Log

if TYPE_CHECKING:
    from gradweave.aggregate.asynchronous.history import Run


@dataclasses.dataclass(frozen=True)
class Report:
    """The progress of a training."""

    update: int
    """Updates completed."""
    of: int
    steps: int
    """Environment steps completed, summed over all games."""
    mean_return: float | None
    """Mean return of the episodes that ended recently, over all seeds and agents, or None if none
    ended."""
    steps_per_s: float
    """Recent speed, over all games of one seed; the first report includes compilation."""
    seconds_left: float
    by_agent: tuple[float, ...] = ()
    """Mean return of each agent; empty if no episode ended."""
    not_finite: tuple[int, ...] = ()
    """Number of gradients per device skipped so far because they were not finite."""
    replaced: int = 0
    """Number of workers of an asynchronous server that have died and been replaced so far."""
    recovered: int = 0
    """Number of times so far that servers were lost and the run resumed from its checkpoint."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of a training."""

    config: Config
    environment: Environment
    learner: Learner
    parameters: Any
    """Learned parameters, with a leading axis [S, ...] over seeds."""
    resumed_from: int
    """Number of updates that the checkpoint contained when this call resumed it; 0 for a fresh
    start."""
    steps_per_s: float | None
    """Speed over all games of one seed, without compilation, or None if too few updates ran to
    measure it."""
    schedule: Schedule | None = None
    """The schedule that averaged the devices' gradients, or None if no schedule was used."""
    extended: tuple[int, ...] = ()
    """Earlier targets in steps, oldest first, if a finished training was extended."""
    run: "Run | None" = None
    """The asynchronous server's record of applied gradients, or None without such a server."""


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


def description(trained: Trained) -> dict[str, Any]:
    """The settings of a training."""
    config, schedule = trained.config, trained.schedule
    return {
        "env": trained.environment.id,
        "algorithm": config.algorithm,
        "aggregation": config.aggregation,
        "schedule": schedule
        and {
            "topology": schedule.topology.name,
            "rounds": schedule.rounds,
            "scheduler": schedule.scheduler.name,
        },
        "devices": config.devices,
        "seeds": config.seeds,
        "steps": config.updates * config.settings.steps,
        "extended_from": list(trained.extended),
        "updates": config.updates,
    }


def of_training(trained: Trained, output: Path, processes: int) -> dict[str, Any]:
    """What this run of the command contributed to the training.

    Args:
        trained: the result of the training.
        output: folder of the training.
        processes: number of processes that trained together.
    """
    return {
        "output": str(output),
        "seed": trained.config.seed,
        "resumed_from": trained.resumed_from,
        "steps_per_s": trained.steps_per_s,
        "processes": processes,
        **_of_server(trained),
    }


def _of_server(trained: Trained) -> dict[str, Any]:
    """Replaced and recovered processes of an asynchronous server, and its gradients' staleness."""
    if trained.run is None:
        return {}
    history = trained.run.history
    return {
        "server": {
            "replaced": trained.run.replaced,
            "recovered": trained.run.recovered,
            "seconds": float(history.seconds[-1]),
            "staleness": float(history.staleness.mean()),
            "by_worker": [int((history.worker == i).sum()) for i in range(trained.config.devices)],
        }
    }


def save(result: dict[str, Any], folder: Path) -> None:
    """Writes a result as ``result.json`` next to the policy."""
    atomic_write(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())


def returns(trained: Trained, episodes: int, seed: int) -> dict[str, Any]:
    """Returns of the policy, compared with those of agents that act at random.

    Args:
        trained: the training whose policy is evaluated.
        episodes: number of episodes per seed of the training.
        seed: seed of the episodes.
    """
    learner, environment = trained.learner, trained.environment
    fair = environment.reading.utility is not None
    by_how = {
        how: _summary(
            evaluate(learner, environment, trained.parameters, how, episodes=episodes, seed=seed),
            environment.agents,
            fair=fair,
        )
        for how in HOWS
    }
    return {"episodes": episodes, "return": by_how, "return_is": environment.meaning}


def of_sweep(
    several: Mapping[str, Trained],
    output: Path,
    episodes: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """The result of a sweep: the returns of each combination, which are also saved in its folder.

    Args:
        several: the result of each combination, keyed by the name of its folder.
        output: parent folder of the sweep.
        episodes: number of episodes per seed of the training.
        progress: called with a description of the current step.
    """
    made, first = {}, next(iter(several.values()))
    for number, (name, trained) in enumerate(several.items()):
        progress(f"evaluating policy {number + 1} of {len(several)}")
        found = returns(trained, episodes, trained.config.seed)
        save(description(trained) | of_training(trained, output / name, 1) | found, output / name)
        made[name] = found["return"]
    about = {key: value for key, value in description(first).items() if key != "extended_from"}
    return about | {
        "output": str(output),
        "seed": first.config.seed,
        "resumed_from": first.resumed_from,
        "episodes": episodes,
        "return_is": first.environment.meaning,
        "sweep": made,
    }


def evaluated(
    trained: Trained,
    episodes: int,
    seed: int,
    picture: Path | None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """The policy's returns, and the path of its picture if one was requested; see `returns`."""
    progress("evaluating the policy")
    result = returns(trained, episodes, seed)
    if picture is not None:
        progress("drawing an episode")
        draw(trained, picture, seed)
    return result | {"rendered": None if picture is None else str(picture)}


def _summary(by_seed: list[Returns], agents: tuple[str, ...], *, fair: bool) -> dict[str, Any]:
    """Returns per seed, the game's own measures, and fairness in games about resources."""
    episodes = len(by_seed[0].lengths)
    shared = {"fairness": [summary(one.by_agent, one.lengths) for one in by_seed]} if fair else {}
    return shared | {
        "mean": sum(one.mean for one in by_seed) / len(by_seed),
        "by_seed": [one.mean for one in by_seed],
        "standard_error": [one.error if episodes > 1 else None for one in by_seed],
        "by_agent": {
            agent: [float(one.by_agent[:, i].mean()) for one in by_seed]
            for i, agent in enumerate(agents)
        },
        "length": sum(float(one.lengths.mean()) for one in by_seed) / len(by_seed),
        "measures": {
            name: [float(one.measures[name].mean(dtype=np.float64)) for one in by_seed]
            for name in by_seed[0].measures
        },
    }


def draw(trained: Trained, path: Path, seed: int) -> None:
    """Draws one episode, in which the first seed's policy always takes its best action.

    Args:
        trained: the training whose policy is drawn.
        path: path of the GIF.
        seed: seed of the episode.
    """
    first = jax.tree.map(lambda x: x[0], trained.parameters)
    frames = episode(trained.learner, trained.environment, first, seed=seed, greedy=True)
    save_gif(trained.environment, frames, path)
