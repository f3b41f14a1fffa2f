"""The page in a real browser: it plays, steps, counts, and runs nothing out of a schedule."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradweave as gw
from gradweave.automata import Machine
from gradweave.report import page, to_svg
from gradweave.report.picture import network
from gradweave.report.picture.colours import piece_colours
from gradweave.report.picture.moments import ways_of_round
from gradweave.report.picture.scene import Stage
from gradweave.report.picture.shapes import Label
from gradweave.schedulers import Ring
from gradweave.schedules.schedule import COPY, REDUCE, Schedule, StatedBound
from gradweave.simulator.seconds import event_seconds
from gradweave.topology import Topology, bcube, gpu_boxes, leaf_spine, ring
from gradweave.topology.formats.files import read
from tests.report.small_schedules import (
    ring_all_reduce,
    ring_topology,
    star_all_reduce,
    uneven_star,
)
from tests.schedules.small_demands import two_jobs

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked=1'>"
pytestmark = pytest.mark.browser

Opened = Callable[[str], Any]


def wait_until(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20, poll_frequency=0.05).until(
        lambda driver: driver.execute_script(f"return Boolean({condition})"), message=condition
    )


def click(browser: Any, id_: str) -> None:
    browser.find_element("id", id_).click()


def text(browser: Any, id_: str) -> str:
    return browser.find_element("id", id_).text


def shown_round(browser: Any) -> int:
    return int(browser.execute_script("return document.body.dataset.round"))


@pytest.mark.parametrize(
    "schedule",
    [ring_all_reduce(2), ring_all_reduce(8), star_all_reduce(5)],
    ids=["pair", "ring", "star"],
)
def test_ends_complete(opened: Opened, schedule: Schedule) -> None:
    browser = opened(page(schedule))
    assert browser.execute_script("return document.body.dataset.rounds") == str(schedule.rounds)
    assert shown_round(browser) == -1
    servers = schedule.topology.num_servers
    assert browser.execute_script("return gradweave.complete()") == [0] * servers
    click(browser, "last")
    assert shown_round(browser) == schedule.rounds - 1
    assert browser.execute_script("return gradweave.complete()") == [schedule.pieces] * servers
    assert len(browser.find_elements("css selector", "g.server.complete")) == servers


def test_counts_as_reduce_scatter_does(opened: Opened) -> None:
    servers = 6
    browser = opened(page(ring_all_reduce(servers)))
    held = np.array(browser.execute_script(f"return gradweave.held({servers - 2})")).reshape(
        servers, servers
    )
    distance = (np.arange(servers)[:, None] - np.arange(servers)[None] - 1) % servers
    assert np.array_equal(held, distance + 1)
    assert browser.execute_script(f"return gradweave.complete({servers - 2})") == [1] * servers


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
def test_one_stage(opened: Opened, collective: Any) -> None:
    whole = ring_all_reduce(5)
    copies = collective == "all_gather"
    rows = [
        (int(whole.round[t]) - 4 * copies, int(whole.piece[t]), int(whole.op[t]), whole.route(t))
        for t in range(whole.num_transfers)
        if (whole.op[t] == COPY) == copies
    ]
    browser = opened(page(Schedule.from_rows(whole.topology, rows, collective=collective)))
    click(browser, "last")
    assert browser.execute_script("return gradweave.complete()") == [5 if copies else 1] * 5
    assert browser.execute_script("return gradweave.complete(-1)") == [1 if copies else 0] * 5


def test_a_demand_is_complete_at_its_destinations(opened: Opened) -> None:
    browser = opened(page(two_jobs()))
    assert text(browser, "kicker").startswith("reduce + send schedule")
    assert browser.execute_script("return gradweave.held(-1)") == [1, 0, 1, 0, 1, 0, 0, 1]
    assert browser.execute_script("return gradweave.complete(-1)") == [0, 0, 0, 0]
    click(browser, "forward")
    assert text(browser, "now") == "Round 0 of 0–1 · sums + copies"
    click(browser, "last")
    assert browser.execute_script("return gradweave.complete()") == [0, 0, 2, 0]
    assert len(browser.find_elements("css selector", "g.server.complete")) == 1
    assert "Complete now: 2 of 2." in text(browser, "held")
    listed = "return [...document.querySelectorAll('#piece option')].map((one) => one.textContent)"
    assert browser.execute_script(listed) == [
        "all pieces",
        "piece 0: 0, 1, 2 → 2",
        "piece 1: 3 → 2",
    ]


@pytest.mark.quick
def test_steps(opened: Opened) -> None:
    browser = opened(page(ring_all_reduce(4)))
    click(browser, "forward")
    assert text(browser, "now") == "Round 0 of 0–5 · reduce-scatter"
    assert len(browser.find_elements("css selector", ".tracks .transfer")) == 4
    wait_until(browser, "gradweave.progress() === 1")
    click(browser, "forward")
    click(browser, "forward")
    click(browser, "forward")
    assert text(browser, "now") == "Round 3 of 0–5 · all-gather"
    assert len(browser.find_elements("css selector", ".tracks .transfer.copy")) == 4
    click(browser, "back")
    assert shown_round(browser) == 2
    click(browser, "first")
    click(browser, "back")
    assert shown_round(browser) == -1
    click(browser, "last")
    click(browser, "forward")
    assert shown_round(browser) == 5


def test_plays_and_pauses(opened: Opened) -> None:
    browser = opened(page(ring_all_reduce(12)))
    browser.execute_script(
        "const speed = document.getElementById('speed'); speed.value = '10';"
        "speed.dispatchEvent(new Event('change'))"
    )
    click(browser, "play")
    assert browser.find_element("id", "play").get_attribute("aria-label") == "Pause"
    wait_until(browser, "gradweave.round() >= 0")
    click(browser, "play")
    paused = browser.execute_script("return [gradweave.round(), gradweave.progress()]")
    browser.execute_async_script("setTimeout(arguments[0], 400)")
    assert browser.execute_script("return [gradweave.round(), gradweave.progress()]") == paused
    click(browser, "play")
    wait_until(browser, "gradweave.round() === 21 && !gradweave.playing()")
    assert browser.find_element("id", "play").get_attribute("aria-label") == "Play"


def test_keyboard(opened: Opened) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = opened(page(ring_all_reduce(4)))
    body = browser.find_element("tag name", "body")
    body.send_keys(Keys.ARROW_RIGHT)
    body.send_keys(Keys.ARROW_RIGHT)
    assert shown_round(browser) == 1
    body.send_keys(Keys.ARROW_LEFT)
    assert shown_round(browser) == 0
    body.send_keys(Keys.END)
    assert shown_round(browser) == 5
    body.send_keys(Keys.HOME)
    assert shown_round(browser) == -1
    body.send_keys(Keys.SPACE)
    assert browser.execute_script("return gradweave.playing()")
    body.send_keys(Keys.SPACE)
    assert not browser.execute_script("return gradweave.playing()")
    click(browser, "last")
    browser.find_element("id", "last").send_keys(Keys.ARROW_LEFT)
    assert shown_round(browser) == 4


def test_scrubber_and_timeline(opened: Opened) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = opened(page(ring_all_reduce(4)))
    scrubber = browser.find_element("id", "scrubber")
    scrubber.send_keys(Keys.ARROW_RIGHT)
    assert shown_round(browser) == 0
    assert scrubber.get_attribute("aria-valuetext") == "Round 0 of 0–5 · reduce-scatter"
    timeline = browser.find_element("id", "timeline")
    ActionChains(browser).move_to_element(timeline).click().perform()
    assert shown_round(browser) == 2


def test_follows_a_piece_and_lists_transfers(opened: Opened) -> None:
    browser = opened(page(ring_all_reduce(5)))
    browser.execute_script("gradweave.goTo(1)")
    browser.find_element("css selector", "summary").click()
    wait_until(browser, "document.querySelectorAll('#rows tr').length === 5")
    browser.find_element("css selector", "#rows [data-piece='3']").click()
    wait_until(browser, "document.querySelectorAll('#rows tr').length === 1")
    assert browser.find_element("id", "piece").get_attribute("value") == "3"
    assert len(browser.find_elements("css selector", ".tracks .transfer.dim")) == 4
    assert len(browser.find_elements("css selector", ".tree .transfer")) == 3
    browser.execute_script("document.querySelector('#rows tr').focus()")
    assert len(browser.find_elements("css selector", ".tracks .transfer.hot")) == 1


def test_hostile_strings_are_only_text(opened: Opened) -> None:
    schedule = ring_all_reduce(4, name=HOSTILE, scheduler=HOSTILE)
    topology = dataclasses.replace(
        schedule.topology, labels=tuple(f"{HOSTILE}{i}" for i in range(4))
    )
    schedule = schedule.replace(
        topology=topology,
        scheduler=dataclasses.replace(
            schedule.scheduler, options={HOSTILE: HOSTILE, "{{script}}": "\ud800"}
        ),
        bound=StatedBound(6, HOSTILE, computed=True),
    )
    browser = opened(page(schedule))
    browser.find_element("css selector", "summary").click()
    click(browser, "last")
    assert browser.execute_script("return window.hacked === undefined")
    assert browser.title == HOSTILE
    assert text(browser, "title") == HOSTILE
    assert (
        browser.find_elements("css selector", "img, iframe, body script:not([type]) ~ script") == []
    )
    assert browser.execute_script("return gradweave.complete()") == [4] * 4


def test_name_rank_and_id_are_told_apart(opened: Opened, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains

    (tmp_path / "n.csv").write_text(
        "# switches: the-switch\nsource,target\n"
        "rack-host1,the-switch\nrack-host2,the-switch\nrack-host3,the-switch\n"
    )
    browser = opened(page(Ring().schedule(read(tmp_path / "n.csv"))))
    second = browser.find_elements("css selector", "g.server")[1]
    assert second.text == "…host2"
    ActionChains(browser).move_to_element(second).perform()
    assert text(browser, "tip").splitlines()[:2] == ["server rack-host2", "rank 1, id 2"]
    click(browser, "forward")
    browser.find_element("css selector", "summary").click()
    wait_until(browser, "document.querySelectorAll('#rows tr').length === 3")
    assert "rack-host1 → the-switch → rack-host2" in text(browser, "rows")
    assert "rack-host1 → the-switch carries" in text(browser, "use-words")


def test_forbids_every_request(opened: Opened) -> None:
    browser = opened(page(ring_all_reduce(3)))
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    blocked = browser.execute_async_script(
        "const done = arguments[0];"
        "fetch('https://example.invalid/').then(() => done(false), () => done(true))"
    )
    assert blocked
    assert all(
        "Content Security Policy" in entry["message"] for entry in browser.get_log("browser")
    )


def test_empty_schedule_opens(opened: Opened) -> None:
    browser = opened(page(Schedule.from_rows(ring_all_reduce(3).topology, [])))
    click(browser, "last")
    assert shown_round(browser) == -1


def test_large_schedule_opens(opened: Opened) -> None:
    servers = 256
    browser = opened(page(ring_all_reduce(servers)))
    click(browser, "last")
    assert browser.execute_script("return gradweave.complete()") == [servers] * servers
    click(browser, "back")
    assert shown_round(browser) == 2 * (servers - 1) - 2


def seconds_on(schedule: Schedule, rate: list[float]) -> Schedule:
    """The schedule on links of other bandwidths."""
    topology = schedule.topology
    given = np.resize(np.array(rate), len(topology.source))
    given = np.maximum(given, given[topology.opposite])
    return schedule.replace(topology=dataclasses.replace(topology, bandwidth_bytes_per_s=given))


def test_green_only_where_rounds_tell_the_time(opened: Opened) -> None:
    schedule = ring_all_reduce(4).replace(bound=StatedBound(6, "cut", computed=True))
    browser = opened(page(schedule))
    badges = (
        "return [...document.querySelectorAll('#facts .badge')]"
        ".map((badge) => [badge.className, badge.textContent])"
    )
    assert ["badge", "optimal in rounds among such schedules"] in browser.execute_script(badges)
    unequal = seconds_on(schedule, [16 * 2.0**30, 73 * 2.0**30])
    for text in (page(unequal), page(schedule, objective="seconds")):
        shown = opened(text).execute_script(badges)
        assert [name for name, words in shown if "above the lower bound" in words] == ["badge gap"]
        assert not [words for name, words in shown if name == "badge"]


def test_seconds_and_bandwidths_are_shown(opened: Opened) -> None:
    schedule = seconds_on(ring_all_reduce(4), [1e9, 4e9])
    browser = opened(page(schedule, gradient_bytes=4e9))
    facts = text(browser, "facts")
    assert "time for 4 GB" in facts and "8 Gbit/s to 32 Gbit/s" in facts
    assert browser.find_element("css selector", "[data-part='bandwidths']").is_displayed()
    browser.execute_script("gradweave.setClock('rounds')")
    click(browser, "forward")
    assert text(browser, "takes").startswith("Takes 1 s; done at 1 s of 6 s")


@pytest.mark.parametrize("width, height", [(1400, 900), (390, 844)], ids=["desktop", "phone"])
def test_play_is_visible_without_scrolling(opened: Opened, width: int, height: int) -> None:
    unequal = seconds_on(ring_all_reduce(6), [1e9, 4e9])
    pages = [
        page(gw.solve("bcube:n=3,k=1").schedule),
        page(unequal, objective="seconds", gradient_bytes=1e8),
        page(ring_all_reduce(40)),
        page(star_all_reduce(6)),
    ]
    for text_ in pages:
        browser = opened(text_)
        try:
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700},
            )
            bottom = "document.getElementById('play').getBoundingClientRect().bottom"
            wait_until(browser, f"{bottom} <= {height}")
            wait_until(browser, f"document.documentElement.scrollWidth <= {width}")
            most = "return parseFloat(document.getElementById('network').style.maxHeight)"
            assert browser.execute_script(most) >= 220
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_measure_that_was_minimised_comes_first(opened: Opened) -> None:
    first = "return document.querySelector('#facts dt').textContent"
    browser = opened(page(ring_all_reduce(4)))
    assert browser.execute_script(first) == "rounds"
    unequal = seconds_on(ring_all_reduce(4), [1e9, 4e9])
    browser = opened(page(unequal, objective="seconds", gradient_bytes=1e8))
    assert browser.execute_script(first) == "time for 100 MB"
    assert "lower bound" not in [
        name.text for name in browser.find_elements("css selector", "#facts dt")
    ]


def test_a_gradient_in_one_piece_is_reduced_and_broadcast(opened: Opened) -> None:
    schedule = Schedule.from_rows(
        ring_topology(3),
        [
            (0, 0, REDUCE, (1, 0)),
            (1, 0, REDUCE, (2, 0)),
            (2, 0, COPY, (0, 1)),
            (3, 0, COPY, (0, 2)),
        ],
        root=[0],
    )
    browser = opened(page(schedule))
    click(browser, "forward")
    assert text(browser, "now") == "Round 0 of 0–3 · reduce"
    click(browser, "last")
    assert text(browser, "now") == "Round 3 of 0–3 · broadcast"
    assert "The gradient is one piece." in text(browser, "prose")


def test_a_frame_in_a_notebook_is_as_tall_as_its_page(opened: Opened) -> None:
    machine = Machine.of({"a": {"go": ("b", 1.0)}, "b": {}}, start="a", final=["b"])
    for shown in (gw.show(ring_all_reduce(4)), gw.show(machine)):
        browser = opened(f"<!doctype html><body>{shown._repr_html_()}</body>")
        frame = browser.find_element("css selector", "iframe")
        wait_until(browser, "document.querySelector('iframe').style.height !== '760px'")
        browser.switch_to.frame(frame)
        over = "document.documentElement.scrollHeight - innerHeight"
        wait_until(browser, f"Math.abs({over}) <= 1")
        browser.switch_to.default_content()


def test_turning_a_phone_leaves_no_wide_page(opened: Opened) -> None:
    schedule = ring_all_reduce(40)
    for text_ in (page(schedule), page(schedule, star_all_reduce(8))):
        browser = opened(text_)
        try:
            for width, height in ((375, 812), (812, 375), (375, 812)):
                browser.execute_cdp_cmd(
                    "Emulation.setDeviceMetricsOverride",
                    {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": True},
                )
                wait_until(browser, f"document.documentElement.scrollWidth === {width}")
                wait_until(browser, f"document.getElementById('timeline').offsetWidth <= {width}")
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_on_a_phone_two_drawings_are_seen_at_once_and_nothing_lies_under_buttons(
    opened: Opened,
) -> None:
    browser = opened(page(ring_all_reduce(8), star_all_reduce(6)))
    boxes = (
        "return ['.network', '.camera'].map((name) => [...document.querySelectorAll(name)]"
        ".map((one) => { const box = one.getBoundingClientRect();"
        " return [box.top, box.bottom, box.left, box.right]; }))"
    )
    try:
        for width, height in ((390, 844), (600, 844), (1400, 900)):
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700},
            )
            wait_until(browser, f"document.documentElement.scrollWidth <= {width}")
            assert browser.execute_script("return innerWidth") == width
            (first, second), buttons = browser.execute_script(boxes)
            if width < 700:
                assert first[1] < second[0] and second[1] - first[0] < height - 110
            else:
                assert first[3] < second[2]
            for drawing, group in zip((first, second), buttons, strict=True):
                assert group[0] >= drawing[1] and group[3] <= width
        assert len(browser.find_elements("css selector", ".player")) == 1
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_zooms_and_moves(opened: Opened) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = opened(page(ring_all_reduce(100)))
    drawing = browser.find_element("id", "network")

    def seen() -> str:
        return browser.execute_script(
            "return document.getElementById('network').getAttribute('viewBox')"
        )

    whole = seen()
    assert "unlabelled" in drawing.get_attribute("class")
    for _ in range(4):
        click(browser, "closer")
    assert "unlabelled" not in drawing.get_attribute("class")
    near = seen()
    body = browser.find_element("tag name", "body")
    body.send_keys(Keys.SHIFT, Keys.ARROW_RIGHT)
    assert len({whole, near, seen()}) == 3
    click(browser, "fit")
    assert seen() == whole
    body.send_keys("+")
    assert seen() != whole
    body.send_keys("0")
    assert seen() == whole


def test_cells_of_a_large_map_tell_apart_what_they_hold(opened: Opened) -> None:
    servers = 128
    browser = opened(page(ring_all_reduce(servers)))
    colours = """
        const canvas = document.getElementById("holdings");
        const { width, height } = canvas, seen = new Set();
        const often = { willReadFrequently: true };
        const copy = new OffscreenCanvas(width, height).getContext("2d", often);
        copy.drawImage(canvas, 0, 0);
        const { data } = copy.getImageData(40, 30, width - 60, height - 60);
        for (let i = 0; i < data.length; i += 4) seen.add(String(data.slice(i, i + 3)));
        return seen.size"""
    assert browser.execute_script(colours) == 1
    browser.execute_script("gradweave.goTo(60)")
    assert browser.execute_script(colours) >= 40
    click(browser, "enlarge")
    box = browser.execute_script(
        "const box = document.querySelector('.matrix'); return [box.scrollWidth, box.clientWidth]"
    )
    assert box[0] > 2 * box[1]


def test_two_schedules_play_in_step(opened: Opened) -> None:
    first, second = ring_all_reduce(4), star_all_reduce(6)
    browser = opened(page(first, second, names=[HOSTILE, "star.json"]))
    assert browser.find_element("id", "differences").is_displayed()
    table = text(browser, "differences-table")
    assert "rounds 6 10 +67%" in table and "star.json" in table
    browser.execute_script("gradweave.goTo(6)")
    headings = browser.find_elements("css selector", "[data-part='now']")
    assert [one.text for one in headings] == [
        "Complete · after 6 rounds",
        "Round 6 of 0–9 · all-gather",
    ]
    click(browser, "last")
    assert shown_round(browser) == 9
    complete = [f"return gradweave.complete(9, {view})" for view in (0, 1)]
    assert browser.execute_script(complete[0]) == [4] * 4
    assert browser.execute_script(complete[1]) == [6] * 6
    assert browser.execute_script("return window.hacked === undefined")


def test_transfers_over_a_bar_have_lanes_of_their_own(opened: Opened) -> None:
    browser = opened(page(star_all_reduce(8)))
    click(browser, "forward")
    assert len(browser.find_elements("css selector", ".bars .bar")) == 1
    heights = browser.execute_script(
        "return [...document.querySelectorAll('.tracks .track')].map((path) =>"
        " path.getAttribute('d').match(/[\\d.]+ [\\d.]+/g)[1].split(' ')[1])"
    )
    assert len(heights) == 8 and len(set(heights)) >= 2


def test_shares_are_as_large_as_they_are(opened: Opened) -> None:
    browser = opened(page(uneven_star(), gradient_bytes=1e9))
    turns = "return [...document.querySelectorAll('g.server')].map((server) =>"
    lengths = browser.execute_script(
        f"{turns} [...server.querySelectorAll('.slice')].map((slice) => slice.getTotalLength()))"
    )
    assert all(large > 2 * small for small, large in lengths)
    table = text(browser, "shares")
    assert "25.0 %" in table and "×0.75" in table and "75.0 %" in table and "×2.25" in table
    assert "1 server roots nothing" in text(browser, "shares-words")
    assert "idle" in text(browser, "use-words")
    page_without = opened(page(ring_all_reduce(4)))
    assert not page_without.find_element("id", "shares-of").is_displayed()
    assert page_without.find_element("id", "use").is_displayed()


def test_a_machine_is_drawn_and_its_names_run_nothing(opened: Opened) -> None:
    from gradweave.automata import Machine
    from gradweave.report.machine_page import machine_page

    moves = {HOSTILE: {"a&b": ("end", 1.0), HOSTILE: (HOSTILE, 1.0)}, "end": {}}
    machine = Machine.of(moves, start=HOSTILE, final=["end"], name=HOSTILE)
    browser = opened(machine_page([(HOSTILE, machine)], HOSTILE, "facts"))
    assert browser.execute_script("return window.hacked") is None
    assert len(browser.find_elements("css selector", "svg.machine g")) == 2
    box = "return document.querySelector('svg.machine rect.final').getBoundingClientRect().width"
    assert browser.execute_script(box) > 20
    labels = [label.text for label in browser.find_elements("css selector", "svg.machine .event")]
    assert "a&b / 1" in labels


def slow_link_ring() -> Schedule:
    """A ring of four of which one link has a quarter of the bandwidth."""
    schedule = ring_all_reduce(4)
    slow = np.where(
        (schedule.topology.source + schedule.topology.target) == 1,
        *(schedule.topology.bandwidth_bytes_per_s / 4, schedule.topology.bandwidth_bytes_per_s),
    )
    return schedule.replace(
        topology=dataclasses.replace(schedule.topology, bandwidth_bytes_per_s=slow)
    )


def test_plays_by_time_where_rounds_do_not_tell_it(opened: Opened) -> None:
    schedule = slow_link_ring()
    browser = opened(page(schedule, gradient_bytes=1e9))
    begin, end = event_seconds(schedule, 1e9)
    assert browser.execute_script("return gradweave.clock()") == "seconds"
    middle = float(end.max()) / 2
    browser.execute_script(f"gradweave.goToTime({middle})")
    under_way = int(((begin <= middle) & (middle < end)).sum())
    assert 0 < under_way < 4
    assert len(browser.find_elements("css selector", ".tracks .transfer")) == under_way
    assert text(browser, "caption").startswith(f"{under_way} transfer")
    for share in (0.2, 0.7, 0.9, 0.4):  # elements of transfers that are over are used again
        now = share * float(end.max())
        browser.execute_script(f"gradweave.goToTime({now})")
        here = (begin <= now) & (now < end)
        for op, kind in enumerate((".transfer:not(.copy)", ".transfer.copy")):
            drawn = browser.find_elements("css selector", f".tracks {kind}")
            assert len(drawn) == int((here & (schedule.op == op)).sum())
        swatches = {f"{schedule.piece[t]}" for t in np.flatnonzero(here)}
        assert {one.text for one in browser.find_elements("css selector", ".dots .dot")} == swatches
    before = browser.execute_script("return gradweave.heldAt(0)")
    assert before == [1] * 16
    click(browser, "last")
    assert len(browser.find_elements("css selector", "g.server.complete")) == 4
    click(browser, "back")
    assert browser.execute_script("return gradweave.now()") < float(end.max())
    browser.execute_script("gradweave.setClock('rounds')")
    assert 0 <= shown_round(browser) < schedule.rounds


def test_by_time_it_arrives_in_the_time_that_is_said(opened: Opened) -> None:
    browser = opened(page(slow_link_ring(), gradient_bytes=1e9))
    browser.execute_script(
        "const speed = document.getElementById('speed'); speed.value = '10';"
        "speed.dispatchEvent(new Event('change'))"
    )
    click(browser, "play")
    wait_until(browser, "gradweave.now() > 0 && gradweave.playing()")
    wait_until(browser, "!gradweave.playing()")
    assert len(browser.find_elements("css selector", "g.server.complete")) == 4


@pytest.mark.parametrize(
    ("topology", "number"),
    [(bcube(3, 1), 2), (gpu_boxes("dgx1v"), 1), (ring(5), 0), (leaf_spine(3, 2, 3), 1)],
    ids=["bars", "bows", "ring", "racks"],
)
def test_pictures_lie_where_the_page_has_them(
    opened: Opened, topology: Topology, number: int
) -> None:
    """The page lays out in the browser what `report.picture` lays out for files."""
    schedule = Ring().schedule(topology)
    browser = opened(page(schedule))
    browser.execute_script(f"gradweave.setClock('rounds'); gradweave.goTo({number})")
    here = browser.execute_script(
        "const g = gradweave.geometry(); return [g.width, g.radius, [...g.x], [...g.y]]"
    )
    geometry = Stage.of(topology, here[0]).geometry
    moved = geometry.at - np.array(here[2:]).T
    assert geometry.radius == pytest.approx(here[1], abs=1e-2)
    assert np.ptp(moved, axis=0).max() < 1e-2
    first, last = schedule.round_offsets[number : number + 2].tolist()
    drawn, _ = ways_of_round(geometry, [schedule.route(t) for t in range(first, last)])
    frames = browser.execute_script(
        "return [...document.querySelectorAll('.frames text')].map((text) =>"
        " [text.textContent, ...['font-size', 'x', 'y'].map((name) => +text.getAttribute(name))])"
    )
    written = [shape for shape in network.frames(geometry).shapes if isinstance(shape, Label)]
    for shape, (name, size, x, y) in zip(written, frames, strict=True):
        middle = (shape.x - x, shape.y - 0.35 * shape.size - y)
        assert shape.text == name and shape.size == pytest.approx(size, abs=1e-2)
        assert middle == pytest.approx(moved[0], abs=1e-2)
    ways = dict(browser.execute_script("return gradweave.ways()"))
    assert sorted(ways) == list(range(first, last))
    for t, way in zip(range(first, last), drawn, strict=True):
        assert np.array(way.points) - moved[0] == pytest.approx(np.array(ways[t]), abs=2e-2)


@pytest.mark.parametrize("pieces", [5, 30])
def test_pictures_have_the_colours_of_the_page(opened: Opened, pieces: int) -> None:
    browser = opened(page(ring_all_reduce(pieces)))
    shown = browser.execute_script(
        """
        const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
        return [...Array(arguments[0]).keys()].map((piece) => {
          context.fillStyle = gradweave.colour(piece);
          context.fillRect(0, 0, 1, 1);
          return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
        });""",
        pieces,
    )
    here = [[int(one[at : at + 2], 16) for at in (1, 3, 5)] for one in piece_colours(pieces)]
    assert np.abs(np.array(shown) - np.array(here)).max() <= 2


def test_an_svg_fits_whatever_is_around_it(opened: Opened) -> None:
    svg = to_svg(Ring().schedule(bcube(3, 1)), round=1)
    browser = opened(
        "<!DOCTYPE html><link rel=icon href=data:,>"
        + "".join(f'<div style="width:{width}px">{svg}</div>' for width in (320, 700, 1400))
    )
    shown = browser.execute_script(
        "return [...document.querySelectorAll('svg')].map((svg) => {"
        " const inside = svg.getBoundingClientRect();"
        " const out = [...svg.querySelectorAll('text')].filter((text) => {"
        "  const box = text.getBoundingClientRect();"
        "  return box.left < inside.left || box.right > inside.right + 1 });"
        " return [Math.round(inside.width), out.length, inside.width / inside.height]; })"
    )
    assert [one[0] for one in shown] == [320, 700, 1000]
    assert [one[1] for one in shown] == [0, 0, 0]
    assert shown[0][2] == pytest.approx(shown[2][2], rel=0.01)
