"""Curves of trainings: a figure of their logs against steps, with the range over seeds."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradweave.checks import expected_one_of
from gradweave.errors import FileError
from gradweave.report.figures import INK, literal, new_figure, save_png
from gradweave.training.log import LOG, read_log

MOST_CURVES = 24
"""That one chart has colours and line styles for."""
_STYLES = ("-", "--", ":")


@dataclasses.dataclass(frozen=True)
class Curve:
    """One training's."""

    name: str
    steps: NDArray[np.float64]
    """[U] of all games together, after each update."""
    values: NDArray[np.float64]
    """[U, S] of each seed; NaN where an update has none."""

    def smoothed(self, updates: int) -> "Curve":
        """The mean of the last updates, as many as there are, of those with a value."""
        rows = [self.values[max(0, i + 1 - updates) : i + 1] for i in range(len(self.values))]
        real = np.stack([np.isfinite(row).sum(0) for row in rows])
        total = np.stack([np.nansum(row, 0) for row in rows])
        means = np.where(real, total / np.maximum(real, 1), np.nan)
        return dataclasses.replace(self, values=means)


def folders_of(run: Path) -> list[Path]:
    """The folders of a run's logs: its own, or one for each combination of a sweep.

    Raises:
        FileError: it has none.
    """
    if (run / LOG).exists():
        return [run]
    inside = sorted(path.parent for path in run.glob(f"*/{LOG}"))
    if not inside:
        raise FileError(f"{run}: has no {LOG}; give the folder of a training or of a sweep")
    return inside


def read_curve(folder: Path, what: str = "return") -> Curve:
    """A training's curve.

    Args:
        folder: of its log.
        what: which of the log's numbers, such as ``return``, ``length`` or ``entropy``.

    Raises:
        FileError: the log is empty, or has no such number.
    """
    rows = [row for row in read_log(folder) if isinstance(row.get("steps"), int)]
    if not rows:
        raise FileError(f"{folder / LOG}: has no updates yet")
    known = [name for name, value in rows[-1].items() if isinstance(value, list)]
    if what not in known:
        raise FileError(f"{folder / LOG}: {expected_one_of('curve', known, what)}")
    values = np.array([row[what] for row in rows], np.float64)
    return Curve(str(folder), np.array([row["steps"] for row in rows], np.float64), values)


def draw_curves(curves: Sequence[Curve], what: str, path: Path) -> None:
    """Draws curves as a PNG: the mean over seeds, and from the least seed to the greatest.

    Args:
        curves: 1 to `MOST_CURVES`.
        what: they show.
        path: where to write the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FileError: the file cannot be written.
    """
    figure = new_figure(9.0, max(4.2, 0.22 * len(curves) + 1.0))
    axes = figure.subplots()
    for number, curve in enumerate(curves):
        # Steps before the first episode ended have no value.
        there = np.isfinite(curve.values).any(1)
        steps, values = curve.steps[there], curve.values[there]
        colour, style = f"C{number % 10}", _STYLES[number // 10]
        label = literal(curve.name)
        axes.plot(steps, np.nanmean(values, 1), style, color=colour, label=label, linewidth=1.3)
        if values.shape[1] > 1:
            low, high = np.nanmin(values, 1), np.nanmax(values, 1)
            axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("steps of all games together", fontsize=8)
    shown = "mean over seeds, and their range" if _several(curves) else "one seed"
    axes.set_ylabel(literal(f"{what} ({shown})"), fontsize=8, color=INK)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    save_png(figure, path)


def _several(curves: Sequence[Curve]) -> bool:
    return any(curve.values.shape[1] > 1 for curve in curves)
