"""Machines with arbitrary rewards: the payments to agents, by hand and by brute force."""

import itertools

import numpy as np
import pytest

from gradweave.automata import (
    Machine,
    check,
    minimised,
    product,
    projection,
    projections,
    read_text,
)
from gradweave.automata.decomposition import least
from gradweave.automata.machine import NO_MOVE
from gradweave.automata.operations import compose
from gradweave.errors import FileError, RewardError
from tests.automata.machines import random_division, random_machine
from tests.automata.test_operations import behaviour, naive_groups

OFFICE = """
start: begin
final: end
moves:
  begin: {coffee: has, fall: {to: end, reward: 0}}
  has: {office: {to: end, reward: 1}, fall: {to: end, reward: -3}}
agents: {robot: [coffee, office, fall]}
"""
TRAP = """
start: begin
final: end
moves:
  begin: {coffee: has, fall: {to: fell, reward: -3}}
  has: {office: {to: end, reward: 1}, fall: {to: fell, reward: -3}}
  fell: {}
agents: {robot: [coffee, office, fall]}
"""


def rewarded(rng: np.random.Generator, machine: Machine, rewards: list[float]) -> Machine:
    """A machine whose moves have rewards drawn from these."""
    drawn = rng.choice(rewards, machine.next.shape)
    return machine.replace(reward=np.where(machine.next == NO_MOVE, 0.0, drawn))


@pytest.mark.parametrize("text", [OFFICE, TRAP])
def test_an_agent_that_hears_all_is_paid_as_the_team(text: str):
    task = read_text(text)
    alone = projection(task.machine, task.agents["robot"])
    for trace in itertools.product(task.machine.events, repeat=4):
        assert alone.run(trace) == task.machine.run(trace)
    paid = {("coffee", "office"): 1, ("coffee", "fall"): -3, ("fall",): 0 if text is OFFICE else -3}
    assert {trace: alone.run(trace)[1] for trace in paid} == paid
    assert check(task.machine, [alone]).valid


def prizes(machine: Machine, group: list[int], state: int, events: list[str]) -> set[float]:
    """Rewards of the ends that hidden events may reach from a state, or else from its group."""
    hidden = [n for n, event in enumerate(machine.events) if event not in events]
    found, seen, todo = set(), {state}, [state]
    while todo:
        here = todo.pop()
        for column in hidden:
            to = int(machine.next[here, column])
            if to != NO_MOVE and machine.final[to]:
                found.add(float(machine.reward[here, column]))
            if to != NO_MOVE and to not in seen:
                seen.add(to)
                todo.append(to)
    ends = [
        (float(machine.reward[s, e]), int(machine.next[s, e]))
        for s, e in np.argwhere(machine.next != NO_MOVE).tolist()
    ]
    return found or {r for r, to in ends if machine.final[to] and group[to] == group[state]} or {0}


def payments(machine: Machine, events: list[str]) -> dict[tuple[int, str], set[float]]:
    """All possible payments for each (group of states, event) of a projection."""
    group = naive_groups(machine, events)
    done = {group[state] for state in np.flatnonzero(machine.final)}
    result: dict[tuple[int, str], set[float]] = {}
    for state, column in np.argwhere(machine.next != NO_MOVE).tolist():
        event, to = machine.events[column], int(machine.next[state, column])
        if event in events and group[state] not in done:
            early = group[to] in done and not machine.final[to]
            more = prizes(machine, group, to, events) if early else {0.0}
            worth = {float(machine.reward[state, column]) + prize for prize in more}
            result.setdefault((group[state], event), set()).update(worth)
    return result


def test_a_projection_pays_what_brute_force_pays_or_is_refused():
    rng, refused = np.random.default_rng(5), 0
    for number in range(120):
        machine = random_machine(rng, 6, "abc", 0.4)
        if number % 4:  # otherwise only 1 for the end
            machine = rewarded(rng, machine, [-3.0, 0.0] if number % 2 else [0.0, 0.0, 2.0])
        events = random_division(rng, "abc")[0]
        expected, group = payments(machine, events), naive_groups(machine, events)
        if any(len(worth) > 1 for worth in expected.values()):
            refused += 1
            with pytest.raises(RewardError, match="cannot tell apart") as error:
                projection(machine, events, "one")
            assert "\n" not in str(error.value)
            continue
        part = projection(machine, events, "one")
        place = {root: n for n, root in enumerate(dict.fromkeys(group))}
        for (root, event), worth in expected.items():
            assert [part.step(place[root], event)[1]] == pytest.approx(list(worth))
    assert 5 < refused < 60


def wrongly_paid(team: Machine, agents: list[Machine], trace: tuple[str, ...]) -> bool | None:
    """Whether an agent is paid wrongly for a trace's last event, or None if done differs."""
    state, states, early = team.start, [each.start for each in agents], [0.0] * len(agents)
    idle = [bool(each.final[each.start]) for each in agents]
    wrong = False
    for event in trace:
        if team.final[state]:
            return None
        hear = [n for n, each in enumerate(agents) if event in each.events]
        may = all(agents[n].over([event])[states[n], 0] != NO_MOVE for n in hear)
        state, due = team.step(state, event)
        ends, wrong = bool(team.final[state]), bool(due) and not hear and not team.final[state]
        for n, agent in enumerate(agents):
            was = bool(agent.final[states[n]])
            states[n], paid = agent.step(states[n], event) if may and n in hear else (states[n], 0)
            is_done = bool(agent.final[states[n]])
            if ends and not is_done:
                return None
            if was:
                wrong |= (ends and not idle[n] and due != early[n]) or (
                    not ends and n in hear and due != 0
                )
            elif is_done and not ends:
                early[n] = paid - (due if n in hear else 0)
            else:
                wrong |= paid != (due if ends or n in hear else 0)
        if ends != all(bool(a.final[s]) for a, s in zip(agents, states, strict=True)):
            return None
    return wrong


def test_the_checker_compares_rewards_as_brute_force_does():
    rng, found = np.random.default_rng(6), {"valid": 0, "unpaid": 0}
    while min(found.values()) < 8:
        team = rewarded(rng, random_machine(rng, 4, "abc", 0.5), [-1.0, -1.0, 0.0, 1.0])
        events = [["a", "b"], ["b", "c"]]
        try:
            agents = [projection(team, each) for each in events]
        except RewardError:
            continue
        if rng.random() < 0.2:
            agents[0] = rewarded(rng, agents[0], [-1.0, 0.0])
        verdict = check(team, agents)
        longest = 5 if verdict.valid else len(verdict.counterexample or ())
        shorter = (t for n in range(1, longest) for t in itertools.product("abc", repeat=n))
        assert not any(wrongly_paid(team, agents, trace) for trace in shorter)
        if verdict.unpaid is not None:
            assert verdict.counterexample and wrongly_paid(team, agents, verdict.counterexample)
        found["valid"] += verdict.valid
        found["unpaid"] += verdict.unpaid is not None


def test_a_reward_of_an_event_that_nobody_hears_is_not_paid():
    team = read_text(
        "start: 0\nfinal: 2\nmoves: {0: {a: {to: 1, reward: -2}}, 1: {b: 2}}\nevents: [a, b]\n"
    ).machine
    verdict = check(team, [projection(team, ["b"])])
    assert verdict.counterexample == ("a",) and verdict.unpaid is not None
    assert (verdict.unpaid.agent, verdict.unpaid.team) == (None, -2)
    told = least(team, {"one": ("b",)})
    assert told is not None and told.communicated == (("one", "a"),)
    assert check(team, [projection(team, ["a", "b"])]).valid


def test_an_event_with_a_reward_is_hidden_from_nobody():
    text = "start: 0\nfinal: 2\nmoves: {0: {a: MOVE}, 1: {b: 2}}\n"
    division = {"one": ("a", "b"), "two": ("a", "b")}
    for move, hidden in (("1", {"a", "b"}), ("{to: 1, reward: -2}", {"b"})):
        found = least(read_text(text.replace("MOVE", move)).machine, division)
        assert found is not None and {event for _, event in found.hidden} == hidden


def test_agents_that_cannot_tell_good_from_bad_are_told():
    team = read_text(
        """
        start: begin
        final: end
        moves:
          begin: {good: right, bad: wrong}
          right: {press: {to: end, reward: 2}}
          wrong: {press: {to: end, reward: -2}}
        """
    ).machine
    with pytest.raises(RewardError, match="press in begin,right,wrong pays -2 or 2"):
        projection(team, ["press"])
    first = projection(team, ["good", "bad"])  # is paid for what another will do
    assert first.run(["good"])[1] == 2 and first.run(["bad"])[1] == -2
    told = least(team, {"one": ("good", "bad"), "two": ("press",)})
    assert told is not None and len(told.communicated) == 2
    assert check(team, projections(team, told.division)).valid


def test_a_composition_of_projections_pays_as_the_team_or_is_refused():
    rng, same, refused = np.random.default_rng(7), 0, 0
    while same < 8 or not refused:
        team = rewarded(rng, random_machine(rng, 4, "abc", 0.5), [-1.0, 0.0, 2.0])
        if not team.final[[s for s in range(4) if (team.next == s).any()]].any():
            continue
        try:
            agents = [projection(team, each) for each in (["a", "b", "c"], ["b", "c"])]
            if not check(team, agents).valid:
                continue
            whole = compose(agents)
        except RewardError:
            refused += 1
            continue
        same += 1
        for trace in itertools.product("abc", repeat=5):
            assert whole.run(trace)[1] == pytest.approx(team.run(trace)[1])


def test_parts_that_pay_differently_make_no_machine():
    def of(worth: float) -> Machine:
        return Machine.of({"0": {"a": ("1", worth)}, "1": {"b": ("2", 1.0)}, "2": {}}, start="0")

    assert compose([of(-2), of(-2)]).run("ab")[1] == -1
    with pytest.raises(RewardError, match="parts pay -2 and 3 for a; give these moves the same"):
        compose([of(-2), of(3)])


def test_the_least_equal_machine_keeps_rewards_of_both_signs():
    rng = np.random.default_rng(8)
    for _ in range(20):
        machine = rewarded(rng, random_machine(rng, 6, "ab", 0.7), [-1.0, -1.0, 1.0])
        small = minimised(machine)
        assert behaviour(small, small.start, 7) == behaviour(machine, machine.start, 7)
        told = {behaviour(small, state, 7) for state in range(len(small.states))}
        assert len(told) == len(small.states)
    apart = {"0": {"a": ("1", 0.0), "b": ("2", 0.0)}, "1": {"a": ("3", 2.0)}, "3": {}}
    for worth, states in ((2.0, 3), (-2.0, 4)):
        machine = Machine.of(apart | {"2": {"a": ("3", worth)}}, start="0")
        assert len(minimised(machine).states) == states


def test_knowledge_of_the_world_has_no_rewards():
    world = Machine.of({"p": {"a": ("q", 2.0)}, "q": {}}, start="p", name="world")
    with pytest.raises(RewardError, match="world: says what may happen, and has rewards"):
        product(read_text(OFFICE).machine, world)
    causal = "causal: {start: p, moves: {p: {fall: {to: q, reward: -1}}}, forbidden: q}\n"
    with pytest.raises(FileError, match="causal: has rewards"):
        read_text(OFFICE + causal)
