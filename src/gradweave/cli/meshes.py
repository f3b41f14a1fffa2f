"""Axes of parallel meshes, as options give them."""

from gradweave.common.specification import UNNAMED, parse_spec
from gradweave.errors import OptionError, SpecError


def of_axes(option: str, text: str) -> dict[str, str]:
    """The value of an option per axis, as in ``dp=4,tp=8``.

    Args:
        option: its name, for errors.
        text: its value.

    Raises:
        OptionError: for anything else.
    """
    try:
        values = parse_spec(f"axes:{text}")[1]
    except SpecError:
        values = {UNNAMED: text}
    if UNNAMED in values:
        raise OptionError(f"{option}: expected axes such as dp=4,tp=8, got {text!r:.60}")
    return values


def mesh_axes(text: str) -> dict[str, int]:
    """The ranks along each axis of ``--mesh``.

    Raises:
        OptionError: for anything but axes and numbers.
    """
    return {axis: _count(axis, number) for axis, number in of_axes("--mesh", text).items()}


def _count(axis: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise OptionError(f"--mesh: {axis}: expected a number of ranks, got {text!r:.40}")
    return int(text)
