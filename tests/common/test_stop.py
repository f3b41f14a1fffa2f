"""What ends a search: time, a target, or a flag."""

import math
import threading
import types

import pytest

from gradweave.common import clock
from gradweave.common.stop import NOBODY, UNLIMITED, Stop


@pytest.fixture
def tick(monkeypatch):
    """Moves time on by hand."""
    moment = [1e6]

    def move(seconds: float) -> None:
        moment[0] += seconds

    monkeypatch.setattr(clock, "time", types.SimpleNamespace(monotonic=lambda: moment[0]))
    return move


def test_it_says_why(tick):
    stop = Stop.after(2.0).at(10.0)
    assert stop.reached() == stop.reached(10.5) == ""
    assert stop.reached(10.0) == "target"
    tick(2.0)
    assert stop.reached() == stop.reached(10.5) == "time"
    assert stop.reached(9.0) == "target"  # which was met, whatever the time
    assert not stop.at(-math.inf).part(1.0).reached(-1e300) == "target"


def test_without_a_limit_it_never_comes(tick):
    assert Stop.after(None) == UNLIMITED == Stop.after(math.inf) == UNLIMITED.part(0.5)
    assert UNLIMITED.sooner(3.0) == UNLIMITED
    assert UNLIMITED.seconds_left == math.inf
    tick(1e9)
    assert not UNLIMITED.reached()


def test_parts_are_of_the_time_that_is_left(tick):
    stop = Stop.after(10.0)
    tick(2.0)
    half, sooner = stop.part(0.5), stop.sooner(3.0)
    assert (half.seconds_left, sooner.seconds_left) == pytest.approx((4.0, 5.0))
    assert half.part(0.25).seconds_left == pytest.approx(1.0)
    tick(20.0)
    assert half.seconds_left == 0.0 and half.reached() == "time"


def test_it_waits_while_the_clock_stands_still(tick):
    stop = Stop.after(2.0)
    with clock.paused("compiling"):
        tick(100.0)
        assert stop.seconds_left == pytest.approx(2.0) and not stop.reached()
    tick(2.0)
    assert stop.reached()


def set_soon(flag) -> bool:
    """Whether a flag is set within what is far more than it takes."""
    for _ in range(1000):
        if flag[0]:
            return True
        threading.Event().wait(0.01)
    return False


def test_a_watched_flag_is_set_when_time_is_up():
    with Stop.after(0.05).watched() as stop:
        assert set_soon(stop.flag) and stop.reached() == "flag"
    with clock.paused(), Stop.after(0.02).watched() as stop:
        threading.Event().wait(0.1)
        assert not stop.flag[0]


def test_a_watched_flag_is_set_at_the_end_even_where_that_is_an_error():
    with pytest.raises(KeyboardInterrupt), UNLIMITED.watched() as stop:
        assert not stop.flag[0] and stop.reached() == ""
        raise KeyboardInterrupt
    assert stop.flag[0] and not NOBODY[0]


def test_who_sets_a_flag_stops_what_is_within():
    with UNLIMITED.watched() as outer, outer.part(0.5).at(3.0).watched() as inner:
        assert inner.target == 3.0 and not inner.flag[0]
        outer.flag[0] = True
        assert set_soon(inner.flag)
    with UNLIMITED.watched() as outer:
        with outer.watched() as inner:
            pass
        assert inner.flag[0] and not outer.flag[0]  # the end of a part is not that of the whole
