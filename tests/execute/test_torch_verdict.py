"""Who is silent, by where the others say that they stand: small cases thought through by hand."""

import pytest

pytest.importorskip("torch")

from gradweave.execute.torch_distributed.own_status import PLANNED
from gradweave.execute.torch_distributed.status import Heard, LaneStatus, RankStatus
from gradweave.execute.torch_distributed.verdict import Judge

GROUP, JUDGE = "all", Judge(4, 1.0)


def inside(calls: int, *awaits: int, heartbeats: int = 1) -> RankStatus:
    planned = LaneStatus((), calls, calls, 9.0, awaits=awaits)
    return RankStatus(heartbeats, {PLANNED: planned, **operations(calls, 0)}, 9.0)


def outside(calls: int, started: int = 0) -> RankStatus:
    planned = LaneStatus((), calls, None)
    return RankStatus(1, {PLANNED: planned, **operations(calls, started)}, 9.0)


def operations(calls: int, started: int) -> dict[str, LaneStatus]:
    """What PyTorch has started since the last collective."""
    return {f"{GROUP} {calls}": LaneStatus((), started, started or None, 9.0, assumed=True)}


@pytest.mark.parametrize(
    ("stands", "gone", "expected"),
    [
        # A ring of four; 1 and 3 wait for 2, and 0 for them.
        ({0: inside(5, 1, 3), 1: inside(5, 0, 2), 3: inside(5, 2)}, {}, [2]),
        # The same, and 2 is there but has not entered the collective.
        ({0: inside(5, 1, 3), 1: inside(5, 2), 2: outside(4), 3: inside(5, 2)}, {}, [2]),
        # 0 waits for 2 in an operation of PyTorch's own, which 1 and 3 have behind them.
        ({0: outside(4, 1), 1: inside(5, 0, 2), 2: outside(4, 0), 3: inside(5, 0)}, {}, [2]),
        # So it does where 2 is stopped, and nobody knows what it has started.
        ({0: outside(4, 1), 1: inside(5, 0, 2), 3: inside(5, 0, 2)}, {}, [2]),
        # 0 gave up that operation and ended: who it waited for is still to blame.
        ({1: inside(5, 0), 2: outside(4, 0), 3: inside(5, 0)}, {0: outside(4, 1)}, [2]),
        # 0 ended, and did not say for whom it waited, or waited for nobody.
        ({1: inside(5, 0), 2: inside(5, 1), 3: inside(5, 0)}, {0: None}, [0]),
        ({1: inside(5, 0), 2: inside(5, 1), 3: inside(5, 0)}, {0: outside(4, 0)}, [0]),
        # Two of them: one is stopped, and one sleeps.
        ({0: inside(5, 2, 3), 1: inside(5, 0), 3: outside(4)}, {}, [2, 3]),
        # 2 has done its part and gone on, entered the next one, or is in one before.
        ({0: inside(5, 1), 1: inside(5, 2, 3), 2: outside(5), 3: inside(5, 0)}, {}, []),
        ({0: inside(5, 1), 1: inside(5, 2, 0), 2: inside(6, 3), 3: inside(5, 0)}, {}, []),
        ({0: inside(5, 2), 1: outside(3), 2: inside(4, 1), 3: inside(5, 2)}, {}, [1]),
        # 0 has completed the collective, and waits elsewhere for 1, which is in it for lack of 2.
        ({0: outside(5, 1), 1: inside(5, 2), 2: outside(4), 3: inside(5, 1)}, {}, [2]),
        # All are there and wait for each other: the network is slow.
        ({r: inside(5, (r + 1) % 4) for r in range(4)}, {}, []),
    ],
)
def test_who_is_silent(stands: dict, gone: dict, expected: list[int]):
    assert JUDGE.silent(stands, gone) == expected


def test_nobody_in_a_collective():
    """All wait for 2 in an operation of PyTorch's own; only one of them asks."""
    stands = {0: outside(5, 2), 1: outside(5, 2), 2: outside(5, 1), 3: outside(5, 2)}
    assert JUDGE.silent(stands, {}) == []
    assert JUDGE.silent(stands, {}, waiting=[1]) == [2]
    assert JUDGE.silent({1: outside(5, 2)}, {}, waiting=[1]) == [0, 2, 3]


def test_who_counts_as_present():
    """Whoever tells where it stands anew, once one has begun to listen."""
    heard = Heard()
    heard.hear({0: inside(5, 1), 1: inside(5, 2)})
    assert heard.present() == {}
    later = inside(5, 2, heartbeats=2)
    heard.hear({0: inside(5, 1), 1: later, 3: inside(5, 2)})
    assert set(heard.present()) == {1, 3}
    assert RankStatus.read(later.written().encode()) == later
