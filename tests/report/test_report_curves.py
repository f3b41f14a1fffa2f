"""Curves of trainings: read, smoothed and drawn."""

import json
from pathlib import Path

import numpy as np
import pytest

from gradweave.errors import FileError
from gradweave.report.curves import Curve, band, draw_curves, folders_of, read_curve


def log(folder: Path, returns: list[list[float | None]]) -> Path:
    folder.mkdir(parents=True)
    rows = [
        {"update": i + 1, "steps": 10 * (i + 1), "return": each, "returns": {"a": each}}
        for i, each in enumerate(returns)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_run_s_curves_are_its_own_or_those_of_a_sweep(tmp_path):
    one = log(tmp_path / "sweep" / "a=1", [[1.0]])
    two = log(tmp_path / "sweep" / "a=2", [[2.0]])
    assert folders_of(tmp_path / "sweep") == [one, two] and folders_of(two) == [two]
    with pytest.raises(FileError, match=r"has no log\.jsonl; give the folder of a training"):
        folders_of(tmp_path / "nothing")


def test_means_are_of_what_there_is(tmp_path):
    curve = read_curve(log(tmp_path / "run", [[None, None], [1.0, None], [3.0, 5.0]]))
    assert curve.steps.tolist() == [10.0, 20.0, 30.0]
    smooth = curve.smoothed(2).values
    assert np.array_equal(smooth, [[np.nan, np.nan], [1, np.nan], [2, 5]], equal_nan=True)
    with pytest.raises(FileError, match=r"expected .*return"):
        read_curve(tmp_path / "run", "entropy")
    assert read_curve(tmp_path / "run", against="update").steps.tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(FileError, match=r"expected .*steps"):
        read_curve(tmp_path / "run", against="seconds")


@pytest.mark.parametrize("seeds", [3, 5, 31, 32, 200])
def test_bands_are_intervals_of_the_mean_by_student_s_t(seeds: int):
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(seeds).normal(size=(4, seeds))
    expected = stats.t.interval(0.95, seeds - 1, values.mean(1), stats.sem(values, axis=1))
    assert np.allclose(band(values), expected, rtol=0, atol=0.01 * values.std() / seeds**0.5)


def test_the_band_of_two_seeds_is_their_range():
    low, high = band(np.array([[1.0, 4.0], [2.0, np.nan]]))
    assert low.tolist() == [1.0, 2.0] and high.tolist() == [4.0, 2.0]


def test_curves_are_drawn_with_a_band_over_seeds(tmp_path):
    pytest.importorskip("matplotlib")
    steps = np.arange(1.0, 4.0)
    seeds = Curve("two $seeds", steps, np.array([[np.nan, np.nan], [1, 2], [2, 4.0]]))
    one = Curve("one", steps, np.array([[1.0], [1], [2]]))
    sizes = []
    for curves in ([one], [one, seeds]):
        draw_curves(curves, "return", tmp_path / "c.png")
        drawn = (tmp_path / "c.png").read_bytes()
        assert drawn.startswith(b"\x89PNG")
        sizes.append(len(drawn))
    assert sizes[0] < sizes[1]
