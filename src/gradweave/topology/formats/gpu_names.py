"""Speeds of the links in a box by the GPU's name, for files that state none.

They are those that NCCL and RCCL assume for such a box, as in `nccl_attributes`, so that a matrix
and a dump of the same box agree. Processors are those of NVIDIA's DGX of that generation.
"""

import re
from typing import NamedTuple

from gradweave.topology.formats.nccl_attributes import nvlink_mb_per_s


class BoxSpeeds(NamedTuple):
    """MB/s of each kind of link in a box."""

    gpu_link: int
    """One NVLink, or one Infinity Fabric link."""
    pcie: int
    """16 lanes."""
    cpus: int
    """Between two processors."""


SPEEDS = {
    "V100": BoxSpeeds(nvlink_mb_per_s(70), 12_000, 6_000),
    "A100": BoxSpeeds(nvlink_mb_per_s(80), 24_000, 16_000),
    "A6000": BoxSpeeds(nvlink_mb_per_s(86), 24_000, 16_000),
    "H100": BoxSpeeds(nvlink_mb_per_s(90), 48_000, 22_000),
    "B200": BoxSpeeds(nvlink_mb_per_s(100), 48_000, 40_000),
    "MI250": BoxSpeeds(36_000, 24_000, 24_000),
    "MI300": BoxSpeeds(48_000, 48_000, 24_000),
}
"""By GPU, or by the first of its generation."""

_NAMES = {
    "V100": r"V100",
    "A100": r"A100|A800|A30",
    "A6000": r"A6000|A5000|A40|RTX 3090",
    "H100": r"GH200|H100|H200|H800|H20",
    "B200": r"G?B[123]00",
    "MI250": r"MI2[0-9]{2}X?",
    "MI300": r"MI3[0-9]{2}[XA]?",
}


def named_gpu(text: str) -> str | None:
    """The key of `SPEEDS` for the first GPU that a text names, or None.

    >>> named_gpu("GPU 0: NVIDIA H200 (UUID: …)"), named_gpu("GPU0 X NV12"), named_gpu("AMD MI300X")
    ('H100', None, 'MI300')
    """
    found = {
        match.start(): gpu
        for gpu, names in _NAMES.items()
        if (match := re.search(rf"(?<![A-Za-z0-9])(?:{names})(?![A-Za-z0-9])", text))
    }
    return found[min(found)] if found else None


def assumed_speeds(gpu: str, why: str, kinds: str) -> str:
    """A sentence that states assumed speeds and their source.

    Args:
        gpu: key of `SPEEDS`.
        why: this GPU was chosen.
        kinds: of the GPU's direct links, ``NVLink`` or ``Infinity Fabric``; empty without any.
    """
    speeds = SPEEDS[gpu]
    direct = f"{speeds.gpu_link / 1000:g} GB/s per {kinds}, " if kinds else ""
    library = "RCCL" if gpu.startswith("MI") else "NCCL"
    return (
        f"it states no speeds: assumed {direct}{speeds.pcie / 1000:g} GB/s for PCIe and "
        f"{speeds.cpus / 1000:g} GB/s between processors, as {library} does for {gpu} ({why})"
    )
