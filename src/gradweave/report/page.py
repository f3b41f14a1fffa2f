"""The page of a schedule: one HTML file that plays it round by round and needs no network."""

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.atomic import atomic_write
from gradweave.errors import OptionError
from gradweave.report.layout import bends, layout, node_radius
from gradweave.schedule.schedule import Schedule

MAX_TRANSFERS = 300_000
"""Largest number of transfers that a page takes; browsers stay responsive up to it."""
LIMITS = {
    "transfers": MAX_TRANSFERS,
    "nodes": 4_000,
    "link directions": 100_000,
    "rounds": 100_000,
    "servers times pieces": 4_000_000,
    "steps of routes": 5_000_000,
}
"""Largest sizes that a page takes."""

_SCRIPTS = (
    "model.js",
    "geometry.js",
    "drawing.js",
    "holdings.js",
    "timeline.js",
    "words.js",
    "page.js",
)
_TEMPLATE = files("gradweave.report") / "template"


def page(schedule: Schedule, *, title: str | None = None) -> str:
    """Makes a self-contained HTML page that plays a schedule.

    The page draws the network, moves each round's transfers, and counts contributions as it goes.
    It shows what the schedule says and does not judge it: `gradweave.verify` does.

    Args:
        schedule: what to play; up to `LIMITS`.
        title: the page's title; the network's name if not given.

    Returns:
        The page.

    Raises:
        OptionError: the schedule is larger than a page can show.
    """
    _check_size(schedule)
    style = _template("page.css")
    script = '"use strict";\n{\n' + "\n".join(_template(name) for name in _SCRIPTS) + "}\n"
    title = title or schedule.topology.name
    parts = {
        "title": _ascii(html.escape(title)),
        "policy": "; ".join(
            (
                "default-src 'none'",
                f"script-src '{_digest(script)}'",
                f"style-src '{_digest(style)}'",
                "img-src data:",
                "base-uri 'none'",
                "form-action 'none'",
            )
        ),
        "style": style,
        "script": script,
        "data": _json(page_data(schedule, title)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _template("page.html"))


def write_page(schedule: Schedule, path: str | Path, *, title: str | None = None) -> None:
    """Writes a schedule's page to a file; see `page`.

    Raises:
        OptionError: the schedule is larger than a page can show.
        FileError: the file cannot be written.
    """
    atomic_write(path, page(schedule, title=title).encode("utf-8"))


def page_data(schedule: Schedule, title: str) -> dict[str, Any]:
    """Everything that the page's script reads, columns packed."""
    topology = schedule.topology
    positions = layout(topology)
    route, route_nodes, route_offsets = _distinct_routes(schedule)
    return {
        "title": title,
        "network": topology.name,
        "collective": schedule.collective,
        "scheduler": schedule.scheduler.name,
        "options": _shortened(
            ", ".join(f"{name}={value}" for name, value in schedule.scheduler.options.items())
        ),
        "seed": None if schedule.scheduler.seed is None else str(schedule.scheduler.seed),
        "bound": None
        if schedule.bound is None
        else {"rounds": schedule.bound.rounds, "kind": schedule.bound.kind},
        "stages": schedule.stages,
        "rounds": schedule.rounds,
        "radius": node_radius(topology, positions),
        "nodes": {
            "x": _packed_floats(positions[:, 0]),
            "y": _packed_floats(1 - positions[:, 1]),
            "server": _packed(topology.is_server),
            "labels": list(topology.labels),
        },
        "links": {
            "source": _packed(topology.source),
            "target": _packed(topology.target),
            "capacity": _packed(topology.capacity),
            "bend": _packed_floats(bends(topology, positions)),
        },
        "root": _packed(schedule.root),
        "roundOffsets": _packed(schedule.round_offsets),
        "transfers": {
            "piece": _packed(schedule.piece),
            "source": _packed(schedule.source),
            "target": _packed(schedule.target),
            "op": _packed(schedule.op),
            "route": _packed(route),
        },
        "routes": {"nodes": _packed(route_nodes), "offsets": _packed(route_offsets)},
    }


def _check_size(schedule: Schedule) -> None:
    topology = schedule.topology
    sizes = {
        "transfers": schedule.num_transfers,
        "nodes": topology.num_nodes,
        "link directions": len(topology.source),
        "rounds": schedule.rounds,
        "servers times pieces": topology.num_servers * schedule.pieces,
        "steps of routes": len(schedule.route_nodes),
    }
    for what, size in sizes.items():
        if size > LIMITS[what]:
            raise OptionError(
                f"the page of a schedule takes at most {LIMITS[what]:,} {what}, got {size:,}; "
                "show a smaller network"
            )


def _distinct_routes(
    schedule: Schedule,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Index of each transfer's route among the distinct routes; their nodes; their offsets."""
    known: dict[bytes, int] = {}
    index = np.empty(schedule.num_transfers, np.int64)
    offsets = schedule.route_offsets.tolist()
    for transfer in range(schedule.num_transfers):
        nodes = schedule.route_nodes[offsets[transfer] : offsets[transfer + 1]].tobytes()
        index[transfer] = known.setdefault(nodes, len(known))
    lengths = np.array([len(nodes) // 4 for nodes in known], np.int64)
    route_nodes = np.frombuffer(b"".join(known), np.int32)
    return index, route_nodes, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _packed(column: NDArray) -> dict[str, str]:
    """A column of natural numbers, each in the fewest little-endian bytes that hold the largest."""
    largest = int(column.max()) if column.size else 0
    kind = "u1" if largest < 1 << 8 else "u2" if largest < 1 << 16 else "u4"
    return {
        "kind": kind,
        "base64": base64.b64encode(column.astype("<" + kind).tobytes()).decode("ascii"),
    }


def _packed_floats(column: NDArray) -> dict[str, str]:
    return {
        "kind": "f4",
        "base64": base64.b64encode(column.astype("<f4").tobytes()).decode("ascii"),
    }


def _json(value: object) -> str:
    """JSON that can stand inside a script element: ASCII without ``<``, ``>`` and ``&``."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _shortened(text: str, most: int = 160) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _digest(text: str) -> str:
    """The hash by which a content security policy admits an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode(
        "ascii"
    )


def _template(name: str) -> str:
    return (_TEMPLATE / name).read_text(encoding="utf-8").replace("\r\n", "\n")
