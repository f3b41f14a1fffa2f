"""Random machines, and what brute force says of them."""

from collections.abc import Iterable, Sequence

import numpy as np

from gradweave.automata import Machine, projection

GENERATOR = """
start: begin
final: done
moves:
  begin: {a: drained, c: open}
  drained: {c: ready}
  open: {a: ready, b: wasted}
  wasted: {}
  ready: {b: done}
agents: {one: [a, c], two: [b, c]}
causal: G(c -> N G !a)
"""


def random_machine(rng: np.random.Generator, states: int, events: str, share: float) -> Machine:
    """With a final state, and a move for about a share of states and events."""
    moves: dict[str, dict[str, tuple[str, float]]] = {str(state): {} for state in range(states)}
    last = str(states - 1)
    for state in range(states - 1):
        for event in events:
            if rng.random() < share:
                to = str(rng.integers(states))
                moves[str(state)][event] = (to, float(to == last))
    return Machine.of(moves, start="0", final=[last], events=events, name="random")


def random_automaton(rng: np.random.Generator, events: str) -> Machine:
    """Three states, of which the last is forbidden."""
    moves: dict[str, dict[str, tuple[str, float]]] = {"0": {}, "1": {}, "2": {}}
    for state in "01":
        for event in events:
            if rng.random() < 0.5:
                moves[state][event] = (str(rng.integers(3)), 0.0)
    return Machine.of(moves, start="0", forbidden=["2"], events=events, name="allowed")


def random_division(rng: np.random.Generator, events: str) -> list[list[str]]:
    """Two agents' events; each event has one who sees it."""
    owners = [rng.integers(1, 4) for _ in events]
    return [[e for e, who in zip(events, owners, strict=True) if who & bit] for bit in (1, 2)]


def brute_force(
    team: Machine, division: Iterable[Sequence[str]], causal: Machine | None, longest: int
) -> tuple[str, ...] | None:
    """A shortest trace that tells team and agents apart, by trying all of them, one by one."""
    agents = [projection(team, events) for events in division]
    starts = tuple(each.states[each.start] for each in agents)
    allowed = causal or Machine.of({"any": {}}, start="any")
    traces = [((), team.states[team.start], starts, allowed.states[allowed.start])]
    for _ in range(longest + 1):
        longer = []
        for trace, state, states, where in traces:
            if _ends(team, state) != all(map(_ends, agents, states)):
                return trace
            for event in team.events:
                there = _moves(allowed, where).get(event, where)
                if not allowed.forbidden[allowed.states.index(there)]:
                    after = _together(agents, states, event)
                    to = _moves(team, state).get(event, state)
                    longer.append(((*trace, event), to, after, there))
        traces = longer
    return None


def _moves(machine: Machine, state: str) -> dict[str, str]:
    row = machine.next[machine.states.index(state)].tolist()
    return {e: machine.states[to] for e, to in zip(machine.events, row, strict=True) if to >= 0}


def _ends(machine: Machine, state: str) -> bool:
    return bool(machine.final[machine.states.index(state)])


def _together(agents: Sequence[Machine], states: tuple[str, ...], event: str) -> tuple[str, ...]:
    """Agents' states after an event that counts where all who hear it have a move for it."""
    if all(map(_ends, agents, states)):
        return states
    after = [
        _moves(each, here).get(event, "") if event in each.events else here
        for each, here in zip(agents, states, strict=True)
    ]
    return tuple(after) if all(after) else states
