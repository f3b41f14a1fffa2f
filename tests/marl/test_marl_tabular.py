"""Learning in tables, against a simulation in plain Python of the same draws."""

import dataclasses
import functools

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("jaxtyping")

import jax
import jax.numpy as jnp

from gradweave.automata.files import task
from gradweave.automata.machine import NO_MOVE
from gradweave.marl.tabular import testing as of_teams
from gradweave.marl.tabular import transitions
from gradweave.marl.tabular.learners import Learning, explored
from gradweave.marl.tabular.learning import Curve, learn
from gradweave.marl.tabular.tables import Known, known, of_agents, tables
from gradweave.marl.worlds import catalogue
from gradweave.marl.worlds.grid import STAY, Map, moves
from gradweave.marl.worlds.world import Rule, World, open_in

UP, RIGHT, DOWN, LEFT = range(4)
TASK = {
    "start": "begin",
    "final": "done",
    "moves": {
        "begin": {"a": "drained", "c": "open"},
        "drained": {"c": "ready"},
        "open": {"a": "ready", "b": "wasted"},
        "wasted": {},
        "ready": {"b": "late"},
        "late": {"m": "done", "n": "done"},
    },
    "agents": {"one": ["a", "c", "m"], "two": ["b", "c", "m", "n"]},
    "causal": "G(c -> N G !a)",
}


@functools.cache
def small() -> World:
    """Nine cells: a door before B, an event that both cause, two at random, one by either agent."""
    drawn, read = Map(("1.A", "C.D", "2MB")), task(TASK, "small")
    a, b, c, d, m = (drawn.cells(mark) for mark in "ABCDM")
    return World(
        "small",
        drawn.shape,
        ("one", "two"),
        (0, 6),
        np.stack([moves(drawn), moves(drawn, closed=b)]),
        np.stack([open_in(read, "open", "ready", "wasted", "late", "done")] * 2),
        (
            Rule("a", {0: a}),
            Rule("c", {0: c}, before={0: frozenset(range(9)) - c}),
            Rule("c", {1: d}),
            Rule("b", {1: b}),
            Rule("m", {0: a, 1: m}, coin=(0.2, 0.9)),
            Rule("n", {0: a, 1: m}, coin=(0.0, 0.5), simulated=False),
        ),
        read,
        frozenset(),
        {},
    )


CHANCES = np.array([[1, 1, 0, 0, 0.3 * 0.7, 0], [0, 0, 1, 1, 0.3 * 0.7, 0.5]])
"""[A, R] Of each rule's event, for an agent alone: what takes others is met three times in ten."""


def test_chances_of_events_for_agents_alone():
    np.testing.assert_allclose(tables(small(), causal=False).alone.chance, CHANCES, rtol=1e-6)


def parts(world: World, causal: bool) -> list[Known]:
    return of_agents(world.task, world.events, causal=causal)


def test_doors_as_agents_know_of_them():
    """Open for who sees no event of it only where it is in all states that are one to them."""
    world = small()
    for causal in (False, True):
        arrays = tables(world, causal=causal)
        for agent, machine in enumerate(parts(world, causal)):
            for state, plain in enumerate(machine.state):
                name = machine.plain.states[plain]
                closed = any(one in name for one in ("begin", "drained"))
                assert bool(arrays.local_open[agent, state]) == (not closed), name


def boltzmann(values: np.ndarray, sharpness: float, number: float) -> int:
    """An action with a probability of e^(sharpness · value)."""
    weights = np.exp(sharpness * (values - values.max()))
    return min(int((weights.cumsum() / weights.sum() < number).sum()), len(values) - 1)


def slipped(action: int, number: float) -> int:
    """98 in 100 go where they mean to, one a quarter turn to the right and one to the left."""
    if action == STAY or number < 0.98:
        return action
    return (action + (1 if number < 0.99 else -1)) % 4


def events_after(known: Known, state: int, fired: list[str]) -> tuple[int, float]:
    """Where one machine is after a step's events, and what they were worth."""
    total = 0.0
    for event in fired:
        state, worth = known.machine.step(state, event)
        total += worth
    return state, total


class Simulated:
    """One trial's training and tests, in loops."""

    def __init__(self, settings: Learning, causal: bool, central: bool) -> None:
        self.settings, self.central, self.world = settings, central, small()
        world, causal_one = self.world, self.world.task.causal if causal else None
        self.team = known(world.task.machine, causal_one, world.events)
        self.machines = [self.team] if central else parts(world, causal)
        self.open = np.asarray(tables(world, causal=causal).local_open)
        size = max(len(each.state) for each in self.machines)
        shape = (81, size, 25) if central else (9, size, 5)
        self.values = np.zeros((len(self.machines), *shape))
        self.cells = list(world.starts)
        self.states, self.gone = [each.machine.start for each in self.machines], 0

    def ended(self, learner: int, state: int) -> bool:
        known = self.machines[learner]
        return bool(known.machine.final[state] or known.failed[state])

    def update(self, learner: int, here: tuple[int, int], now: int, there: int, fired: list[str]):
        """α towards r + γ max Q′, in every state of the machine, by the values before the step."""
        place, action = here
        old = self.values[learner].copy()
        for state in range(len(self.machines[learner].state)):
            if self.ended(learner, state) or self.ended(learner, now):
                continue
            if not self.settings.counterfactual and state != now:
                continue
            after, worth = events_after(self.machines[learner], state, fired)
            goal = worth + 0.9 * old[there, after].max()
            self.values[learner, place, state, action] += 0.8 * (goal - old[place, state, action])

    def step(self, noise: np.ndarray, explore: float) -> None:
        (self.step_of_team if self.central else self.step_of_agents)(noise, explore)
        ends = [self.ended(i, state) for i, state in enumerate(self.states)]
        failed = [bool(m.failed[s]) for m, s in zip(self.machines, self.states, strict=True)]
        self.gone += 1
        over = all(ends) or self.gone >= self.settings.episode
        for learner, machine in enumerate(self.machines):
            if over or failed[learner]:
                self.states[learner] = machine.machine.start
                for agent in range(2) if self.central else [learner]:
                    self.cells[agent] = self.world.starts[agent]
        self.gone = 0 if over else self.gone

    def step_of_agents(self, noise: np.ndarray, explore: float) -> None:
        for agent, number in enumerate(noise):
            cell, state = self.cells[agent], self.states[agent]
            action = boltzmann(self.values[agent, cell, state], 50.0, number[2])
            action = int(5 * number[1]) if number[0] < explore else action
            door = self.open[agent, state]
            there = int(self.world.move[agent, door, cell, slipped(action, number[3])])
            fired = [
                rule.event
                for r, rule in enumerate(self.world.rules)
                if there in rule.at.get(agent, range(9))
                and cell in rule.before.get(agent, range(9))
                and number[4 + r] < CHANCES[agent, r]
            ]
            self.update(agent, (cell, action), state, there, fired)
            if not self.ended(agent, state):
                self.cells[agent] = there
                self.states[agent], _ = events_after(self.machines[agent], state, fired)

    def step_of_team(self, noise: np.ndarray, explore: float) -> None:
        (number,), (state,) = noise, self.states
        place = 9 * self.cells[0] + self.cells[1]
        actions = list(divmod(boltzmann(self.values[0, place, state], 50.0, number[1]), 5))
        if number[0] < explore:
            actions = [int(5 * number[2 + agent]) for agent in range(2)]
        there, fired = self.moved(self.cells, actions, number[4:6], number[-1], state)
        here = place, 5 * actions[0] + actions[1]
        self.update(0, here, state, 9 * there[0] + there[1], fired)
        self.cells, self.states = there, [events_after(self.team, state, fired)[0]]

    def moved(self, cells, actions, slips, coin: float, state: int) -> tuple[list[int], list[str]]:
        """The whole team's cells after a step, and what happened."""
        world = self.world
        door = [int(world.opened[agent, self.team.state[state]]) for agent in range(2)]
        there = [
            int(world.move[agent, door[agent], cells[agent], slipped(actions[agent], slips[agent])])
            for agent in range(2)
        ]
        fired = [
            rule.event
            for rule in world.rules
            if all(there[agent] in at for agent, at in rule.at.items())
            and all(cells[agent] in at for agent, at in rule.before.items())
            and rule.coin[0] <= coin < rule.coin[1]
        ]
        return there, fired

    def tested(self, draws: np.ndarray) -> int:
        """Steps to the end of the team's task; the most of an episode where it fails."""
        cells, progress = list(self.world.starts), self.team.machine.start
        states = [each.machine.start for each in self.machines]
        for number, draw in enumerate(draws):
            if self.central:
                values = self.values[0, 9 * cells[0] + cells[1], progress]
                actions = list(divmod(boltzmann(values, 50.0, draw[0]), 5))
            else:
                values = [self.values[i, cells[i], states[i]] for i in range(2)]
                actions = [boltzmann(values[i], 50.0, draw[i]) for i in range(2)]
            cells, fired = self.moved(cells, actions, draw[2:4], draw[-1], progress)
            for event in fired:
                progress, _ = self.team.machine.step(progress, event)
                states = [progress] if self.central else self.heard(states, event)
            if any(m.failed[s] for m, s in zip(self.machines, states, strict=True)):
                return self.settings.episode
            if all(self.ended(i, state) for i, state in enumerate(states)):
                return number + 1
        return self.settings.episode

    def heard(self, states: list[int], event: str) -> list[int]:
        """An event moves those who hear it, where all of them have a move for it."""

        def move(agent: int, state: int | None) -> bool:
            plain = self.machines[agent].plain
            if event not in plain.events:
                return False
            column = plain.next[:, plain.events.index(event)]
            if state is None:
                return bool((column != NO_MOVE).any())
            return column[self.machines[agent].state[state]] != NO_MOVE

        hear = [agent for agent in range(2) if move(agent, None)]
        if not all(move(i, states[i]) and not self.ended(i, states[i]) for i in hear):
            return states
        return [
            self.machines[i].machine.step(state, event)[0] if i in hear else state
            for i, state in enumerate(states)
        ]


CASES = {
    "apart, the present state alone": (False, False, 250, {"counterfactual": False}),
    "apart, with causal knowledge and averages": (True, False, 270, {"average_every": 20}),
    "together, with causal knowledge": (True, True, 1200, {}),
}
"""Whether with causal knowledge, whether as one learner, steps, and settings."""
TRIALS, EPISODE, SEED = 4, 50, 7
WEIGHTS = np.array([[0.75, 0.25], [0.5, 0.5]])
"""Of the averages of two teams, each worker's own sum alone 1: so it shows which is whose."""


@pytest.mark.parametrize("name", CASES)
def test_learning_is_that_of_a_simulation_in_loops(name: str):
    causal, central, steps, more = CASES[name]
    settings = Learning(episode=EPISODE, explore=(0.9, 0.2), **more)
    weights = WEIGHTS if settings.average_every else None
    options = {"trials": TRIALS, "seed": SEED}
    options |= {name: True for name, given in (("causal", causal), ("central", central)) if given}
    told = []
    options |= {"progress": lambda done, test: told.append((done, test.tolist()))}
    curve, values = learn(small(), steps=steps, **options, settings=settings, weights=weights)
    teams = [Simulated(settings, causal, central) for _ in range(TRIALS)]
    learners, numbers = (1, 7) if central else (2, 10)
    draw = jax.jit(lambda key, n: jax.random.uniform(jax.random.fold_in(key, n), (TRIALS, 5)))
    expected, testing = [], jax.random.key(0)
    for done in range(0, steps - EPISODE + 1, EPISODE):  # whole episodes alone
        key = jax.random.fold_in(jax.random.key(SEED), done // EPISODE)
        training, testing = jax.random.split(key)
        noise = jax.random.uniform(training, (EPISODE, TRIALS, learners, numbers))
        for number, numbers_of_step in enumerate(np.asarray(noise), done):
            explore = 0.2 + 0.7 * 10 ** (-number / steps)
            for team, each in zip(teams, numbers_of_step, strict=True):
                team.step(each, explore)
            if weights is not None and (number + 1) % 20 == 0:
                for first in (0, 2):
                    pair = np.stack([team.values for team in teams[first : first + 2]])
                    mixed = np.einsum("ij,j...->i...", weights, pair)
                    teams[first].values, teams[first + 1].values = mixed
        draws = np.stack([draw(testing, gone) for gone in range(EPISODE)])
        expected.append([team.tested(draws[:, i]) for i, team in enumerate(teams)])
    for team, found in zip(teams, values, strict=True):
        np.testing.assert_allclose(found, team.values, atol=1e-5)
    assert np.abs(np.asarray(values)).max() > 0.1
    np.testing.assert_array_equal(curve.taken, expected)
    assert told == list(zip(curve.steps.tolist(), curve.taken.tolist(), strict=True))
    if causal:
        assert 1 < curve.taken.min() < EPISODE == curve.taken.max()
    if settings.average_every:  # with less time than the quickest needs nobody is done
        limit = int(curve.taken[-1].min()) - 1
        less = dataclasses.replace(settings, episode=limit)
        found = of_teams.tested(less, tables(small(), causal=causal), central, values, testing)
        assert found.tolist() == [limit] * TRIALS and limit < EPISODE - 1
    np.testing.assert_array_equal(curve.steps, EPISODE * np.arange(1, steps // EPISODE + 1))
    sent = 12 * 2 * 2 * values[0].nbytes  # times, messages among two teams, pairs of teams
    assert curve.sent_bytes == (sent if weights is not None else 0)


def test_the_share_of_random_actions_falls_to_a_tenth_of_the_way():
    settings = Learning(explore=(0.9, 0.1))
    found = [float(explored(settings, jnp.int32(step), 1000)) for step in (0, 500, 1000)]
    assert found == pytest.approx([0.9, 0.1 + 0.8 / np.sqrt(10), 0.1 + 0.08])


def test_actions_are_boltzmanns():
    """Of values 0, log 2 and log 5 at sharpness 1: probabilities 1/8, 2/8 and 5/8."""
    values = jnp.log(jnp.array([1.0, 2.0, 5.0]))
    numbers = jnp.array([0.0, 0.124, 0.126, 0.374, 0.376, 0.999, 1.0])
    found = transitions.drawn(jnp.tile(values, (7, 1)), 1.0, numbers)
    assert found.tolist() == [0, 0, 1, 1, 2, 2, 2]
    sharper = transitions.drawn(values, 2.0, jnp.array(5 / 30 + 0.001))  # 1/30, 4/30, 25/30
    assert int(sharper) == 2


def test_actions_slip_to_either_side():
    actions = jnp.array([UP, UP, UP, LEFT, LEFT, RIGHT, STAY])
    numbers = jnp.array([0.979, 0.985, 0.995, 0.985, 0.995, 0.995, 0.999])
    found = transitions.slipped(actions, numbers).tolist()
    assert found == [UP, RIGHT, LEFT, UP, DOWN, UP, STAY]


def test_places_and_actions_of_a_team_are_one_number():
    cells = jnp.array([[3, 0, 8], [1, 2, 4]])
    assert transitions.joint(cells, 9).tolist() == [3 * 81 + 8, 81 + 18 + 4]
    assert transitions.split(jnp.int32(3 * 81 + 8), 9, 3).tolist() == [3, 0, 8]


def test_an_event_waits_for_all_who_hear_it():
    """In buttons ``br`` is heard by all, and moves them only where each has a move for it."""
    world = catalogue.buttons()
    machines = tables(world, causal=False).agents
    event = world.events.index("br")
    own = parts(world, False)
    moving = [each.plain.over(world.events)[:, event] != NO_MOVE for each in own]
    ready = [int(np.flatnonzero(each)[0]) for each in moving]
    waits = [int(np.flatnonzero(~each)[0]) for each in moving]
    assert transitions.moving(machines, jnp.array(ready), event).tolist() == [True] * 3
    for late in range(3):
        states = [waits[i] if i == late else ready[i] for i in range(3)]
        assert not transitions.moving(machines, jnp.array(states), event).any()
    alone = world.events.index("g")
    heard = [int(np.flatnonzero(own[0].plain.over(world.events)[:, alone] != NO_MOVE)[0]), 0, 0]
    assert transitions.moving(machines, jnp.array(heard), alone).tolist() == [True, False, False]


def test_who_has_failed_is_not_moved_and_holds_others_back():
    """After c agent one knows that a cannot be: a move of the task alone, which none takes."""
    world = small()
    machines = tables(world, causal=True).agents
    event = world.events.index("a")
    ready = np.asarray(machines.may[0, :, event])
    for state in np.flatnonzero(ready):
        found = transitions.moving(machines, jnp.array([state, 0]), event).tolist()
        assert found == [not machines.failed[0, state], False]
    assert machines.failed[0, ready].any() and not machines.failed[0, ready].all()


def test_published_medians():
    taken = np.array([[4, 2, 9], [6, 6, 0], [1, 3, 100]])
    curve = Curve(np.array([1, 2, 3]), taken)
    assert curve.medians(2).tolist() == [4, (4 + 6) / 2, (6 + 3) / 2]
    assert curve.medians().tolist() == [4, 5, 13 / 3]
