"""Files of pictures and films: what they hold, and that bad input is refused in one line."""

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from defusedxml import ElementTree

from gradweave.errors import FileError, OptionError
from gradweave.report import to_svg, write_picture
from gradweave.report.picture import scene
from gradweave.report.picture.colours import piece_colours
from gradweave.report.picture.picture import scene_of
from gradweave.report.picture.sheet import Frames
from gradweave.report.picture.terminal import characters
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology
from tests.conformance.made import made
from tests.report.small_schedules import ring_all_reduce, ring_topology, star_all_reduce

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>"


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.quick
def test_svg_of_a_round_has_each_transfer_with_its_piece() -> None:
    schedule = made("bcube:n=3,k=1", "symmetric", "all_reduce")
    svg = to_svg(schedule, round=2)
    root = ElementTree.fromstring(svg)
    layers = {one.get("class"): one for one in root.iter(f"{SVG}g")}
    first, last = schedule.round_offsets[2:4].tolist()
    shown = [one.text for one in layers["pieces"].iter(f"{SVG}text")]
    assert sorted(shown) == sorted(str(piece) for piece in schedule.piece[first:last])
    tracks = "".join(one.get("d") or "" for one in layers["transfers"].iter(f"{SVG}path"))
    assert tracks.count("M") == 2 * (last - first)
    assert texts(svg)[0] == "Round 2 of 0–7 · reduce-scatter"
    assert not [one for one in root.iter() if one.tag in (f"{SVG}script", f"{SVG}style")]


def test_svg_of_a_network_names_its_servers_and_runs_nothing() -> None:
    topology = dataclasses.replace(ring_topology(5, HOSTILE), labels=("a", "<b>", "c", "&d", "\0"))
    svg = to_svg(topology, width=500)
    assert "<script" not in svg
    assert {HOSTILE, "a", "<b>", "c", "&d", r"\x00"} <= set(texts(svg))
    assert ElementTree.fromstring(svg).get("width") == "500"


def test_a_scene_says_the_same_twice() -> None:
    schedule = star_all_reduce(6)
    assert to_svg(schedule, round=1) == to_svg(schedule, round=1)


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_stills(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"still{suffix}"
    write_picture(ring_all_reduce(4), path, round=1, width=300)
    again = tmp_path / f"again{suffix}"
    write_picture(ring_all_reduce(4), again, round=1, width=300)
    data = path.read_bytes()
    assert data == again.read_bytes()
    if suffix == ".png":
        from PIL import Image

        with Image.open(path) as picture:
            assert picture.size[0] == 300
    if suffix == ".pdf":
        assert data.startswith(b"%PDF") and b"/FontFile2" in data  # text is text


@pytest.mark.parametrize("clock", ["rounds", "seconds"])
def test_gif(tmp_path: Path, clock: str) -> None:
    from PIL import Image

    path = tmp_path / "film.gif"
    write_picture(ring_all_reduce(3), path, width=240, clock=clock)  # type: ignore[arg-type]
    durations = []
    with Image.open(path) as film:
        assert film.info["loop"] == 0 and film.size[0] == 240
        white = film.convert("RGB").getpixel((1, 1))
        first = np.asarray(film.convert("RGB"), int)
        for frame in range(film.n_frames):
            film.seek(frame)
            durations.append(film.info["duration"])
        last = np.asarray(film.convert("RGB"), int)
    assert white == (255, 255, 255)
    assert np.abs(first - last).sum() > 0
    expected = 4 * 1.2 + 1.5 if clock == "rounds" else 20 + 1.5
    assert sum(durations) / 1000 == pytest.approx(expected, abs=0.2)


def test_gif_of_one_round(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "round.gif"
    write_picture(ring_all_reduce(3), path, width=240, round=2)
    with Image.open(path) as film:
        assert 8 <= film.n_frames <= 12


@pytest.mark.skipif(
    importlib.util.find_spec("imageio_ffmpeg") is None, reason="imageio-ffmpeg is not installed"
)
def test_mp4(tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    write_picture(ring_all_reduce(3), path, width=240, round=0)
    assert path.read_bytes()[4:8] == b"ftyp"


def test_what_did_not_change_is_painted_once_and_looks_the_same() -> None:
    schedule = star_all_reduce(4)
    first, second = scene_of(schedule, round=0), scene_of(schedule, round=1)
    frames = Frames(300)
    frames.paint(first)
    assert np.array_equal(frames.paint(first), Frames(300).paint(first))
    assert np.array_equal(frames.paint(second), Frames(300).paint(second))


@pytest.mark.parametrize(
    ("shown", "name", "options", "error", "reason"),
    [
        (ring_all_reduce(3), "a.bmp", {}, OptionError, "expected a name ending in .svg"),
        (ring_all_reduce(3), "a.svg", {"round": 4}, OptionError, "expected 0 to 3, got 4"),
        (ring_topology(3), "a.svg", {"round": 0}, OptionError, "it has no rounds"),
        (ring_topology(3), "a.gif", {}, OptionError, "nothing moves"),
        (ring_all_reduce(3), "a.gif", {"round": -1}, OptionError, "expected 0 to 3"),
        (ring_all_reduce(3), "a.png", {"width": 20}, OptionError, "width: expected 200"),
        (ring_all_reduce(3), "a.gif", {"clock": "hours"}, OptionError, "rounds or seconds"),
        (ring_all_reduce(3), "no/a.svg", {}, FileError, "cannot be written"),
    ],
)
def test_refused(
    tmp_path: Path,
    shown: Schedule | Topology,
    name: str,
    options: dict,
    error: type[Exception],
    reason: str,
) -> None:
    with pytest.raises(error, match=reason):
        write_picture(shown, tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene, "MAX_NODES", 4)
    with pytest.raises(OptionError, match="at most 4 nodes, got 5"):
        to_svg(ring_topology(5))


def test_characters_name_servers_and_pieces_in_their_colours() -> None:
    schedule = ring_all_reduce(4)
    rows = characters(scene_of(schedule, round=0), 80)
    plain = "\n".join("".join(cell.text for cell in row) for row in rows)
    assert all(f"({server})" in plain for server in range(4))
    assert max(len(row) for row in rows) <= 80
    colours = {cell.colour for row in rows for cell in row if cell.text in "0123" and cell.colour}
    assert colours == set(piece_colours(4))


def test_pieces_have_colours_of_their_own() -> None:
    assert len(set(piece_colours(100))) == 100
