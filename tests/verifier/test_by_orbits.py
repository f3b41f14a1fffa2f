"""Verification by orbits agrees with that of the expanded schedule, and names what is broken."""

import dataclasses
import re

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import ScheduleError
from gradweave.schedulers import implicit
from gradweave.schedules import ImplicitSchedule
from gradweave.topology.translations import Translations
from gradweave.verifier import verify

SPECS = ("torus:3x4", "bcube:n=3,k=1", "hypercube:3", "fat_tree:k=4", "h100:boxes=2,rails=8")
SPECS += ("leaf_spine:leaves=3,spines=2,servers_per_leaf=4", "torus:3x3,capacity=2")


def mutant(made: ImplicitSchedule, rng: np.random.Generator) -> ImplicitSchedule | None:
    """The plan with one field of one of its transfers changed, or none if it is not well-formed."""
    base, row = made.base, int(rng.integers(made.base.num_transfers))
    kind = rng.integers(4)
    try:
        if kind == 0:
            rounds = base.round.copy()
            rounds[row] = max(0, rounds[row] + rng.choice([-2, -1, 1, 2]))
            base = base.replace(round=rounds)
        elif kind == 1:
            base = base.take(np.delete(np.arange(base.num_transfers), row))
        elif kind == 2:  # over the route of another transfer
            rows = np.arange(base.num_transfers)
            rows[row] = rng.integers(base.num_transfers)
            base = base.take(rows, round=base.round)
        else:
            nodes = base.route_nodes.copy()
            place = int(rng.integers(len(nodes)))
            nodes[place] = rng.integers(base.topology.num_nodes)
            base = base.replace(route_nodes=nodes)
        return dataclasses.replace(made, base=base)
    except ScheduleError:
        return None


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("spec", SPECS)
def test_mutants_are_judged_as_when_expanded(spec, collective):
    made, rng = implicit(spec, collective=collective), np.random.default_rng(0)
    assert verify(made).valid and verify(made.expand(), forwarding_servers=False).valid
    judged = {True: 0, False: 0}
    for _ in range(60):
        changed = mutant(made, rng)
        if changed is None:
            continue
        verdict = verify(changed)
        assert verdict.valid == verify(changed.expand()).valid, verdict
        judged[verdict.valid] += 1
        assert verdict.violation is None or "\n" not in verdict.violation.message
    assert judged[False] > 20


def broken(spec: str, **changes) -> str:
    """The violation of a plan whose fields were changed."""
    violation = verify(dataclasses.replace(implicit(spec), **changes)).violation
    assert violation is not None
    return violation.message


def test_a_wrong_generator_is_named():
    grid = Translations((4, 3), ((0, 1),))
    assert re.fullmatch(
        r"symmetry: a step along axis 0 moves .* to 0→\d+; expected .*",
        broken("torus:3x4", symmetry=grid),
    )
    right = implicit("fat_tree:k=4").symmetry
    layers = (*right.layers[:3], (1, 2))
    crossed = broken("fat_tree:k=4", symmetry=dataclasses.replace(right, layers=layers))
    assert crossed.startswith("symmetry: a step along axis 1 moves")


def test_a_wrong_network_is_named():
    made = implicit("torus:3x4")
    mesh = gw.topology.from_spec("mesh:3x4")
    assert broken("torus:3x4", base=made.base.replace(topology=mesh)).startswith(
        "symmetry: a step along axis 0 moves no link to 0→4; expected one, as the network has"
    )
    circulant = gw.topology.from_spec("circulant:n=12,jumps=1.2")
    assert broken("torus:3x4", base=made.base.replace(topology=circulant)).startswith(
        "symmetry: a step along axis 1 moves no link to 0→1"
    )
    slow = gw.topology.slowed(made.topology, {(0, 1): 0.5}).topology
    assert re.fullmatch(
        r"symmetry: a step along axis 0 moves link \S+ to 0→1; expected the same "
        r"bandwidth_bytes_per_s, got 1.25e\+10 and 6.25e\+09",
        broken("torus:3x4", base=made.base.replace(topology=slow)),
    )


def test_servers_must_stay_servers():
    star = implicit("star:4")
    turned = Translations((5,), ((0,),))
    assert broken("star:4", symmetry=turned).startswith(
        "symmetry: a step along axis 0 moves server 3 to switch 4; expected servers"
    )
    assert verify(star).valid


def test_every_server_must_be_the_image_of_one_root():
    part = Translations((3, 4), ((0, 1),), fixed=(0,))
    assert broken("torus:3x4", symmetry=part) == (
        "symmetry: 4 images of 1 roots are 4 servers; expected all 12"
    )
    made = implicit("torus:3x4", collective="all_gather")
    two = made.expand()
    two = two.take(np.flatnonzero(two.piece < 2), root=two.topology.servers[:2])
    assert broken("torus:3x4", base=two).startswith("symmetry: two of the 2 roots of the base are")
    turning = Translations((12, 2), ((0,),))
    kept = broken("ring:12", symmetry=turning)
    assert kept == (
        "symmetry: a step along axis 1 keeps server 0 in place; expected it to move every server"
    )


def test_two_transfers_of_an_orbit_in_one_round_are_too_many():
    """The base alone is valid: the two use different links, and only images meet on them."""
    made = implicit("ring:6", collective="all_gather")
    base = made.base
    together = base.round.copy()
    row = int(np.flatnonzero(base.source != base.root[0])[-1])
    before = np.flatnonzero(
        (base.target - base.source - base.target[row] + base.source[row]) % 6 == 0
    )
    assert before[-1] == row
    together[before[:-1]] += 1
    changed = base.replace(round=together)
    plan = dataclasses.replace(made, base=changed)
    message = "like its images, carries 2 transfers; expected at most 1"
    violation = verify(plan).violation
    assert verify(plan.expand()).violation is not None
    assert violation is not None and (
        message in violation.message or "holds piece" in violation.message
    )


def test_a_missing_server_and_a_child_before_its_parent_are_named():
    made = implicit("torus:3x4")
    base = made.base
    missing = base.take(np.arange(base.num_transfers - 1))
    assert re.match(r"end: server \d+ holds piece 0 .* never", broken("torus:3x4", base=missing))
    early = base.round.copy()
    early[base.source != base.root[0]] = 0
    assert "piece 0" in broken("torus:3x4", base=base.replace(round=early)) or "link" in broken(
        "torus:3x4", base=base.replace(round=early)
    )
