"""The pictures of the page in the documentation, and a film: ``python -m benchmarks.page_images``.

Needs Chromium with its driver. Schedules are computed with fixed seeds; the pictures show the
present output of `gradweave show`.
"""

import tempfile
from pathlib import Path

import gradweave as gw
from gradweave.report import write_page, write_picture
from tests.report.browser import chromium

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SCALE = 1.5
"""Pixels of the picture per pixel of the page."""
PICTURES = (
    ("page.png", ("bcube:n=4,k=1",), 4, (1280, 900)),
    ("page_boxes.png", ("a100:boxes=2",), 0, (1280, 900)),
    ("page_two.png", ("bcube:n=3,k=1", "bcube:n=3,k=1"), 2, (1280, 1100)),
)
"""File, networks, round, and window size."""
FILM = ("bcube3.gif", "bcube:n=3,k=1", 420)
"""File, network, and width."""


def main() -> None:
    """Writes every picture, and the film."""
    film, network, width = FILM
    made = gw.schedulers.Symmetric().schedule(gw.topology.from_spec(network))
    write_picture(made, IMAGES / film, width=width)
    with tempfile.TemporaryDirectory() as folder:
        with chromium(Path(folder) / "profile") as browser:
            browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
            for name, networks, round_, (width, height) in PICTURES:
                path = Path(folder) / "page.html"
                write_page(*_schedules(networks, path))
                size = {"width": width, "height": height, "deviceScaleFactor": SCALE}
                browser.execute_cdp_cmd(
                    "Emulation.setDeviceMetricsOverride", {**size, "mobile": False}
                )
                browser.get(path.as_uri())
                browser.execute_script(f"gradweave.goTo({round_})")
                browser.save_screenshot(str(IMAGES / name))


def _schedules(networks: tuple[str, ...], path: Path) -> tuple:
    """Arguments of `write_page`: the symmetric schedule, and the ring's beside it."""
    strategies = (gw.schedulers.Symmetric(), gw.schedulers.Ring())
    first, *others = (
        gw.solve(gw.topology.from_spec(network), schedulers=[strategy]).schedule
        for network, strategy in zip(networks, strategies, strict=False)
    )
    return first, path, *others


if __name__ == "__main__":
    main()
