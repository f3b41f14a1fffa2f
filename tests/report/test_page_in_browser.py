"""The page in a real browser: it plays, steps, counts, and runs nothing out of a schedule."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradweave.report import page
from gradweave.schedule.schedule import COPY, Schedule, StatedBound
from tests.report.small_schedules import ring_all_reduce, star_all_reduce

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
    assert shown_round(browser) == 0
    servers = schedule.topology.num_servers
    assert browser.execute_script("return gradweave.complete()") == [0] * servers
    click(browser, "last")
    assert shown_round(browser) == schedule.rounds
    assert browser.execute_script("return gradweave.complete()") == [schedule.pieces] * servers
    assert len(browser.find_elements("css selector", "g.server.complete")) == servers


def test_counts_as_reduce_scatter_does(opened: Opened) -> None:
    servers = 6
    browser = opened(page(ring_all_reduce(servers)))
    held = np.array(browser.execute_script(f"return gradweave.held({servers - 1})")).reshape(
        servers, servers
    )
    distance = (np.arange(servers)[:, None] - np.arange(servers)[None] - 1) % servers
    assert np.array_equal(held, distance + 1)
    assert browser.execute_script(f"return gradweave.complete({servers - 1})") == [1] * servers


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
    assert browser.execute_script("return gradweave.complete(0)") == [1 if copies else 0] * 5


def test_steps(opened: Opened) -> None:
    browser = opened(page(ring_all_reduce(4)))
    click(browser, "forward")
    assert text(browser, "now") == "Round 1 of 6 · reduce-scatter"
    assert len(browser.find_elements("css selector", ".tracks .transfer")) == 4
    wait_until(browser, "gradweave.progress() === 1")
    click(browser, "forward")
    click(browser, "forward")
    click(browser, "forward")
    assert text(browser, "now") == "Round 4 of 6 · all-gather"
    assert len(browser.find_elements("css selector", ".tracks .transfer.copy")) == 4
    click(browser, "back")
    assert shown_round(browser) == 3
    click(browser, "first")
    click(browser, "back")
    assert shown_round(browser) == 0
    click(browser, "last")
    click(browser, "forward")
    assert shown_round(browser) == 6


def test_plays_and_pauses(opened: Opened) -> None:
    browser = opened(page(ring_all_reduce(4)))
    browser.execute_script(
        "const speed = document.getElementById('speed'); speed.value = '10';"
        "speed.dispatchEvent(new Event('change'))"
    )
    click(browser, "play")
    assert browser.find_element("id", "play").get_attribute("aria-label") == "Pause"
    wait_until(browser, "gradweave.round() >= 2")
    click(browser, "play")
    paused = browser.execute_script("return [gradweave.round(), gradweave.progress()]")
    browser.execute_async_script("setTimeout(arguments[0], 400)")
    assert browser.execute_script("return [gradweave.round(), gradweave.progress()]") == paused
    click(browser, "play")
    wait_until(browser, "gradweave.round() === 6 && !gradweave.playing()")
    assert browser.find_element("id", "play").get_attribute("aria-label") == "Play"


def test_keyboard(opened: Opened) -> None:
    from selenium.webdriver.common.keys import Keys

    browser = opened(page(ring_all_reduce(4)))
    body = browser.find_element("tag name", "body")
    body.send_keys(Keys.ARROW_RIGHT)
    body.send_keys(Keys.ARROW_RIGHT)
    assert shown_round(browser) == 2
    body.send_keys(Keys.ARROW_LEFT)
    assert shown_round(browser) == 1
    body.send_keys(Keys.END)
    assert shown_round(browser) == 6
    body.send_keys(Keys.HOME)
    assert shown_round(browser) == 0
    body.send_keys(Keys.SPACE)
    assert browser.execute_script("return gradweave.playing()")
    body.send_keys(Keys.SPACE)
    assert not browser.execute_script("return gradweave.playing()")
    click(browser, "last")
    browser.find_element("id", "last").send_keys(Keys.ARROW_LEFT)
    assert shown_round(browser) == 5


def test_scrubber_and_timeline(opened: Opened) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = opened(page(ring_all_reduce(4)))
    scrubber = browser.find_element("id", "scrubber")
    scrubber.send_keys(Keys.ARROW_RIGHT)
    assert shown_round(browser) == 1
    assert scrubber.get_attribute("aria-valuetext") == "Round 1 of 6 · reduce-scatter"
    timeline = browser.find_element("id", "timeline")
    ActionChains(browser).move_to_element(timeline).click().perform()
    assert shown_round(browser) == 3


def test_follows_a_piece_and_lists_transfers(opened: Opened) -> None:
    browser = opened(page(ring_all_reduce(5)))
    browser.execute_script("gradweave.goTo(2)")
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
        bound=StatedBound(6, HOSTILE),
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
    assert shown_round(browser) == 0


def test_large_schedule_opens(opened: Opened) -> None:
    servers = 256
    browser = opened(page(ring_all_reduce(servers)))
    click(browser, "last")
    assert browser.execute_script("return gradweave.complete()") == [servers] * servers
    click(browser, "back")
    assert shown_round(browser) == 2 * (servers - 1) - 1
