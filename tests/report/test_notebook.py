"""What notebooks show."""

import dataclasses

import pytest

import gradweave as gw
from gradweave.automata import Machine
from gradweave.errors import FileError, OptionError
from gradweave.report import notebook
from tests.report.small_schedules import ring_all_reduce, ring_topology


@pytest.mark.quick
def test_networks_schedules_and_solutions_draw_themselves() -> None:
    topology = gw.topology.ring(4)
    solution = gw.solve(topology, schedulers="ring")
    for shown in (topology, solution.schedule, solution):
        svg = shown._repr_svg_()
        assert svg is not None and svg.startswith("<svg")
        html = shown._repr_html_()
        assert html is not None and svg in html
    assert "At least" in (solution._repr_html_() or "")


def test_names_run_nothing() -> None:
    hostile = "<script>alert(1)</script>"
    html = ring_all_reduce(3, name=hostile)._repr_html_()
    assert html is not None and "<script" not in html
    shown = gw.show(ring_all_reduce(3, name=hostile))._repr_html_()
    assert shown.count("<script") == 1 and "alert" not in shown.split("</iframe>")[1]


def test_a_machine_has_its_page() -> None:
    machine = Machine.of({"a": {"go": ("b", 1.0)}, "b": {}}, start="a", final=["b"])
    assert machine._repr_svg_() is None
    assert (machine._repr_html_() or "").startswith("<iframe")
    assert gw.show(machine).is_page


def test_what_is_large_is_not_drawn_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MOST_NODES", 4)
    assert ring_topology(4)._repr_svg_() is not None
    assert ring_topology(5)._repr_svg_() is None and ring_topology(5)._repr_html_() is None
    assert gw.show(ring_topology(5)).document.startswith("<svg")


def test_show_plays_draws_and_saves(tmp_path) -> None:
    schedule = ring_all_reduce(3)
    assert "height:300px" in gw.show(schedule, height=300)._repr_html_()
    player = gw.show(schedule)
    assert 'sandbox="allow-scripts"' in player._repr_html_()
    player.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!")
    assert gw.show(schedule, round=1).document.startswith("<svg")
    assert gw.show(schedule, schedule).document.count('"hand-made ring"') >= 2
    with pytest.raises(OptionError, match="expected a topology"):
        gw.show(3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="one schedule"):
        gw.show(schedule, schedule, round=1)
    with pytest.raises(FileError):
        player.save(tmp_path / "no" / "page.html")


def test_drawing_changes_nothing_of_what_is_drawn() -> None:
    topology = ring_topology(4)
    topology._repr_svg_()
    assert not {"drawing", "_drawn"} & {field.name for field in dataclasses.fields(topology)}
