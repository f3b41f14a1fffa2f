"""May a team's task be divided among agents who each see only some events?

The team's machine has to be done exactly when all agents' projections are, on every trace that the
world allows. Machines are deterministic, so this is bisimilarity of the team's machine with the
composition of the projections, where all traces count; with causal knowledge, only those that its
automaton allows.

Source: Neary et al. 2021 (2007.01962), theorem 1; Corazza et al. 2025 (2506.07829).
"""

import dataclasses
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from gradweave.automata.machine import NO_MOVE, Machine
from gradweave.automata.operations import projection
from gradweave.errors import OptionError

MOST_TRIED = 5_000
"""Divisions that the search for the least one tries before it keeps the best it has."""
MOST_FOLLOWED = 5_000_000
"""Moves of all machines together that a check follows, and as many again a search of the least
division: a check of more is refused, and a search keeps the best it has."""
_SHARE = 10
"""Of a search's moves one check may follow this part; what takes more is left undecided."""
_KEPT_TRACES = 16
"""Counterexamples that are tried on the next division before it is checked."""


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
        OptionError: the team's machine has no final state, or all machines together have more than
            `MOST_FOLLOWED` moves to follow.
    """
    return _checked(team, agents, causal, MOST_FOLLOWED)


def _checked(
    team: Machine, agents: Sequence[Machine], causal: Machine | None, most: int
) -> Verdict:
    if not team.final.any():
        raise OptionError(f"{team.name}: has no final state, so that nothing is ever done")
    known = causal or Machine.of({"any": {}}, start="any", name="anything")
    heard = dict.fromkeys(event for each in (team, *agents, known) for event in each.events)
    events = tuple(heard)
    step = _stepping(team, agents, known, events)
    start: State = (team.start, known.start, *(agent.start for agent in agents))
    came: dict[State, tuple[State, int] | None] = {start: None}
    queue: deque[State] = deque([start])
    while queue:
        state = queue.popleft()
        done = bool(team.final[state[0]])
        if done != _all_done(agents, state[2:]):
            return _refuted(team, agents, _trace(came, state, events), len(came))
        for event in range(0 if done else len(events)):
            after = step(state, event)
            if after not in came and not known.forbidden[after[1]]:
                came[after] = state, event
                queue.append(after)
        if len(came) * len(events) > most:
            raise OptionError(
                f"{team.name:.60}: a check follows more than {most:,} moves of the team, its "
                "agents and what is known, together; take smaller machines"
            )
    return Verdict(True, None, False, (), len(came))


State = tuple[int, ...]
"""Of the team's machine, of what is known, and of each agent's machine."""


def _stepping(
    team: Machine, agents: Sequence[Machine], known: Machine, events: Sequence[str]
) -> Callable[[State, int], State]:
    """What a state becomes by an event; the agents' parts as `compose` has it.

    Their composition itself is not built: most divisions are refuted long before all of it is seen.
    """
    alone = [each.over(events).tolist() for each in (team, known)]
    tables = [each.over(events).tolist() for each in agents]
    hearing = [[n for n, each in enumerate(agents) if event in each.events] for event in events]

    def step(state: State, event: int) -> State:
        after = list(state)
        for place, table in enumerate(alone):
            to = table[state[place]][event]
            after[place] = state[place] if to == NO_MOVE else to
        for agent in hearing[event]:
            to = tables[agent][state[2 + agent]][event]
            if to == NO_MOVE:
                after[2:] = state[2:]
                break
            after[2 + agent] = to
        return tuple(after)

    return step


def _all_done(agents: Sequence[Machine], states: Sequence[int]) -> bool:
    return all(agent.final[state] for agent, state in zip(agents, states, strict=True))


def _trace(
    came: Mapping[State, tuple[State, int] | None],
    state: State,
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
        if not _all_done(agents, states) and all(to >= 0 for to in after.values()):
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
    communicated: tuple[tuple[str, str], ...]
    """(agent, event) pairs that were added to what the agents see."""
    hidden: tuple[tuple[str, str], ...]
    """(agent, event) pairs that were taken away."""
    proved: bool
    """Whether no smaller one exists."""


def least(team: Machine, division: Division, causal: Machine | None = None) -> Least | None:
    """The least that agents have to see, from a division that may show too much or too little.

    Where the division is valid, shared events are taken away from agents, as many as can be, but
    each event keeps at least one agent who sees it. Where it is not, as few as can be are
    communicated to agents who do not see them. Divisions are tried by their number of events, up to
    `MOST_TRIED`. This is about knowing when all is done; who brings an event about has to see it in
    order to learn to, whatever may be hidden otherwise.

    Args:
        team: the team's machine.
        division: what each agent sees.
        causal: traces into its forbidden states never happen.

    Returns:
        None where no division was found to be valid.
    """
    have = [(agent, event) for agent, events in division.items() for event in events]
    search = _Search(team, causal)
    valid = check(team, projections(team, division), causal).valid
    for change in _shrunk(have) if valid else _grown(have, list(division), team.events):
        now = (set(have) - set(change)) if valid else (set(have) | set(change))
        new = {agent: tuple(e for e in team.events if (agent, e) in now) for agent in division}
        if search.finds_valid(new):
            proved = not search.undecided
            return Least(new, () if valid else change, change if valid else (), proved)
        if search.exhausted:
            break
    else:
        return None
    return Least({a: tuple(e) for a, e in division.items()}, (), (), False) if valid else None


class _Search:
    """Divisions of one team's machine, checked one after the other.

    Most are refuted by a trace that refuted another one, and agents' machines come again and again:
    both are kept.
    """

    def __init__(self, team: Machine, causal: Machine | None) -> None:
        self._team, self._causal = team, causal
        self._machines: dict[tuple[str, ...], Machine] = {}
        self._traces: list[tuple[tuple[str, ...], bool]] = []
        self._tried = self._followed = 0
        self.undecided = False
        """Whether there was a division whose machines are too large together."""

    @property
    def exhausted(self) -> bool:
        """Whether no more should be tried."""
        return self._tried >= MOST_TRIED or self._followed >= MOST_FOLLOWED

    def finds_valid(self, division: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether a division is valid; not where that takes too much to say."""
        self._tried += 1
        agents = [self._machine(events) for events in division.values()]
        if any(self._refutes(number, agents) for number in range(len(self._traces))):
            return False
        try:
            verdict = _checked(self._team, agents, self._causal, MOST_FOLLOWED // _SHARE)
        except OptionError:
            self.undecided = True
            self._followed += MOST_FOLLOWED // _SHARE
            return False
        self._followed += verdict.explored * max(1, len(self._team.events))
        if verdict.counterexample is not None:
            self._traces.insert(0, (verdict.counterexample, verdict.team_done))
            del self._traces[_KEPT_TRACES:]
        return verdict.valid

    def _machine(self, events: tuple[str, ...]) -> Machine:
        if events not in self._machines:
            self._machines[events] = projection(self._team, events)
            self._followed += int((self._team.next != NO_MOVE).sum())
        return self._machines[events]

    def _refutes(self, number: int, agents: Sequence[Machine]) -> bool:
        """Whether a trace tells the team from these agents; if so, it is the next to be tried."""
        trace, team_done = self._traces[number]
        ends = replay(agents, trace)
        if team_done == _all_done(agents, ends):
            return False
        self._traces.insert(0, self._traces.pop(number))
        return True


Pairs = tuple[tuple[str, str], ...]


def _shrunk(have: Sequence[tuple[str, str]]) -> Iterator[Pairs]:
    """What may be taken away, the most first; nothing at last."""
    owners = Counter(event for _, event in have)
    shared = [pair for pair in have if owners[pair[1]] > 1]
    spare = {event: number - 1 for event, number in owners.items() if number > 1}
    for number in range(sum(spare.values()), -1, -1):
        yield from _choices(shared, spare, number)


def _choices(
    pairs: Sequence[tuple[str, str]], spare: Mapping[str, int], number: int
) -> Iterator[Pairs]:
    """As many pairs, of each event at most those that can be spared, in the pairs' order.

    Those of `itertools.combinations` that leave each event to somebody; the others, which are
    nearly all where many events are shared, are not gone through.
    """
    left = Counter(event for _, event in pairs)
    free, chosen, place = Counter(spare), [], 0
    possible = sum(min(left[event], free[event]) for event in left)
    while True:
        if len(chosen) == number:
            yield tuple(pairs[taken] for taken in chosen)
        elif len(chosen) + possible >= number:  # what is left over is enough
            event = pairs[place][1]
            possible -= min(left[event], free[event])
            left[event] -= 1
            if free[event]:
                free[event] -= 1
                chosen.append(place)
            possible += min(left[event], free[event])
            place += 1
            continue
        if not chosen:
            return
        last = chosen.pop()  # the last one taken is passed over
        for event in (pairs[at][1] for at in range(last + 1, place)):
            possible -= min(left[event], free[event])
            left[event] += 1
            possible += min(left[event], free[event])
        event = pairs[last][1]
        possible -= min(left[event], free[event])
        free[event] += 1
        possible += min(left[event], free[event])
        place = last + 1


def _grown(
    have: Sequence[tuple[str, str]], agents: Sequence[str], events: Sequence[str]
) -> Iterator[Pairs]:
    """What may be communicated, the least first."""
    held = frozenset(have)
    more = [(agent, event) for agent in agents for event in events if (agent, event) not in held]
    for number in range(1, len(more) + 1):
        yield from itertools.combinations(more, number)
