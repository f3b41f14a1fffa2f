"""Films of a schedule: frames, painted one by one, as GIF or MP4."""

import contextlib
import dataclasses
import io
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import RunError
from gradweave.lazy import missing, require
from gradweave.report.picture.moments import ROUND_S, ByRounds, Clock, played, whole_s
from gradweave.report.picture.scene import Scenes, Stage
from gradweave.report.picture.sheet import Frames
from gradweave.schedule.schedule import Schedule

LAST_S = 1.6
"""Seconds for which a film rests at its end, before a GIF begins anew."""
_FRAMES_PER_S = {"gif": 10, "mp4": 30}
"""In a GIF 10 are enough for eyes to follow discs; with 12, a GIF of BCube(4,1) by seconds had more
than 3 MB, which is as much as places that show them take."""
_PALETTE_FRAMES = 6
"""Frames whose colours a GIF has: 255 of them, for the whole film."""

if TYPE_CHECKING:
    from PIL import Image

_WHITE = 248
"""Colours as light as that become white: Pillow looks colours up by their first five bits."""

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class FilmOptions:
    """What a film shows, and how large."""

    clock: Clock
    width: int
    gradient_bytes: float
    round: int | None = None
    """The only round that it shows, if any."""


def gif(schedule: Schedule, options: FilmOptions, progress: Progress) -> bytes:
    """A schedule as an animated GIF that repeats.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OptionError: the network is too large, or there is no such round.
    """
    require("a GIF", "matplotlib")
    from PIL import Image

    rate = _FRAMES_PER_S["gif"]
    sample = _frames(schedule, options, _PALETTE_FRAMES, lambda _: None)
    palette = _palette([Image.fromarray(frame) for frame in sample])
    count = _count(schedule, options, rate)
    # One after another: all at once would take gigabytes where they are wide.
    stills = (
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in _frames(schedule, options, count, progress)
    )
    file = io.BytesIO()
    next(stills).save(
        file,
        "gif",
        save_all=True,
        append_images=stills,
        # Browsers count hundredths of a second.
        duration=[10 * round(100 / rate)] * (count - 1) + [round(1000 * LAST_S)],
        loop=0,
        optimize=True,
    )
    return file.getvalue()


def mp4(schedule: Schedule, options: FilmOptions, progress: Progress) -> bytes:
    """A schedule as an MP4 film (H.264).

    Raises:
        MissingExtraError: matplotlib or imageio-ffmpeg is not installed.
        OptionError: the network is too large, or there is no such round.
    """
    require("an MP4", "matplotlib")
    try:
        import imageio_ffmpeg  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise missing("an MP4", "imageio_ffmpeg") from error
    rate = _FRAMES_PER_S["mp4"]
    frames = _frames(schedule, options, _count(schedule, options, rate), progress)
    frame = next(frames)
    high, wide, _ = frame.shape
    with tempfile.TemporaryDirectory(prefix="gradweave-") as folder:
        path = Path(folder) / "film.mp4"
        # Not by the package's writer, which forks beside JAX's threads.
        raw = f"-f rawvideo -pix_fmt rgb24 -s {wide}x{high} -r {rate} -i -"
        coded = "-an -c:v libx264 -pix_fmt yuv420p -movflags +faststart"
        program = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *raw.split(), *coded.split()]
        with subprocess.Popen([*program, str(path)], stdin=subprocess.PIPE) as writer:
            assert writer.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # its status says why
                writer.stdin.write(frame.tobytes())
                for frame in frames:
                    writer.stdin.write(frame.tobytes())
                for _ in range(round(LAST_S * rate)):
                    writer.stdin.write(frame.tobytes())
        if writer.returncode:
            raise RunError(f"ffmpeg ended with {writer.returncode}; what it said is above")
        return path.read_bytes()


def _count(schedule: Schedule, options: FilmOptions, rate: int) -> int:
    """Frames of a film at its own speed."""
    long = ROUND_S if options.round is not None else whole_s(schedule, options.clock)
    return max(2, round(long * rate))


def _frames(
    schedule: Schedule, options: FilmOptions, count: int, progress: Progress
) -> Iterator[NDArray[np.uint8]]:
    """Frames from a film's begin to its end, [height, width, 3] each, both sides even."""
    stage = Stage.of(schedule.topology, options.width)
    scenes = Scenes.of(stage, schedule)
    shares = np.linspace(0, 1, count).tolist()
    if options.round is None:
        play = played(stage.geometry, schedule, options.clock, options.gradient_bytes)
        moments = play.moments(shares)
    else:
        moments = ByRounds(stage.geometry, schedule, options.gradient_bytes).one(
            options.round, shares
        )
    sheet = Frames(2 * round(options.width / 2))
    for number, moment in enumerate(moments):
        progress(f"drawing frame {number + 1} of {count}")
        yield sheet.paint(scenes.at(moment, bar=True))


def _palette(frames: "list[Image.Image]") -> "Image.Image":
    """A palette for a whole film: that of some of its frames, one below the other."""
    from PIL import Image

    wide, high = frames[0].size
    together = Image.new("RGB", (wide, high * len(frames)))
    for place, frame in enumerate(frames):
        together.paste(frame, (0, place * high))
    palette = together.quantize(255, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    entries = palette.getpalette() or []
    # The sheet stays white, as what is around the film may be; entries are means of colours.
    for at in range(0, len(entries), 3):
        if min(entries[at : at + 3]) >= _WHITE:
            entries[at : at + 3] = [255, 255, 255]
    palette.putpalette(entries)
    return palette
