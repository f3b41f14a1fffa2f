"""The server of rounds that wait for nobody, by hand: who counts, and what becomes of φ."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from gradweave.aggregate import DiLoCo
from gradweave.aggregate.local.quorum import _Client, _Server
from gradweave.errors import RunError

WORKERS = 3


class Silent:
    """A group whose processes are there and send nothing: the tests speak for them."""

    def size(self):
        return WORKERS

    def recv(self, *_):
        return self

    def wait(self, _timeout):
        threading.Event().wait()


def server(quorum, deadline_s, silence_s=1e6):
    method = DiLoCo(local_steps=4, quorum=quorum)
    assert (method.outer_rate, method.outer_momentum) == (0.7, 0.9)
    return _Server(torch.tensor([1.0, -1.0]), method, deadline_s, Silent(), silence_s)  # type: ignore


def exchanged(rounds, of_round, changes):
    """The answers to the workers whose changes these are, by rank."""
    with ThreadPoolExecutor(WORKERS) as threads:
        asked = {
            rank: threads.submit(rounds.exchange, rank, of_round, torch.tensor(change))
            for rank, change in changes.items()
        }
        return {rank: answer.result() for rank, answer in asked.items()}


def test_a_round_ends_when_all_are_in_time():
    """Of Δ = (1, 2), (3, 6) and (2, 1) the mean is (2, 3); momentum begins with it.

    φ moves by .7·(Δ + .9·m): by .7·1.9·(2, 3) = (2.66, 3.99). Then Δ = (1, 1), so that
    m = .9·(2, 3) + 1 = (2.8, 3.7), and φ moves by .7·(3.52, 4.33) = (2.464, 3.031).
    """
    rounds = server(quorum=2, deadline_s=1e6)
    got = exchanged(rounds, 0, {0: [1.0, 2.0], 1: [3.0, 6.0], 2: [2.0, 1.0]})
    for answer in got.values():
        assert answer[:3] == (1, 3, True)
        torch.testing.assert_close(answer.shared, torch.tensor([3.66, 2.99]))
    got = exchanged(rounds, 1, {rank: [1.0, 1.0] for rank in range(3)})
    for answer in got.values():
        assert answer[:3] == (2, 3, True)
        torch.testing.assert_close(answer.shared, torch.tensor([6.124, 6.021]))


def test_a_quorum_is_enough_after_the_deadline_and_who_is_late_is_left_out():
    rounds = server(quorum=2, deadline_s=0.05)
    got = exchanged(rounds, 0, {0: [1.0, 2.0], 2: [3.0, 6.0]})
    for answer in got.values():  # the mean is (2, 4): φ moves by .7·1.9·(2, 4) = (2.66, 5.32)
        assert answer[:3] == (1, 2, True)
        torch.testing.assert_close(answer.shared, torch.tensor([3.66, 4.32]))
    late = rounds.exchange(1, 0, torch.tensor([100.0, 100.0]))
    assert late[:3] == (1, 2, False)
    torch.testing.assert_close(late.shared, torch.tensor([3.66, 4.32]))


def test_fewer_than_the_quorum_are_not_averaged():
    rounds = server(quorum=2, deadline_s=0.05)
    rounds._changes = {0: torch.ones(2)}
    rounds._average()
    assert (rounds._round, rounds._counted) == (1, 1)
    torch.testing.assert_close(rounds._shared, torch.tensor([1.0, -1.0]))
    rounds._alive = {0}
    with pytest.raises(RunError, match="1 worker left, and the quorum is 2"):
        rounds.exchange(0, 1, torch.ones(2))


def test_who_stays_silent_is_named_where_the_quorum_is_not_met():
    rounds = server(quorum=2, deadline_s=0.01, silence_s=0.1)
    with pytest.raises(
        RunError,
        match=r"1 worker left, and the quorum is 2; lost worker 0: silent for 0\.1 s while "
        r"others waited; lost worker 2: silent for 0\.1 s",
    ):
        rounds.exchange(1, 0, torch.ones(2))
    assert rounds._alive == {1}


def test_who_was_silent_for_long_counts_again_when_it_sends():
    rounds = server(quorum=2, deadline_s=0.01, silence_s=1e6)
    with rounds._changed:
        rounds._lose(2, "silent")
    assert exchanged(rounds, 0, {0: [1.0, 2.0], 1: [3.0, 6.0]})[1][:3] == (1, 2, True)
    assert rounds.exchange(2, 0, torch.ones(2))[:3] == (1, 2, False)
    assert rounds._alive == {0, 1, 2} and not rounds._lost


@pytest.fixture
def stopped_first(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Worker 1's group where worker 0 is connected and takes nothing, as if it were stopped."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]

    def group(rank: int) -> Any:
        return dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))

    with ThreadPoolExecutor(2) as threads:
        _first, second = threads.map(group, range(2))
    yield second


def test_a_first_worker_that_is_stopped_is_named_and_holds_nobody(stopped_first):
    client = _Client(stopped_first, deadline_s=0.05, silence_s=0.05)
    with pytest.raises(RunError, match="lost worker 0, which averages"):
        client.exchange(0, torch.ones(2))


def test_leaving_a_first_worker_that_is_stopped_takes_no_longer_than_the_deadline(stopped_first):
    _Client(stopped_first, deadline_s=0.05, silence_s=1e6).close(torch.ones(2))
