"""The text of the page: data as they went in, strings made harmless, limits named."""

import base64
import dataclasses
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import FileError, OptionError
from gradweave.report import page, write_page
from gradweave.report.machine_page import _line
from gradweave.report.page import GRADIENT_BYTES, LIMITS, page_data, shown_bytes
from gradweave.schedulers import Ring, Symmetric
from gradweave.schedulers.solving.timing import timing_of
from gradweave.schedules.schedule import COPY, Schedule, StatedBound
from gradweave.simulator import busiest_links
from gradweave.topology import leaf_spine, ring
from tests.report.small_schedules import (
    ring_all_reduce,
    ring_topology,
    star_all_reduce,
    uneven_star,
)

HOSTILE = "</script><script>alert(1)</script><!-- ]]> &lt; \u2028 {{script}}"


def data_in(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def first_in(text: str) -> dict:
    return data_in(text)["schedules"][0]


def unpacked(column: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(column["base64"]), "<" + column["kind"])


@pytest.mark.parametrize("schedule", [ring_all_reduce(5), star_all_reduce(4)], ids=["ring", "star"])
def test_data_are_the_schedule(schedule: Schedule) -> None:
    data = first_in(page(schedule.replace(bound=StatedBound(7, "cut", computed=True))))
    for column in ("piece", "source", "target", "op"):
        assert np.array_equal(unpacked(data["transfers"][column]), getattr(schedule, column))
    assert np.array_equal(unpacked(data["roundOffsets"]), schedule.round_offsets)
    assert np.array_equal(unpacked(data["root"]), schedule.root)
    route, offsets = unpacked(data["transfers"]["route"]), unpacked(data["routes"]["offsets"])
    nodes = unpacked(data["routes"]["nodes"])
    for t in range(schedule.num_transfers):
        assert tuple(nodes[offsets[route[t]] : offsets[route[t] + 1]].tolist()) == schedule.route(t)
    assert len(offsets) - 1 == len({schedule.route(t) for t in range(schedule.num_transfers)})
    for column in ("source", "target", "capacity"):
        assert np.array_equal(unpacked(data["links"][column]), getattr(schedule.topology, column))
    bound = {"rounds": 7, "kind": "cut", "source": "computed", "certified": False}
    assert data["bound"] == {**bound, "holds_for": "some class of schedules"}
    assert data["stages"] == schedule.stages


def test_columns_widen_with_their_values() -> None:
    topology = ring_topology(300)
    schedule = Schedule.from_rows(topology, [(0, 299, COPY, (299, 0))], collective="all_gather")
    data = page_data(schedule, 1e8)
    assert unpacked(data["transfers"]["piece"]).tolist() == [299]
    assert data["transfers"]["piece"]["kind"] == "u2"
    assert data["transfers"]["op"]["kind"] == "u1"


class Elements(HTMLParser):
    """Counts a page's elements as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs)


def test_hostile_strings_cannot_leave_their_place() -> None:
    schedule = ring_all_reduce(4, name=HOSTILE, scheduler=HOSTILE)
    topology = dataclasses.replace(schedule.topology, labels=(HOSTILE,) * 4)
    text = page(schedule.replace(topology=topology, bound=StatedBound(6, HOSTILE, computed=True)))
    plain = page(ring_all_reduce(4))
    seen, expected = Elements(), Elements()
    seen.feed(text)
    expected.feed(plain)
    assert seen.names == expected.names
    assert "alert(1)</script>" not in text
    data = first_in(text)
    assert data["network"] == data["scheduler"] == data_in(text)["title"] == HOSTILE

    assert data["nodes"]["labels"] == [HOSTILE] * 4
    assert data["bound"]["kind"] == HOSTILE


def test_asks_nothing_of_the_network() -> None:
    text = page(ring_all_reduce(4))
    assert "default-src 'none'" in text
    assert "unsafe" not in text
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}


def test_same_schedule_same_page() -> None:
    assert page(star_all_reduce(6)) == page(star_all_reduce(6))


def test_a_strategy_is_named_as_people_know_it() -> None:
    text = page(Ring(order="boxes").schedule(leaf_spine(2, 1, 2)))
    assert first_in(text)["known"] == "NCCL's ring"
    assert re.search("<title>leaf_spine:[^ ]* · NCCL's ring</title>", html.unescape(text))
    assert first_in(page(ring_all_reduce(3)))["known"] == ""


def test_title_stands_for_the_name() -> None:
    text = page(ring_all_reduce(3), title="A < B")
    assert "<title>A &lt; B</title>" in text
    assert data_in(text)["title"] == "A < B"


@pytest.mark.parametrize("what", LIMITS)
def test_limits_are_named(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, what, 2)
    with pytest.raises(OptionError, match=rf"at most 2 {what}, got \d+") as error:
        page(ring_all_reduce(4))
    assert "\n" not in str(error.value)


def test_far_rounds_are_refused_before_anything_is_built() -> None:
    schedule = Schedule.from_rows(ring_topology(3), [(60_000_000, 0, COPY, (0, 1))])
    with pytest.raises(OptionError, match="rounds"):
        page(schedule)


def test_writes_a_file(tmp_path: Path) -> None:
    schedule = ring_all_reduce(3, name="an \ud800 odd name")
    write_page(schedule, tmp_path / "ring.html")
    assert (tmp_path / "ring.html").read_text(encoding="utf-8") == page(schedule)
    with pytest.raises(FileError, match="cannot be written"):
        write_page(schedule, tmp_path / "missing" / "ring.html")


def test_options_at_their_defaults_are_not_shown() -> None:
    made = Symmetric().schedule(ring(4))
    assert made.scheduler.options
    assert first_in(page(made))["options"] == ""
    made = Ring(steps="paper").schedule(ring(4))
    assert first_in(page(made))["options"] == "steps=paper"


def test_seconds_are_those_of_the_simulator() -> None:
    schedule = ring_all_reduce(4)
    data = first_in(page(schedule, gradient_bytes=4e6))
    timing = timing_of(schedule, 4e6)
    assert data["time"]["events"] == timing.seconds
    assert data["time"]["least"] == timing.bound.seconds
    assert unpacked(data["roundSeconds"]).sum() == pytest.approx(timing.barrier_seconds, rel=1e-6)
    assert data["equalLinks"] is True


def test_the_size_is_the_one_that_was_planned_for() -> None:
    def planned(size: float | None) -> Schedule:
        made = Ring().schedule(ring(4))
        options = made.scheduler.options | ({} if size is None else {"gradient_bytes": size})
        return dataclasses.replace(
            made, scheduler=dataclasses.replace(made.scheduler, options=options)
        )

    assert shown_bytes(None, planned(4000)) == 4000
    assert shown_bytes(1e6, planned(4000)) == 1e6
    assert shown_bytes(None, planned(None)) == GRADIENT_BYTES
    assert shown_bytes(None, planned(None), planned(4000)) == 4000
    with pytest.raises(OptionError, match="the schedules are for 4 kB and 8 kB"):
        shown_bytes(None, planned(4000), planned(8000))


def test_shares_and_use_are_the_schedules() -> None:
    schedule = uneven_star()
    data = first_in(page(schedule, gradient_bytes=4e6))
    assert unpacked(data["share"]).tolist() == [0.25, 0.75]
    uses = busiest_links(schedule, 4e6)
    assert [one["used"] for one in data["use"]["links"]] == [use.used for use in uses]
    levels = unpacked(data["use"]["levels"]).reshape(len(uses), 2, -1)
    for use, drawn in zip(uses, levels, strict=True):
        assert drawn.sum() / 255 / drawn.shape[1] == pytest.approx(use.used, abs=2e-3)


def test_heads_of_a_machines_arrows_by_hand() -> None:
    """Nine back from the tip, and four to either side."""
    down, right = (_line("M0 0", (10.0, 20.0), way) for way in ((0.0, 1.0), (1.0, 0.0)))
    assert 'class="arrow" d="M10.0 20.0L6.0 11.0L14.0 11.0Z"' in down
    assert 'class="arrow" d="M10.0 20.0L1.0 24.0L1.0 16.0Z"' in right


def test_the_bound_on_the_objective_comes_first() -> None:
    star = gw.topology.star(4, link=gw.topology.Link(bandwidth_bytes_per_s=1e9))
    found = gw.solve(star, objective="seconds", gradient_bytes=1e8, schedulers="packed")
    proved = gw.bounds.with_certificates(found.schedule, gradient_bytes=1e8)
    limits = page_data(proved, 1e8, "seconds")["limits"]
    assert limits and " ms" in limits[0]["why"]
