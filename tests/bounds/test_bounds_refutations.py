"""Derivations from clauses that are written by hand; whole proofs: `test_gradweave_refute.py`."""

import types
from typing import Any

import pytest

from gradweave.bounds.refutations import Derivation, refute
from gradweave.errors import NoProofError
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.topology import Topology
from gradweave_refute import YES, proved

A, B, C = YES + 1, YES + 2, YES + 3


def derivation() -> Derivation:
    """Of A or B, each of which implies C, and not C."""
    formula: Any = types.SimpleNamespace(clauses=[(A, B), (-A, C), (-B, C), (-C,)])
    return Derivation(formula)


def test_what_follows_is_derived_from_what_was_derived_before():
    """C from all but the last clause, and nothing from C and that one."""
    made = derivation()
    with pytest.raises(NoProofError, match="a lemma of 0 literals does not follow"):
        made.derive([], near=[C])
    assert made.derive([C, -YES], near=[A, B]) == 5
    assert made.derive([YES], near=[]) is None
    assert made.add((B, C), [2, 1]) == 6, "which nothing needs"
    assert made.derive([], near=[C]) == 7
    assert made.needed() == [1, 2, 3, 4, 5, 7]
    assert made.text() == f"5 {C} 0 3 2 1 0\n6 0 5 4 0\n"


def test_counting_proves_what_it_can_without_a_solver():
    """The last of four servers in a row lacks three pieces: two rounds are too few, three not."""
    links = [(0, 1), (1, 2), (2, 3)]
    row = Topology.from_links("row", servers=4, switches=0, links=links)
    found = refute(row, {"stage": "all_gather", "rounds": 2})
    assert proved(topology_to_object(row), found) > 0
    with pytest.raises(NoProofError, match="counting alone does not show it"):
        refute(row, {"stage": "all_gather", "rounds": 3})
