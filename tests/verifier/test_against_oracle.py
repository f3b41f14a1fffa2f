"""Verifier and oracle, written apart, agree on random networks, schedules and demands."""

import dataclasses

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.schedules import COPY, DEMAND, REDUCE, Schedule
from gradweave.verifier import verify
from tests.verifier.mutations import mutated
from tests.verifier.oracle import Draft, end_state, faults, wrong_cells
from tests.verifier.random_demands import random_asked, random_draft
from tests.verifier.random_schedules import drafts, valid_schedules


def aggregates(schedule: Schedule) -> bool:
    return schedule.scheduler.options.get("aggregating_switches", False)


def assert_same_judgement(draft: Draft, **rules: bool) -> set[str]:
    """Both find it valid, or the verifier names a rule that is broken, and numbers that are so."""
    broken = faults(draft, **rules)
    verdict = verify(draft.schedule(), **rules)
    assert verdict.valid == (not broken)
    if violation := verdict.violation:
        assert violation.kind in broken
    if violation and violation.kind == "result":
        pieces = range(len(draft.root))
        held = wrong_cells(draft, end_state(draft), pieces)[violation.server, violation.piece]
        counts = [held[server] for server in draft.topology.servers.tolist()]
        assert violation.found in counts
        assert violation.found != violation.expected
        assert violation.expected == 1 or (violation.expected == 0 and draft.asked)
    return broken


@given(valid_schedules())
@settings(max_examples=150)
def test_what_a_scheduler_makes_is_valid(schedule):
    assert not assert_same_judgement(Draft.of(schedule), aggregating_switches=aggregates(schedule))


@given(valid_schedules(), st.integers(0, 2**16), st.integers(1, 3))
@settings(max_examples=150)
def test_mutated_once_or_more(schedule, seed, times):
    if (draft := mutated(Draft.of(schedule), seed, times)) is None:
        return
    event(str(assert_same_judgement(draft, aggregating_switches=aggregates(schedule))))


pair = gw.topology.complete(2)
EXCHANGE = ((0, 0, REDUCE, (1, 0)), (0, 1, REDUCE, (0, 1)), (1, 0, COPY, (0, 1)))


@given(drafts(), st.booleans(), st.booleans())
@settings(max_examples=300)
@example(Draft.of(Schedule.from_rows(pair, EXCHANGE)), True, False)
def test_random_transfers(draft, forwarding, aggregating):
    rules = {"forwarding_servers": forwarding, "aggregating_switches": aggregating}
    event(str(assert_same_judgement(draft, **rules)))


RANDOMS = st.randoms(use_true_random=False)


@given(RANDOMS, st.integers(0, 2**16), st.integers(0, 2))
@settings(max_examples=100)
def test_demands_and_their_mutants(draw, seed, times):
    if (draft := mutated(random_draft(draw), seed, times)) is None:
        return
    broken = assert_same_judgement(draft)
    assert times or not broken
    event(str(broken))


@given(drafts(), RANDOMS, st.booleans(), st.booleans())
@settings(max_examples=100)
def test_random_transfers_for_a_demand(draft, draw, forwarding, aggregating):
    asked = random_asked(draw, draft.topology.servers.tolist())
    pieces = len(asked.block)
    rows = tuple(row._replace(piece=row.piece % pieces) for row in draft.rows)
    demanded = dataclasses.replace(
        draft, collective=DEMAND, rows=rows, root=draft.root[:1] * pieces, asked=asked
    )
    rules = {"forwarding_servers": forwarding, "aggregating_switches": aggregating}
    event(str(assert_same_judgement(demanded, **rules)))
