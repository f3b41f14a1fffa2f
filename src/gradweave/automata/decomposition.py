"""May a team's task be divided among agents who each see only some events?

The team's machine has to be done exactly when all agents' projections are, on every trace that the
world allows. Machines are deterministic, so this is bisimilarity of the team's machine with the
composition of the projections, where all traces count; with causal knowledge, only those that its
automaton allows.

Source: Neary et al. 2021 (2007.01962), theorem 1; Corazza et al. 2025 (2506.07829).
"""

import dataclasses
import itertools
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from gradweave.automata.machine import Machine
from gradweave.automata.operations import compose, projection
from gradweave.errors import OptionError

MOST_TRIED = 5_000
"""Divisions that the search for the least one tries before it keeps the best it has."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a division is valid."""

    valid: bool
    counterexample: tuple[str, ...] | None
    """A shortest trace after which one side is done and the other is not; None where valid."""
    team_done: bool
    """Whether the team's machine is done after it."""
    agents_done: tuple[bool, ...]
    """Whether each agent's is."""
    explored: int
    """States of all machines together that were visited."""


def check(team: Machine, agents: Sequence[Machine], causal: Machine | None = None) -> Verdict:
    """Whether the agents are all done exactly when the team is, after every trace.

    Args:
        team: the team's machine, with a final state.
        agents: each agent's.
        causal: traces into its forbidden states never happen.

    Raises:
        OptionError: the team's machine has no final state, or the agents' machines together have
            too many states.
    """
    if not team.final.any():
        raise OptionError(f"{team.name}: has no final state, so that nothing is ever done")
    together = compose(agents)
    known = causal or Machine.of({"any": {}}, start="any", name="anything")
    events = tuple(dict.fromkeys((*team.events, *together.events, *known.events)))
    parts = team, together, known
    tables = [part.over(events).tolist() for part in parts]
    start = tuple(part.start for part in parts)
    came: dict[tuple[int, ...], tuple[tuple[int, ...], int] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if team.final[state[0]] != together.final[state[1]]:
            return _refuted(team, agents, _trace(came, state, events), len(came))
        if team.final[state[0]]:
            continue
        for event in range(len(events)):
            moved = [table[at][event] for table, at in zip(tables, state, strict=True)]
            after = tuple(at if to < 0 else to for at, to in zip(state, moved, strict=True))
            if after not in came and not known.forbidden[after[2]]:
                came[after] = state, event
                queue.append(after)
    return Verdict(True, None, False, (), len(came))


def _trace(
    came: Mapping[tuple[int, ...], tuple[tuple[int, ...], int] | None],
    state: tuple[int, ...],
    events: Sequence[str],
) -> tuple[str, ...]:
    trace = []
    step = came[state]
    while step is not None:
        state, event = step
        trace.append(events[event])
        step = came[state]
    return tuple(reversed(trace))


def _refuted(
    team: Machine, agents: Sequence[Machine], trace: tuple[str, ...], explored: int
) -> Verdict:
    ends = replay(agents, trace)
    done = bool(team.final[team.states.index(team.run(trace)[0])])
    return Verdict(
        False,
        trace,
        done,
        tuple(bool(m.final[s]) for m, s in zip(agents, ends, strict=True)),
        explored,
    )


def replay(agents: Sequence[Machine], trace: Sequence[str]) -> tuple[int, ...]:
    """Each agent's state after a trace: an event counts where all who hear it have a move for it.

    Args:
        agents: their machines.
        trace: of events.
    """
    states = [machine.start for machine in agents]
    for event in trace:
        hearing = [i for i, machine in enumerate(agents) if event in machine.events]
        after = {i: int(agents[i].next[states[i], agents[i].events.index(event)]) for i in hearing}
        finished = all(m.final[s] for m, s in zip(agents, states, strict=True))
        if not finished and all(to >= 0 for to in after.values()):
            for i, to in after.items():
                states[i] = to
    return tuple(states)


Division = Mapping[str, Collection[str]]
"""Agent -> the events that it sees."""


def projections(team: Machine, division: Division) -> list[Machine]:
    """Each agent's machine."""
    return [projection(team, events, name) for name, events in division.items()]


@dataclasses.dataclass(frozen=True)
class Least:
    """The fewest events that agents have to see."""

    division: dict[str, tuple[str, ...]]
    told: tuple[tuple[str, str], ...]
    """(agent, event) pairs that were added to what the agents see."""
    hidden: tuple[tuple[str, str], ...]
    """(agent, event) pairs that were taken away."""
    proved: bool
    """Whether no smaller one exists."""


def least(team: Machine, division: Division, causal: Machine | None = None) -> Least | None:
    """The least that agents have to see, from a division that may show too much or too little.

    Where the division is valid, shared events are taken away from agents, as many as can be, but
    each event keeps at least one agent who sees it. Where it is not, as few as can be are told to
    agents who do not see them. Divisions are tried by their number of events, up to `MOST_TRIED`.
    This is about knowing when all is done; who brings an event about has to see it in order to
    learn to, whatever may be hidden otherwise.

    Args:
        team: the team's machine.
        division: what each agent sees.
        causal: traces into its forbidden states never happen.

    Returns:
        None where no division was found to be valid.
    """
    have = [(agent, event) for agent, events in division.items() for event in events]
    valid = check(team, projections(team, division), causal).valid
    tried = 0
    for change in _shrunk(have) if valid else _grown(have, list(division), team.events):
        tried += 1
        now = (set(have) - set(change)) if valid else (set(have) | set(change))
        new = {agent: tuple(e for e in team.events if (agent, e) in now) for agent in division}
        if check(team, projections(team, new), causal).valid:
            return Least(new, () if valid else change, change if valid else (), True)
        if tried >= MOST_TRIED:
            break
    else:
        return None
    return Least({a: tuple(e) for a, e in division.items()}, (), (), False) if valid else None


Pairs = tuple[tuple[str, str], ...]


def _shrunk(have: Sequence[tuple[str, str]]) -> Iterator[Pairs]:
    """What may be taken away, the most first; nothing at last."""
    owners: dict[str, int] = {}
    for _, event in have:
        owners[event] = owners.get(event, 0) + 1
    shared = [pair for pair in have if owners[pair[1]] > 1]
    for number in range(len(shared), -1, -1):
        for away in itertools.combinations(shared, number):
            gone = [event for _, event in away]
            if all(gone.count(event) < owners[event] for event in set(gone)):
                yield away


def _grown(
    have: Sequence[tuple[str, str]], agents: Sequence[str], events: Sequence[str]
) -> Iterator[Pairs]:
    """What may be told, the least first."""
    more = [(agent, event) for agent in agents for event in events if (agent, event) not in have]
    for number in range(1, len(more) + 1):
        yield from itertools.combinations(more, number)
