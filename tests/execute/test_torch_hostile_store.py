"""A job's store that anyone may write to: whatever it holds, nothing hangs or is logged raw."""

import json
import math
import random
import time
import types
from typing import Any

import pytest

from gradweave.errors import GradweaveError, RunError
from gradweave.processes.peers import peer_value

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist  # noqa: E402
from torch.distributed import HashStore  # noqa: E402

import gradweave as gw  # noqa: E402
from gradweave.execute.torch_distributed.own_status import PLANNED  # noqa: E402
from gradweave.execute.torch_distributed.status import (  # noqa: E402
    Heard,
    LaneStatus,
    RankStatus,
    statuses,
)
from gradweave.execute.torch_distributed.store import value_of  # noqa: E402
from gradweave.execute.torch_distributed.verdict import (  # noqa: E402
    Judge,
    SharedVerdict,
    Verdict,
)
from gradweave.torch import agreement as agreements  # noqa: E402
from gradweave.torch import monitor as monitors  # noqa: E402
from gradweave.torch.monitor import Monitor  # noqa: E402
from gradweave.torch.own_status import OwnStatus  # noqa: E402
from gradweave.torch.record import Recorder  # noqa: E402
from gradweave.torch.recorded import group_record  # noqa: E402
from gradweave.torch.settings import Settings  # noqa: E402
from gradweave.torch.view import JobView  # noqa: E402

HOSTILE: list[bytes] = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b"0",
    b'"text"',
    b"NaN",
    b"1e999",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b"9" * 5000,
    b'{"kind": "late", "ranks": [1], "text": "x", "at": "now", "by": 0}',
    b'{"kind": "late", "ranks": 5, "text": "x", "at": 0, "by": 0}',
    b'{"kind": "none", "ranks": [], "text": "x", "at": 0, "by": 0}',
    b'{"lost": [7], "how": ["x"]}',
    b'{"lost": [-1], "how": ["x"]}',
    b'{"lost": [1, 2], "how": ["x"]}',
    b'{"lost": [], "how": []}',
    b'["job", 1000000000]',
    b'{"plans": true, "order": [99], "network": 3}',
    b"a" * (5 << 20),
]
"""Values for any key."""


def mutants(written: str, count: int) -> list[bytes]:
    """The same JSON with some field, at any depth, replaced."""
    drawn, found = random.Random(0), []
    values = [None, -1, 1 << 70, 1e308, -1e308, "\n\x1b[31m", [], {}, [[]], True, "x" * 5000, 0]
    for _ in range(count):
        at = whole = json.loads(written)
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = drawn.choice(keys)
            if isinstance(at[key], dict | list) and at[key] and drawn.random() < 0.7:
                at = at[key]
                continue
            at[key] = drawn.choice(values)
            break
        found.append(json.dumps(whole).encode())
    return found


class Work:
    over = False

    def is_completed(self) -> bool:
        return self.over


class Job:
    """Monitors of one process that share a store."""

    def __init__(self, size: int) -> None:
        self.raw, self.size = HashStore(), size
        self.store = dist.PrefixStore("gradweave monitor", self.raw)  # type: ignore[attr-defined]
        self.recorders = [Recorder() for _ in range(size)]
        self.lanes = [each.lane("g", tuple(range(size))) for each in self.recorders]
        self.monitors = [
            Monitor(recorder, self.raw, rank, size, 0.2, lambda: b"kept")
            for rank, recorder in enumerate(self.recorders)
        ]

    def enter(self, *ranks: int) -> None:
        options = types.SimpleNamespace(reduceOp=dist.ReduceOp.SUM)
        for rank in ranks:
            recorder = self.recorders[rank]
            entry = recorder.enter(self.lanes[rank], "all_reduce", torch.ones(9), options)
            recorder.started(entry, Work())

    def close(self) -> None:
        for recorder in self.recorders:
            for entry in recorder.kept:
                entry.failed(ValueError())
                entry.lane.failed = None
                entry.lane.open.clear()
        for each in self.monitors:
            each.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitors, "TICK_S", (0.02, 0.02))
    monkeypatch.setattr(monitors, "HEARD_S", 0.3)


KEYS = ("alarm", "judged", "verdict", "trace", "stand 1", "stand 2")


def test_monitors_outlive_whatever_the_store_holds(quick: None, lines: list[str]):
    job = Job(3)
    job.enter(0)  # from now on all keys are read
    time.sleep(0.5)
    lines.clear()
    for value in HOSTILE:
        for key in KEYS:
            job.store.set(key, value)
        time.sleep(0.05)
    for key in (*KEYS, "stand 0"):
        job.store.delete_key(key)
    time.sleep(0.2)
    assert all(each._thread.is_alive() and not each._store_is for each in job.monitors)
    assert sum("a verdict in the job's store" in line for line in lines) <= 3  # once per rank
    assert not any("\n" in line or "\x1b" in line for line in lines)
    lines.clear()
    for each in job.monitors:
        each._said = each._candidate = None
    until = time.monotonic() + 20  # and they still find who holds the job up
    while not any("hold up rank 0" in line for line in lines) and time.monotonic() < until:
        time.sleep(0.05)
    assert any(line.startswith("ranks 1 and 2 (") for line in lines), lines
    job.close()


def test_a_forged_verdict_is_one_printable_line(quick: None, lines: list[str]):
    job = Job(2)
    job.enter(0)
    time.sleep(0.1)
    text = "rank 1 holds up\n\x1b[2J\u202eall" + "x" * 900
    forged = {"kind": "late", "ranks": [1], "text": text, "at": time.time(), "by": 1}
    job.store.set("verdict", json.dumps(forged))
    until = time.monotonic() + 20
    while not any("x" * 900 in line for line in lines) and time.monotonic() < until:
        time.sleep(0.02)
    (line,) = {line for line in lines if "x" * 900 in line}
    assert line.isprintable() and line.startswith("rank 1 holds up \\x1b[2J\\u202eall")
    job.close()


def test_answers_to_whoever_asks_do_not_pile_up(quick: None):
    job = Job(2)
    job.enter(0)
    for number in range(5):
        job.store.set("trace", f"{number:032x}")
        job.store.set("alarm", f"asked {number}")
        until = time.monotonic() + 20
        while not job.store.check([f"trace {number:032x} 0"]) and time.monotonic() < until:
            time.sleep(0.02)
    left = [number for number in range(5) if job.store.check([f"trace {number:032x} 0"])]
    assert left == [4]
    job.close()


def test_where_ranks_stand():
    """Every written value is read or ignored; a value that is read can be judged and shown."""
    recorder = Recorder()
    lane = recorder.lane("g", (0, 1))
    options = types.SimpleNamespace(reduceOp=dist.ReduceOp.SUM)
    recorder.started(recorder.enter(lane, "all_reduce", torch.ones(9), options), Work())
    own = OwnStatus(recorder)
    store = HashStore()
    store.set("stand 0", own.at(time.monotonic(), 1, False).written())
    before = statuses(store, 2)
    assert set(before) == {0}
    written, read = own.at(time.monotonic(), 2, False).written(), 0
    for value in (*HOSTILE, *mutants(written, 400)):
        store.set("stand 1", value)
        now = statuses(store, 2)
        read += 1 in now
        for heard in ({0}, set(now)):
            view = JobView.of({**before, 1: now.get(1, before[0])}, now, heard, 0.0)
            assert len(view.ranks) == len(now)
    assert read > 50  # a mutant may be a value that a rank writes


def waiting() -> RankStatus:
    """Of a rank in a planned collective."""
    planned = LaneStatus((), 1, 1, 4.0, awaits=(0, 1))
    operations = LaneStatus((), 2, 2, 4.0, assumed=True)
    return RankStatus(3, {PLANNED: planned, "g 1": operations}, 4.0)


def test_where_processes_stand():
    for value in (*HOSTILE, *mutants(waiting().written(), 300)):
        try:
            status = RankStatus.read(value)
        except RunError:
            continue
        Judge(2, 1.0).silent({0: status}, {}, {0})


def test_a_verdict_of_who_is_lost():
    """The first process with a valid verdict decides, whatever the store holds in its place."""
    mine, net = Verdict((1,), ("its connection broke",)), gw.topology.star(3)
    for value in HOSTILE:
        store = HashStore()
        store.set("lost", value)
        other, own = SharedVerdict(0, 3), SharedVerdict(0, 3)
        assert other.read(store) is None and other.known is None
        assert own.decide(mine, store) == mine and other.read(store) == mine
        assert "server 1" in str(own.known and own.known.error(net))
        assert not own.all_know(store)
        store.set("knows 2", "")
        assert own.all_know(store)
    forged = Verdict((2,), ("it\n\x1b[31m" + "x" * 5000,))
    store = HashStore()
    store.set("lost", json.dumps({"lost": forged.lost, "how": forged.how}))
    assert (
        SharedVerdict(0, 3).decide(mine, store) == forged and str(forged.error(net)).isprintable()
    )


def test_stands_of_a_group():
    store, good = HashStore(), waiting()
    good.write(2, store)
    for value in (*HOSTILE, *mutants(good.written(), 300)):
        store.set("stand 1", value)
        found = statuses(store, 3)
        assert found[2] == good and set(found) <= {1, 2}
        heard = Heard()
        heard.hear(found)
        heard.hear({})
        heard.hear(found)
        verdict = Judge(3, 1.0).verdict(heard, long=True)
        assert verdict is None or set(verdict.lost) <= {0, 1, 2}


def agreed(values: dict[str, bytes], rank: int, of: Settings) -> Any:
    """The outcome of the agreement at one rank of two, after another rank wrote some values."""
    store = HashStore()
    store.set("gradweave 1", json.dumps({"host": "a", "version": "1"}))
    for key, value in values.items():
        store.set(key, value)
    options = types.SimpleNamespace(
        store=store, group_rank=rank, group_size=2, global_ranks_in_group=[]
    )
    return agreements.agreement(options, of)


@pytest.mark.parametrize("value", [value for value in HOSTILE if value], ids=lambda v: str(v[:20]))
def test_what_ranks_agree_on(tmp_path: Any, lines: list[str], value: bytes):
    of = Settings((), "star:n=2", "gloo", tmp_path)
    assert not agreed({"gradweave 1": value}, 0, of).plans
    assert len(lines) == 1 and lines[0].startswith("no plans, the ") and lines[0].isprintable()
    wanted = {"gradweave wanted": b"yes", "gradweave measures": b"no"}
    with pytest.raises(RunError, match="the agreement of rank 0: not what a rank"):
        agreed({**wanted, "gradweave agreed": value}, 1, of)
    options = types.SimpleNamespace(store=HashStore(), group_rank=1, group_size=2)
    options.store.set("gradweave recording", value)
    with pytest.raises(RunError, match="not what a rank of this job writes"):
        group_record(options)


def test_a_key_that_is_not_there_is_not_waited_for():
    made: Any = dist
    store = made.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    begin = time.monotonic()
    assert value_of(store, "a") is None and not store.check(["a"])
    store.set("a", "")
    assert value_of(store, "a") == b""
    store.set("a", "b")
    assert value_of(store, "a") == b"b" and store.get("a") == b"b"
    assert time.monotonic() - begin < 5


def test_limits():
    for value in HOSTILE:
        with pytest.raises(GradweaveError, match="a value: not what a rank"):
            peer_value(value, tuple[str, bool], "a value")
    with pytest.raises(GradweaveError, match="expected at most 4"):
        peer_value(b"[1, 2]", list[int], "x", 4)
    assert math.isnan(peer_value(b'{"loss": NaN}', dict, "x")["loss"])
