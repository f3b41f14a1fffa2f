"""The comparison chart is a PNG, whatever its rows leave out."""

import builtins
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradweave.errors import FileError, OptionError
from gradweave.report import comparison_chart, lab_chart, step_chart
from gradweave.report.figures import new_figure


def row(label: str, scheduler: str, mean: float, **more: Any) -> dict[str, Any]:
    usual = {
        "topology": "bcube:n=3,k=1",
        "stages": "all_reduce",
        "rounds_min": mean - 1,
        "seeds": 20,
        "bound": 8,
    }
    return {
        **usual,
        "paper": None,
        "label": label,
        "scheduler": scheduler,
        "rounds_mean": mean,
        **more,
    }


ROWS = [
    row("B3", "ring", 18.0, paper=18.0),
    row("B3", "symmetric", 8.0),
    row("D4", "ring", 46.9, paper=47.1, bound=10, stages="all_gather"),
    row("$\\frac{", "_hidden", 12.0, bound=None),
]


def test_writes_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    comparison_chart(ROWS, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_says_what_is_wrong(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(OptionError, match="at least one row"):
        comparison_chart([], tmp_path / "chart.png")
    with pytest.raises(FileError, match="cannot be written"):
        comparison_chart(ROWS, tmp_path / "missing" / "chart.png")


def test_names_the_remedy_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OptionError, match=r"pip install 'gradweave\[plot\]'"):
        comparison_chart(ROWS, tmp_path / "chart.png")


def test_passes_are_drawn_in_the_row_of_their_device() -> None:
    pytest.importorskip("matplotlib")
    step: Any = SimpleNamespace(
        busy_s=np.ones((2, 2)),
        stage=np.array([0, 0, 1, 1]),
        pipeline=np.array([0, 1, 0, 1]),
        backward=np.zeros(4, bool),
        start_s=np.array([0.0, 0.5, 1.0, 2.0]),
        end_s=np.array([1.0, 1.5, 2.0, 4.0]),
        reduced_s=np.array([3.0, 6.0]),
    )
    axes = new_figure(4, 4).subplots()
    step_chart._draw(axes, step, shown=2)
    rows = [bar.get_y() + bar.get_height() / 2 for bar in axes.patches]
    bars = [(y, bar.get_x(), bar.get_width()) for y, bar in zip(rows, axes.patches, strict=True)]
    # Pipelines are three rows apart; each device's pass, then the average with its stage's others.
    expected = [(0, 0, 1), (0, 1, 2), (1, 1, 1), (1, 2, 4)]
    expected += [(3, 0.5, 1), (3, 1.5, 1.5), (4, 2, 2), (4, 4, 2)]
    np.testing.assert_allclose(bars, expected)


def test_what_was_predicted_is_marked_across_the_bar_of_what_was_measured() -> None:
    pytest.importorskip("matplotlib")
    one: Any = SimpleNamespace(
        name="ring", gradient_bytes=1e6, runs_s=[1e-3, 2e-3, 4e-3], measured_s=2e-3,
        predicted_s=1.6e-3, ratio=1.25,
    )  # fmt: skip
    axes = new_figure(4, 4).subplots()
    lab_chart._draw_times(axes, [one, one])
    for place, bar, mark in zip((0, 1), axes.patches, axes.lines[1::2], strict=True):
        assert bar.get_y() + bar.get_height() / 2 == pytest.approx(place)
        assert bar.get_width() == pytest.approx(2)
        assert list(mark.get_xdata()) == pytest.approx([1.6, 1.6])
        below, above = mark.get_ydata()
        assert (below + above) / 2 == pytest.approx(place)
        assert above - below > bar.get_height()
