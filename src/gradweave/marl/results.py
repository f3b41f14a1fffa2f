"""The result of a training as JSON: its settings, the policy's returns, and a picture."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gradweave.common.atomic import atomic_write
from gradweave.marl.evaluation import HOWS, Returns, evaluate
from gradweave.marl.fairness.measures import summary
from gradweave.marl.games.render import episode, save_gif
from gradweave.marl.trained import Trained


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
