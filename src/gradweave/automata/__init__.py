"""Reward machines and automata over events: a team's task, and whether it can be divided."""

from gradweave.automata.decomposition import check, projections, replay
from gradweave.automata.files import dump, load_machine, read_text, task
from gradweave.automata.formula import automaton
from gradweave.automata.machine import Machine
from gradweave.automata.operations import (
    minimised,
    product,
    projection,
)

__all__ = [
    "Machine",
    "automaton",
    "check",
    "dump",
    "load_machine",
    "minimised",
    "product",
    "projection",
    "projections",
    "read_text",
    "replay",
    "task",
]
