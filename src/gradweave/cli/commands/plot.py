"""``gradweave plot``: the curves of several trainings in one chart."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gradweave.cli.console import print_json, print_lines
from gradweave.cli.groups import command
from gradweave.cli.options import json_option, writable
from gradweave.common.wording import counted
from gradweave.errors import OptionError

if TYPE_CHECKING:
    from gradweave.report.curves import Curve


@command(examples=["run --what return --x seconds --output curves.png"])
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--what",
    default="return",
    show_default=True,
    metavar="NAME",
    help="Draw this figure of the log, such as length, entropy or value_error.",
)
@click.option(
    "--x",
    default="steps",
    show_default=True,
    metavar="NAME",
    help="Horizontal axis: steps, update, or seconds of an asynchronous server.",
)
@click.option(
    "--smooth",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    metavar="UPDATES",
    help="Draw the moving mean of this number of updates.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("curves.png"),
    show_default=True,
    metavar="FILE.png",
    help="Write the chart to this file.",
)
@json_option
def plot(
    runs: tuple[Path, ...], what: str, x: str, smooth: int, output: Path, as_json: bool
) -> None:
    """Plot the curves of trainings, with 95% intervals.

    Curves are means over seeds.

    The intervals are Student's t; with fewer than three seeds the band is their range.

    RUNS are folders of "gradweave train"; that of a sweep stands for all of its combinations.
    """
    from gradweave.report.curves import MOST_CURVES, STEPS, draw_curves, folders_of, read_curve

    writable(output, ".png")
    folders = [folder for run in runs for folder in folders_of(run)]
    if len(folders) > MOST_CURVES:
        raise OptionError(f"RUNS: expected at most {MOST_CURVES} curves, got {len(folders)}")
    curves = [read_curve(folder, what, x).smoothed(smooth) for folder in folders]
    axis = STEPS if x == "steps" else x
    draw_curves(_shortened(curves), what, output, against=axis)
    if as_json:
        print_json({"output": str(output), "what": what, "runs": [curve.name for curve in curves]})
    else:
        print_lines(f"{counted(len(curves), 'curve')} of {what}, written to {output}")


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
