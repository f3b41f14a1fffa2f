"""A violation names nodes as the network's file does."""

import dataclasses

import numpy as np
import pytest

import gradweave as gw
from gradweave.verifier import verify

NAMES = ("gpu0", "gpu1", "gpu2", "gpu3", "leaf-1")


def schedule():
    made = gw.schedulers.Merged().schedule(gw.topology.star(4))
    return made.replace(topology=dataclasses.replace(made.topology, labels=NAMES))


def other(made, column, row, value):
    values = getattr(made, column).copy()
    values[row] = value
    return made.replace(**{column: values})


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda s: other(s, "round", slice(None), 0), "link gpu0→leaf-1 carries"),
        (lambda s: other(s, "piece", 0, (s.piece[0] + 1) % 4), "holds piece"),
        (lambda s: other(s, "route_nodes", 1, 3), "its route uses gpu"),
        (lambda s: other(s, "target", 0, 4), "from gpu"),
    ],
)
def test_violations_have_names(spoil, says):
    violation = verify(spoil(schedule())).violation
    assert violation is not None
    assert says in violation.message and "gpu" in violation.message
    assert violation.message.isprintable()


def test_names_change_nothing_else():
    made = schedule()
    bare = made.replace(topology=gw.topology.star(4))
    spoilt = [other(one, "round", slice(None), 0) for one in (made, bare)]
    named, plain = (verify(one).violation for one in spoilt)
    assert plain is not None and plain.message.startswith("round 0: link 0→4 carries ")
    assert named == dataclasses.replace(plain, message=named.message)
    assert np.array_equal(made.round, bare.round)
