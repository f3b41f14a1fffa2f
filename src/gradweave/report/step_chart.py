"""A chart of training steps in time, such as a measured step and its prediction."""

import colorsys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradweave.placement.timeline.step import StepTime
from gradweave.report.figures import INK, literal, new_figure, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ROWS = 40
"""Maximum number of devices shown; beyond, only the first pipelines are."""
_AVERAGE = "#c9ccd3"


def step_chart(steps: Sequence[tuple[str, StepTime]], title: str, path: str | Path) -> None:
    """Draws steps above each other on one time axis.

    A row is a device, ordered by pipeline; a colour is a stage, with pale forward passes; grey is
    the time from a device's last pass until its group's gradients are averaged.

    Args:
        steps: at least one step with its name.
        title: title of the picture.
        path: where to write the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FileError: the file cannot be written.
    """
    stages, data = steps[0][1].busy_s.shape
    shown = max(1, min(data, _MOST_ROWS // stages))
    figure = new_figure(10.5, 0.7 + len(steps) * (0.5 + 0.13 * stages * shown))
    drawn = figure.subplots(len(steps), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, step) in zip(drawn, steps, strict=True):
        _draw(axes, step, shown)
        axes.set_title(literal(f"{name}: {step.seconds:.3g} s"), fontsize=9, loc="left", color=INK)
    drawn[-1].set_xlabel("seconds", fontsize=8)
    figure.suptitle(literal(title), fontsize=10, color=INK)
    save_png(figure, path)


def _draw(axes: "Axes", step: StepTime, shown: int) -> None:
    stages = len(step.busy_s)
    for pipeline in range(shown):
        for stage in range(stages):
            mine = (step.stage == stage) & (step.pipeline == pipeline)
            row = pipeline * (stages + 1) + stage
            passes = zip(step.start_s[mine], step.end_s[mine], step.backward[mine], strict=True)
            for begun, ended, backward in passes:
                colour = _colour(stage, stages, pale=not backward)
                axes.barh(row, ended - begun, left=begun, height=0.85, color=colour)
            last = step.end_s[mine].max()
            average = max(0.0, step.reduced_s[stage] - last)
            axes.barh(row, average, left=last, height=0.85, color=_AVERAGE)
    middles = [pipeline * (stages + 1) + (stages - 1) / 2 for pipeline in range(shown)]
    axes.set_yticks(middles, [f"pipeline {number}" for number in range(shown)], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _colour(stage: int, stages: int, pale: bool) -> tuple[float, float, float]:
    """Same colour as `gradweave.report.placement_drawing.stage_colour`."""
    hue = ((360 * stage / max(stages, 1) + 210) % 360) / 360
    return colorsys.hls_to_rgb(hue, 0.74 if pale else 0.52, 0.62)
