"""A headless Chromium, for the tests of the page and for its pictures in the documentation."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
)


def missing() -> str:
    """What is not installed that a browser needs; empty where nothing is missing."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed"
    there = any(map(shutil.which, CHROMIUM)) and shutil.which("chromedriver")
    return "" if there else "no Chromium with chromedriver is installed"


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A Chromium with a profile of its own, driven through the system's chromedriver."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, CHROMIUM)))
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=service)
    try:
        yield browser
    finally:
        browser.quit()
