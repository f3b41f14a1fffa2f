"""Films of a schedule as GIF or MP4, painted frame by frame."""

import contextlib
import dataclasses
import io
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradweave.common.lazy import missing, require
from gradweave.errors import RunError
from gradweave.processes.owned import temporary_folder
from gradweave.report.picture.moments import ROUND_S, ByRounds, Clock, played, whole_s
from gradweave.report.picture.scene import Scenes, Stage
from gradweave.report.picture.sheet import Frames
from gradweave.schedules.schedule import Schedule

LAST_S = 1.6
"""Seconds for which a film pauses at its end, before a GIF restarts."""
_FRAMES_PER_S = {"gif": 10, "mp4": 30}
"""10 frames per second in a GIF are enough for eyes to follow discs; with 12, a GIF of BCube(4,1)
by seconds exceeded 3 MB, the limit of sites that display them."""
_PALETTE_FRAMES = 6
"""Number of frames from which a GIF's palette of 255 colours is made."""

if TYPE_CHECKING:
    from PIL import Image

_WHITE = 248
"""Colours at least this light become white: Pillow looks colours up by their first five bits."""

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class FilmOptions:
    """Content and size of a film."""

    clock: Clock
    width: int
    gradient_bytes: float
    round: int | None = None
    """The only round to show, if any."""


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
    # One frame at a time: all together would take gigabytes for wide pictures.
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
        # Browsers round durations to hundredths of a second.
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
    with temporary_folder() as folder:
        path = Path(folder) / "film.mp4"
        # The package's writer forks, which is unsafe with JAX's threads.
        raw = f"-f rawvideo -pix_fmt rgb24 -s {wide}x{high} -r {rate} -i -"
        coded = "-an -c:v libx264 -pix_fmt yuv420p -movflags +faststart"
        program = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", *raw.split(), *coded.split()]
        with subprocess.Popen([*program, str(path)], stdin=subprocess.PIPE) as writer:
            assert writer.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # ffmpeg's status tells why
                writer.stdin.write(frame.tobytes())
                for frame in frames:
                    writer.stdin.write(frame.tobytes())
                for _ in range(round(LAST_S * rate)):
                    writer.stdin.write(frame.tobytes())
        if writer.returncode:
            raise RunError(f"ffmpeg ended with {writer.returncode}; what it said is above")
        return path.read_bytes()


def _count(schedule: Schedule, options: FilmOptions, rate: int) -> int:
    """Number of frames of a film at its normal speed."""
    long = ROUND_S if options.round is not None else whole_s(schedule, options.clock)
    return max(2, round(long * rate))


def _frames(
    schedule: Schedule, options: FilmOptions, count: int, progress: Progress
) -> Iterator[NDArray[np.uint8]]:
    """Frames of a film from start to end, [height, width, 3] each, with even height and width."""
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
    """A palette for a whole film, made from some of its frames stacked vertically."""
    from PIL import Image

    wide, high = frames[0].size
    together = Image.new("RGB", (wide, high * len(frames)))
    for place, frame in enumerate(frames):
        together.paste(frame, (0, place * high))
    palette = together.quantize(255, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    entries = palette.getpalette() or []
    # The background stays white like a typical page around it; palette entries are mean colours.
    for at in range(0, len(entries), 3):
        if min(entries[at : at + 3]) >= _WHITE:
            entries[at : at + 3] = [255, 255, 255]
    palette.putpalette(entries)
    return palette
