"""``gradweave evaluate``: the returns of a finished training's policy, and a picture of it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress
from gradweave.cli.groups import command
from gradweave.cli.options import FILE, option, seed_option, written_option
from gradweave.common import lazy
from gradweave.common.wording import counted
from gradweave.processes.jax_start import start_jax
from gradweave.training.pace import duration

NEEDED = ("jax", "equinox", "jaxtyping", "optax", "safetensors", "tensorboardX", "jaxmarl")
"""Packages for training agents and for playing by their policies."""
episodes_option = option(
    "--episodes",
    "Evaluate the policy by this many episodes.",
    click.IntRange(1),
    metavar="N",
    default=128,
)
_RENDER = "Draw an episode of the policy to this file."
render_option = option("--render", _RENDER, FILE, metavar="FILE.gif")


@command(examples=["run --episodes 100"])
@click.argument("folder", type=FILE)
@episodes_option
@seed_option
@written_option("--render", _RENDER, (".gif",), metavar="FILE.gif")
@option(
    "--env",
    "Import the game that was learned from here, as it was given then.",
    metavar="MODULE:OBJECT",
)
@option(
    "--network",
    "Import what made the networks from here, as it was given then.",
    metavar="MODULE:FACTORY",
)
def evaluate(
    folder: Path,
    episodes: int,
    seed: int,
    render: Path | None,
    env: str | None,
    network: str | None,
) -> Answer:
    """Evaluate and draw the policy that a training produced.

    FOLDER is the --output of "gradweave train"; nothing in it is changed, and no module that it
    names is imported.
    """
    lazy.require("gradweave evaluate", *NEEDED, extra="marl")
    begun = time.monotonic()
    start_jax()
    with Progress("reading the policy") as progress:
        from gradweave.marl.folder import imported, load_trained
        from gradweave.marl.results import description, evaluated

        trained = load_trained(folder, **imported(folder, env, network))
        result = {"folder": str(folder), **description(trained), "seed": seed}
        result |= evaluated(trained, episodes, seed, render, progress)
    result["wall_s"] = round(time.monotonic() - begun, 2)
    what = f"{result['algorithm']} on {result['env']}"
    steps, wall = counted(result["steps"], "step"), duration(result["wall_s"])
    head = f"{what}, trained for {steps}: evaluated in {wall}"
    return Answer(result, [head, *lines_of(result)])


def lines_of(result: dict[str, Any]) -> Iterator[str]:
    """`evaluated` in lines."""
    by_how = result["return"]
    yield (
        f"return: greedy {by_how['greedy']['mean']:.4g}, sampled "
        f"{by_how['sampled']['mean']:.4g}, at random {by_how['random']['mean']:.4g}"
    )
    yield f"({result['return_is']}; {counted(result['episodes'], 'episode')} a seed)"
    for name in by_how["greedy"]["measures"]:
        of = {how: _mean(one["measures"][name]) for how, one in by_how.items()}
        yield (
            f"{name}: greedy {of['greedy']:.3g}, sampled {of['sampled']:.3g}, "
            f"at random {of['random']:.3g}"
        )
    by_seed = by_how["sampled"].get("fairness")
    if by_seed is not None:  # of games of resources
        mean = {name: _mean([one[name] for one in by_seed]) for name in by_seed[0]}
        yield (
            f"sampled: utilisation {mean['utilisation']:.3g}, coefficient of variation "
            f"{mean['variation']:.3g}, least {mean['least']:.3g}, greatest "
            f"{mean['greatest']:.3g}, Jain's index {mean['jain']:.3g}"
        )
    if result["rendered"]:
        yield f"drawn: {result['rendered']}"


def _mean(by_seed: list[float]) -> float:
    return sum(by_seed) / len(by_seed)
