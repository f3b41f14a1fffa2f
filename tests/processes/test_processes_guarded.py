"""A block that ends when something else breaks meanwhile."""

import signal
import threading
import time

import pytest

from gradweave.processes.guarded import guarded
from tests.patience import PATIENCE_S


class BrokenError(Exception):
    pass


def broken_after(looks: int):
    left = iter(range(looks))

    def look() -> None:
        if next(left, None) is None:
            raise BrokenError

    return look


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL])
def test_the_block_ends_with_what_a_look_finds(before, request):
    was = signal.signal(signal.SIGINT, before)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, was))
    with pytest.raises(BrokenError), guarded(broken_after(2), every_s=0.01):
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            time.sleep(0.01)
        pytest.fail("nobody ended it")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_block_that_nothing_breaks_ends_as_without():
    looked = threading.Event()
    with guarded(looked.set, every_s=0.01):
        assert looked.wait(PATIENCE_S)
    with pytest.raises(ZeroDivisionError), guarded(looked.set):
        _ = 1 / 0
    with pytest.raises(KeyboardInterrupt), guarded(looked.set):
        raise KeyboardInterrupt


def test_in_another_thread_the_block_comes_to_its_end():
    raised: list[BaseException] = []
    broken = threading.Event()

    def look() -> None:
        broken.set()
        raise BrokenError

    def work() -> None:
        try:
            with guarded(look, every_s=0.01):
                assert broken.wait(PATIENCE_S)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE_S)
    assert [type(one) for one in raised] == [BrokenError]
