"""Machines in YAML: a team's task, the events that agents hear, and what the world allows.

::

    start: begin
    final: done                      # or a list
    moves:
      begin: {drain: drained, unlock: open}
      drained: {unlock: ready, press: stuck}
      ready: {press: done}           # or {press: {to: done, reward: 2}}
      stuck: {}                      # states are those named here, final or forbidden
    agents:                          # optional: the events that each sees
      one: [drain, unlock]
      two: [unlock, press]
    causal: G(unlock -> N G !drain)  # optional: a formula, several, or {start, moves, forbidden}
    events: [ring]                   # optional: events that move nothing

A move into a final state is worth 1 and other moves 0 unless a reward is given. An event without a
move leaves the state unchanged.
"""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradweave.automata.formula import MOST_COMPARED, automaton
from gradweave.automata.machine import MOST_STATES, NO_MOVE, Machine
from gradweave.automata.operations import knowledge, product
from gradweave.common.checks import did_you_mean
from gradweave.errors import FileError, GradweaveError
from gradweave.topology.formats.yaml_data import parse_yaml, write_yaml

MAX_BYTES = 1 << 20
"""Largest file read: 1 MiB."""
MOST_EVENTS = 200
MOST_AGENTS = 100
MOST_FORMULAS = 50
"""Maximum number of formulas under ``causal``."""
MOST_REWARD = 1e12
"""Largest absolute reward of a move; sums of larger rewards would be inexact or infinite."""
_FIELDS = ("name", "start", "final", "forbidden", "moves", "events", "agents", "causal")
_LONGEST = 60
"""Maximum number of characters in a name."""
_LISTED = 8
"""Number of events that an error names."""


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """The content of a machine's file."""

    machine: Machine
    agents: dict[str, tuple[str, ...]]
    """Agent -> the events that it hears; empty if the file does not say."""
    causal: Machine | None
    """Automaton of traces that never happen, or None if the file does not say."""


def load_machine(path: str | Path) -> Task:
    """Reads a machine's file. Nothing in it is executed.

    Raises:
        FileError: it cannot be read, or is not a machine; the message is one line.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FileError(
                f"larger than {MAX_BYTES >> 20} MiB; a machine has at most {MOST_STATES:,} states"
            )
        return task(parse_yaml(path.read_bytes()), _name_of(path))
    except GradweaveError as error:
        raise FileError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise FileError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def task(data: Any, name: str = "machine") -> Task:
    """The task that plain data describes, as `load` reads it.

    Raises:
        FileError: the data are not a machine.
    """
    fields = _mapping(data, "the file")
    machine = _machine(fields, _name(fields["name"], "name") if "name" in fields else name)
    agents = _mapping(fields.get("agents", {}), "agents")
    if len(agents) > MOST_AGENTS:
        raise FileError(f"agents: {len(agents):,} of them; a team has at most {MOST_AGENTS}")
    agents = {
        _name(agent, "agent"): tuple(_names(events, f"agents: {agent!s:.60}"))
        for agent, events in agents.items()
    }
    for agent, events in agents.items():
        _check_events(f"agents: {agent} sees", events, machine.events)
    causal = _causal(fields.get("causal"), machine.events)
    _check_events("causal: tells of", causal.events if causal else (), machine.events)
    return Task(machine, agents, causal)


def _name_of(path: Path) -> str:
    """A machine name from a file's name, valid as a name in a machine's file."""
    plain = "".join(each if each.isprintable() else "?" for each in path.stem)
    return plain[:_LONGEST] or "machine"


def read_text(text: str, name: str = "machine") -> Task:
    """The task in a file's text.

    Raises:
        FileError: it is not a machine.
    """
    return task(parse_yaml(text.encode()), name)


def dump(task: Task) -> str:
    """A task as text that `load` can read."""
    data = {"name": task.machine.name, **_fields(task.machine)}
    if task.agents:
        data["agents"] = {agent: list(events) for agent, events in task.agents.items()}
    if task.causal is not None:
        data["causal"] = _fields(task.causal)
    return write_yaml(data)


def _fields(machine: Machine) -> dict[str, Any]:
    """The fields of a file that describe one machine."""
    moves: dict[str, dict[str, Any]] = {state: {} for state in machine.states}
    for state, event in zip(*np.nonzero(machine.next != NO_MOVE), strict=True):
        to, worth = int(machine.next[state, event]), float(machine.reward[state, event])
        after = machine.states[to]
        usual = worth == float(machine.final[to])
        moves[machine.states[state]][machine.events[event]] = (
            after if usual else {"to": after, "reward": worth}
        )
    data: dict[str, Any] = {"start": machine.states[machine.start]}
    for what in ("final", "forbidden"):
        marked = np.flatnonzero(getattr(machine, what))
        if marked.size:
            data[what] = [machine.states[state] for state in marked]
    return data | {"moves": moves, "events": list(machine.events)}


def _machine(fields: Mapping[Any, Any], name: str) -> Machine:
    for field in fields:
        if field not in _FIELDS:
            hint = did_you_mean(str(field), _FIELDS)
            raise FileError(f"{field!r:.60}: unknown; {hint}known are {', '.join(_FIELDS)}")
    for field in ("start", "moves"):
        if field not in fields:
            raise FileError(f"{field}: missing; say {_MISSING[field]}")
    moves, ends = _mapping(fields["moves"], "moves"), _names(fields.get("final", []), "final")
    done = frozenset(ends)
    rows = {_name(state, "state"): _row(row, str(state), done) for state, row in moves.items()}
    never = _names(fields.get("forbidden", []), "forbidden")
    start = _name(fields["start"], "start")
    for state in (*ends, *never):
        rows.setdefault(state, {})
    if len(rows) > MOST_STATES:
        raise FileError(f"{len(rows):,} states; a machine has at most {MOST_STATES:,}")
    events = _names(fields.get("events", []), "events")
    heard = {event for row in rows.values() for event in row}.union(events)
    if len(heard) > MOST_EVENTS:
        raise FileError(f"{len(heard):,} events; a machine has at most {MOST_EVENTS}")
    return Machine.of(rows, start=start, final=ends, forbidden=never, events=events, name=name)


_MISSING = {
    "start": "in which state the machine begins",
    "moves": "where events lead, as `state: {event: state}`",
}


def _row(row: Any, state: str, ends: Collection[str]) -> dict[str, tuple[str, float]]:
    read = {}
    for event, move in _mapping(row or {}, f"moves of {state}").items():
        what = f"move {state:.60} on {event!s:.60}"
        label = _name(event, f"event of {state}")
        if label in read:
            raise FileError(f"{what}: given twice; a machine has one move for each event")
        if isinstance(move, Mapping):
            if set(move) - {"to", "reward"} or "to" not in move:
                raise FileError(f"{what}: expected a state, or {{to: state, reward: number}}")
            to, worth = _name(move["to"], what), move.get("reward")
        else:
            to, worth = _name(move, what), None
        worth = float(to in ends) if worth is None else worth
        number = isinstance(worth, int | float) and not isinstance(worth, bool)
        if not number or not abs(worth) <= MOST_REWARD:
            raise FileError(
                f"{what}: expected a number from -1e12 to 1e12 as its reward, got {worth!r:.60}"
            )
        read[label] = to, float(worth)
    return read


def _causal(given: Any, events: tuple[str, ...]) -> Machine | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        known = _machine(given, "causal")
        if known.reward.any():
            raise FileError(
                "causal: has rewards, or a final state; it says what may happen, give these to the "
                "task"
            )
        return known
    formulas = given if isinstance(given, list) else [given]
    if len(formulas) > MOST_FORMULAS:
        raise FileError(f"causal: {len(formulas):,} formulas; expected at most {MOST_FORMULAS}")
    whole: Machine | None = None
    for formula in formulas:
        if not isinstance(formula, str):
            raise FileError(f"causal: expected a formula, formulas or moves, got {formula!r:.60}")
        one = automaton(formula, events, most_compared=MOST_COMPARED // len(formulas))
        whole = one if whole is None else _both(whole, one)
    return whole


def _both(one: Machine, other: Machine) -> Machine:
    """The traces that both automata allow."""
    pairs = product(one, other)
    never = one.forbidden[pairs.first] | other.forbidden[pairs.second]
    return knowledge(pairs.machine.replace(forbidden=never, name=f"{one.name} & {other.name}"))


def _check_events(who: str, events: tuple[str, ...], known: tuple[str, ...]) -> None:
    for event in events:
        if event not in known:
            listed = ", ".join(known[:_LISTED]) + (", …" if len(known) > _LISTED else "")
            raise FileError(
                f"{who} {event!r}, on which nothing moves; {did_you_mean(event, known)}"
                f"events are {listed}; others are listed under events"
            )


def _mapping(value: Any, what: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise FileError(f"{what}: expected `name: value` pairs, got {value!r:.60}")
    return value


def _names(value: Any, what: str) -> list[str]:
    return [_name(each, what) for each in (value if isinstance(value, list) else [value])]


def _name(value: Any, what: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise FileError(f"{what:.80}: expected a name, got {value!r:.60}")
    text = str(value)
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise FileError(
            f"{what:.80}: expected a name of 1 to {_LONGEST} characters, got {text!r:.60}"
        )
    return text
