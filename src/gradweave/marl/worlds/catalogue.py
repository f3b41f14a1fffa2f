"""The worlds by name.

Source: maps, events and starts are those of Corazza et al. 2025 and Neary et al. 2021.
"""

from collections.abc import Callable

import numpy as np

from gradweave.automata.files import Task
from gradweave.automata.machine import MOST_STATES, Machine
from gradweave.common.checks import expected_one_of
from gradweave.errors import OptionError
from gradweave.marl.worlds.grid import Map, moves
from gradweave.marl.worlds.world import Rule, World, built_in, open_in

_GENERATOR = Map(
    (
        "....y....",
        ".2..y..B.",
        "....y....",
        "#####....",
        ".........",
        "...######",
        "...<....A",
        ".C.<.1...",
        "...<.....",
    )
)
_LABORATORY = Map(
    (
        ".....#...#.....",
        ".....#...#...E.",
        ".....#...#.....",
        ".....#...#.....",
        "..1..#####.....",
        ".....C===X..F..",
        "..2..#####.....",
        ".....#...#.....",
        ".....#...#.....",
        ".....#...#.D...",
        ".....#...#.....",
    )
)
_BUTTONS = Map(
    (
        "1.Y#.2.#3.",
        "...#...#..",
        "...#yyy#gg",
        "...#yyy#gg",
        "...#...#..",
        "...#..G...",
        "...#.....R",
        "...#######",
        ".....rrrrF",
        ".....rrrr.",
    )
)
_STARTS = (0, 3, 20, 8, 90, 40, 70, 49, 96, 69)
_GOALS = (97, 79, 29, 99, 9, 70, 40, 50, 69, 80)
_MEETING = 34
MOST_AGENTS = len(_STARTS)
OWN_MACHINE = "own"
"""The value of a game's option ``machine`` that selects the world's built-in machine."""


def generator() -> World:
    """Two agents on 9 × 9 cells; see ``data/generator.yaml``."""
    drawn, task = _GENERATOR, built_in("generator")
    a, b, c = (drawn.cells(mark) for mark in "ABC")
    return World(
        "generator",
        drawn.shape,
        ("one", "two"),
        (drawn.cell("1"), drawn.cell("2")),
        np.stack([moves(drawn), moves(drawn, closed=drawn.cells("y"))]),
        np.stack([open_in(task, "open", "ready", "wasted", "done")] * 2),
        (Rule("a", {0: a}), Rule("b", {1: b}), Rule("c", {0: c})),
        task,
        drawn.cells("#"),
        {"a": a, "b": b, "c": c, "=": drawn.cells("y"), "←": drawn.cells("<")},
    )


def laboratory() -> World:
    """Two agents on 11 × 15 cells; see ``data/laboratory.yaml``."""
    drawn, task = _LABORATORY, built_in("laboratory")
    c, d, e, f, sensor = (drawn.cells(mark) for mark in "CDEFX")
    both = {"c": c, "d": d, "e": e}
    table = moves(drawn, conveyor=drawn.cells("C", "=", "X"), sinks=f)
    opened = ~open_in(task, "begin")
    return World(
        "laboratory",
        drawn.shape,
        ("one", "two"),
        (drawn.cell("1"), drawn.cell("2")),
        np.stack([table] * 2),
        np.stack([opened] * 2),
        (
            Rule("c", {0: c, 1: c}),
            Rule("a", {0: sensor, 1: sensor}, coin=(0.0, 0.5), simulated=False),
            Rule("b", {0: sensor, 1: sensor}, coin=(0.5, 1.0), simulated=False),
            Rule("d", {0: d, 1: d}),
            Rule("e", {0: e, 1: e}),
            Rule("f", {0: f}),
            Rule("f", {1: f}),
        ),
        task,
        drawn.cells("#"),
        {**both, "f": f, "a/b": sensor, "→": drawn.cells("=")},
    )


def buttons() -> World:
    """Three agents on 10 × 10 cells; see ``data/buttons.yaml``."""
    drawn, task = _BUTTONS, built_in("buttons")
    yellow, green, red, goal = (drawn.cells(mark) for mark in "YGRF")
    off = frozenset(range(100)) - red
    return World(
        "buttons",
        drawn.shape,
        ("one", "two", "three"),
        tuple(drawn.cell(mark) for mark in "123"),
        np.stack([moves(drawn, closed=drawn.cells(mark)) for mark in "ryg"]),
        np.stack(
            [
                open_in(task, "red", "done"),
                ~open_in(task, "begin"),
                ~open_in(task, "begin", "yellow"),
            ]
        ),
        (
            Rule("by", {0: yellow}),
            Rule("bg", {1: green}),
            Rule("br", {1: red, 2: red}),
            Rule("a2br", {1: red}),
            Rule("a3br", {2: red}),
            Rule("a2lr", {1: off}),
            Rule("a3lr", {2: off}),
            Rule("g", {0: goal}),
        ),
        task,
        drawn.cells("#"),
        {"by": yellow, "bg": green, "br": red, "g": goal} | {"=": drawn.cells("r", "y", "g")},
    )


def rendezvous(agents: int = 2) -> World:
    """Agents on 10 × 10 cells, which first have to meet and then each go to a separate goal.

    Args:
        agents: 2 to 10.

    Raises:
        OptionError: there are fewer or more, or too many to build the team's machine.
    """
    if not 2 <= agents <= MOST_AGENTS:
        raise OptionError(f"agents: expected 2 to {MOST_AGENTS}, got {agents}")
    drawn = Map(("." * 10,) * 10)
    task = _rendezvous_task(agents)
    meeting = frozenset([_MEETING])
    elsewhere = [frozenset(range(100)) - meeting - {goal} for goal in _GOALS[:agents]]
    each = range(agents)
    rules = [
        Rule("r", {i: meeting for i in each}, before={i: meeting for i in each}),
        *(Rule(f"r{i + 1}", {i: meeting}) for i in each),
        *(Rule(f"l{i + 1}", {i: elsewhere[i]}) for i in each),
        *(Rule(f"g{i + 1}", {i: frozenset([_GOALS[i]])}) for i in each),
    ]
    return World(
        f"rendezvous:agents={agents}",
        drawn.shape,
        tuple(str(i + 1) for i in each),
        _STARTS[:agents],
        np.stack([moves(drawn)] * agents),
        np.ones((agents, len(task.machine.states)), bool),
        tuple(rules),
        task,
        frozenset(),
        {"r": meeting} | {f"g{i + 1}": frozenset([_GOALS[i]]) for i in each},
    )


def _rendezvous_task(agents: int) -> Task:
    """All agents have to be at the meeting point at once (r); then come the goals, in any order."""
    moves: dict[str, dict[str, tuple[str, float]]] = {}
    everybody = (1 << agents) - 1
    for here in range(everybody + 1):
        row, later = {}, {}
        for i in range(agents):
            if here >> i & 1:
                row[f"l{i + 1}"] = (f"met {here & ~(1 << i)}", 0.0)
            else:
                row[f"r{i + 1}"] = (f"met {here | 1 << i}", 0.0)
                there = here | 1 << i
                later[f"g{i + 1}"] = (f"reached {there}", float(there == everybody))
        if here == everybody:
            row["r"] = ("reached 0", 0.0)
        moves[f"met {here}"], moves[f"reached {here}"] = row, later
    assert len(moves) <= MOST_STATES
    done = [f"reached {everybody}"]
    machine = Machine.of(moves, start="met 0", final=done, name=f"rendezvous of {agents}")
    division = {str(i + 1): (f"r{i + 1}", f"l{i + 1}", "r", f"g{i + 1}") for i in range(agents)}
    return Task(machine, division, None)


WORLDS: dict[str, Callable[..., World]] = {
    "generator": generator,
    "laboratory": laboratory,
    "buttons": buttons,
    "rendezvous": rendezvous,
}


def world(name: str, **options: int) -> World:
    """A world by its name.

    Raises:
        OptionError: there is no such world, or its options are invalid.
    """
    if name not in WORLDS:
        raise OptionError(expected_one_of("world", WORLDS, name))
    if options and name != "rendezvous":
        raise OptionError(f"{name}: takes no options, got {', '.join(options)}")
    return WORLDS[name](**options)
