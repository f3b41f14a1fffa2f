"""Drawings of machines as SVG, and a page of them: an agent's view or the world's rules."""

import html
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradweave.automata.machine import NO_MOVE, Machine
from gradweave.common.atomic import atomic_write
from gradweave.errors import OptionError
from gradweave.report.document import static_page

MOST_DRAWN = 200
"""Maximum number of states in a drawing."""
_ACROSS, _DOWN, _HIGH, _EDGE = 190, 96, 17, 46
"""Pixels between columns and rows of states, half a state's height, and the margin."""
_LETTER = 7.6
"""Approximate width of a character in pixels."""
_STYLE = """
.machine { display: block; max-width: 100%; height: auto; margin: 0 0 28px; border-radius: 14px;
  border: 1px solid var(--line); background: var(--card); }
.machine rect { fill: var(--cell); stroke: var(--ink); stroke-width: 1.2; }
.machine .final { fill: var(--good-back); stroke: var(--good); stroke-width: 3; }
.machine .forbidden { fill: none; stroke: var(--warn); stroke-dasharray: 5 4; }
.machine path { fill: none; stroke: var(--muted); stroke-width: 1.2; }
.machine .arrow { fill: var(--muted); stroke: none; }
.machine text { fill: var(--ink); font: 13px var(--sans); text-anchor: middle; }
.machine .event { fill: var(--accent); font-size: 12px; paint-order: stroke; stroke: var(--card);
  stroke-width: 4px; }
"""


def svg(machine: Machine) -> str:
    """Draws a machine: states by their number of events from the start, moves as arrows.

    A final state has a thick green frame, a forbidden state a dashed frame. A move is labelled with
    its event, and with its reward unless that is 0; moves between the same two states share an
    arrow.

    Args:
        machine: up to `MOST_DRAWN` states; unreachable states are left out.

    Raises:
        OptionError: it has more states.
    """
    if len(machine.states) > MOST_DRAWN:
        raise OptionError(
            f"{machine.name}: {len(machine.states)} states; a drawing takes at most {MOST_DRAWN}"
        )
    places = _places(machine)
    width = max(x for x, _ in places.values()) + _ACROSS // 2 + _EDGE
    height = max(y for _, y in places.values()) + _DOWN // 2 + _EDGE // 2
    halves = {state: _half(machine.states[state]) for state in places}
    parts = [
        _arrow(places, halves, one, other, text) for (one, other), text in _labels(machine).items()
    ]
    parts += [_state(machine, state, *place) for state, place in places.items()]
    x, y = places[machine.start]
    half = _half(machine.states[machine.start])
    parts.append(_line(f"M{x - half - 30} {y}L{x - half - 6} {y}", (x - half, y), (1.0, 0.0)))
    label = html.escape(f"machine {machine.name}")
    return (
        f'<svg class="machine" role="img" aria-label="{label}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def machine_page(machines: Sequence[tuple[str, Machine]], title: str, facts: str) -> str:
    """A self-contained page with drawings of machines.

    Args:
        machines: heading and machine for each drawing.
        title: title of the page.
        facts: a line below the title.
    """
    bodies = "".join(f"<h2>{html.escape(head)}</h2>{svg(machine)}" for head, machine in machines)
    summary = f'<p class="hint">{html.escape(facts)}</p>'
    return static_page("machines", "reward machine", title, summary, bodies, _STYLE)


def write_machine_page(
    machines: Sequence[tuple[str, Machine]], path: str | Path, title: str, facts: str = ""
) -> None:
    """Writes `machine_page`.

    Raises:
        OptionError: a machine is too large to draw.
        FileError: the file cannot be written.
    """
    atomic_write(path, machine_page(machines, title, facts).encode("ascii"))


def _places(machine: Machine) -> dict[int, tuple[int, int]]:
    """The centre of each reachable state, in columns by distance from the start."""
    distance, queue = {machine.start: 0}, deque([machine.start])
    while queue:
        state = queue.popleft()
        for to in machine.next[state].tolist():
            if to != NO_MOVE and to not in distance:
                distance[to] = distance[state] + 1
                queue.append(to)
    columns: dict[int, list[int]] = {}
    for state, column in distance.items():
        columns.setdefault(column, []).append(state)
    tallest = max(map(len, columns.values()))
    return {
        state: (
            _EDGE + _ACROSS // 2 + column * _ACROSS,
            _EDGE // 2 + _DOWN // 2 + int((row + (tallest - len(states)) / 2) * _DOWN),
        )
        for column, states in columns.items()
        for row, state in enumerate(states)
    }


def _labels(machine: Machine) -> dict[tuple[int, int], str]:
    """The label of the arrow between each two states."""
    labels: dict[tuple[int, int], list[str]] = {}
    for state in _places(machine):
        for event, name in enumerate(machine.events):
            to, worth = int(machine.next[state, event]), machine.reward[state, event]
            if to != NO_MOVE and (to != state or worth):
                text = f"{name} / {worth:g}" if worth else name
                labels.setdefault((state, to), []).append(text)
    return {pair: ", ".join(texts) for pair, texts in labels.items()}


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:17]}…"


def _half(name: str) -> float:
    """Half the width of a state."""
    return max(22.0, len(_short(name)) * _LETTER / 2 + 9)


def _state(machine: Machine, state: int, x: int, y: int) -> str:
    name = machine.states[state]
    half = _half(name)
    kind = "final" if machine.final[state] else "forbidden" if machine.forbidden[state] else "plain"
    return (
        f'<g><title>{html.escape(name)}</title><rect class="{kind}" x="{x - half:g}" '
        f'y="{y - _HIGH}" width="{2 * half:g}" height="{2 * _HIGH}" rx="{_HIGH}"/>'
        f'<text x="{x}" y="{y + 4.5}">{html.escape(_short(name))}</text></g>'
    )


def _arrow(
    places: dict[int, tuple[int, int]], halves: dict[int, float], one: int, other: int, text: str
) -> str:
    """A curve between two states, bent to one side to keep it apart from the reverse arrow."""
    here, there = np.array(places[one], float), np.array(places[other], float)
    if one == other:
        x, y = here
        tip = (x - 8, y - _HIGH - 2)
        curve = f"M{x + 8:g} {y - _HIGH:g}Q{x + 44:g} {y - _HIGH - 44:g} {tip[0]:g} {tip[1]:g}"
        return _line(curve, tip, (-0.3, 1.0)) + _event(np.array([x, y - _HIGH - 32]), text)
    way = there - here
    length = float(np.hypot(*way)) or 1.0
    aside = np.array([-way[1], way[0]]) / length
    middle = (here + there) / 2 + aside * min(46.0, 0.16 * length + 8)
    start, tip = (
        at + (middle - at) * _share(middle - at, halves[state])
        for at, state in ((here, one), (there, other))
    )
    into = (tip - middle) / (float(np.hypot(*(tip - middle))) or 1.0)
    curve = (
        f"M{start[0]:.1f} {start[1]:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {tip[0]:.1f} {tip[1]:.1f}"
    )
    return _line(curve, tuple(tip), tuple(into)) + _event((here + there) / 4 + middle / 2, text)


def _share(way: np.ndarray, half: float) -> float:
    """Fraction of a way at which it leaves a state's frame."""
    return min(0.8, 1 / max(abs(way[0]) / (half + 4), abs(way[1]) / (_HIGH + 4), 1e-6))


def _line(curve: str, tip: tuple, way: tuple) -> str:
    """A curve and its arrowhead."""
    (x, y), (dx, dy) = tip, way
    left = x - 9 * dx - 4 * dy, y - 9 * dy + 4 * dx
    right = x - 9 * dx + 4 * dy, y - 9 * dy - 4 * dx
    head = f"M{x:.1f} {y:.1f}L{left[0]:.1f} {left[1]:.1f}L{right[0]:.1f} {right[1]:.1f}Z"
    return f'<path d="{curve}"/><path class="arrow" d="{head}"/>'


def _event(at: np.ndarray, text: str) -> str:
    return f'<text class="event" x="{at[0]:.1f}" y="{at[1]:.1f}">{html.escape(text)}</text>'
