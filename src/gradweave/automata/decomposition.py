"""Whether a team's task can be divided among agents that each hear only some events.

The team's machine must be done exactly when all agents' projections are, on every trace that the
world allows. Machines are deterministic, so if all traces count, this is bisimilarity of the team's
machine with the composition of the projections. With causal knowledge, only the traces that its
automaton allows count. Agents must also be paid the rewards of the team's machine; see `rewards`.

Source: Neary et al. 2021 (2007.01962), theorem 1; Corazza et al. 2025 (2506.07829).
"""

import dataclasses
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from gradweave.automata.machine import NO_MOVE, Machine
from gradweave.automata.operations import projection
from gradweave.automata.rewards import Owed, Unpaid, owed
from gradweave.errors import OptionError, RewardError

MOST_TRIED = 5_000
"""Number of divisions that the search for the smallest tries before it returns its best."""
MOST_FOLLOWED = 5_000_000
"""Moves of all machines together that a check follows; a larger check is rejected. A search for the
smallest division follows as many again and then returns its best."""
_SHARE = 10
"""A single check may follow one part in this many of a search's moves; beyond, it is undecided."""
_KEPT_TRACES = 16
"""Counterexamples that are tried on the next division before it is checked."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a division is valid."""

    valid: bool
    counterexample: tuple[str, ...] | None
    """A shortest trace after which only one side is done, or whose last event is paid differently;
    It is None if the division is valid."""
    team_done: bool
    """Whether the team's machine is done after it."""
    agents_done: tuple[bool, ...]
    """Whether each agent's machine is done after it."""
    explored: int
    """States of all machines together that were visited."""
    unpaid: Unpaid | None = None
    """The reward that differs for the counterexample's last event, or None if the sides differ in
    who is done."""


def check(team: Machine, agents: Sequence[Machine], causal: Machine | None = None) -> Verdict:
    """Whether, after every trace, all agents are done exactly when the team is, and paid the same.

    Each reward before the task's end must be paid to all agents that hear its event, and at least
    one agent must hear it. The reward for the end must be paid to all agents, each when that
    agent's part ends.

    Args:
        team: the team's machine, with a final state.
        agents: each agent's machine.
        causal: an automaton; traces into its forbidden states never happen.

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
    begun: Owed = tuple(None if each.final[each.start] else 0.0 for each in agents)
    start: Node = (team.start, known.start, *(each.start for each in agents)), begun
    came: dict[Node, tuple[Node, int] | None] = {start: None}
    queue: deque[Node] = deque([start])
    while queue:
        node = queue.popleft()
        state = node[0]
        done = bool(team.final[state[0]])
        if done != _all_done(agents, state[2:]):
            return _refuted(team, agents, _trace(came, node, events), len(came))
        for event in range(0 if done else len(events)):
            after, paid = step(node, event)
            if known.forbidden[after[1]]:
                continue
            if isinstance(paid, Unpaid):
                trace = (*_trace(came, node, events), events[event])
                return dataclasses.replace(_refuted(team, agents, trace, len(came)), unpaid=paid)
            if (after, paid) not in came:
                came[after, paid] = node, event
                queue.append((after, paid))
        if len(came) * len(events) > most:
            raise OptionError(
                f"{team.name:.60}: a check follows more than {most:,} moves of the team, its "
                "agents and what is known, together; take smaller machines"
            )
    return Verdict(True, None, False, (), len(came))


State = tuple[int, ...]
"""States of the team's machine, of the causal automaton, and of each agent's machine."""
Node = tuple[State, Owed]


def _stepping(
    team: Machine, agents: Sequence[Machine], known: Machine, events: Sequence[str]
) -> Callable[[Node, int], tuple[State, Owed | Unpaid]]:
    """Returns a function from a node and an event to the next node; agents move as in `compose`.

    Their composition is not built: most divisions are refuted long before all of it is seen.
    """
    alone = [each.over(events).tolist() for each in (team, known)]
    tables = [each.over(events).tolist() for each in agents]
    hearing = [[n for n, each in enumerate(agents) if event in each.events] for event in events]
    rewards = [_rewards_over(each, events) for each in (team, *agents)]
    final = [each.final.tolist() for each in (team, *agents)]
    nothing = [0.0] * len(agents)

    def step(node: Node, event: int) -> tuple[State, Owed | Unpaid]:
        state, before = node
        after, paid = list(state), nothing.copy()
        for place, table in enumerate(alone):
            to = table[state[place]][event]
            after[place] = state[place] if to == NO_MOVE else to
        for agent in hearing[event]:
            to = tables[agent][state[2 + agent]][event]
            if to == NO_MOVE:
                after[2:], paid = state[2:], nothing
                break
            after[2 + agent] = to
            paid[agent] = rewards[1 + agent][state[2 + agent]][event]
        was_done = [final[1 + n][at] for n, at in enumerate(state[2:])]
        is_done = [final[1 + n][at] for n, at in enumerate(after[2:])]
        done = was_done, is_done, final[0][after[0]]
        if done[2] != all(is_done):  # this counts before any difference in payment
            return tuple(after), before
        return tuple(after), owed(before, paid, hearing[event], rewards[0][state[0]][event], done)

    return step


def _rewards_over(machine: Machine, events: Sequence[str]) -> list[list[float]]:
    """[S][F] the reward of each of the given events; 0 for events that are not heard."""
    column = {event: number for number, event in enumerate(machine.events)}
    padded = np.pad(machine.reward, ((0, 0), (0, 1)))
    return padded[:, [column.get(event, -1) for event in events]].tolist()


def _all_done(agents: Sequence[Machine], states: Sequence[int]) -> bool:
    return all(agent.final[state] for agent, state in zip(agents, states, strict=True))


def _trace(
    came: Mapping[Node, tuple[Node, int] | None],
    node: Node,
    events: Sequence[str],
) -> tuple[str, ...]:
    trace = []
    step = came[node]
    while step is not None:
        node, event = step
        trace.append(events[event])
        step = came[node]
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
    """Each agent's state after a trace: an event counts if all agents that hear it have a move.

    Args:
        agents: their machines.
        trace: a sequence of events.
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
"""Agent -> the events that it hears."""


def projections(team: Machine, division: Division) -> list[Machine]:
    """The machine of each agent."""
    return [projection(team, events, name) for name, events in division.items()]


@dataclasses.dataclass(frozen=True)
class Least:
    """A division with the fewest events that agents must hear."""

    division: dict[str, tuple[str, ...]]
    communicated: tuple[tuple[str, str], ...]
    """(agent, event) pairs that were added."""
    hidden: tuple[tuple[str, str], ...]
    """(agent, event) pairs that were removed."""
    proved: bool
    """Whether no smaller division exists."""


def least(team: Machine, division: Division, causal: Machine | None = None) -> Least | None:
    """The fewest events that agents must hear, starting from a division with too many or too few.

    If the division is valid, as many shared events as possible are removed. At least one agent
    keeps hearing each event, and an event with a reward before the end is never removed. If the
    division is invalid, as few events as possible are communicated to agents that do not hear
    them. Divisions are tried in order of their number of events, up to `MOST_TRIED`. Only knowing
    when everything is done is considered: in order to learn, an agent that causes an event should
    hear it, even if it could be hidden.

    Args:
        team: the team's machine.
        division: the events that each agent hears.
        causal: an automaton; traces into its forbidden states never happen.

    Returns:
        None if no valid division was found.
    """
    have = [(agent, event) for agent, events in division.items() for event in events]
    search = _Search(team, causal)
    try:
        valid = check(team, projections(team, division), causal).valid
    except RewardError:  # agents that hear more events may know their rewards
        valid = False
    paid = (team.next != NO_MOVE) & ~team.final[team.next] & (team.reward != 0)
    kept = {event for event, pays in zip(team.events, paid.any(0), strict=True) if pays}
    spare = [(agent, event) for agent, event in have if event not in kept]
    for change in _shrunk(spare) if valid else _grown(have, list(division), team.events):
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

    Two caches make this fast: traces that refuted earlier divisions, since one of them also refutes
    most later divisions, and machines by the events that they hear, since these recur.
    """

    def __init__(self, team: Machine, causal: Machine | None) -> None:
        self._team, self._causal = team, causal
        self._machines: dict[tuple[str, ...], Machine | None] = {}
        self._traces: list[tuple[tuple[str, ...], bool]] = []
        self._tried = self._followed = 0
        self.undecided = False
        """Whether some division had machines that are too large together."""

    @property
    def exhausted(self) -> bool:
        """Whether the search should stop."""
        return self._tried >= MOST_TRIED or self._followed >= MOST_FOLLOWED

    def finds_valid(self, division: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether a division is valid; False if that takes too long to decide."""
        self._tried += 1
        machines = [self._machine(events) for events in division.values()]
        agents = [machine for machine in machines if machine is not None]
        if len(agents) < len(machines):
            return False
        if any(self._refutes(number, agents) for number in range(len(self._traces))):
            return False
        try:
            verdict = _checked(self._team, agents, self._causal, MOST_FOLLOWED // _SHARE)
        except OptionError:
            self.undecided = True
            self._followed += MOST_FOLLOWED // _SHARE
            return False
        self._followed += verdict.explored * max(1, len(self._team.events))
        if verdict.counterexample is not None and verdict.unpaid is None:
            self._traces.insert(0, (verdict.counterexample, verdict.team_done))
            del self._traces[_KEPT_TRACES:]
        return verdict.valid

    def _machine(self, events: tuple[str, ...]) -> Machine | None:
        """An agent's machine, or None if its events do not determine its rewards."""
        if events not in self._machines:
            self._followed += int((self._team.next != NO_MOVE).sum())
            try:
                self._machines[events] = projection(self._team, events)
            except RewardError:
                self._machines[events] = None
        return self._machines[events]

    def _refutes(self, number: int, agents: Sequence[Machine]) -> bool:
        """Whether a trace refutes the agents; if so, it is the first to try next time."""
        trace, team_done = self._traces[number]
        ends = replay(agents, trace)
        if team_done == _all_done(agents, ends):
            return False
        self._traces.insert(0, self._traces.pop(number))
        return True


Pairs = tuple[tuple[str, str], ...]


def _shrunk(have: Sequence[tuple[str, str]]) -> Iterator[Pairs]:
    """Sets of pairs that may be removed, the largest first and the empty set last."""
    owners = Counter(event for _, event in have)
    shared = [pair for pair in have if owners[pair[1]] > 1]
    spare = {event: number - 1 for event, number in owners.items() if number > 1}
    for number in range(sum(spare.values()), -1, -1):
        yield from _choices(shared, spare, number)


def _choices(
    pairs: Sequence[tuple[str, str]], spare: Mapping[str, int], number: int
) -> Iterator[Pairs]:
    """All sets of `number` pairs that remove each event at most as often as it can be spared.

    These are the results of `itertools.combinations` that leave each event to some agent, without
    generating the others, which are almost all if many events are shared.
    """
    left = Counter(event for _, event in pairs)
    free, chosen, place = Counter(spare), [], 0
    possible = sum(min(left[event], free[event]) for event in left)
    while True:
        if len(chosen) == number:
            yield tuple(pairs[taken] for taken in chosen)
        elif len(chosen) + possible >= number:  # enough pairs remain
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
        last = chosen.pop()  # skip the pair taken last
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
    """Sets of pairs that may be communicated, the smallest first."""
    held = frozenset(have)
    more = [(agent, event) for agent in agents for event in events if (agent, event) not in held]
    for number in range(1, len(more) + 1):
        yield from itertools.combinations(more, number)
