"""The proof by sorted writes and reads: it never proves what is wrong, and suffices for copies."""

from itertools import pairwise

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.schedules import COPY, DEMAND, REDUCE, Schedule, collective, sends
from gradweave.verifier import contributions, copies, verify
from tests.verifier.mutations import mutated
from tests.verifier.oracle import Draft, end_state, faults, wrong_cells
from tests.verifier.random_demands import random_draft

RANDOMS = st.randoms(use_true_random=False)


@pytest.fixture
def always(monkeypatch):
    """Also where a table of all servers would take less memory."""
    monkeypatch.setattr(copies, "TABLE_BYTES", 1 << 20)


def left(draft: Draft) -> list[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "TABLE_BYTES", 1 << 20)
        return copies.not_copied(draft.schedule()).tolist()


@given(RANDOMS, st.integers(0, 2**16), st.integers(0, 3))
@settings(max_examples=60)
def test_what_is_proved_is_right(draw, seed, times):
    draft = mutated(random_draft(draw), seed, times)
    if draft is None or faults(draft) - {"result", "capacity", "relay"}:
        return
    proved = sorted(set(range(len(draft.root))) - set(left(draft)))
    assert not wrong_cells(draft, end_state(draft), proved)
    event(f"proved: {len(proved) > 0}, left: {len(proved) < len(draft.root)}")


@given(RANDOMS)
@settings(max_examples=60)
def test_it_suffices_where_pieces_are_copied_in_order(draw):
    draft = random_draft(draw)
    summed = {row.piece for row in draft.rows if row.op == REDUCE}
    several = {p for p in range(len(draft.root)) if len(draft.asked.of_piece(p).contributors) > 1}
    assert left(draft) == sorted(summed | several)


LINE = gw.topology.mesh((1, 3))
SEND = sends([(0, 2, 1)], relays=[1])
NOT_PROVED = {
    "passed on as it arrives": (SEND, [(0, COPY, 0, 1), (0, COPY, 1, 2)]),
    "passed on before it arrives": (SEND, [(0, COPY, 1, 2), (1, COPY, 0, 1)]),
    "it does not arrive": (SEND, [(0, COPY, 0, 1)]),
    "added": (SEND, [(0, COPY, 0, 1), (1, REDUCE, 1, 2)]),
    "a sum": (collective("reduce", [0, 1], 1, root=1), [(0, COPY, 0, 1)]),
}


def by_hand(demand, rows) -> Schedule:
    transfers = [(at, 0, op, (source, target)) for at, op, source, target in rows]
    made = Schedule.from_rows(LINE, transfers, root=[0])
    return made.replace(collective=DEMAND, demand=demand, block=[0])


@pytest.mark.parametrize("name", NOT_PROVED)
def test_it_says_nothing_of(name, always):
    assert copies.not_copied(by_hand(*NOT_PROVED[name])).tolist() == [0]


def all_to_all(side: int) -> Schedule:
    """Along rows, then columns, a message a round."""
    mesh, rows = gw.topology.mesh((side, side)), []
    asked = collective("all_to_all", mesh.servers, 100 * side)
    for piece, (one, other) in enumerate(
        zip(asked.contributors.servers.tolist(), asked.destinations.servers.tolist(), strict=True)
    ):
        route = gw.topology.shortest_route(mesh, one, other)
        rows += [(len(rows) + step, piece, COPY, hop) for step, hop in enumerate(pairwise(route))]
    root = asked.contributors.servers
    made = Schedule.from_rows(mesh, rows, root=root)
    return made.replace(collective=DEMAND, demand=asked, block=range(len(asked)))


def test_an_all_to_all_needs_neither_table_nor_counts(monkeypatch, always):
    made, looked_at, real = all_to_all(4), [], contributions.not_proved

    def not_proved(*given):
        looked_at.extend(given[-1].tolist())
        return real(*given)

    monkeypatch.setattr(contributions, "not_proved", not_proved)
    assert verify(made).valid and not looked_at
    two_hops = int(made.piece[:-1][made.piece[:-1] == made.piece[1:]][0])
    swapped = made.round.copy()
    swapped[made.piece == two_hops] = swapped[made.piece == two_hops][::-1]
    assert verify(made.replace(round=swapped)).violation.piece == two_hops
    assert looked_at == [two_hops]


def test_where_the_table_is_smaller_it_is_left_to_the_table():
    gathered = collective("all_gather", [0, 1, 2], 3)
    rows = [(r, p, COPY, (a, b)) for r, p, a, b in [(0, 0, 0, 1), (1, 0, 1, 2), (0, 1, 1, 0)]]
    rows += [(2, 1, COPY, (1, 2)), (0, 2, COPY, (2, 1)), (1, 2, COPY, (1, 0))]
    made = Schedule.from_rows(LINE, rows, root=[0, 1, 2])
    made = made.replace(collective=DEMAND, demand=gathered, block=[0, 1, 2])
    assert copies.not_copied(made).tolist() == [0, 1, 2]
    assert verify(made).valid
