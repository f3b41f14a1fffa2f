"""What the verifier says about the first rule that a schedule breaks.

What no test can tell apart: which routes are too short to be searched for loops (others are only
searched in vain), from how many rounds and links on loads are counted by sorting (in fewer, both
ways find the same), and how many forwarded transfers are listed of which the first is named.
"""

from typing import get_args

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import InvalidScheduleError
from gradweave.schedules import COPY, REDUCE, Schedule
from gradweave.schedules.schedule import MAX_ROUNDS
from gradweave.verifier import Violation, verify
from gradweave.verifier.verdict import ViolationKind

LINE = gw.topology.mesh((1, 3))  # servers 0 – 1 – 2
STAR = gw.topology.star(3)  # servers 0, 1, 2 at switch 3
WIDE = gw.topology.from_spec("star:3,capacity=2")


def violation(topology, rows, *, collective="all_reduce", root=None, **rules) -> Violation:
    schedule = Schedule.from_rows(topology, rows, collective=collective, root=root)
    verdict = verify(schedule, **rules)
    assert not verdict.valid
    assert verdict.transfers == len(rows)
    assert verdict.violation is not None
    with pytest.raises(InvalidScheduleError) as raised:
        verdict.raise_if_invalid()
    assert str(raised.value) == verdict.violation.message
    assert "\n" not in verdict.violation.message
    return verdict.violation


# kind, network, rows, what the violation must say
CASES = {
    "route over a link that is not there": (
        LINE,
        [(0, 0, REDUCE, (1, 0)), (4, 2, REDUCE, (0, 2))],
        Violation(
            kind="route",
            message="round 4: piece 2 from 0 to 2: its route uses 0→2"
            "; expected a link, the network has none",
            round=4,
            expected="a link",
            found="none",
            transfer=1,
            link=(0, 2),
            piece=2,
        ),
    ),
    "route with a loop": (
        STAR,
        [(2, 1, COPY, (0, 3, 2, 3, 1))],
        Violation(
            kind="route",
            message="round 2: piece 1 from 0 to 1: its route passes node 3 twice"
            "; expected each node once",
            round=2,
            expected=1,
            found=2,
            transfer=0,
            piece=1,
        ),
    ),
    "switch for a source": (
        STAR,
        [(0, 0, REDUCE, (1, 3, 0)), (1, 0, REDUCE, (3, 0))],
        Violation(
            kind="endpoint",
            message="round 1: piece 0 from 3 to 0: ends at switch 3"
            "; expected servers, since switches do not aggregate",
            round=1,
            expected="server",
            found="switch",
            transfer=1,
            piece=0,
        ),
    ),
    "link over its capacity": (
        WIDE,
        [(3, piece, REDUCE, (1, 3, 0)) for piece in (0, 1, 2)],
        Violation(
            kind="capacity",
            message="round 3: link 1→3 carries 3 transfers; expected at most 2",
            round=3,
            expected=2,
            found=3,
            transfer=2,
            link=(1, 3),
            piece=2,
        ),
    ),
    "copy and reduce at once": (
        WIDE,
        [(5, 1, REDUCE, (0, 3, 1)), (5, 1, COPY, (2, 3, 1))],
        Violation(
            kind="conflict",
            message="round 5: server 1 gets piece 1 by a copy and by another transfer"
            "; expected one copy alone",
            round=5,
            expected=1,
            found=2,
            transfer=1,
            server=1,
            piece=1,
        ),
    ),
    "contribution missing": (
        STAR,
        [(0, 0, REDUCE, (1, 3, 0))],
        Violation(
            kind="result",
            message="end: server 0 holds piece 0 with the contribution of server 2 never"
            "; expected once",
            round=None,
            expected=1,
            found=0,
            server=0,
            piece=0,
        ),
    ),
}


@pytest.mark.parametrize(("network", "rows", "expected"), CASES.values(), ids=CASES)
def test_the_violation_names_round_place_expected_and_found(network, rows, expected):
    assert violation(network, rows) == expected


def test_a_route_whose_ends_are_not_the_transfers():
    rows = [(0, 0, REDUCE, (1, 0)), (2, 1, REDUCE, (2, 1))]
    schedule = Schedule.from_rows(LINE, rows).replace(target=np.array([0, 0]))
    assert verify(schedule).violation == Violation(
        kind="route",
        message="round 2: piece 1 from 2 to 0: its route runs 2 to 1; expected 2 to 0",
        round=2,
        expected="2 to 0",
        found="2 to 1",
        transfer=1,
        piece=1,
    )


def test_a_route_through_another_server_is_counted_and_refused_only_where_asked():
    rows = [(0, 0, REDUCE, (1, 0)), (1, 0, REDUCE, (2, 1, 0))]
    schedule = Schedule.from_rows(LINE, rows, collective="reduce_scatter", root=[0])
    assert verify(schedule).valid
    assert verify(schedule).forwarded == 1
    assert violation(
        LINE, rows, collective="reduce_scatter", root=[0], forwarding_servers=False
    ) == Violation(
        kind="forwarding",
        message="round 1: piece 0 from 2 to 0: its route passes through server 1"
        "; expected only switches inside",
        round=1,
        expected="switch",
        found="server",
        transfer=1,
        server=1,
        piece=0,
    )


def test_every_kind_of_violation_has_a_case():
    shown = {case[-1].kind for case in CASES.values()}
    assert shown | {"forwarding", "relay", "symmetry"} == set(get_args(ViolationKind))


def test_a_schedule_without_transfers_does_nothing():
    assert violation(STAR, []).kind == "result"


def test_several_faults_are_reported_by_kind_and_then_by_round():
    overload = [(round_, piece, REDUCE, (1, 3, 0)) for round_ in (7, 4) for piece in (0, 1)]
    assert violation(STAR, overload).round == 4
    assert violation(STAR, [*overload, (9, 0, REDUCE, (0, 1))]).kind == "route"


def test_switches_add_only_where_allowed():
    rows = [(0, 0, REDUCE, (1, 3)), (0, 0, REDUCE, (2, 3)), (1, 0, REDUCE, (3, 0))]
    schedule = Schedule.from_rows(STAR, rows, collective="reduce_scatter", root=[0])
    assert verify(schedule, aggregating_switches=True).valid
    assert verify(schedule).violation.kind == "endpoint"


@pytest.mark.parametrize("op", [REDUCE, COPY])
def test_in_an_all_gather_only_the_root_has_something_to_send(op):
    rows = [(0, 0, COPY, (0, 1)), (1, 0, op, (1, 2))]
    schedule = Schedule.from_rows(LINE, rows, collective="all_gather", root=[0])
    assert verify(schedule).valid == (op == COPY)
    late = schedule.replace(round=np.array([1, 0]))
    assert verify(late).violation.kind == "result"


def test_the_link_that_is_missing_is_named_and_not_the_network_s_first():
    line = gw.topology.mesh((1, 4))
    found = violation(line, [(0, 0, REDUCE, (0, 1, 3))])
    assert (found.kind, found.link) == ("route", (1, 3))


def test_a_route_back_to_where_it_began():
    found = violation(LINE, [(0, 0, REDUCE, (1, 0)), (1, 0, REDUCE, (0, 1, 0))])
    assert (found.kind, found.transfer) == ("route", 1)
    assert "passes node 0 twice" in found.message
    assert violation(LINE, [(0, 0, REDUCE, (0, 1, 0, 1))]).kind == "route"


@pytest.mark.parametrize("last", [1 << 23, MAX_ROUNDS - 1])
def test_links_are_counted_in_any_round_without_memory_for_all_before(last):
    network = gw.topology.complete(64)
    rows = [(0, 0, REDUCE, (1, 0)), *((last, piece, REDUCE, (7, 5)) for piece in (1, 2))]
    found = violation(network, rows)
    assert (found.kind, found.round, found.link) == ("capacity", last, (7, 5))
    assert (found.found, found.expected, found.transfer) == (2, 1, 2)


def test_the_first_of_several_conflicts_is_named_with_its_second_transfer():
    other = [(7, 0, REDUCE, (0, 3, 2)), (7, 0, COPY, (1, 3, 2))]
    first = [(5, 1, COPY, (0, 3, 1)), (5, 1, REDUCE, (2, 3, 1)), (5, 0, REDUCE, (1, 3, 0))]
    found = violation(WIDE, [*other, *first])
    assert (found.kind, found.round, found.transfer) == ("conflict", 5, 1)
    assert (found.server, found.piece) == (1, 1)
