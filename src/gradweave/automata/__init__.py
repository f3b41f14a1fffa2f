"""Reward machines and automata over events: a team's task, and whether it can be divided."""

from gradweave.automata.decomposition import check, least, projections, replay
from gradweave.automata.files import dump, load_machine, read_text, task
from gradweave.automata.formula import automaton
from gradweave.automata.machine import NO_MOVE, Machine
from gradweave.automata.operations import (
    dead,
    group_of,
    minimised,
    product,
    projection,
    values,
    view,
)

__all__ = [
    "NO_MOVE",
    "Machine",
    "automaton",
    "check",
    "dead",
    "dump",
    "group_of",
    "least",
    "load_machine",
    "minimised",
    "product",
    "projection",
    "projections",
    "read_text",
    "replay",
    "task",
    "values",
    "view",
]
