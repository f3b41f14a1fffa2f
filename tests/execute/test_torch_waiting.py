"""Who holds a job up: verdicts by hand, the record of calls, and monitors that share a store."""

import dataclasses
import gc
import json
import math
import os
import socket
import sys
import threading
import time
import types
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import gradweave as gw
from gradweave.errors import GradweaveError
from gradweave.execute.recorded import read_recorded
from gradweave.schedulers import RecursiveDoubling
from tests.execute.launch import run

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist  # noqa: E402

from gradweave.execute.torch_distributed.sockets import (  # noqa: E402
    Connection,
    connections,
    received_bytes,
)
from gradweave.execute.torch_distributed.status import LaneStatus, RankStatus  # noqa: E402
from gradweave.torch import monitor as monitors  # noqa: E402
from gradweave.torch.holdup import Holdup, Kind, Ranks  # noqa: E402
from gradweave.torch.links import LinkUse, links_in_use, slow_link  # noqa: E402
from gradweave.torch.monitor import Monitor  # noqa: E402
from gradweave.torch.own_status import OwnStatus  # noqa: E402
from gradweave.torch.record import KEPT, Lane, Recorder  # noqa: E402
from gradweave.torch.recorded import GroupRecord, RecordedGroup, group_record  # noqa: E402
from gradweave.torch.settings import Recording  # noqa: E402

SUM, BROADCAST = "all_reduce float32[9] sum", "broadcast float32[9] root 0"
PATIENCE_S = 2.0


def lane(
    entered: int,
    open: int | None = None,
    last: str = SUM,
    *,
    members: tuple[int, ...] = (0, 1, 2, 3),
    for_s: float = 3.0,
    root: int | None = None,
) -> LaneStatus:
    recent = (SUM, SUM, last)[-entered:] if entered else ()
    return LaneStatus(members, entered, open, for_s, root, recent)


def stand(failed: str = "", left: bool = False, **lanes: LaneStatus) -> RankStatus:
    return RankStatus(1, lanes, 3.5, 9.0, "node", "here", 1, SUM, "train.py:7 (load)", failed, left)


def inside(number: int, **given: Any) -> RankStatus:
    return stand(all=lane(number, number, **given))


def outside(entered: int) -> RankStatus:
    return stand(all=lane(entered))


def left(entered: int) -> RankStatus:
    return stand(left=True, all=lane(entered))


def judged(
    stands: dict[int, RankStatus],
    absent: tuple[int, ...] = (),
    certain: bool = True,
    links: tuple[LinkUse, ...] = (),
) -> Holdup | None:
    present = set(stands) - set(absent)
    found = Ranks(stands, present, certain=certain, patience_s=PATIENCE_S, links=links)
    return found.holdup()


PAIRS = {"pair": lane(4, 4, members=(0, 1)), "other": lane(6, members=(1, 2))}
EVERY_LINK_BUSY = tuple(LinkUse(r, (r + 1) % 4, 1000, 1.0, 0.9) for r in range(4))
ONE_BUSY = (LinkUse(2, 3, 1000, 1.0, 0.95), *(LinkUse(r, r + 1, 1000, 1.0, 0.1) for r in (0, 1)))


@pytest.mark.parametrize(
    ("stands", "absent", "kind", "ranks"),
    [
        # Three wait; the fourth has not entered the call.
        ({0: inside(5), 1: inside(5), 2: outside(4), 3: inside(5)}, (), Kind.LATE, (2,)),
        # The same, and nothing is heard of it, whatever it had entered.
        ({0: inside(5), 1: inside(5), 2: outside(4), 3: inside(5)}, (2,), Kind.LOST, (2,)),
        ({0: inside(5), 1: inside(5), 2: inside(5), 3: inside(5)}, (2,), Kind.LOST, (2,)),
        ({0: inside(5), 1: inside(5), 3: inside(5)}, (), Kind.LOST, (2,)),
        # It is not there, but had completed that call: rank 1 is the late one.
        ({0: inside(5), 1: outside(4), 2: outside(5), 3: inside(5)}, (2,), Kind.LATE, (1,)),
        # It has left the job: in time, without the call, or since its own call had failed.
        (
            {0: inside(5), 1: outside(4), 2: stand(left=True, all=lane(5)), 3: inside(5)},
            (),
            Kind.LATE,
            (1,),
        ),
        (
            {0: inside(5), 1: inside(5), 2: stand(left=True, all=lane(4)), 3: inside(5)},
            (),
            Kind.LEFT,
            (2,),
        ),
        # All that are left have seen a connection break; 1 computes still, and 2 is not heard.
        (
            {0: stand("closed", all=lane(5, 5)), 1: outside(4), 2: outside(4), 3: inside(5)},
            (2,),
            Kind.LOST,
            (2,),
        ),
        (
            {r: stand("closed", r == 0, all=lane(5, 5)) for r in (0, 1, 3)},
            (),
            Kind.LOST,
            (2,),
        ),
        # Rank 2 calls something else, and is beyond it already; two and two.
        (
            {0: inside(5), 1: inside(5), 2: inside(5, last=BROADCAST), 3: inside(5)},
            (),
            Kind.MISMATCH,
            (2,),
        ),
        (
            {r: inside(5, last=BROADCAST if r < 2 else SUM) for r in range(4)},
            (),
            Kind.MISMATCH,
            (0, 1, 2, 3),
        ),
        # 0 waits for 1 in their group, and 1 in another group for 2, which is late there.
        (
            {
                0: stand(pair=lane(4, 4, members=(0, 1))),
                1: stand(pair=lane(3, members=(0, 1)), other=lane(6, 6, members=(1, 2))),
                2: stand(other=lane(5, members=(1, 2))),
            },
            (),
            Kind.LATE,
            (2,),
        ),
        # 0 waits for a message of 1, which computes.
        ({0: stand(m=lane(4, 4, members=(1, 0))), 1: stand()}, (), Kind.LATE, (1,)),
        # A broadcast: who has not entered it yet holds nobody up but the root does.
        (
            {0: outside(4), 1: inside(5, root=0), 2: outside(4), 3: inside(5, root=0)},
            (),
            Kind.LATE,
            (0,),
        ),
        # Each waits for the other, in groups of their own.
        (
            {
                0: stand(a=lane(4, 4, members=(0, 1), for_s=5.0), b=lane(1, members=(0, 1))),
                1: stand(b=lane(2, 2, members=(0, 1), for_s=5.0), a=lane(3, members=(0, 1))),
            },
            (),
            Kind.CYCLE,
            (0, 1),
        ),
        # All are in it.
        ({r: inside(5, for_s=9.0) for r in range(4)}, (), Kind.NETWORK, ()),
        # Nobody waits for long.
        ({0: inside(5, for_s=1.0), 1: outside(4), 2: outside(4), 3: outside(4)}, (), None, ()),
        ({r: outside(5) for r in range(4)}, (), None, ()),
    ],
)
def test_who_holds_the_others_up(
    stands: dict[int, RankStatus], absent: tuple[int, ...], kind: Kind | None, ranks: tuple
):
    found = judged(stands, absent)
    assert (found and found.kind, found.ranks if found else ()) == (kind, ranks)


def test_who_is_not_heard_may_be_late_to_answer():
    stands = {0: inside(5), 1: inside(5), 2: outside(4), 3: inside(5)}
    assert judged(stands, (2,), certain=False) is None
    assert judged({**stands, 1: inside(5, for_s=2.5)}, (1,), certain=False) is None


def test_the_lines():
    late = judged({0: inside(5), 1: inside(5), 2: outside(4), 3: inside(5)})
    assert late and late.text == (
        "rank 2 (node) holds up 3 ranks, which have waited in all_reduce float32[9] sum (call 5) "
        "for 3.0 s: it has been in its own code for 3.5 s since all_reduce float32[9] sum ended, "
        "at train.py:7 (load)"
    )
    different = {r: inside(5, last=BROADCAST if r == 1 else SUM) for r in range(4)}
    found = judged(different)
    assert found and found.text == (
        "rank 1 (node) calls broadcast float32[9] root 0 as call 5, while ranks 0, 2 and 3 (node) "
        "call all_reduce float32[9] sum"
    )
    stands = {r: inside(5) for r in range(4)}
    known = {2: "its process 7 is stopped"}
    lost = Ranks(stands, {0, 1}, certain=True, patience_s=2.0, known=known)
    assert (found := lost.holdup()) and found.ranks == (2, 3)
    assert "hold up" in found.text and "its process 7 is stopped" in found.text


def test_a_slow_link():
    stands = {r: inside(5) for r in range(4)}
    found = judged(stands, links=ONE_BUSY)
    assert found and (found.kind, found.ranks) == (Kind.LINK, (2, 3))
    assert "carries 1 kB/s, while most others are idle" in found.text
    assert judged(stands, links=EVERY_LINK_BUSY) is None
    assert slow_link(EVERY_LINK_BUSY) is None and slow_link(()) is None
    assert slow_link([LinkUse(0, 1, 5, 1.0, 0.5)]) is None
    back = LinkUse(3, 2, 80, 1.0, 1.0)  # its acknowledgements wait behind the bytes of 2 to 3
    assert slow_link([back, *ONE_BUSY]) == ONE_BUSY[0]
    stuck = LinkUse(2, 3, 0, 1.0, 1.0, waiting_bytes=9000)
    assert slow_link([back, stuck]) == stuck
    assert LinkUse(0, 1, 1000, 4.0, 0.9).bytes_per_s == 250


def test_a_link_is_slow_only_where_few_are_busy_and_most_are_idle():
    def beside(*busy: float) -> LinkUse | None:
        rest = [LinkUse(0, to, 10, 1.0, part) for to, part in enumerate(busy, 4)]
        return slow_link([ONE_BUSY[0], *rest])

    assert beside(0.1, 0.1, 0.1, 0.9) == ONE_BUSY[0]
    assert beside(0.1, 0.1, 0.9) is None  # idle, but for more than a quarter
    assert beside(0.6, 0.6, 0.6) is None  # nobody is busy, nor idle


def test_what_a_second_reading_confirms():
    def of(kind: Kind, *ranks: int) -> Holdup:
        return Holdup(kind, ranks, "", 3.0)

    assert of(Kind.LOST, 1).confirms(of(Kind.LOST, 1, 3))  # rank 3 was only slow to answer
    assert not of(Kind.LOST, 1, 3).confirms(of(Kind.LOST, 1))
    assert not of(Kind.LATE, 1).confirms(of(Kind.LOST, 1))
    assert not of(Kind.LINK, 2, 3).confirms(of(Kind.LINK, 3, 2))
    assert of(Kind.LINK, 2, 3).confirms(of(Kind.LINK, 2, 3))


def test_links_by_what_both_ends_count():
    def ends(at_s: float, sent: int, busy_s: float) -> dict[int, RankStatus]:
        here = Connection("a:1", "b:2", sent, 0, 7, busy_s)
        there = Connection("b:2", "a:1", 0, sent, 0, 0.0)
        elsewhere = Connection("a:3", "c:4", sent, 0, 0, busy_s)
        made = dataclasses.replace(stand(), at_s=at_s)
        return {
            0: dataclasses.replace(made, connections=(here, elsewhere)),
            1: dataclasses.replace(made, connections=(there,)),
        }

    before, now = ends(1.0, 100, 0.0), ends(3.0, 1100, 1.0)
    assert links_in_use(before, now) == [LinkUse(0, 1, 1000, 2.0, 0.5, 7)]
    assert links_in_use(now, now) == [] == links_in_use({}, now)
    late = {0: before[0], 1: now[1]}  # the sender's word is under way
    assert links_in_use(before, late) == [LinkUse(0, 1, 1000, 2.0, 0.0)]


def test_the_word_of_a_slow_links_sender_may_be_under_way():
    stands = {r: inside(5) for r in range(4)}
    data, answers = LinkUse(2, 3, 9000, 1.0, 0.0), LinkUse(3, 2, 90, 1.0, 0.95)
    found = judged(stands, (2,), links=(data, answers, *ONE_BUSY[1:]))
    assert found and (found.kind, found.ranks) == (Kind.LINK, (2, 3))
    assert (found := judged(stands, (2,), links=(answers,))) and found.kind is Kind.LOST


def test_what_connections_have_carried():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as here, server.accept()[0] as there:
            here.sendall(b"x" * 1000)
            assert there.recv(1000, socket.MSG_WAITALL)
            name, peer = (f"127.0.0.1:{end.getsockname()[1]}" for end in (here, there))
            if not os.path.exists("/proc/self/fd"):
                return
            until, found = time.monotonic() + 5, dict[str, Connection]()
            while not found or (time.monotonic() < until and found[name].sent_bytes < 1000):
                found = {end.local: end for end in connections()}
            assert found[name].peer == peer and found[peer].peer == name
            assert 1000 <= found[name].sent_bytes <= 1001 and found[peer].received_bytes == 1000
            assert received_bytes(here.getsockname()[1]) >= 1000 > received_bytes(None) == 0


def test_stands_are_read_as_they_were_written():
    made = dataclasses.replace(
        stand("closed", True, all=lane(5, 5, root=0)),
        connections=(Connection("a:1", "b:2", 1, 2, 3, 0.5),),
    )
    assert RankStatus.read(made.written()) == made


def test_what_is_asked_for():
    assert not Recording.of({"GRADWEAVE_SLOW_AFTER": "", "GRADWEAVE_WATCH": "0"}).wanted
    asked = Recording.of({"GRADWEAVE_SLOW_AFTER": "500ms", "GRADWEAVE_TRACE": "/t"})
    assert asked == Recording(0.5, False, Path("/t")) == Recording.read(asked.written())
    assert Recording.of({"GRADWEAVE_WATCH": "1"}).wanted
    for wrong in ("soon", "0", "-1"):
        with pytest.raises(GradweaveError, match="GRADWEAVE_SLOW_AFTER"):
            Recording.of({"GRADWEAVE_SLOW_AFTER": wrong})


def test_a_bad_request_costs_a_line(lines: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRADWEAVE_SLOW_AFTER", "soon")
    store: Any = dist
    options = types.SimpleNamespace(group_size=2, group_rank=0, store=store.HashStore())
    assert group_record(options) is None
    assert len(lines) == 1 and lines[0].startswith("nothing is recorded: GRADWEAVE_SLOW_AFTER")


def test_who_was_stopped_has_not_waited_meanwhile():
    own = OwnStatus(Recorder())
    entry: Any = types.SimpleNamespace(waits_from_ns=97 * 10**9)
    own.resumed(0.0)
    assert own.for_s(entry, 100.0) == 3
    own.resumed(99.0)
    assert own.for_s(entry, 100.0) == 1


class Work:
    """As PyTorch's, over when it is told so."""

    def __init__(self) -> None:
        self.over, self.error = False, ""

    def is_completed(self) -> bool:
        return self.over

    def wait(self) -> bool:
        if self.error:
            raise RuntimeError(self.error)
        return True


def begun(recorder: Recorder, lane: Lane, tensor: Any = None, kind: str = "all_reduce") -> Any:
    options = types.SimpleNamespace(reduceOp=dist.ReduceOp.SUM)
    entry = recorder.enter(lane, kind, tensor, options)
    return recorder.started(entry, Work())


def test_calls_are_kept_until_they_are_over():
    recorder = Recorder()
    group = recorder.lane("g", (0, 1))
    first = begun(recorder, group, [torch.ones(9)])
    second = begun(recorder, group, [[torch.ones(4), torch.ones(5)]])
    assert [entry.text for entry in group.open] == [SUM, SUM]
    assert [entry.bytes for entry in group.open] == [36, 36] and group.first() is group.open[0]
    sparse = recorder.enter(group, "all_reduce", [torch.eye(3).to_sparse()])
    assert (sparse.bytes, sparse.text) == (36, "all_reduce float32[9]")
    recorder.started(sparse, None)
    first.over = True
    second.error = "Connection closed"
    third = begun(recorder, group)
    assert [entry.number for entry in group.open] == [2, 3, 4] and recorder.kept[0].end_ns
    second.over = third.over = True
    group.settle()
    assert not group.open and group.failed is recorder.kept[1]
    assert recorder.kept[1].error == "Connection closed" and group.entered == 4
    for _ in range(KEPT):
        begun(recorder, group).over = True
    assert len(recorder.kept) == KEPT and recorder.kept[0].number == 5
    recorder.close_all()
    assert not recorder.lanes


@pytest.mark.parametrize("kind", ["message", "reduce_scatter"])
def test_what_is_over_once_it_was_awaited(kind: str):
    recorder = Recorder()
    lane = recorder.lane("g", (0, 1), between_two=kind == "message")
    works = [begun(recorder, lane, torch.ones(9), kind) for _ in range(3)]
    lane.settle()
    assert len(lane.open) == 3 and lane.first() is None
    works[2]._begun()
    assert lane.first() is recorder.kept[2]
    assert works[0].wait()
    works[1]._own.error = "Connection closed"
    with pytest.raises(RuntimeError, match="closed"):
        works[1].wait()
    lane.settle()
    assert [entry.number for entry in lane.open] == [3] and lane.failed is recorder.kept[1]
    works.clear()  # nobody waits for the third, nor can
    gc.collect()
    lane.settle()
    assert not lane.open and all(entry.end_ns for entry in recorder.kept)


def test_a_call_that_raises_is_over():
    class Inner(dist.ProcessGroup):
        def get_group_store(self) -> Any:
            return None

        def barrier(self, *_: Any, **__: Any) -> Any:
            raise ValueError("no")

    recorder, made = Recorder(), Inner.__new__(Inner)
    dist.ProcessGroup.__init__(made, 0, 2)  # type: ignore[call-arg]
    group = RecordedGroup(GroupRecord(recorder, "g", (0, 1)), made)
    with pytest.raises(ValueError, match="no"):
        group.barrier()
    group._lane.settle()
    assert group._lane.failed and group._lane.failed.error == "no" and not group._lane.open


class Job:
    """Ranks of one process, whose monitors share a store."""

    def __init__(self, size: int, patience_s: float = 0.2) -> None:
        store: Any = dist
        self.store = store.HashStore()
        self.recorders = [Recorder() for _ in range(size)]
        self.lanes = [each.lane("g", tuple(range(size))) for each in self.recorders]
        self.monitors = [
            Monitor(recorder, self.store, rank, size, patience_s)
            for rank, recorder in enumerate(self.recorders)
        ]

    def enter(self, *ranks: int) -> list[Work]:
        return [begun(self.recorders[rank], self.lanes[rank], torch.ones(9)) for rank in ranks]

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
    monkeypatch.setattr(monitors, "TICK_S", (0.05, 0.05))
    monkeypatch.setattr(monitors, "HEARD_S", 0.5)
    monkeypatch.setattr(monitors, "_CALM_S", 0.2)


def awaited(lines: list[str], count: int) -> list[str]:
    until = time.monotonic() + 20
    while len(lines) < count and time.monotonic() < until:
        time.sleep(0.02)
    return lines


def test_monitors_name_who_is_late_and_say_when_it_goes_on(quick: None, lines: list[str]):
    before = set(threading.enumerate())
    job = Job(3)
    works = job.enter(0, 2)
    for each in awaited(lines, 2)[:2]:  # rank 0 says it, and rank 1, whom it is about
        assert each.startswith("rank 1 (") and "holds up 2 ranks" in each
    works += job.enter(1)
    for work in works:
        work.over = True
    assert "no rank waits for rank 1 any more" in awaited(lines, 3)[2]
    time.sleep(0.3)
    assert len(lines) == 3
    job.close()
    until = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - before  # of an earlier test's, some may have ended


@pytest.mark.parametrize("lost", [0, 1])
def test_monitors_name_whom_they_do_not_hear(quick: None, lines: list[str], lost: int):
    job = Job(3)
    time.sleep(0.2)
    silent = job.monitors[lost]
    silent._ended.set()
    silent._thread.join()
    job.enter(*({0, 1, 2} - {lost}))
    assert awaited(lines, 1)[0].startswith(f"rank {lost} (") and "does not respond" in lines[0]
    job.close()


def test_monitors_are_quiet_while_nobody_waits_for_long(quick: None, lines: list[str]):
    job = Job(3, 5.0)
    until, calls = time.monotonic() + 0.6, 0
    while time.monotonic() < until:
        for work in job.enter(0, 1, 2):
            work.over = True
        calls += 1
    assert not lines and calls > 10
    assert job.store.get("gradweave monitor/alarm") == b" "
    job.close()


def test_a_store_that_does_not_answer_is_named_each_time(quick: None, lines: list[str]):
    job = Job(2)
    works = job.enter(0)
    assert "rank 1 (" in awaited(lines, 1)[0]
    works += job.enter(1)
    for work in works:
        work.over = True
    monitor = job.monitors[1]
    ask, never = monitor._store.ask, Future()
    monitors._ANSWER_S, before = 0.1, monitors._ANSWER_S
    monitors._LATER_S, later = 0.3, monitors._LATER_S
    try:
        for _ in range(2):
            lines.clear()
            monitor._store.ask = lambda request: never  # type: ignore[method-assign]
            job.enter(1)
            said = "rank 1 waits in a collective, and the process that holds the job's store does"
            until = time.monotonic() + 20
            while not any(said in line for line in lines) and time.monotonic() < until:
                time.sleep(0.02)
            assert sum(said in line for line in lines) == 1, lines
            monitor._store.ask = ask  # type: ignore[method-assign]
            monitor._inquiry._answer = None
            time.sleep(0.5)
    finally:
        monitors._ANSWER_S, monitors._LATER_S = before, later
    job.close()


def test_answers_of_a_store_may_wait_behind_other_bytes(monkeypatch: pytest.MonkeyPatch):
    job = Job(2, math.inf)
    monitor, came = job.monitors[1], 0
    monitor._ended.set()
    monitor._thread.join()
    monkeypatch.setattr(monitors, "received_bytes", lambda port: came)
    for ago_s, bytes_, knew_s, silent in (
        (1.0, 0, 60.0, False),
        (3.0, 0, 60.0, True),
        (3.0, 1 << 20, 60.0, False),
        (3.0, 0, 1.0, False),
        (11.0, 1 << 20, 1.0, True),
    ):
        now, came = time.monotonic(), bytes_
        monitor._inquiry.sent_at = now - ago_s
        monitor._received, monitor._knew_at = 1 << 14, now - knew_s
        assert monitor._silent_for_long() is silent, (ago_s, bytes_, knew_s)
    job.close()


def test_a_process_that_was_stopped_has_not_waited_for_others():
    job = Job(2, math.inf)
    first = job.monitors[0]
    work = job.enter(0)[0]
    entry = job.recorders[0].kept[0]
    now = time.monotonic()
    assert first._own.for_s(entry, now + 9) > 8
    first._ended.set()
    first._thread.join()
    first._looked_at, first._patience_s = now - 60, 1.0
    first._look()
    assert first._own.for_s(entry, time.monotonic() + 1) < 2
    work.over = True
    job.close()


@pytest.mark.slow
def test_a_job_that_records_its_calls(tmp_path: Path):
    """Verdict, kept calls and what is left, by processes; the job is `torch_waiting_cases`."""
    RecursiveDoubling().schedule(gw.topology.complete(2)).save(tmp_path / "plan.json")
    module = (sys.executable, "-m", "tests.execute.torch_waiting_cases", str(tmp_path))
    status, output = run(module, tmp_path)
    assert status == 0, output
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for report in reports:
        said = [line for line in report["said"] if "(call 2)" in line]  # 1: connections are made
        assert len(said) == 1 and said[0].startswith("rank 1 ("), report
        assert "float32[100]" in said[0] and "torch_waiting_cases.py" in said[0]
        assert not report["left"]
    ranks = read_recorded([tmp_path / "calls"])
    assert [rank.rank for rank in ranks] == [0, 1]
    for rank in ranks:
        kinds = {call.text.split()[0] for call in rank.calls}
        assert kinds >= {
            *("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "all_to_all"),
            *("reduce_scatter", "barrier", "message"),
        }
        assert {call.planned for call in rank.calls} == {True, False}
        assert all(call.end_ns >= call.begin_ns and not call.error for call in rank.calls)
        assert sorted(lane.between_two for lane in rank.lanes.values()) == [False, False, True]
    texts = [[call.text for call in rank.calls] for rank in ranks]
    assert texts[0] == texts[1]
