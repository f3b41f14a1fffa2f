"""Shares this rank's status while any rank of the job waits, and reports who holds the job up."""

import atexit
import dataclasses
import functools
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
from torch.distributed import distributed_c10d

from gradweave.common.wording import listed
from gradweave.errors import RunError
from gradweave.execute.torch_distributed.sockets import received_bytes
from gradweave.execute.torch_distributed.status import Heard, RankStatus, statuses
from gradweave.execute.torch_distributed.store import (
    Inquiry,
    StoreThread,
    held_by_rank_0,
    root_store,
    value_of,
)
from gradweave.printable import in_one_line
from gradweave.processes.peers import Count, Text, peer_value
from gradweave.torch.holdup import Holdup, Kind, Ranks
from gradweave.torch.links import links_in_use
from gradweave.torch.machine import processes
from gradweave.torch.own_status import OwnStatus
from gradweave.torch.record import Recorder

TICK_S = (0.1, 0.5)
"""Bounds on the time between two checks, which is an eighth of the patience."""
HEARD_S = 1.5
"""Minimum silence, in seconds, after which a rank counts as absent; at least three checks."""
CALM = 2.0
"""A hold-up is over once no rank has waited for this many times the patience."""
_CALM_S = 5.0
"""The minimum of that time."""
_ANSWER_S = 2.0
"""How long the store may take to answer."""
_LATER_S = 10.0
"""How long the store may take while its host sends other bytes, or just after a loss has become
known: its answers may queue behind other bytes on a slow link."""
_SOME_BYTES = 1 << 14
"""If more bytes than this have come from the store's host since a request, the answer may be behind
them."""
_LEAVE_S = 5.0
"""How long a process stays at its end so that other ranks can learn of a loss."""
_STALE_S = 30.0
"""Verdicts older than this are not logged."""
_ASKED = re.compile(rb"[0-9a-f]{32}")
"""Format of the random name by which a client asks for recorded calls."""
_log = logging.getLogger("gradweave")


@dataclasses.dataclass(frozen=True)
class _Verdict:
    """A process's verdict, in the form that the other processes read."""

    kind: Kind
    ranks: tuple[Count, ...]
    text: Text
    at: float
    """Time of the verdict, by `time.time`."""
    by: Count
    """Rank of the process that wrote it."""


@dataclasses.dataclass(frozen=True)
class _News:
    """The content of the store."""

    alarm: bytes
    judged: bytes
    verdict: bytes
    statuses: dict[int, RankStatus] | None


class Monitor:
    """Checks regularly whether any process of the job waits too long in a collective.

    While no process waits, a check is one read of the store. A process that waits raises an alarm
    in the store. Then all processes write their status there, and one of them (rank 0 if it is
    present) works out who holds the others up (`holdup.Ranks`) and logs it in one line. Rank 0 and
    the ranks named in that line log it as well.

    Args:
        recorder: the recorder of this process.
        store: the store of the job.
        rank: rank of this process in the job.
        size: number of ranks in the job.
        patience_s: how long a collective may take; if infinite, nobody is named.
        keep: returns this process's recorded calls, for clients that request them in the store.
    """

    def __init__(
        self,
        recorder: Recorder,
        store: distributed_c10d.Store,
        rank: int,
        size: int,
        patience_s: float,
        keep: Callable[[], bytes] | None = None,
    ) -> None:
        self._keep, self._kept_for = keep, b" "
        self._rank, self._size = rank, size
        self._patience_s = patience_s
        self._tick_s = min(max(patience_s / 8, TICK_S[0]), TICK_S[1])
        self._heard_s = max(HEARD_S, 3 * self._tick_s)
        self._calm_s = max(_CALM_S, CALM * min(patience_s, 60.0))
        self._holder = 0 if held_by_rank_0(store) else None
        self._holder_host = ""
        self._store = StoreThread(store, "gradweave monitor", lambda _: math.inf)
        self._store_is, self._store_said = "", False
        self._inquiry = Inquiry[_News](self._store)
        self._received = math.inf
        self._port = getattr(root_store(store), "port", None)
        self._own = OwnStatus(recorder)
        self._looked_at = time.monotonic()
        self._heartbeats = 0
        self._alarm: bytes | None = None
        self._alarm_until = 0.0
        self._judged, self._judged_at = b"", 0.0
        self._heard = Heard()
        self._candidate: Holdup | None = None
        """The hold-up found in the last reading."""
        self._said: Holdup | None = None
        """The hold-up in progress, at the process that judges."""
        self._said_at = 0.0
        self._news, self._refused = b"", False
        self._alarm_began, self._knew_at = 0.0, -1.0
        self._left, self._process = False, os.getpid()
        self._ended = threading.Event()
        self._store.ask(self._prepare)
        self._thread = threading.Thread(target=self._run, name="gradweave-monitor", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Leaves the job: tells the other ranks, and ends the threads.

        After a failed call it stays for a while first, so that the remaining ranks can find out
        whose loss caused the failure.
        """
        atexit.unregister(self.close)
        if self._left or os.getpid() != self._process:  # a fork has none of its threads
            return
        self._own.waits(time.monotonic(), self._patience_s)  # updates which calls have ended
        if failed := self._own.failed(time.monotonic()):
            self._wait_for_verdict()
        self._left = True
        try:
            if not self._store_is:
                self._store.ask(self._tell).result(_ANSWER_S)
                if failed and self._holder == self._rank:
                    self._linger()
        except (TimeoutError, RuntimeError):
            pass  # no other process is left to hear of it
        self._ended.set()
        self._thread.join(_ANSWER_S)
        self._store.close()

    def _prepare(self, store: distributed_c10d.Store) -> None:
        for key in ("alarm", "judged", "verdict", "trace"):
            store.compare_set(key, "", " ")
        self._tell(store)

    def _tell(self, store: distributed_c10d.Store) -> None:
        self._own.at(time.monotonic(), self._heartbeats, self._left).write(self._rank, store)

    def _run(self) -> None:
        while not self._ended.wait(self._tick_s):
            try:
                self._look()
            except RuntimeError:  # the store has ended, perhaps together with the job
                self._store_is = "has ended"
            self._looked_at = time.monotonic()

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at > max(self._patience_s, 2 * HEARD_S):
            self._own.resumed(now)  # it was stopped, and has not waited for others
            self._heard = Heard()
        waits = self._own.waits(now, self._patience_s)
        if self._store_is:
            if waits:
                self._say_store()
            return
        news = self._exchange(now, waits)
        if news is not None:
            self._store_said = False
            self._take(news, now)
        elif waits and self._silent_for_long():
            self._store_is = "does not answer"
            self._say_store()
            self._store_is = ""
        if self._said and now > self._alarm_until + self._calm_s:
            self._over()

    def _silent_for_long(self) -> bool:
        """Whether the store has had long enough to answer."""
        now = time.monotonic()
        may_come = received_bytes(self._port) > self._received or now - self._knew_at < _LATER_S
        return now - self._inquiry.sent_at > (_LATER_S if may_come else _ANSWER_S)

    def _exchange(self, now: float, waits: bool) -> _News | None:
        """Writes to the store and reads it; returns None until the store answers."""
        if not self._inquiry.pending:
            alarmed = waits or now < self._alarm_until
            judges = alarmed and math.isfinite(self._patience_s) and self._judges(now, waits)
            self._received = math.inf
            if alarmed:  # reading the counters takes half a millisecond
                self._received = received_bytes(self._port) + _SOME_BYTES
            self._inquiry.send(functools.partial(self._ask, waits, alarmed, judges))
        return self._inquiry.answer(_ANSWER_S)

    def _judges(self, now: float, waits: bool) -> bool:
        """Whether this process should work out who holds the others up."""
        if self._rank == 0 or not waits:
            return self._rank == 0
        turn = 4 + self._rank % 8  # without rank 0, the first rank that waits takes over
        return now - self._judged_at > turn * self._tick_s

    def _ask(
        self, waits: bool, alarmed: bool, judges: bool, store: distributed_c10d.Store
    ) -> _News:
        self._heartbeats += 1
        if not self._holder_host and (holder := statuses(store, self._size, 1)):
            self._holder_host = holder[0].host
        if waits:
            store.set("alarm", f"{self._rank} {self._heartbeats}")
        if alarmed:
            self._tell(store)
            self._show_kept(store)
        if judges:
            store.set("judged", f"{self._rank} {self._heartbeats}")
        return _News(
            value_of(store, "alarm") or b" ",
            value_of(store, "judged") or b" " if alarmed else self._judged,
            value_of(store, "verdict") or b" " if alarmed else b" ",
            statuses(store, self._size) if judges else None,
        )

    def _show_kept(self, store: distributed_c10d.Store) -> None:
        """Writes the calls of this process once per request; only the last request is answered."""
        asked = value_of(store, "trace") or b" "
        if self._keep is None or asked == self._kept_for or not _ASKED.fullmatch(asked):
            return
        store.delete_key(f"trace {self._kept_for.decode()} {self._rank}")
        self._kept_for = asked
        content: Any = self._keep()  # the stubs accept only text
        store.set(f"trace {asked.decode()} {self._rank}", content)

    def _take(self, news: _News, now: float) -> None:
        if news.alarm != self._alarm:
            if self._alarm is not None:
                if now > self._alarm_until:  # a new alarm
                    self._heard, self._candidate, self._judged_at = Heard(), None, now
                    self._alarm_began = now
                self._alarm_until = now + self._heard_s
            self._alarm = news.alarm
        if news.judged != self._judged:
            self._judged, self._judged_at = news.judged, now
        if news.verdict not in (b" ", self._news):
            self._news = news.verdict
            self._hear(news.verdict)
        if news.statuses is not None:
            self._judge(news.statuses, now)

    def _judge(self, found: dict[int, RankStatus], now: float) -> None:
        """Reports who holds the others up, once two consecutive readings agree."""
        before = self._heard.statuses
        self._heard.hear(found)
        certain = now - self._heard.since >= self._heard_s
        holdup = Ranks(
            found,
            self._heard.present(self._heard_s),
            certain=certain,
            patience_s=self._patience_s,
            links=links_in_use(before, found),
            known=processes(found),
        ).holdup()
        last, self._candidate = self._candidate, holdup
        if holdup is None or last is None or not holdup.confirms(last):
            return
        if self._said is None or not holdup.confirms(self._said):
            if self._said is None:
                self._said_at = now
            self._said = holdup
            self._publish(holdup)
            self._say(holdup.text)

    def _publish(self, holdup: Holdup) -> None:
        text = in_one_line(holdup.text)
        verdict = _Verdict(holdup.kind, holdup.ranks, text, time.time(), self._rank)
        self._news = msgspec.json.encode(verdict)
        written = self._news.decode()
        self._store.ask(lambda store: store.set("verdict", written))

    def _hear(self, written: bytes) -> None:
        """Logs another process's verdict if it concerns this rank."""
        try:
            news: _Verdict = peer_value(written, _Verdict, "a verdict in the job's store")
        except RunError as error:
            if not self._refused:
                self._refused = True
                _log.warning("%s", error)
            return
        self._knew_at = time.monotonic()
        if time.time() - news.at < _STALE_S and self._rank in (0, *news.ranks):
            _log.warning("%s", in_one_line(news.text))

    def _say(self, text: str) -> None:
        _log.warning("%s", in_one_line(text))
        self._knew_at = time.monotonic()

    def _over(self) -> None:
        assert self._said is not None
        seconds = self._alarm_until - self._heard_s - self._said_at + self._said.for_s
        ranks = [str(rank) for rank in self._said.ranks]
        whom = f" for rank{'s' * (len(ranks) > 1)} {listed(ranks)}" if ranks else ""
        _log.warning("the job goes on after %.0f s: no rank waits%s any more", seconds, whom)
        self._said = None

    def _say_store(self) -> None:
        """Reports that the store does not answer, so nobody can tell who holds this rank up."""
        if self._store_said or self._holder == self._rank:
            return
        self._store_said = True
        what = f"the process that holds the job's store {self._store_is}"
        if self._holder is None:
            self._say(f"rank {self._rank} waits in a collective, and {what}")
        else:
            self._say(
                f"rank {self._holder} ({self._holder_host}) holds up rank {self._rank}: {what}"
            )

    def _wait_for_verdict(self) -> None:
        """Waits briefly until some process has found whose loss caused a failed call."""
        until = time.monotonic() + _LEAVE_S
        while time.monotonic() < until:
            alarmed = time.monotonic() < self._alarm_until
            if self._store_said or (alarmed and self._knew_at >= self._alarm_began):
                return
            time.sleep(self._tick_s)

    def _linger(self) -> None:
        """Keeps the store open until all other ranks have left."""
        until = time.monotonic() + _LEAVE_S
        while time.monotonic() < until:
            found = self._store.ask(lambda store: statuses(store, self._size)).result(_ANSWER_S)
            gone = set(self._said.ranks if self._said else ())
            if all(r in gone or (r in found and found[r].left) for r in range(self._size)):
                return
            time.sleep(self._tick_s)
