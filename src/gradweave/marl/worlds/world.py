"""Worlds whose agents cause events: where they move, what happens there, and the team's task.

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
"""How often an action slips: it goes a quarter turn off."""
SIMULATED = 0.3
"""How often an event that needs others happens to an agent that practises alone."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """When an event happens."""

    event: str
    at: Mapping[int, frozenset[int]]
    """Agent -> the cells where it has to be after the step; others may be anywhere."""
    before: Mapping[int, frozenset[int]] = dataclasses.field(default_factory=dict)
    """Agent -> the cells where it has to have been before the step."""
    coin: tuple[float, float] = (0.0, 1.0)
    """Between which a number drawn for the step, the same for all rules, has to be."""
    simulated: bool = True
    """Whether an agent that practises alone has to wait for others who are concerned."""


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """A grid with agents, and a task for them."""

    name: str
    shape: tuple[int, int]
    """Rows and columns; S of their product."""
    agents: tuple[str, ...]
    starts: tuple[int, ...]
    """[A] each agent's first cell."""
    move: NDArray[np.int32]
    """[A, 2, S, 5] the cell after an action, with the agent's door closed and open."""
    opened: NDArray[np.bool_]
    """[A, V] in which states of the team's machine each agent's door is open."""
    rules: tuple[Rule, ...]
    """In the order in which events of one step happen."""
    task: Task
    walls: frozenset[int]
    marks: Mapping[str, frozenset[int]]
    """Cells to show, by what to write on them."""

    @property
    def cells(self) -> int:
        """S."""
        return self.shape[0] * self.shape[1]

    @property
    def events(self) -> tuple[str, ...]:
        """All that can happen."""
        return tuple(dict.fromkeys(rule.event for rule in self.rules))

    @property
    def machine_agents(self) -> list[tuple[str, ...]]:
        """[A] the events that each agent sees."""
        return list(self.task.agents.values())


def built_in(name: str) -> Task:
    """The task of a world that has a file in the package."""
    path = files("gradweave.marl.worlds") / "data" / f"{name}.yaml"
    return task(parse_yaml(path.read_bytes()), name)


def open_in(task: Task, *states: str) -> NDArray[np.bool_]:
    """[V] whether a state of the team's machine is one of those given."""
    return np.array([state in states for state in task.machine.states])
