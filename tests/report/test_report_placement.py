"""The page of a placement, in a browser, and on the command line."""

import dataclasses

import numpy as np
import pytest

from gradweave.placement import even_stages, place, step_time
from gradweave.placement.bound.duals import step_ns
from gradweave.placement.bound.levels import Level, Levels
from gradweave.placement.placing import problem_for
from gradweave.report import placement_drawing
from gradweave.report.placement import placement_page, write_placement_pages


@pytest.fixture(scope="module")
def placed():
    work = even_stages(3, activation_bytes=1e6, gradient_bytes=1e7, forward_s=0.1, backward_s=0.2,
                       microbatches=4)  # fmt: skip
    one = place("cities:Oregon.Ohio.London,each=3", work, data=2, strategy="annealing:moves=300")
    return one, step_time(one, time_limit=1.0)


@pytest.mark.browser
def test_page_in_a_browser(opened, placed):
    one, step = placed
    page = opened(placement_page(one, step, ["a.html", "a.html", None]))
    count = page.execute_script(
        "return ['.site', '.device', '.idle', '.way', '.placement a', '.average'].map("
        "s => document.querySelectorAll(s).length)"
    )
    assert count == [3, 6, 3, 4, 2, 6]
    boxes = page.execute_script(
        "return [...document.querySelectorAll('.site')].map(e =>"
        " e.getBoundingClientRect().toJSON())"
    )
    for place_, box in enumerate(boxes):
        for other in boxes[:place_]:
            apart = box["left"] >= other["right"] or other["left"] >= box["right"]
            assert apart or box["top"] >= other["bottom"] or other["top"] >= box["bottom"]


def test_pages_are_written_together(placed, tmp_path):
    one, step = placed
    written = write_placement_pages(one, step, tmp_path / "p.html")
    assert written[0].name == "p.html" and len(written) > 1
    for page in written[1:]:
        assert page.name in written[0].read_text() and page.stat().st_size > 10_000


def test_sites_without_positions_are_drawn_as_far_apart_as_they_are(placed):
    """Distances of the drawing are as roots of steps, which three places in a plane can keep."""
    one, _ = placed
    bare = dataclasses.replace(one, topology=dataclasses.replace(one.topology, positions=None))
    centres = placement_drawing._centres(bare, np.arange(9) // 3)
    steps = step_ns(problem_for(bare))[::3, ::3]
    squared = ((centres[:, None] - centres) ** 2).sum(axis=2)
    ratio = squared[np.triu_indices(3, 1)] / steps[np.triu_indices(3, 1)]
    assert centres.shape == (3, 2) and np.ptp(ratio) < 1e-6 * ratio.max()


def test_of_two_partings_as_wide_the_nearer_sites_are_drawn(placed, monkeypatch):
    pairs, halves = np.arange(9) // 2, np.arange(9) // 5
    levels = Levels(1, (Level(9, pairs), Level(90, halves)))  # 10 times as far, and 10 times again
    monkeypatch.setattr(placement_drawing, "levels_of", lambda _: levels)
    assert placement_drawing.sites_of(placed[0]).tolist() == pairs.tolist()


def test_labels_are_text(placed):

    labels = tuple(f"<b>{i}</b>{{{{body}}}}" for i in range(9))
    one, _ = placed
    hostile = dataclasses.replace(one, topology=dataclasses.replace(one.topology, labels=labels))
    text = placement_page(hostile)
    assert "<b>" not in text and "&lt;b&gt;" in text
