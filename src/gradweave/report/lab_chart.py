"""The chart of `gradweave lab`: measured and predicted times, and the links' bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradweave.report.figures import INK, literal, new_figure, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gradweave.lab.measure import Measurement

_MEASURED, _PREDICTED = "#4269d0", "#e3903b"


def lab_chart(measurements: Sequence["Measurement"], title: str, path: str | Path) -> None:
    """Draws measurements as a PNG.

    On the left, a bar is the median time of an all-reduce, the whisker the range of its runs, the
    tick the prediction. On the right, each dot is a link direction of the all-reduce with the
    largest gradient that has a prediction: bytes counted by the kernel against predicted data.

    Args:
        measurements: at least one.
        title: title of the chart, such as the network's name.
        path: where to write the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FileError: the file cannot be written.
    """
    figure = new_figure(10.5, max(1.6 + 0.34 * len(measurements), 3.6))
    times, links = figure.subplots(1, 2, width_ratios=(1.6, 1))
    _draw_times(times, measurements)
    _draw_links(links, measurements)
    figure.suptitle(literal(title), fontsize=10, color=INK)
    save_png(figure, path)


def _draw_times(axes: "Axes", measurements: Sequence["Measurement"]) -> None:
    for place, one in enumerate(measurements):
        runs = [1e3 * seconds for seconds in one.runs_s]
        axes.barh(place, 1e3 * one.measured_s, height=0.6, color=_MEASURED)
        axes.plot([min(runs), max(runs)], [place, place], color=INK, linewidth=1)
        text = f"{1e3 * one.measured_s:.0f}"
        if one.predicted_s is not None:
            predicted = 1e3 * one.predicted_s
            axes.plot([predicted, predicted], [place - 0.38, place + 0.38], color=_PREDICTED)
            text += f"  (×{one.ratio:.2f})"
        axes.annotate(
            text,
            (max(runs), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color=INK,
        )
    labels = [f"{one.name}, {one.gradient_bytes / 1e6:g} MB" for one in measurements]
    axes.set_yticks(range(len(labels)), [literal(label) for label in labels], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms: bar measured, orange tick predicted (ratio in brackets)", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_links(axes: "Axes", measurements: Sequence["Measurement"]) -> None:
    largest = max(one.gradient_bytes for one in measurements)
    most = 0.0
    for one in measurements:
        if one.predicted_link_bytes is None or one.gradient_bytes != largest:
            continue
        data, counted = one.predicted_link_bytes / 1e6, one.link_bytes / 1e6
        axes.plot(data, counted, "o", markersize=3, alpha=0.6, label=literal(one.name))
        most = max(most, float(np.max(counted)))
    axes.plot([0, most], [0, most], color=_PREDICTED, linewidth=1, zorder=0)
    axes.set_xlabel(f"MB of data predicted on a link direction, {largest / 1e6:g} MB", fontsize=8)
    axes.set_ylabel("MB counted by the kernel", fontsize=8)
    if most:
        axes.legend(fontsize=7, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
