"""The comparison chart is a PNG, whatever its rows leave out."""

import builtins
from pathlib import Path
from typing import Any

import pytest

from gradweave.errors import FileError, OptionError
from gradweave.report import comparison_chart


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
