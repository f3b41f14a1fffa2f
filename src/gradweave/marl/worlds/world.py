"""Worlds whose agents trigger events: their moves, the events, and the team's task.

Source: Corazza et al. 2025 (2506.07829), the generator and the laboratory; Neary et al. 2021
(2007.01962), the rendezvous and the buttons.
"""

import dataclasses
from collections.abc import Mapping
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from gradweave.automata.files import Task, task
from gradweave.topology.formats.yaml_data import parse_yaml

SLIP = 0.02
"""Probability that an action slips and goes a quarter turn off."""
SIMULATED = 0.3
"""Probability of an event that involves other agents, when an agent trains separately."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """The conditions of an event."""

    event: str
    at: Mapping[int, frozenset[int]]
    """Agent -> cells of which it has to be on one after the step; other agents may be anywhere."""
    before: Mapping[int, frozenset[int]] = dataclasses.field(default_factory=dict)
    """Agent -> cells of which it has to be on one before the step."""
    coin: tuple[float, float] = (0.0, 1.0)
    """Range for a random number, which is drawn once per step for all rules."""
    simulated: bool = True
    """Whether the event is random for an agent that trains separately, if it involves other agents.
    """


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """A grid with agents, and a task for them."""

    name: str
    shape: tuple[int, int]
    """Rows and columns, whose product is S."""
    agents: tuple[str, ...]
    starts: tuple[int, ...]
    """[A] initial cell of each agent."""
    move: NDArray[np.int32]
    """[A, 2, S, 5] cell after an action, with the agent's door closed and open."""
    opened: NDArray[np.bool_]
    """[A, V] whether each agent's door is open in each state of the team's machine."""
    rules: tuple[Rule, ...]
    """Rules in the order in which their events occur within a step."""
    task: Task
    walls: frozenset[int]
    marks: Mapping[str, frozenset[int]]
    """Cells to label in a picture, by the label."""

    @property
    def cells(self) -> int:
        """S, the number of cells."""
        return self.shape[0] * self.shape[1]

    @property
    def events(self) -> tuple[str, ...]:
        """All events that can occur."""
        return tuple(dict.fromkeys(rule.event for rule in self.rules))

    @property
    def machine_agents(self) -> list[tuple[str, ...]]:
        """[A] the events that each agent observes."""
        return list(self.task.agents.values())


def built_in(name: str) -> Task:
    """The task of a world, from its file in the package."""
    path = files("gradweave.marl.worlds") / "data" / f"{name}.yaml"
    return task(parse_yaml(path.read_bytes()), name)


def open_in(task: Task, *states: str) -> NDArray[np.bool_]:
    """[V] whether each state of the team's machine is among the given states."""
    return np.array([state in states for state in task.machine.states])
