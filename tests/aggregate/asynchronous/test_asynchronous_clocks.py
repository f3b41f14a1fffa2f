"""Bounds hold, nobody hangs, staleness is counted: whatever steps take and whoever dies."""

import pytest

pytest.importorskip("optax", reason="the extra learn is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

from gradweave.aggregate.asynchronous import SSP, Async, Sync, staleness_bound
from gradweave.aggregate.asynchronous import clocks as protocol
from gradweave.aggregate.asynchronous.consistency import from_spec
from gradweave.errors import OptionError, SpecError
from tests.aggregate.asynchronous.cases import play

RULES = st.one_of(
    st.just(Sync()), st.just(Async()), st.builds(SSP, st.integers(0, 4), st.booleans())
)
DURATIONS = st.dictionaries(
    st.tuples(st.integers(0, 4), st.integers(0, 40)),
    st.floats(0.01, 50.0),
    max_size=60,
)
DEATHS = st.sets(st.tuples(st.integers(0, 4), st.integers(0, 12)), max_size=8)


@settings(max_examples=300)
@given(
    RULES, st.integers(1, 5), DURATIONS, DEATHS, st.floats(0.0, 30.0), st.sets(st.integers(0, 4))
)
def test_bounds_hold_and_nobody_hangs(rule, workers, durations, deaths, away_s, late):
    played = play(
        rule,
        workers,
        lambda worker, clock: durations.get((worker, clock), 1.0),
        gradients=60,
        dies=lambda worker, clock: (worker, clock) in deaths,
        away_s=away_s,
        late={worker for worker in late if worker < workers},
    )
    if rule.bound is not None:
        assert all(clock - slowest <= rule.bound for _, _, clock, slowest in played.reads)
    most = staleness_bound(rule, workers)
    applied = set()
    for place, (_, update, newest, present) in enumerate(played.updates):
        assert update.number == place + 1
        for gradient, staleness in zip(update.gradients, update.staleness, strict=True):
            assert staleness >= 0
            assert most is None or staleness <= most
            if rule.bound is not None:
                assert newest - gradient.clock <= rule.bound
            assert (gradient.worker, gradient.clock) not in applied
            applied.add((gradient.worker, gradient.clock))
        if rule.together:
            assert len({gradient.clock for gradient in update.gradients}) == 1
            came = {gradient.worker for gradient in update.gradients}
            assert came >= {worker for worker, here in enumerate(present) if here}
        else:
            assert len(update.gradients) == 1


@settings(max_examples=100)
@given(RULES, DURATIONS)
def test_staleness_is_the_number_of_updates_between_pull_and_use(rule, durations):
    played = play(rule, 4, lambda worker, clock: durations.get((worker, clock), 1.0), gradients=50)
    reads = {(worker, clock): now for now, worker, clock, _ in played.reads}
    moments = [now for now, *_ in played.updates]
    for now, update, _, _ in played.updates:
        for gradient, staleness in zip(update.gradients, update.staleness, strict=True):
            begin = reads[gradient.worker, gradient.clock]
            # Those of the moment of the pull may have come before it or after it.
            least = sum(begin < moment < now for moment in moments)
            most = sum(begin <= moment <= now for moment in moments)
            assert least <= staleness <= most


@pytest.mark.parametrize("rule", [SSP(3), SSP(3, catch_up=True), SSP(0), Sync()])
def test_the_bound_on_staleness_is_no_smaller_than_what_happens(rule):
    """The worst found by trying: a worker that pulls just before others who were s behind run."""
    worst = 0
    for slow in range(1, 9):
        played = play(
            rule,
            3,
            lambda worker, clock, slow=slow: (
                {0: 1.0, 1: 1.01}.get(worker, float(slow))
                if (clock // (rule.bound + 1)) % 2
                else {2: 1.0, 1: 1.01}.get(worker, float(slow))
            ),
            gradients=120,
        )
        worst = max(worst, *(max(update.staleness) for _, update, *_ in played.updates))
    bound = staleness_bound(rule, 3)
    assert bound is not None
    assert worst <= bound
    assert worst >= bound / 2


def rate(rule, gradients=400):
    """Gradients a second of four workers whose steps take a second, one's five seconds."""
    played = play(rule, 4, lambda worker, clock: 5.0 if worker == 3 else 1.0, gradients=gradients)
    half = played.updates[len(played.updates) // 2][0]
    end = played.updates[-1][0]
    later = sum(len(update.gradients) for now, update, *_ in played.updates if half < now <= end)
    return later / (end - half)


def test_what_each_rule_gives_beside_a_worker_that_is_always_slow():
    sync = rate(Sync())
    assert sync == pytest.approx(4 / 5)
    assert rate(Async()) == pytest.approx(16 / 5, rel=0.02)
    for bound in (0, 1, 3):
        assert rate(SSP(bound)) == pytest.approx(4 / 5, rel=0.08), "everybody's rate, in the end"
        caught_up = (3 * min(5, bound + 1) + 1) / 5
        assert rate(SSP(bound, catch_up=True)) == pytest.approx(caught_up, rel=0.05)
    assert rate(SSP(3, catch_up=True)) > 2.5 * sync


def test_a_worker_that_caught_up_takes_the_newest_clock():
    rule = SSP(2, catch_up=True)
    clocks = protocol.between_steps((5, 7, 3), 15)
    assert protocol.may_start(clocks, rule) == (0, 2)
    clocks = protocol.start(clocks, 2)
    clocks, update = protocol.push(clocks, rule, 2, version=15)
    assert clocks.clock == (5, 7, 7)
    assert update is not None
    assert update.number == 16
    assert update.staleness == (0,)


def test_the_others_go_on_without_a_worker_that_died_and_take_it_back():
    rule = Sync()
    clocks = protocol.initial(3)
    for worker in range(3):
        clocks = protocol.start(clocks, worker)
    for worker in (0, 1):
        clocks, update = protocol.push(clocks, rule, worker, 0)
        assert update is None
    assert protocol.may_start(clocks, rule) == ()
    clocks, update = protocol.remove(clocks, rule, 2)
    assert update is not None
    assert [gradient.worker for gradient in update.gradients] == [0, 1]
    assert protocol.may_start(clocks, rule) == (0, 1)
    assert protocol.resume_clocks(clocks) == (1, 1, 1)
    clocks = protocol.rejoin(clocks, 2)
    assert clocks.clock == (1, 1, 1)
    assert protocol.may_start(clocks, rule) == (0, 1, 2)


def test_those_that_are_there_begin_and_the_others_join_them():
    clocks = protocol.without(protocol.initial(3), {1, 2})
    assert protocol.may_start(clocks, Sync()) == (0,)
    clocks, update = protocol.push(protocol.start(clocks, 0), Sync(), 0, 0)
    assert update is not None and len(update.gradients) == 1
    clocks = protocol.rejoin(clocks, 2)
    assert clocks.clock == (1, 0, 1)
    assert protocol.may_start(clocks, Sync()) == (0, 2)


def test_specifications():
    for text, rule in (
        ("sync", Sync()),
        ("async", Async()),
        ("ssp:3", SSP(3)),
        ("ssp:bound=3", SSP(3)),
        ("ssp:bound=2,catch_up=true", SSP(2, True)),
    ):
        assert from_spec(text) == rule
        assert from_spec(str(rule)) == rule
        assert from_spec(rule) is rule
    for text, reason in (
        ("bsp", "no consistency 'bsp'; there are sync, async and ssp"),
        ("ssp", "ssp needs its bound"),
        ("ssp:bound=many", "bound must be an integer, got 'many'"),
        ("ssp:bound=3,catch_up=yes", "catch_up must be true or false, got 'yes'"),
        ("ssp:slack=3", "'slack' is not an option"),
        ("sync:bound=3", "sync: expected no options, got 'bound'"),
    ):
        with pytest.raises(SpecError, match=reason):
            from_spec(text)
    with pytest.raises(OptionError, match="bound: expected 0 or more clocks, got -1"):
        from_spec("ssp:-1")


def test_the_bound_in_updates():
    assert staleness_bound(Sync(), 4) == 0
    assert staleness_bound(Async(), 4) is None
    assert staleness_bound(SSP(0), 4) == 3
    assert staleness_bound(SSP(3), 4) == staleness_bound(SSP(3, True), 4) == 21
