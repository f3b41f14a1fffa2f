"""A schedule's page: one HTML file that plays it by rounds or by time and works offline."""

import base64
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.scale import has_equal_links
from gradweave.common.atomic import atomic_write
from gradweave.errors import OptionError
from gradweave.report.certified import CheckedBound, checked_bounds
from gradweave.report.document import filled, template
from gradweave.report.known_names import known_as
from gradweave.report.layout import bends, draw, node_radius
from gradweave.report.picture.moments import clock_of
from gradweave.report.rounds_bound import rounds_bound
from gradweave.report.short_names import short_names
from gradweave.schedulers.solving.solve import Objective
from gradweave.schedulers.solving.timing import MAX_TIMED, timing_of
from gradweave.schedulers.spec import STRATEGIES
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.planned_for import planned_for, stated_bytes
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.link_use import busiest_links
from gradweave.simulator.seconds import event_seconds, round_seconds, seconds
from gradweave.simulator.traffic import traffic
from gradweave.topology.topology import Topology
from gradweave.topology.units import as_size, format_bandwidth, format_size

GRADIENT_BYTES = 100e6
"""Default gradient size for predicted times, if none is given and no demand has one."""
MAX_TRANSFERS = 300_000
"""Largest number of transfers on a page, up to which browsers stay responsive."""
LIMITS = {
    "transfers": MAX_TRANSFERS,
    "nodes": 4_000,
    "link directions": 100_000,
    "rounds": 100_000,
    "servers times pieces": 4_000_000,
    "steps of routes": 5_000_000,
}
"""Largest sizes that a page accepts."""
BUSIEST = 10
"""Number of link directions whose use over time is drawn."""
STRETCHES = 480
"""Number of equal time intervals in the drawing of a link's use."""

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
    "frame.js",
)


def shown_bytes(gradient_bytes: float | str | None, *schedules: Schedule) -> float:
    """The gradient size for which schedules are shown.

    It is the given size, otherwise the size that the schedules are for (a demand's size, or the
    size that a schedule was planned for), otherwise `GRADIENT_BYTES`.

    Raises:
        OptionError: no size is given, and the schedules are for different sizes.
    """
    if gradient_bytes is not None:
        return as_size(gradient_bytes)
    stated = map(stated_bytes, schedules)
    sizes = list(dict.fromkeys(size for size in stated if size is not None))
    if len(sizes) > 1:
        raise OptionError(
            "gradient_bytes: expected a size, since the schedules are for "
            f"{' and '.join(map(format_size, sizes))}"
        )
    return sizes[0] if sizes else GRADIENT_BYTES


def page(
    schedule: ScheduleLike,
    other: ScheduleLike | None = None,
    *,
    title: str | None = None,
    names: Sequence[str] = (),
    gradient_bytes: float | str | None = None,
    objective: Objective = "rounds",
) -> str:
    """Makes a self-contained HTML page that plays a schedule, or two side by side.

    The page draws the network, moves each round's transfers, and counts contributions as it goes.
    It shows how long each round takes for a gradient size. It shows the schedule as it is without
    judging it, which is the task of `gradweave.verifier`.

    Args:
        schedule: the schedule to play, up to `LIMITS`.
        other: a second schedule, played in step with the first, round by round.
        title: the page's title; the networks' names if not given.
        names: names of the schedules, such as their files; their schedulers if not given.
        gradient_bytes: size of the whole gradient, for seconds and bytes; chosen by `shown_bytes`
            if not given.
        objective: the minimised objective, if the schedule does not state it; the page's badge
            refers to it.

    Returns:
        The page.

    Raises:
        OptionError: a schedule is larger than a page can show.
    """
    schedule = as_schedule(schedule)
    other = None if other is None else as_schedule(other)
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
    schedule: ScheduleLike,
    path: str | Path,
    other: ScheduleLike | None = None,
    *,
    title: str | None = None,
    names: Sequence[str] = (),
    gradient_bytes: float | str | None = None,
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
    """All data of one schedule that the page's script reads, with packed columns."""
    checked = checked_bounds(schedule)
    bound, proved = rounds_bound(schedule, checked), [one for one in checked if one.holds]
    asked = planned_for(schedule).objective or objective
    proved.sort(key=lambda one: one.unit != asked)  # the bound on the objective comes first
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
        "objective": asked,
        "equalLinks": has_equal_links(schedule.topology),
        "limits": [{"why": one.reason + one.of_class, "links": list(one.links)} for one in proved],
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
    """The contributors and destinations of each piece, one entry per server and piece."""
    if schedule.demand is None:
        return None
    rank = schedule.topology.rank
    sets = {"contributors": schedule.contributors, "destinations": schedule.destinations}
    return {"blocks": len(schedule.demand)} | {
        name: {"rank": _packed(rank[each.servers]), "piece": _packed(each.owner)}
        for name, each in sets.items()
    }


def _network_data(topology: Topology) -> dict[str, Any]:
    """The network with its drawing, y growing downwards."""
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
    """The strategy's options that are not at their defaults."""
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
    """Predicted seconds with and without barriers, and a lower bound if it is found quickly."""
    if schedule.demand is None and schedule.topology.num_nodes <= MAX_TIMED:
        timing = timing_of(schedule, gradient_bytes)
        return {
            "events": timing.seconds,
            "barriers": timing.barrier_seconds,
            "least": timing.bound.seconds,
            "why": str(timing.bound),
            "holdsFor": timing.bound.holds_for,
        }
    events, barriers = (seconds(schedule, gradient_bytes, model) for model in ("events", "rounds"))
    times = {"events": events, "barriers": barriers, "least": None, "why": "", "holdsFor": ""}
    if schedule.demand is not None:
        for one in proved:
            if one.unit == "seconds":
                why = f"{one.reason}{one.of_class}"
                times |= {"least": float(one.least), "why": why, "holdsFor": one.of_class}
    return times


def _use(schedule: Schedule, gradient_bytes: float) -> dict[str, Any]:
    """The load of the busiest link directions over time, and the time span of each round.

    Levels are parts of the bandwidth in 255ths: by link, reduces then copies, over time.
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
    """Index of each transfer's route among the distinct routes, their nodes, and their offsets."""
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
    """A column of natural numbers, each in as few little-endian bytes as the largest needs."""
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
    """JSON that is safe inside a script element: ASCII without ``<``, ``>`` and ``&``."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _shortened(text: str, most: int = 160) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
