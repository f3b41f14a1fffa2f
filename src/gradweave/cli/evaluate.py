"""``gradweave evaluate``: judge and draw the policy of a training that came to its end."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradweave import lazy
from gradweave.cli.console import Progress, duration, print_json, print_lines
from gradweave.cli.options import json_option, seed_option, writable
from gradweave.processes.jax_start import start_jax

if TYPE_CHECKING:
    from gradweave.marl.training import Trained

NEEDED = ("jax", "equinox", "jaxtyping", "optax", "safetensors", "tensorboardX", "jaxmarl")
"""What training agents and playing by their policies take."""
episodes_option = click.option(
    "--episodes",
    type=click.IntRange(1),
    metavar="N",
    default=128,
    show_default=True,
    help="Episodes to judge the policy by.",
)
render_option = click.option(
    "--render",
    type=click.Path(path_type=Path),
    metavar="FILE.gif",
    help="Draw an episode of the policy.",
)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@episodes_option
@seed_option
@render_option
@json_option
def evaluate(folder: Path, episodes: int, seed: int, render: Path | None, as_json: bool) -> None:
    """Judge the policy that a training ended in, and draw it.

    FOLDER is what "gradweave train" was given as --output. It says what was played, by which
    algorithm; nothing in it is changed.
    """
    lazy.require("gradweave evaluate", *NEEDED, extra="marl")
    writable(render, ".gif")
    begun = time.monotonic()
    start_jax()
    with Progress("reading the policy") as progress:
        from gradweave.marl.loading import load

        trained = load(folder)
        held = judged(trained, episodes, seed, progress) | drawn(trained, render, seed, progress)
    held = {"folder": str(folder), **about(trained), "seed": seed, **held}
    held["wall_s"] = round(time.monotonic() - begun, 2)
    if as_json:
        print_json(held)
        return
    print_lines(
        f"{held['algorithm']} on {held['env']}, trained for {held['steps']} steps: judged in "
        f"{duration(held['wall_s'])}",
        *told(held),
    )


def about(trained: "Trained") -> dict[str, Any]:
    """What was trained, in words."""
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


def judged(trained: "Trained", episodes: int, seed: int, progress: Progress) -> dict[str, Any]:
    """What the policy earns, beside agents that play at random."""
    from gradweave.marl.evaluation import HOWS, evaluate

    progress("judging the policy")
    found = {}
    for how in HOWS:
        each = evaluate(
            trained.learner,
            trained.environment,
            trained.parameters,
            how,
            episodes=episodes,
            seed=seed,
        )
        found[how] = {
            "mean": sum(one.mean for one in each) / len(each),
            "by_seed": [one.mean for one in each],
            "standard_error": [one.error if episodes > 1 else None for one in each],
            "by_agent": {
                agent: [float(one.by_agent[:, i].mean()) for one in each]
                for i, agent in enumerate(trained.environment.agents)
            },
            "length": sum(float(one.lengths.mean()) for one in each) / len(each),
        }
    return {"episodes": episodes, "return": found, "return_is": trained.environment.meaning}


def drawn(trained: "Trained", path: Path | None, seed: int, progress: Progress) -> dict[str, Any]:
    """One episode of the first seed's policy, at its best, where a file for it is named."""
    if path is None:
        return {"rendered": None}
    import jax

    from gradweave.marl.games.render import episode, save_gif

    progress("drawing an episode")
    first = jax.tree.map(lambda x: x[0], trained.parameters)
    environment = trained.environment
    moments = episode(trained.learner, environment, first, seed=seed, greedy=True)
    save_gif(environment, moments, path)
    return {"rendered": str(path)}


def told(held: dict[str, Any]) -> list[str]:
    """What `judged` and `drawn` found, in lines."""
    returns = held["return"]
    return [
        f"return: greedy {returns['greedy']['mean']:.4g}, sampled "
        f"{returns['sampled']['mean']:.4g}, at random {returns['random']['mean']:.4g}",
        f"({held['return_is']}; {held['episodes']} episodes a seed)",
        *([f"drawn: {held['rendered']}"] if held["rendered"] else []),
    ]
