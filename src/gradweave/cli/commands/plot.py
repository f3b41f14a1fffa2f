"""``gradweave plot``: the curves of several trainings in one chart."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradweave.cli.answers import Answer
from gradweave.cli.groups import command
from gradweave.cli.options import FILE, option, written_option
from gradweave.common.wording import counted
from gradweave.errors import OptionError

if TYPE_CHECKING:
    from gradweave.report.curves import Curve


@command(examples=["run --what return --x seconds --output curves.png"])
@click.argument("runs", nargs=-1, required=True, type=FILE)
@option(
    "--what",
    "Draw this figure of the log, such as length, entropy or value_error.",
    default="return",
    metavar="NAME",
)
@option(
    "--x",
    "Horizontal axis: steps, update, or seconds of an asynchronous server.",
    default="steps",
    metavar="NAME",
)
@option(
    "--smooth",
    "Draw the moving mean of this number of updates.",
    click.IntRange(1),
    default=5,
    metavar="UPDATES",
)
@written_option(
    "--output",
    "Write the chart to this file.",
    (".png",),
    default=Path("curves.png"),
    metavar="FILE.png",
)
def plot(runs: tuple[Path, ...], what: str, x: str, smooth: int, output: Path) -> Answer:
    """Plot the curves of trainings, with 95% intervals.

    Curves are means over seeds.

    The intervals are Student's t; with fewer than three seeds the band is their range.

    RUNS are folders of "gradweave train"; that of a sweep stands for all of its combinations.
    """
    from gradweave.report.curves import MOST_CURVES, STEPS, draw_curves, folders_of, read_curve

    folders = [folder for run in runs for folder in folders_of(run)]
    if len(folders) > MOST_CURVES:
        raise OptionError(f"RUNS: expected at most {MOST_CURVES} curves, got {len(folders)}")
    curves = [read_curve(folder, what, x).smoothed(smooth) for folder in folders]
    axis = STEPS if x == "steps" else x
    draw_curves(_shortened(curves), what, output, against=axis)
    return Answer(
        {"output": str(output), "what": what, "runs": [curve.name for curve in curves]},
        [f"{counted(len(curves), 'curve')} of {what}, written to {output}"],
    )


def _shortened(curves: "list[Curve]") -> "list[Curve]":
    """Curves whose names lack the folder that all are in."""
    if len(curves) == 1:
        return curves
    paths = [os.path.abspath(curve.name) for curve in curves]
    shared = os.path.commonpath(paths)
    names = [os.path.relpath(path, shared) for path in paths]
    return [
        dataclasses.replace(curve, name=name) for curve, name in zip(curves, names, strict=True)
    ]
