"""Plans drawn around the best so far, with a fake decoder."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import gradweave as gw
from gradweave.common.stop import Stop
from gradweave.errors import OptionError
from gradweave.schedulers import Planned
from gradweave.schedulers.greedy import search
from gradweave.schedulers.greedy.decisions import WHOLE, Decisions, plain
from gradweave.schedulers.greedy.decoding import EFFORT_S, Wiring
from gradweave.schedulers.greedy.tuning import TUNING

WIRING = Wiring(gw.topology.from_spec("mesh:2x2"), "all_reduce", 1e6)
AIM = 0.75


@pytest.fixture
def decoded(monkeypatch) -> list[tuple[float, float, float]]:
    """A fake result: the plan's first number, the effort, and the resulting seconds.

    The seconds are that number's distance from `AIM`; fine decoding improves them by a thousandth.
    """
    asked: list[tuple[float, float, float]] = []

    def decode(wiring, plan, effort_s):
        first = float(plan.whole[0])
        seconds = abs(first - AIM) - (first / 1000 if effort_s > EFFORT_S else 0)
        asked.append((first, effort_s, seconds))
        return SimpleNamespace(seconds=seconds)

    monkeypatch.setattr(search, "proposal_of", lambda wiring, plan: plan)
    monkeypatch.setattr(search, "decode", decode)
    return asked


def test_the_first_plan_is_tried_first_and_the_best_are_decoded_finely(decoded):
    found = search.search(WIRING, plain(WIRING), 1.0, 3, Stop())
    rough = [one for one in decoded if one[1] == TUNING.draw_s]
    assert decoded[0][:2] == (0, EFFORT_S) and rough[0][0] == 0
    assert len(rough) == int((1 - TUNING.fine_share - EFFORT_S) / TUNING.draw_s)
    fine = decoded[1 + len(rough) :]
    assert [one[1] for one in fine] == [TUNING.fine_share / TUNING.fine] * TUNING.fine
    best = sorted(range(len(rough)), key=lambda i: (rough[i][2], i))[: TUNING.fine]
    assert [one[0] for one in fine] == [rough[i][0] for i in best]
    assert found.seconds == min(one[2] for one in fine) < 0.05
    # Decisions are multiples of a step, so that all processors apply the same plan.
    assert all((256 * one[0]).is_integer() for one in rough)
    once = list(decoded)
    again = search.search(WIRING, plain(WIRING), 1.0, 3, Stop())
    assert again.seconds == found.seconds and decoded == once * 2
    search.search(WIRING, plain(WIRING), 1.0, 4, Stop())
    assert decoded[2 * len(once) :] != once


def test_with_little_effort_one_is_decoded_finely_and_none_is_worse_than_the_first(decoded):
    away = plain(WIRING)._replace(whole=np.full(len(WHOLE), AIM))
    found = search.search(WIRING, away, 0.12, 0, Stop())
    draws = int((0.12 * (1 - TUNING.fine_share) - EFFORT_S) / TUNING.draw_s)
    efforts = [EFFORT_S, *[TUNING.draw_s] * draws, EFFORT_S]
    assert [one[1] for one in decoded] == efforts and found.seconds == decoded[0][2] == 0


def test_steps_get_longer_by_successes_and_shorter_by_failures(decoded, monkeypatch):
    one = Decisions(np.zeros(0), np.zeros(0), np.ones(len(WHOLE)))
    monkeypatch.setattr(search, "noise", lambda graph, rng: one)
    monkeypatch.setattr(search, "simple_plans", lambda wiring: [])
    search.search(WIRING, Decisions(np.zeros(0), np.zeros(0), np.zeros(11)), 0.2, 0, Stop())
    # 0.3 is better, and 0.45 beyond it, which is the aim; 0.675 beyond that is not, nor is less.
    expected = [0, 0.3, 0.75, 0.75 + 0.675, 0.75 + 0.675 / 1.5**0.25]
    assert [one[0] for one in decoded[1:6]] == pytest.approx(expected, abs=1 / 256)


def test_simple_plans_are_tried_before_random_ones(decoded, monkeypatch):
    """The best of them is the parent of the plans that are drawn."""
    numbers = (0.1, 0.7, 0.4)
    plans = [Decisions(np.zeros(0), np.zeros(0), np.full(11, number)) for number in numbers]
    monkeypatch.setattr(search, "simple_plans", lambda wiring: plans)
    one = Decisions(np.zeros(0), np.zeros(0), np.ones(len(WHOLE)))
    monkeypatch.setattr(search, "noise", lambda graph, rng: one)
    search.search(WIRING, Decisions(np.zeros(0), np.zeros(0), np.zeros(11)), 1.0, 0, Stop())
    assert [one[0] for one in decoded[1:6]] == pytest.approx([0, *numbers, 1.0], abs=1 / 256)
    # They take only a part of the draws.
    decoded.clear()
    search.search(WIRING, Decisions(np.zeros(0), np.zeros(0), np.zeros(11)), 0.15, 0, Stop())
    draws = int((0.15 * (1 - TUNING.fine_share) - EFFORT_S) / TUNING.draw_s)
    tried = [one[0] for one in decoded[1 : 1 + draws]]
    assert tried[: round(TUNING.started * draws)] == [0, 0.1][: round(TUNING.started * draws)]
    assert 0.7 not in tried


def test_a_stop_ends_it_with_one_plan(decoded):
    found = search.search(WIRING, plain(WIRING), 1.0, 0, Stop.after(0.0))
    assert [one[:2] for one in decoded] == [(0, EFFORT_S)] and found.seconds == AIM


def test_large_networks_have_fewer_draws(decoded, monkeypatch):
    monkeypatch.setattr(search, "grown_us", lambda _, trees, __: 60_000 if trees == 96 else 0)
    # Six transfers of each tree, four times: a millisecond more.
    draw_s = 0.06 + 4 * 0.4e-6 * 96 * 6
    search.search(WIRING, plain(WIRING), 0.3, 0, Stop())
    assert [one[1] for one in decoded] == pytest.approx([EFFORT_S, draw_s, draw_s, 0.09])


def test_where_there_is_time_for_few_draws_among_many_servers_the_first_gets_all(
    decoded, monkeypatch
):
    monkeypatch.setattr(search, "grown_us", lambda *_: 0)
    monkeypatch.setattr(search, "TUNING", dataclasses.replace(TUNING, trained_servers=3))
    least_s = (TUNING.least_draws * TUNING.draw_s + EFFORT_S) / (1 - TUNING.fine_share)
    search.search(WIRING, plain(WIRING), 0.99 * least_s, 0, Stop())
    assert [one[:2] for one in decoded] == [(0, 0.99 * least_s)]
    search.search(WIRING, plain(WIRING), 1.01 * least_s, 0, Stop())
    assert len(decoded) > 1 + TUNING.least_draws


@pytest.mark.parametrize("effort", [0.0, -1.0, float("inf"), float("nan")])
def test_an_effort_is_a_finite_time(effort: float):
    with pytest.raises(OptionError, match="planned: effort: expected a finite number above 0"):
        Planned(effort=effort)


def test_more_effort_is_no_worse_and_one_seed_one_schedule():
    net = gw.topology.from_spec("mesh:3x3")
    rates = net.bandwidth_bytes_per_s * (1 + np.arange(len(net.source)) % 3)
    net = dataclasses.replace(net, bandwidth_bytes_per_s=rates)
    plans = [Planned(gradient_bytes=1e8, plan="even", effort=each) for each in (0.02, 0.1, 0.1)]
    found = [plan.decode(net, seed=5) for plan in plans]
    assert found[1].seconds <= found[0].seconds
    assert np.array_equal(found[1].start, found[2].start)
