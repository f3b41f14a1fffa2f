"""Rounds of parts that follow paths: exchanges within a round, interpreted."""

import numpy as np
import pytest

from gradweave.schedulers.flows import rounds_kernel
from gradweave.schedulers.kernels import events, slots
from tests.interpreted import interpreted


@pytest.mark.parametrize("way_round", [False, True])
def test_an_exchange_that_loses_too_much_is_undone(monkeypatch, way_round: bool):
    """Part 0 needs links 0 and 1, which parts 1 and 2 hold; part 1 may also go over link 2."""
    routes = [(0, 1), (1,), (0,), *([(2,)] if way_round else [])]
    parts = rounds_kernel.Transfers(
        first=np.arange(4),
        route=np.array([0, 2, 1]),
        hop=np.array([0, 2, 1]),
        first_route=np.array([0, 1, 2, len(routes)]),
        links=np.concatenate(list(map(np.array, routes))),
        first_link=np.cumsum([0, *map(len, routes)]),
    )
    seen = []

    def play(parts, state, farther, ahead, sweeps, rounds, routes):
        rounds_kernel._weigh(state)
        for part in (1, 2):
            rounds_kernel._put(parts, state, part, parts.route[part])
        before = [state.placed.copy(), state.route.copy(), state.slots.used.copy()]
        accepted = rounds_kernel._bring_in(parts, state, 0)
        after = [state.placed, state.route, state.slots.used]
        held = [rounds_kernel.any_holder(state.slots, link) for link in (0, 1)]
        seen.append((accepted, before, after, held, int(state.changed[0])))
        return 0

    with interpreted(rounds_kernel, events, slots):
        monkeypatch.setattr(rounds_kernel, "_play", play)
        monkeypatch.setattr(rounds_kernel, "TEMPERATURE", 1e9)
        monkeypatch.setattr(np.random, "random", lambda: np.e)  # so that no gain is enough
        rounds_kernel.rounds_of(parts, np.ones(3, np.int64), 0.0, 0.0, 1, 0)
    ((accepted, before, after, held, changed),) = seen
    assert not accepted and changed == 0 and held == [1, 2]
    for one, other in zip(before, after, strict=True):
        assert one.tolist() == other.tolist()
