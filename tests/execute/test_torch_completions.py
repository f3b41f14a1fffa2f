"""Futures of collectives, whose callbacks wait for other collectives."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gradweave.execute.torch_distributed.completions import Completions  # noqa: E402
from gradweave.torch.progress import Progress  # noqa: E402

PATIENCE_S = 60.0


def soon(call: Callable[[], Any]) -> Any:
    """The result of a call that may not hang."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert found, "it hangs"
    return found[0]


def test_a_callback_may_wait_for_a_later_collective():
    """As in PowerSGD; here the later collective's callback waits for a third collective."""
    progress, begun = Progress(), threading.Event()

    def started(value: float, run: Callable[[], Any] = lambda: None) -> Any:
        return progress.start(torch.tensor([value]), run).get_future()

    def third(done: Any) -> float:
        return done.value()[0].item() + started(100.0).wait()[0].item()

    def second(done: Any) -> float:
        return done.value()[0].item() + started(10.0).then(third).wait()

    chained = started(1.0, begun.wait).then(second)
    begun.set()
    assert soon(chained.wait) == 111
    progress.close()


def test_futures_are_complete_in_turn():
    completions, held, order = Completions(), threading.Event(), list[int]()
    made = [completions.future(lambda number=number: number) for number in range(20)]
    for number, (future, _) in enumerate(made):
        future.add_done_callback(lambda done, number=number: order.append(number))
    made[3][0].then(lambda _: held.wait(PATIENCE_S))  # holds up none behind it
    for _, complete in made:
        complete()
    assert soon(made[19][0].wait) == 19 and soon(made[3][0].wait) == 3
    assert all(future.done() for future, _ in made)
    until = time.monotonic() + PATIENCE_S
    while len(order) < 20 and time.monotonic() < until:
        time.sleep(0.01)
    assert sorted(order) == list(range(20))
    held.set()
    completions.close()


def test_an_error_is_the_futures_and_its_late_callbacks():
    progress = Progress()

    def fails() -> None:
        raise OSError("lost")

    work = progress.start(torch.ones(1), fails)
    with pytest.raises(OSError, match="lost"):
        work.wait()
    future = work.get_future()  # after its end
    assert future is work.get_future()
    error = soon(lambda: _error(future))
    assert "lost" in str(error)
    progress.close()


def _error(future: Any) -> Exception | None:
    try:
        future.wait()
    except Exception as error:
        return error
