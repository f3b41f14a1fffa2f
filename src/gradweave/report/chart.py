"""The chart of `gradweave compare`: rounds or time with the lower bound and the paper's figures."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradweave.errors import OptionError
from gradweave.report.figures import INK, literal, new_figure, save_png
from gradweave.schedulers.solving.solve import Objective

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#4269d0", "#e3903b", "#3ca58a", "#c65b8c", "#8b6fc9", "#9a7b4f", "#5aa9d6", "#7d8794")
_MUTED, _BOUND = "#767b84", "#c0392b"
_PANELS_PER_ROW = 3
_OUTLIER = 3.5
"""Bars longer than this many times the median are truncated, with their length in text."""

_Row = Mapping[str, Any]


def comparison_chart(
    rows: Sequence[_Row], path: str | Path, objective: Objective = "rounds"
) -> None:
    """Draws a comparison of schedulers as a PNG: a panel per network, a bar per scheduler.

    A bar is a scheduler's mean rounds or milliseconds. The tick in it is the best run, the diamond
    the paper's figure, and the line across the bars the network's lower bound. Bars far longer than
    the others are truncated.

    Args:
        rows: one mapping per network and scheduler with ``label`` (or ``topology``),
            ``scheduler``, ``rounds_mean``, ``rounds_min``, and ``bound`` and ``paper``, which may
            be None; for seconds ``seconds_mean``, ``seconds_min``, and ``seconds_bound``, which may
            be None.
        path: where to write the PNG.
        objective: whether to draw rounds or seconds.

    Raises:
        OptionError: there are no rows.
        MissingExtraError: matplotlib is not installed.
        FileError: the file cannot be written.
    """
    if not rows:
        raise OptionError("nothing to draw: expected at least one row, got none")
    rows = [_bar(row, objective) for row in rows]
    networks = list(dict.fromkeys(_network(row) for row in rows))
    schedulers = list(dict.fromkeys(str(row["scheduler"]) for row in rows))
    across = min(_PANELS_PER_ROW, len(networks))
    down = -(-len(networks) // across)
    figure = new_figure(2.6 + 3.0 * across, 1.0 + down * (0.55 + 0.23 * len(schedulers)))
    panels = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
    for panel, network in zip(panels, networks, strict=False):
        _draw_network(panel, network, [row for row in rows if _network(row) == network], schedulers)
    for panel in panels[len(networks) :]:
        panel.set_axis_off()
    panels[0].invert_yaxis()
    _legend(figure, rows, "rounds" if objective == "rounds" else "ms")
    save_png(figure, path)


def sweep_chart(rows: Sequence[_Row], path: str | Path) -> None:
    """Draws bus bandwidth by the gradient's size as a PNG: a panel per network.

    Args:
        rows: one mapping per network, size and scheduler, from `TimedRow.as_object`.
        path: where to write the PNG.

    Raises:
        OptionError: there are no rows.
        MissingExtraError: matplotlib is not installed.
        FileError: the file cannot be written.
    """
    if not rows:
        raise OptionError("nothing to draw: expected at least one row, got none")
    networks = list(dict.fromkeys(_network(row) for row in rows))
    schedulers = list(dict.fromkeys(str(row["scheduler"]) for row in rows))
    across = min(_PANELS_PER_ROW, len(networks))
    down = -(-len(networks) // across)
    figure = new_figure(1.0 + 3.6 * across, 0.9 + 2.9 * down)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel, network in zip(panels, networks, strict=False):
        _draw_sweep(panel, network, [row for row in rows if _network(row) == network], schedulers)
    for panel in panels[len(networks) :]:
        panel.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=8.5,
        labelcolor=INK,
    )  # fmt: skip
    save_png(figure, path)


def _draw_sweep(axes: "Axes", network: str, rows: list[_Row], schedulers: list[str]) -> None:
    for place, name in enumerate(schedulers):
        points = [
            (row["gradient_bytes"], row["busbw_bytes_per_s"] / 1e9)
            for row in rows
            if row["scheduler"] == name and row["busbw_bytes_per_s"]
        ]
        if points:
            colour = _COLOURS[place % len(_COLOURS)]
            axes.plot(*zip(*points, strict=True), color=colour, lw=1.6, marker="o", ms=2.5,
                      label=literal(name).lstrip("_"))  # fmt: skip
    least: dict[float, float] = {}
    for row in rows:
        if row["seconds_bound"] and row["seconds_mean"]:
            most = row["busbw_bytes_per_s"] * row["seconds_mean"] / row["seconds_bound"] / 1e9
            least[row["gradient_bytes"]] = max(most, least.get(row["gradient_bytes"], 0.0))
    if least:
        axes.plot(
            *zip(*sorted(least.items()), strict=True), color=_BOUND, lw=1.4, label="most possible"
        )
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_title(network, loc="left", fontsize=10, color=INK, fontweight="bold")
    axes.set_xlabel("bytes of the gradient", fontsize=8, color=_MUTED)
    axes.set_ylabel("bus bandwidth, GB/s", fontsize=8, color=_MUTED)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="both", length=0, labelcolor=INK, labelsize=8)
    axes.grid(True, color="#e4e4e0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def _bar(row: _Row, objective: Objective) -> dict[str, Any]:
    """Length, best run and bound of a row's bar, in rounds or milliseconds."""
    if objective == "rounds":
        figures = {"mean": row["rounds_mean"], "best": row["rounds_min"], "bound": row.get("bound")}
    else:
        timed = {"mean": "seconds_mean", "best": "seconds_min", "bound": "seconds_bound"}
        figures = {
            name: None if row.get(field) is None else 1e3 * row[field]
            for name, field in timed.items()
        }
    return {**row, **figures}


def _network(row: _Row) -> str:
    return literal(row.get("label") or row["topology"])


def _draw_network(axes: "Axes", network: str, rows: list[_Row], schedulers: list[str]) -> None:
    means = [float(row["mean"]) for row in rows]
    paper = [float(row["paper"]) for row in rows if row.get("paper") is not None]
    longest = max(value for value in means + paper if value <= _OUTLIER * statistics.median(means))
    edge = 1.12 * longest
    for row, mean in zip(rows, means, strict=True):
        place = schedulers.index(str(row["scheduler"]))
        colour = _COLOURS[place % len(_COLOURS)]
        axes.barh(place, min(mean, edge), 0.74, color=colour, zorder=2)
        if row["best"] < mean and row["best"] < edge:
            axes.vlines(row["best"], place - 0.37, place + 0.37, color="white", lw=1.4, zorder=3)
        figure = (f"{mean:.1f}" if mean >= 10 else f"{mean:.3g}").removesuffix(".0")
        end = min(mean, edge)
        if row.get("paper") is not None and -0.02 * edge < float(row["paper"]) - end < 0.16 * edge:
            end = float(row["paper"]) + 0.01 * edge  # the number goes behind the diamond
        axes.text(
            end + 0.015 * edge, place, figure if mean <= edge else f"→ {figure}", va="center",
            fontsize=7.5, color=INK,
        )  # fmt: skip
        if row.get("paper") is not None:
            axes.scatter(
                min(float(row["paper"]), edge), place, marker="D", s=22, color="white",
                edgecolor=INK, linewidth=1.1, zorder=5,
            )  # fmt: skip
    for bound in {float(row["bound"]) for row in rows if row.get("bound") is not None}:
        axes.axvline(bound, color=_BOUND, linewidth=1.4, zorder=4)
    _dress(axes, network, rows, schedulers, edge)


def _dress(
    axes: "Axes", network: str, rows: list[_Row], schedulers: list[str], edge: float
) -> None:
    stages = {str(row["stages"]).replace("_", "-") for row in rows if row.get("stages")}
    axes.set_title(network, loc="left", fontsize=10, color=INK, fontweight="bold")
    axes.set_title(", ".join(sorted(stages)), loc="right", fontsize=7.5, color=_MUTED)
    axes.set_xlim(0, 1.16 * edge)
    axes.set_yticks(range(len(schedulers)), [literal(name).lstrip("_") for name in schedulers])
    axes.tick_params(axis="both", length=0, labelcolor=INK, labelsize=8)
    axes.xaxis.grid(True, color="#e4e4e0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def _legend(figure: "Figure", rows: Sequence[_Row], unit: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=_COLOURS[0], label=f"mean {unit}")]
    if any(row["best"] < row["mean"] for row in rows):
        handles.append(Line2D([], [], color=_MUTED, linewidth=1.4, label="best run (white tick)"))
    if any(row.get("bound") is not None for row in rows):
        handles.append(Line2D([], [], color=_BOUND, linewidth=1.4, label="lower bound"))
    if any(row.get("paper") is not None for row in rows):
        diamond = dict(marker="D", color="white", markeredgecolor=INK, markersize=5)
        handles.append(Line2D([], [], label="figure in the paper", **diamond))  # pyright: ignore
    figure.legend(
        handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=8.5,
        labelcolor=INK,
    )  # fmt: skip
