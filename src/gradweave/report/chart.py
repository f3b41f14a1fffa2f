"""The chart of `gradweave compare`: rounds beside the lower bound and the paper's figures."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradweave.atomic import atomic_write
from gradweave.errors import OptionError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#4269d0", "#e3903b", "#3ca58a", "#c65b8c", "#8b6fc9", "#9a7b4f", "#5aa9d6", "#7d8794")
_INK, _MUTED, _BOUND = "#23262b", "#767b84", "#c0392b"
_GROUP_WIDTH = 0.82


def comparison_chart(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draws a comparison of schedulers as a PNG bar chart, networks side by side.

    A bar is a scheduler's mean rounds, the tick in it its best run, the diamond the paper's figure,
    the line across a group of bars the network's lower bound.

    Args:
        rows: one mapping per network and scheduler with ``label`` (or ``topology``),
            ``scheduler``, ``rounds_mean``, ``rounds_min`` and, or None, ``bound`` and ``paper``.
        path: where to write the PNG.

    Raises:
        OptionError: no rows, or matplotlib is not installed.
        FileError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError("charts need matplotlib; pip install 'gradweave[plot]'") from error
    if not rows:
        raise OptionError("nothing to draw: expected at least one row, got none")
    networks = list(dict.fromkeys(_network(row) for row in rows))
    schedulers = list(dict.fromkeys(str(row["scheduler"]) for row in rows))
    figure = Figure(
        figsize=(max(6.0, 0.6 * len(networks) + 0.16 * len(rows)), 4.6),
        dpi=160,
        layout="constrained",
    )
    axes = figure.add_subplot()
    for index, scheduler in enumerate(schedulers):
        mine = [row for row in rows if str(row["scheduler"]) == scheduler]
        _draw_scheduler(axes, mine, scheduler, networks, index, len(schedulers))
    _draw_bounds(axes, rows, networks)
    _dress(axes, figure, rows, networks)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    atomic_write(path, image.getvalue())


def _network(row: Mapping[str, Any]) -> str:
    return _plain(row.get("label") or row["topology"])


def _plain(text: object) -> str:
    """Text that matplotlib draws as it stands, without reading mathematics into dollar signs."""
    return str(text).replace("$", r"\$")


def _draw_scheduler(
    axes: "Axes",
    rows: Sequence[Mapping[str, Any]],
    scheduler: str,
    networks: list[str],
    index: int,
    count: int,
) -> None:
    width = _GROUP_WIDTH / count
    place = [
        networks.index(_network(row)) - _GROUP_WIDTH / 2 + (index + 0.5) * width for row in rows
    ]
    mean = [float(row["rounds_mean"]) for row in rows]
    axes.bar(
        place,
        mean,
        width * 0.86,
        color=_COLOURS[index % len(_COLOURS)],
        hatch="//" if index >= len(_COLOURS) else None,
        label=_plain(scheduler).lstrip("_"),
        zorder=2,
    )
    tick = dict(color="white", linewidth=1.4, zorder=3)
    least = [float(row["rounds_min"]) for row in rows]
    axes.hlines(least, [x - width * 0.3 for x in place], [x + width * 0.3 for x in place], **tick)  # pyright: ignore
    quoted = [
        (x, float(row["paper"]))
        for x, row in zip(place, rows, strict=True)
        if row.get("paper") is not None
    ]
    if quoted:
        axes.scatter(
            *zip(*quoted, strict=True),
            marker="D",
            s=22,
            color="white",
            edgecolor=_INK,
            linewidth=1.1,
            zorder=5,
        )


def _draw_bounds(axes: "Axes", rows: Sequence[Mapping[str, Any]], networks: list[str]) -> None:
    """One line per network and distinct bound: bounds differ where rows count different stages."""
    bounds = {(_network(row), float(row["bound"])) for row in rows if row.get("bound") is not None}
    for network, bound in sorted(bounds):
        middle = networks.index(network)
        reach = _GROUP_WIDTH / 2 + 0.05
        axes.hlines(bound, middle - reach, middle + reach, color=_BOUND, linewidth=1.6, zorder=4)


def _dress(
    axes: "Axes", figure: "Figure", rows: Sequence[Mapping[str, Any]], networks: list[str]
) -> None:
    from matplotlib.lines import Line2D

    stages = {row.get("stages") for row in rows} - {None}
    counted = f" ({_plain(next(iter(stages))).replace('_', '-')})" if len(stages) == 1 else ""
    axes.set_ylabel(f"rounds{counted}", color=_INK)
    axes.set_xticks(range(len(networks)), networks, color=_INK)
    axes.tick_params(axis="both", length=0, labelcolor=_INK)
    axes.yaxis.grid(True, color="#e4e4e0", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_MUTED)
    extra = [Line2D([], [], color=_MUTED, linewidth=1.4, label="best run (white tick)")]
    if any(row.get("bound") is not None for row in rows):
        extra.append(Line2D([], [], color=_BOUND, linewidth=1.6, label="lower bound"))
    if any(row.get("paper") is not None for row in rows):
        extra.append(
            Line2D(
                [],
                [],
                marker="D",
                color="white",
                markeredgecolor=_INK,
                markersize=5,
                label="figure in the paper",
            )
        )
    handles, _ = axes.get_legend_handles_labels()
    figure.legend(
        handles=[*handles, *extra],
        loc="outside upper center",
        ncols=4,
        frameon=False,
        fontsize=8.5,
        labelcolor=_INK,
    )
