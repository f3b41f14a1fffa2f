"""The proof with a number for each server and piece: it never proves what is wrong, and it suffices
for what strategies make."""

import random

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.schedulers.spec import from_spec
from gradweave.schedules import COPY, REDUCE, Schedule
from gradweave.verifier import blocks, contributions, disjoint, verify
from gradweave.verifier.disjoint import not_proved
from tests.verifier.mutations import mutants, mutated
from tests.verifier.oracle import Draft, end_state, faults, wrong_cells
from tests.verifier.random_demands import random_draft
from tests.verifier.random_schedules import drafts, valid_schedules

SMALL = 1 << 27


def doubtful(schedule: Schedule, *, switches: bool) -> list[int]:
    topology = schedule.topology
    holders = np.arange(topology.num_nodes) if switches else topology.servers
    return not_proved(schedule, holders, SMALL).tolist()


def assert_sound(draft: Draft, *, switches: bool) -> None:
    """All pieces that are proved right are right, as the oracle plays them."""
    if faults(draft, aggregating_switches=switches) - {"result", "capacity", "relay"}:
        return
    left = doubtful(draft.schedule(), switches=switches)
    proved = sorted(set(range(len(draft.root))) - set(left))
    assert not wrong_cells(draft, end_state(draft), proved)
    event(f"proved: {len(proved) > 0}, left: {len(left) > 0}")


@given(valid_schedules(), st.integers(0, 2**16), st.integers(0, 3))
@settings(max_examples=80)
def test_what_is_proved_is_right(schedule, seed, times):
    if (draft := mutated(Draft.of(schedule), seed, times)) is None:
        return
    assert_sound(draft, switches=schedule.scheduler.options.get("aggregating_switches", False))


@given(drafts(), st.booleans())
@settings(max_examples=150)
def test_so_it_is_of_random_transfers(draft, switches):
    assert_sound(draft, switches=switches)


@given(st.randoms(use_true_random=False), st.integers(0, 2**16), st.integers(0, 2))
@settings(max_examples=40)
def test_so_it_is_of_demands(draw, seed, times):
    if (draft := mutated(random_draft(draw), seed, times)) is not None:
        assert_sound(draft, switches=False)


PAIR = gw.topology.complete(2)
TRIPLE = gw.topology.complete(3)
NOT_PROVED = {
    "sent twice in a round": (TRIPLE, [(0, REDUCE, 1, 0), (0, REDUCE, 1, 2), (1, REDUCE, 2, 0)]),
    "sent twice": (TRIPLE, [(0, REDUCE, 1, 0), (1, REDUCE, 1, 2), (2, REDUCE, 2, 0)]),
    "added to what was sent away": (TRIPLE, [(0, REDUCE, 1, 0), (1, REDUCE, 2, 1)]),
    "while it is sent away": (TRIPLE, [(0, REDUCE, 1, 0), (0, REDUCE, 2, 1)]),
    "a copy of a part": (PAIR, [(0, COPY, 1, 0)]),
    "added to a whole": (PAIR, [(0, REDUCE, 1, 0), (1, COPY, 0, 1), (2, REDUCE, 1, 0)]),
}


@pytest.mark.parametrize("name", NOT_PROVED)
def test_it_says_nothing_of(name):
    network, rows = NOT_PROVED[name]
    transfers = [(at, 0, op, (source, target)) for at, op, source, target in rows]
    made = Schedule.from_rows(network, transfers, collective="reduce_scatter", root=[0])
    assert doubtful(made, switches=False) == [0]


@pytest.mark.parametrize(
    ("network", "strategy", "left"),
    [
        ("bcube:n=3,k=1", "symmetric", False),
        ("star:9", "ring", False),
        ("torus:3x4", "merged:overlap=true", False),
        ("fat_tree:4", "merged:aggregating_switches=true", False),
        ("mesh:2x3", "parameter_server", False),
        ("ring:6", "central_parameter_server", False),
        ("hypercube:3", "halving_doubling", False),
        ("hypercube:3", "recursive_doubling", True),  # sums overlap
    ],
)
def test_what_strategies_make_is_proved_without_counting(network, strategy, left, monkeypatch):
    scheduler = from_spec(strategy)
    switches = getattr(scheduler, "aggregating_switches", False)
    made = scheduler.schedule(network)
    assert bool(doubtful(made, switches=switches)) == left
    counted, real = [], contributions._play
    monkeypatch.setattr(
        contributions, "_play", lambda *given: [counted.append(given), real(*given)]
    )
    assert verify(made, aggregating_switches=switches).valid
    assert bool(counted) == left


@given(valid_schedules(), st.integers(0, 2**16), st.sampled_from([1, 2, 7]))
@settings(max_examples=40)
def test_neither_blocks_nor_memory_change_a_verdict(schedule, seed, transfers):
    draft = random.Random(seed).choice([*mutants(Draft.of(schedule), most=1, seed=seed)])[1]
    if any(len(row.route) < 2 for row in draft.rows) or not draft.rows:
        return
    tried = draft.schedule()
    rules = {"aggregating_switches": schedule.scheduler.options.get("aggregating_switches", False)}
    expected = verify(tried, **rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "TRANSFERS", transfers)
        patch.setattr(disjoint, "BYTES", 0)
        found = verify(tried, block_bytes=1, **rules)
    assert found == expected
    event(str(expected.violation and expected.violation.kind))
