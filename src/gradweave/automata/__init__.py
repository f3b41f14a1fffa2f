"""Reward machines and automata over events: a team's task, and whether it can be divided."""

from gradweave.automata.decomposition import (
    Least,
    Verdict,
    check,
    least,
    projections,
    replay,
)
from gradweave.automata.files import Task, dump, load, read_text, task
from gradweave.automata.formula import automaton
from gradweave.automata.machine import NO_MOVE, Machine
from gradweave.automata.operations import (
    Product,
    compose,
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
    "Least",
    "Machine",
    "Product",
    "Task",
    "Verdict",
    "automaton",
    "check",
    "compose",
    "dead",
    "dump",
    "group_of",
    "least",
    "load",
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
