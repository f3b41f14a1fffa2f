"""Servers are lost and return under DDP and HSDP, and the others complete the same step."""

import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.execute.launch import run
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")


@pytest.mark.parametrize(("kind", "size", "block"), [("ddp", 3, 1), ("hsdp", 4, 2)])
def test_the_others_complete_the_step_and_admit_who_returns(
    kind: str, size: int, block: int, tmp_path: Path
):
    command = [sys.executable, "-m", "tests.execute.torch_shrink_cases", str(tmp_path), kind]
    status, output = run([*command, str(size)], tmp_path)
    assert status == 0, output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["alike"] and found["apart"] < 1e-12 < 1e-6 < found["kept"]
    averaged, every = found["averaged"], list(range(size))
    assert averaged[:4] == [every] * 3 + [every[:-block]]
    back = averaged.index(every, 3)
    assert averaged[back - 1] == every[:-block] and averaged[-1] == every[block:]
    assert found["statuses"] == [0] * (size - block)
    assert len(found["left"]) == size - block
    for begun, end in found["left"]:  # threads and files; there are fewer servers now
        assert end[0] <= begun[0] and end[1] <= begun[1], found["left"]


def test_a_step_stands_if_all_are_complete_or_one_has_passed_the_vote():
    from gradweave.execute.torch_distributed.shrinking import Report, stands

    complete, other, not_yet, next_step = Report(5, 2), Report(5, 3), Report(5, -1), Report(6, -1)
    assert stands(complete, {0: complete, 2: complete})
    assert stands(complete, {0: complete, 2: next_step})
    assert not stands(next_step, {0: complete, 2: next_step})
    assert not stands(complete, {0: complete, 2: not_yet})
    assert not stands(complete, {0: complete, 2: other})
    assert not stands(not_yet, {0: not_yet, 1: not_yet})


Maker = Callable[..., Any]


@pytest.fixture
def member() -> Iterator[Maker]:
    """Makes `Members` of four servers in one store."""
    import torch.distributed as dist

    from gradweave.execute.torch_distributed.members import Members

    made, store = [], dist.HashStore()  # type: ignore

    def one(rank: int, timeout_s: float = PATIENCE_S, begin: Any = Members) -> Members:
        made.append(begin(store, "of a test", rank, 4, timeout_s=timeout_s))
        return made[-1]

    yield one
    for each in made:
        each.close()


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Makes calls in separate threads; returns their results."""
    found: list[Any] = [None] * len(calls)

    def call(place: int) -> None:
        found[place] = calls[place]()

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return found


def test_the_first_proposal_counts(member: Maker):
    from gradweave.execute.torch_distributed.members import LeftOutError

    zero, one, two = member(0), member(1), member(2)
    zero.lose([3])
    one.lose([2])  # after 3, which zero has found first
    assert zero.membership.ranks == (0, 1, 2) and one.membership.ranks == (0, 1)
    assert one.number == 2
    with pytest.raises(LeftOutError, match="rank 2 was taken for lost"):
        two.lose([0])
    assert zero.advance() and not zero.advance() and zero.membership == one.membership


def test_a_member_that_does_not_come_is_lost(member: Maker, monkeypatch: pytest.MonkeyPatch):
    from gradweave.execute.torch_distributed import members

    monkeypatch.setattr(members, "DEAD_S", 1.0)
    zero, one, three = member(0), member(1), member(3)
    dead = member(2)
    dead.close()
    met = together(
        lambda: zero.meet("report", "a"), lambda: one.meet("report", "b"), lambda: three.advance()
    )
    assert met == [None, None, False] and zero.membership.ranks == one.membership.ranks == (0, 1, 3)
    three.advance()
    calls = [
        lambda m=m, s=s: m.meet("report", s) for m, s in ((zero, "a"), (one, "b"), (three, "c"))
    ]
    assert together(*calls) == [{0: b"a", 1: b"b", 3: b"c"}] * 3


def test_a_living_member_has_the_timeout_to_come(member: Maker):
    zero, others = member(0, timeout_s=0.5), [member(rank) for rank in (1, 2, 3)]
    assert zero.meet("report", "a") is None
    assert zero.membership.ranks == (0,) and others[0].number == 0


def test_who_returns_waits_until_it_is_admitted(member: Maker):
    from gradweave.execute.torch_distributed.members import Members, Membership

    zero = member(0)
    zero.lose([1, 2, 3])

    def admits() -> None:
        while zero.asking != {2}:
            threading.Event().wait(0.05)
        zero.propose(Membership((0, 2), (2,)))

    _, two = together(admits, lambda: member(2, begin=Members.returning))
    assert (
        two.membership == zero.membership == Membership((0, 2), (2,))
        and two.number == zero.number == 2
    )
    zero.lose([2])
    assert zero.membership == Membership((0,))


def test_who_is_not_admitted_is_told(member: Maker):
    from gradweave.errors import RunError
    from gradweave.execute.torch_distributed.members import Members

    with pytest.raises(RunError, match="rank 1 was not admitted"):
        member(1, timeout_s=0.3, begin=Members.returning)


def test_shards_of_a_replica_are_lost_together():
    from gradweave.execute.torch_distributed.members import Members

    class Six(Members):
        def __init__(self) -> None:
            self.size, self._block = 6, 2

    assert Six().together([3]) == {2, 3} and Six().together([0, 5]) == {0, 1, 4, 5}
