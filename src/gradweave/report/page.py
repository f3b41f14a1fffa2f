"""The page of a schedule: one HTML file that plays it by rounds or time, and needs no network."""

import base64
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.atomic import atomic_write
from gradweave.errors import OptionError
from gradweave.report.certified import CheckedBound, checked_bounds
from gradweave.report.document import filled, template
from gradweave.report.known_names import known_as
from gradweave.report.layout import bends, draw, node_radius
from gradweave.report.picture.moments import clock_of
from gradweave.report.rounds_bound import rounds_bound
from gradweave.report.short_names import short_names
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.solve.seconds_bound import MAX_TIMED, has_equal_links, timing_of
from gradweave.schedulers.solve.solve import Objective
from gradweave.schedulers.spec import STRATEGIES
from gradweave.simulate.link_use import busiest_links
from gradweave.simulate.seconds import event_seconds, round_seconds, seconds
from gradweave.simulate.traffic import traffic
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_size

GRADIENT_BYTES = 100e6
"""Size of the gradient for which times are predicted where none is given, and no demand has one."""
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
BUSIEST = 10
"""Link directions whose use over time is drawn."""
STRETCHES = 480
"""Equal stretches of time for which a link's use is drawn."""

_SCRIPTS = (
    "model.js",
    "geometry.js",
    "drawing.js",
    "moments.js",
    "camera.js",
    "holdings.js",
    "timeline.js",
    "words.js",
    "use.js",
    "shares.js",
    "view.js",
    "page.js",
)


def shown_bytes(gradient_bytes: float | None, *schedules: Schedule) -> float:
    """The size for which schedules are shown: the one given, a demand's own, or the usual one.

    Raises:
        OptionError: none is given, and two schedules have different ones.
    """
    if gradient_bytes is not None:
        return gradient_bytes
    sizes = [
        GRADIENT_BYTES if one.demand is None else float(one.demand.total_bytes) for one in schedules
    ]
    if len(set(sizes)) > 1:
        raise OptionError(
            "gradient_bytes: expected a size, since the schedules are for "
            f"{' and '.join(map(format_size, sizes))}"
        )
    return sizes[0]


def page(
    schedule: Schedule,
    other: Schedule | None = None,
    *,
    title: str | None = None,
    names: Sequence[str] = (),
    gradient_bytes: float | None = None,
    objective: Objective = "rounds",
) -> str:
    """Makes a self-contained HTML page that plays a schedule, or two side by side.

    The page draws the network, moves each round's transfers, and counts contributions as it goes;
    it says how long each round takes for a gradient's size. It shows what the schedule says and
    does not judge it: `gradweave.verify` does.

    Args:
        schedule: what to play; up to `LIMITS`.
        other: a second schedule, played in step with the first, round by round.
        title: the page's title; the networks' names if not given.
        names: what to call the schedules, such as their files; their schedulers if not given.
        gradient_bytes: size of the whole gradient, for seconds and bytes; `GRADIENT_BYTES` if not
            given, or what the demand comes to.
        objective: what was asked to be small, where the schedule does not tell; the page's badge is
            about that.

    Returns:
        The page.

    Raises:
        OptionError: a schedule is larger than a page can show.
    """
    schedules = [schedule] if other is None else [schedule, other]
    for one in schedules:
        _check_size(one)
    gradient_bytes = shown_bytes(gradient_bytes, *schedules)
    style = template("page.css")
    script = '"use strict";\n{\n' + "\n".join(template(name) for name in _SCRIPTS) + "}\n"
    heading = title or " · ".join(dict.fromkeys(one.topology.name for one in schedules))
    known = [known_as(one.scheduler.name, one.scheduler.options) for one in schedules]
    title = title or " · ".join([heading, *dict.fromkeys(filter(None, known))])
    data = {
        "title": heading,
        "gradientBytes": gradient_bytes,
        "schedules": [
            page_data(one, gradient_bytes, objective, names[place] if names else "")
            for place, one in enumerate(schedules)
        ],
    }
    return filled("page.html", title, style, script, {"data": _json(data)})


def write_page(
    schedule: Schedule,
    path: str | Path,
    other: Schedule | None = None,
    *,
    title: str | None = None,
    names: Sequence[str] = (),
    gradient_bytes: float | None = None,
    objective: Objective = "rounds",
) -> None:
    """Writes a schedule's page to a file; see `page`.

    Raises:
        OptionError: a schedule is larger than a page can show.
        FileError: the file cannot be written.
    """
    text = page(
        schedule,
        other,
        title=title,
        names=names,
        gradient_bytes=gradient_bytes,
        objective=objective,
    )
    atomic_write(path, text.encode("utf-8"))


def page_data(
    schedule: Schedule, gradient_bytes: float, objective: Objective = "rounds", name: str = ""
) -> dict[str, Any]:
    """Everything that the page's script reads of one schedule, columns packed."""
    checked = checked_bounds(schedule)
    bound, proved = rounds_bound(schedule, checked), [one for one in checked if one.holds]
    return {
        "name": name,
        "network": schedule.topology.name,
        "collective": schedule.name,
        "demand": _demand_data(schedule),
        "scheduler": schedule.scheduler.name,
        "known": known_as(schedule.scheduler.name, schedule.scheduler.options),
        "options": _shortened(_options(schedule)),
        "seed": None if schedule.scheduler.seed is None else str(schedule.scheduler.seed),
        "bound": None if bound is None else bound.as_object(),
        "objective": schedule.scheduler.options.get("objective", objective),
        "equalLinks": has_equal_links(schedule.topology),
        "limits": [{"why": one.reason, "links": list(one.links)} for one in proved],
        "time": _times(schedule, gradient_bytes, proved),
        "bytes": float(traffic(schedule, gradient_bytes).link_bytes.sum()),
        "stages": schedule.stages,
        "rounds": schedule.rounds,
        **_network_data(schedule.topology),
        "root": _packed(schedule.root),
        "share": _packed_floats(schedule.share),
        "use": _use(schedule, gradient_bytes),
        "roundOffsets": _packed(schedule.round_offsets),
        "roundSeconds": _packed_floats(round_seconds(schedule, gradient_bytes)),
        "clock": "seconds" if objective == "seconds" else clock_of(schedule),
        **_transfer_data(schedule, gradient_bytes),
    }


def _demand_data(schedule: Schedule) -> dict[str, Any] | None:
    """Who contributes to each piece and who is to have it, one entry a server and piece."""
    if schedule.demand is None:
        return None
    rank = schedule.topology.rank
    sets = {"contributors": schedule.contributors, "destinations": schedule.destinations}
    return {"blocks": len(schedule.demand)} | {
        name: {"rank": _packed(rank[each.servers]), "piece": _packed(each.owner)}
        for name, each in sets.items()
    }


def _network_data(topology: Topology) -> dict[str, Any]:
    """The network as it is drawn, y growing downwards."""
    drawing = draw(topology)
    bandwidths, band = np.unique(topology.bandwidth_bytes_per_s, return_inverse=True)
    return {
        "radius": node_radius(topology, drawing),
        "nodes": {
            "x": _packed_floats(drawing.positions[:, 0]),
            "y": _packed_floats(1 - drawing.positions[:, 1]),
            "wide": _packed_floats(drawing.reach[:, 0]),
            "high": _packed_floats(drawing.reach[:, 1]),
            "server": _packed(topology.is_server),
            "labels": list(topology.labels),
            "names": [topology.id_name(node) for node in range(topology.num_nodes)]
            if topology.labels
            else [],
            "short": short_names(topology) if topology.labels else [],
        },
        "links": {
            "source": _packed(topology.source),
            "target": _packed(topology.target),
            "capacity": _packed(topology.capacity),
            "band": _packed(band),
            "bend": _packed_floats(bends(topology, drawing)),
            "x": _packed_floats(drawing.ends[:, 0]),
            "y": _packed_floats(1 - drawing.ends[:, 1]),
        },
        "frames": {
            "x": [frame.x for frame in drawing.frames],
            "y": [1 - frame.y for frame in drawing.frames],
            **{
                name: [getattr(frame, name) for frame in drawing.frames]
                for name in ("wide", "high", "strip", "below", "label", "short", "level")
            },
        },
        "bands": [format_bandwidth(float(bandwidth)) for bandwidth in bandwidths[: 1 << 12]],
        "bandwidths": bandwidths.tolist(),
    }


def _transfer_data(schedule: Schedule, gradient_bytes: float) -> dict[str, Any]:
    route, route_nodes, route_offsets = _distinct_routes(schedule)
    begin, end = event_seconds(schedule, gradient_bytes)
    return {
        "transfers": {
            "piece": _packed(schedule.piece),
            "source": _packed(schedule.source),
            "target": _packed(schedule.target),
            "op": _packed(schedule.op),
            "route": _packed(route),
            "begin": _packed_floats(begin),
            "end": _packed_floats(end),
        },
        "routes": {"nodes": _packed(route_nodes), "offsets": _packed(route_offsets)},
    }


def _options(schedule: Schedule) -> str:
    """The options that the strategy was not left to choose itself: those not at their defaults."""
    strategy = STRATEGIES.get(schedule.scheduler.name)
    usual = (
        {field.name: field.default for field in dataclasses.fields(strategy)} if strategy else {}
    )
    return ", ".join(
        f"{name}={value}"
        for name, value in schedule.scheduler.options.items()
        if name not in usual or _plain(usual[name]) != _plain(value)
    )


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _times(
    schedule: Schedule, gradient_bytes: float, proved: Sequence[CheckedBound]
) -> dict[str, Any]:
    """Predicted seconds with and without barriers, and the least where it is found quickly."""
    if schedule.demand is None and schedule.topology.num_nodes <= MAX_TIMED:
        timing = timing_of(schedule, gradient_bytes)
        return {
            "events": timing.seconds,
            "barriers": timing.barrier_seconds,
            "least": timing.bound.seconds,
            "why": str(timing.bound),
        }
    events, barriers = (seconds(schedule, gradient_bytes, model) for model in ("events", "rounds"))
    times = {"events": events, "barriers": barriers, "least": None, "why": ""}
    if schedule.demand is not None:
        for one in proved:
            if one.unit == "seconds":
                times |= {"least": float(one.least), "why": one.reason}
    return times


def _use(schedule: Schedule, gradient_bytes: float) -> dict[str, Any]:
    """What the busiest link directions carry when, and when each round's transfers are under way.

    Levels are parts of the bandwidth in 255ths: link by link, reduces then copies, over time.
    """
    uses = busiest_links(schedule, gradient_bytes, BUSIEST)
    begin, end = event_seconds(schedule, gradient_bytes)
    first = np.full(schedule.rounds, np.inf)
    last = np.zeros(schedule.rounds)
    np.minimum.at(first, schedule.round, begin)
    np.maximum.at(last, schedule.round, end)
    levels = np.concatenate([use.levels(STRETCHES).ravel() for use in uses] or [np.zeros(0)])
    return {
        "links": [
            {"link": use.link, "used": use.used, **dataclasses.asdict(use.waits)} for use in uses
        ],
        "stretches": STRETCHES,
        "levels": _packed(np.rint(255 * np.clip(levels, 0.0, 1.0)).astype(np.int64)),
        "seconds": float(end.max(initial=0.0)),
        "roundFirst": _packed_floats(np.where(np.isfinite(first), first, last)),
        "roundLast": _packed_floats(last),
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
    for name, size in sizes.items():
        if size > LIMITS[name]:
            raise OptionError(
                f"the page of a schedule takes at most {LIMITS[name]:,} {name}, got {size:,}; "
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
