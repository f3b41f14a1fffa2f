"""``gradweave evaluate``: the returns of a finished training's policy, and a picture of it."""

import time
from pathlib import Path
from typing import Any

import click

from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.groups import command
from gradweave.cli.options import json_option, seed_option, writable
from gradweave.common import lazy
from gradweave.common.wording import counted
from gradweave.processes.jax_start import start_jax
from gradweave.training.pace import duration

NEEDED = ("jax", "equinox", "jaxtyping", "optax", "safetensors", "tensorboardX", "jaxmarl")
"""Packages for training agents and for playing by their policies."""
episodes_option = click.option(
    "--episodes",
    type=click.IntRange(1),
    metavar="N",
    default=128,
    show_default=True,
    help="Evaluate the policy by this many episodes.",
)
render_option = click.option(
    "--render",
    type=click.Path(path_type=Path),
    metavar="FILE.gif",
    help="Draw an episode of the policy to this file.",
)


@command(examples=["run --episodes 100"])
@click.argument("folder", type=click.Path(path_type=Path))
@episodes_option
@seed_option
@render_option
@click.option(
    "--env",
    metavar="MODULE:OBJECT",
    help="Import the game that was learned from here, as it was given then.",
)
@click.option(
    "--network",
    metavar="MODULE:FACTORY",
    help="Import what made the networks from here, as it was given then.",
)
@json_option
def evaluate(
    folder: Path,
    episodes: int,
    seed: int,
    render: Path | None,
    env: str | None,
    network: str | None,
    as_json: bool,
) -> None:
    """Evaluate and draw the policy that a training produced.

    FOLDER is the --output of "gradweave train"; nothing in it is changed, and no module that it
    names is imported.
    """
    lazy.require("gradweave evaluate", *NEEDED, extra="marl")
    writable(render, ".gif")
    begun = time.monotonic()
    start_jax()
    with Progress("reading the policy") as progress:
        from gradweave.marl.folder import imported, load_trained
        from gradweave.marl.results import description, evaluated

        trained = load_trained(folder, **imported(folder, env, network))
        result = {"folder": str(folder), **description(trained), "seed": seed}
        result |= evaluated(trained, episodes, seed, render, progress)
    result["wall_s"] = round(time.monotonic() - begun, 2)
    if as_json:
        print_json(result)
        return
    print_lines(
        f"{result['algorithm']} on {result['env']}, trained for "
        f"{counted(result['steps'], 'step')}: evaluated in {duration(result['wall_s'])}",
        *lines_of(result),
    )


def lines_of(result: dict[str, Any]) -> list[str]:
    """`evaluated` in lines."""
    by_how = result["return"]
    return [
        f"return: greedy {by_how['greedy']['mean']:.4g}, sampled "
        f"{by_how['sampled']['mean']:.4g}, at random {by_how['random']['mean']:.4g}",
        f"({result['return_is']}; {counted(result['episodes'], 'episode')} a seed)",
        *_measures(by_how),
        *_fairness(by_how),
        *([f"drawn: {result['rendered']}"] if result["rendered"] else []),
    ]


def _measures(by_how: dict[str, Any]) -> list[str]:
    """The game's own measures, means over seeds and episodes."""

    def mean(how: str, name: str) -> float:
        by_seed = by_how[how]["measures"][name]
        return sum(by_seed) / len(by_seed)

    return [
        f"{name}: greedy {mean('greedy', name):.3g}, sampled {mean('sampled', name):.3g}, "
        f"at random {mean('random', name):.3g}"
        for name in by_how["greedy"]["measures"]
    ]


def _fairness(by_how: dict[str, Any]) -> list[str]:
    """How efficient and how fair policies are that draw their actions, of games of resources."""
    by_seed = by_how["sampled"].get("fairness")
    if by_seed is None:
        return []
    mean = {name: sum(one[name] for one in by_seed) / len(by_seed) for name in by_seed[0]}
    return [
        f"sampled: utilisation {mean['utilisation']:.3g}, coefficient of variation "
        f"{mean['variation']:.3g}, least {mean['least']:.3g}, greatest {mean['greatest']:.3g}, "
        f"Jain's index {mean['jain']:.3g}"
    ]
