"""The clock for time limits stands still while the first run prepares itself."""

import types

import pytest

import gradweave as gw
from gradweave.common import clock


@pytest.fixture
def tick(monkeypatch):
    """Moves time on by hand."""
    moment = [1e6]

    def move(seconds: float) -> None:
        moment[0] += seconds

    monkeypatch.setattr(clock, "time", types.SimpleNamespace(monotonic=lambda: moment[0]))
    return move


def test_it_stands_still_while_paused(tick):
    begun = clock.now()
    tick(2.0)
    with clock.paused("compiling"):
        tick(10.0)
        assert clock.now() - begun == pytest.approx(2.0)
        assert clock.waiting_for() == "compiling"
    tick(0.5)
    assert clock.now() - begun == pytest.approx(2.5)
    assert clock.waiting_for() == ""


def test_pauses_within_and_beside_each_other_count_once(tick):
    begun = clock.now()
    clock.pause()
    tick(1.0)
    clock.pause("compiling")
    tick(1.0)
    clock.resume()
    tick(1.0)
    assert clock.now() == begun
    clock.resume()
    tick(1.0)
    assert clock.now() - begun == pytest.approx(1.0)


def test_it_goes_on_after_an_error(tick):
    begun = clock.now()
    with pytest.raises(ValueError), clock.paused():
        tick(3.0)
        raise ValueError
    tick(1.0)
    assert clock.now() - begun == pytest.approx(1.0)


def test_what_compiles_takes_none_of_a_time_limit(tick):
    class Compiling(gw.schedulers.Ring):
        def make(self, *given):
            with clock.paused("compiling"):
                tick(100.0)
            return super().make(*given)

    class Slow(gw.schedulers.Ring):
        def make(self, *given):
            tick(100.0)
            return super().make(*given)

    tried = {
        first: len(
            gw.solve("ring:4", schedulers=[first(), "merged:tries=1"], time_limit=5).attempts
        )
        for first in (Compiling, Slow)
    }
    assert tried == {Compiling: 2, Slow: 1}
