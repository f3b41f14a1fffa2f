"""Speeds of links as the files of the Internet Topology Zoo state them."""

import re
from collections.abc import Mapping
from typing import Any

from gradweave.errors import SpecError
from gradweave.topology.units import parse_bandwidth

_LABEL = re.compile(r"[0-9.]+ ?([kKMGT]?)(bit/s|bits/s|bps|b/s)")
"""Labels that state one speed and nothing else, in bits; not ``OC-12``, ``10GE`` or ``<1 Gbps``."""


def link_speed(data: Mapping[str, Any]) -> float | None:
    """The bandwidth of an edge without our attributes, in bytes per second, or None if not stated.

    ``LinkSpeedRaw`` is bits per second; ``LinkSpeed`` is a number in the unit of
    ``LinkSpeedUnits`` (``G``); ``LinkLabel`` counts if it is a speed and nothing else.

    Args:
        data: the edge's attributes.

    Raises:
        SpecError: naming the attribute.

    >>> link_speed({"LinkSpeedRaw": 20e6}), link_speed({"LinkLabel": "10 Gbit/s"})
    (2500000.0, 1250000000.0)
    >>> link_speed({"LinkSpeed": "155", "LinkSpeedUnits": "M"}), link_speed({"LinkLabel": "OC-3"})
    (19375000.0, None)
    """
    raw, speed, units = (data.get(key) for key in ("LinkSpeedRaw", "LinkSpeed", "LinkSpeedUnits"))
    label = str(data.get("LinkLabel", "")).strip()
    try:
        if raw is not None:
            return parse_bandwidth(f"{raw}bit/s")
        if speed is not None and units is not None:
            return parse_bandwidth(f"{speed}{units}bit/s")
        return parse_bandwidth(label) if _LABEL.fullmatch(label) else None
    except SpecError as error:
        raise SpecError(f"LinkSpeed: {error}") from None
