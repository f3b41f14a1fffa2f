"""Learning curves: a chart from training logs, with intervals of the mean over seeds."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradweave.common.checks import expected_one_of
from gradweave.errors import FileError
from gradweave.report.figures import INK, literal, new_figure, save_png
from gradweave.training.log import LOG, read_log

MOST_CURVES = 24
"""Number of curves for which a chart has distinct colours and line styles."""
STEPS = "steps of all games together"
_STYLES = ("-", "--", ":")
FEWEST = 3
"""Minimum number of seeds for an interval; with fewer, the band is their range."""
# 97.5% quantiles of Student's t with 2 to 30 degrees of freedom; beyond, 1.96 + 2.4 / ν.
_T = (
    *(4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145),
    *(2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052),
    *(2.048, 2.045, 2.042),
)


@dataclasses.dataclass(frozen=True)
class Curve:
    """The curve of one training."""

    name: str
    steps: NDArray[np.float64]
    """[U] steps of all games together after each update, or the values of another axis."""
    values: NDArray[np.float64]
    """[U, S] the values of each seed; NaN if an update has none."""

    def smoothed(self, updates: int) -> "Curve":
        """The moving mean over the last updates that have a value."""
        rows = [self.values[max(0, i + 1 - updates) : i + 1] for i in range(len(self.values))]
        real = np.stack([np.isfinite(row).sum(0) for row in rows])
        total = np.stack([np.nansum(row, 0) for row in rows])
        means = np.where(real, total / np.maximum(real, 1), np.nan)
        return dataclasses.replace(self, values=means)


def band(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The 95% interval of the mean over seeds, by Student's t; with few seeds, their whole range.

    The range is used for fewer than `FEWEST` seeds.

    Args:
        values: [U, S], with at least one finite value per row.

    Returns:
        [U] its lower and upper ends. Seeds without a value are ignored.

    >>> [np.round(end, 2).tolist() for end in band(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, np.nan]]))]
    [[-0.48, 1.0], [4.48, 2.0]]
    """
    number = np.isfinite(values).sum(1)
    few = number < FEWEST
    freedom = np.maximum(number - 1, 1)
    known = np.array([np.nan, np.nan, *_T])
    exact = known[np.minimum(freedom, len(known) - 1)]
    quantile = np.where(freedom < len(known), exact, 1.96 + 2.4 / freedom)
    mean = np.nanmean(values, 1)
    deviation = np.sqrt(np.nansum(np.square(values - mean[:, None]), 1) / freedom)
    half = quantile * deviation / np.sqrt(number)
    low = np.where(few, np.nanmin(values, 1), mean - half)
    return low, np.where(few, np.nanmax(values, 1), mean + half)


def folders_of(run: Path) -> list[Path]:
    """The folders of a run's logs: the run's folder, or one per combination of a sweep.

    Raises:
        FileError: there is no log.
    """
    if (run / LOG).exists():
        return [run]
    inside = sorted(path.parent for path in run.glob(f"*/{LOG}"))
    if not inside:
        raise FileError(f"{run}: has no {LOG}; give the folder of a training or of a sweep")
    return inside


def read_curve(folder: Path, what: str = "return", against: str = "steps") -> Curve:
    """A training's curve.

    Args:
        folder: folder of the training's log.
        what: name of a per-seed number in the log, such as ``return``, ``length`` or ``entropy``.
        against: name of a number for all seeds: ``steps`` or ``update``; ``seconds`` if an
            asynchronous server trained.

    Raises:
        FileError: the log is empty, or lacks such a number.
    """
    rows = [row for row in read_log(folder) if isinstance(row.get("steps"), int)]
    if not rows:
        raise FileError(f"{folder / LOG}: has no updates yet")
    known = [name for name, value in rows[-1].items() if isinstance(value, list)]
    if what not in known:
        raise FileError(f"{folder / LOG}: {expected_one_of('curve', known, what)}")
    shared = [name for name, value in rows[-1].items() if isinstance(value, int | float)]
    if against not in shared:
        raise FileError(f"{folder / LOG}: {expected_one_of('axis', shared, against)}")
    values = np.array([row[what] for row in rows], np.float64)
    return Curve(str(folder), np.array([row[against] for row in rows], np.float64), values)


def draw_curves(
    curves: Sequence[Curve], what: str, path: Path, *, against: str = STEPS, log: bool = False
) -> None:
    """Draws curves as a PNG: the mean over seeds, and its `band`.

    Args:
        curves: 1 to `MOST_CURVES`.
        what: name of the values.
        path: where to write the PNG.
        against: name of the horizontal axis.
        log: whether that axis is logarithmic.

    Raises:
        MissingExtraError: matplotlib is not installed.
        FileError: the file cannot be written.
    """
    figure = new_figure(9.0, max(4.2, 0.22 * len(curves) + 1.0))
    axes = figure.subplots()
    for number, curve in enumerate(curves):
        # Steps before the end of the first episode have no value.
        there = np.isfinite(curve.values).any(1)
        at, values = curve.steps[there], curve.values[there]
        colour, style = f"C{number % 10}", _STYLES[number // 10]
        label = literal(curve.name)
        axes.plot(at, np.nanmean(values, 1), style, color=colour, label=label, linewidth=1.3)
        if values.shape[1] > 1:
            axes.fill_between(at, *band(values), color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel(literal(against), fontsize=8)
    if log:
        axes.set_xscale("log")
    axes.set_ylabel(literal(f"{what} ({_shown(curves)})"), fontsize=8, color=INK)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", fontsize=7, frameon=False)
    save_png(figure, path)


def _shown(curves: Sequence[Curve]) -> str:
    """What the lines and bands of a chart show."""
    most = max(curve.values.shape[1] for curve in curves)
    if most == 1:
        return "one seed"
    of = "its 95% interval" if most >= FEWEST else "their range"
    return f"mean over seeds, and {of}"
