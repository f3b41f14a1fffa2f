"""Tells a job's ranks where this one stands while one of them waits, and says who holds it up."""

import atexit
import dataclasses
import functools
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from torch.distributed import distributed_c10d

from gradweave.execute.torch_distributed.standing import Heard
from gradweave.execute.torch_distributed.store import StoreThread, held_by_rank_0, root_store
from gradweave.torch.links import links_in_use
from gradweave.torch.machine import processes
from gradweave.torch.own_stand import OwnStand
from gradweave.torch.record import Recorder
from gradweave.torch.sockets import received_bytes
from gradweave.torch.stands import RankStand
from gradweave.torch.waiting import Holdup, Ranks
from gradweave.wording import listed

TICK_S = (0.1, 0.5)
"""Bounds on the time between two looks, which is an eighth of the patience."""
HEARD_S = 1.5
"""Who has not been heard for so long, or three looks, is not there."""
CALM = 2.0
"""After so many times the patience without anybody waiting a hold-up is over."""
_CALM_S = 5.0
"""The least of that."""
_ANSWER_S = 2.0
"""How long the store may take to answer."""
_LATER_S = 10.0
"""How long it may where its host sends other bytes, or where it has just become known who is lost:
its answers may wait behind a slow link's bytes."""
_SOME_BYTES = 1 << 14
"""More than what else comes from there meanwhile."""
_LEAVE_S = 5.0
"""How long a process stays at its end where others still have to hear of a loss."""
_STALE_S = 30.0
"""How old news may be that are said."""
_log = logging.getLogger("gradweave")


@dataclasses.dataclass(frozen=True)
class _News:
    """What the store says."""

    alarm: bytes
    judged: bytes
    verdict: bytes
    stands: dict[int, RankStand] | None


class Monitor:
    """Looks now and then whether this process or another one waits in a collective for too long.

    While nobody does, a look is one read of the store. A process that waits writes so; then all
    write where they stand, and one of them, rank 0 if it is there, reads that and says who holds
    the others up (`waiting.Ranks`), in one line of its log; so do rank 0 and whom it is about.

    Args:
        recorder: this process's.
        store: of the job.
        rank: of this process in the job.
        size: of the job.
        patience_s: how long a collective may take; infinite: nobody is named.
        keep: what this process keeps of its calls, for whoever asks by the store.
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
        self._pending: Future[_News] | None = None
        self._asked_at, self._received = 0.0, math.inf
        self._port = getattr(root_store(store), "port", None)
        self._own = OwnStand(recorder)
        self._looked_at = time.monotonic()
        self._heartbeats = 0
        self._alarm: bytes | None = None
        self._alarm_until = 0.0
        self._judged, self._judged_at = b"", 0.0
        self._heard: Heard[RankStand] = Heard()
        self._candidate: Holdup | None = None
        """What the last reading came to."""
        self._said: Holdup | None = None
        """The hold-up under way, in the process that judges."""
        self._said_at = 0.0
        self._news = b""
        self._alarm_began, self._knew_at = 0.0, -1.0
        self._left, self._process = False, os.getpid()
        self._ended = threading.Event()
        self._store.ask(self._prepare)
        self._thread = threading.Thread(target=self._run, name="gradweave-monitor", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Leaves the job: tells the others so, and ends the threads.

        Where a call has failed, it stays a while first, so that those that are left find out whose
        loss is behind it.
        """
        atexit.unregister(self.close)
        if self._left or os.getpid() != self._process:  # a fork has no threads of it
            return
        self._own.waits(time.monotonic(), self._patience_s)  # looks at what has ended
        if failed := self._own.failed(time.monotonic()):
            self._wait_for_verdict()
        self._left = True
        try:
            written = self._written()
            if not self._store_is:
                self._store.ask(functools.partial(self._tell, written)).result(_ANSWER_S)
                if failed and self._holder == self._rank:
                    self._linger()
        except (TimeoutError, RuntimeError):
            pass  # nobody is there to hear of it
        self._ended.set()
        self._thread.join(_ANSWER_S)
        self._store.close()

    def _prepare(self, store: distributed_c10d.Store) -> None:
        for key in ("alarm", "judged", "verdict", "trace"):
            store.compare_set(key, "", " ")
        self._tell(self._written(), store)

    def _written(self) -> str:
        return self._own.at(time.monotonic(), self._heartbeats, self._left).written()

    def _tell(self, written: str, store: distributed_c10d.Store) -> None:
        store.set(f"stand {self._rank}", written)

    def _run(self) -> None:
        while not self._ended.wait(self._tick_s):
            try:
                self._look()
            except RuntimeError:  # of the store, whose end may be that of the job
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
        return now - self._asked_at > (_LATER_S if may_come else _ANSWER_S)

    def _exchange(self, now: float, waits: bool) -> _News | None:
        """Tells the store what there is to tell, and what it says; None where that is to come."""
        if self._pending is None:
            alarmed = waits or now < self._alarm_until
            judges = alarmed and math.isfinite(self._patience_s) and self._judges(now, waits)
            self._asked_at, self._received = now, math.inf
            if alarmed:  # it takes half a millisecond
                self._received = received_bytes(self._port) + _SOME_BYTES
            self._pending = self._store.ask(functools.partial(self._ask, waits, alarmed, judges))
        try:
            news = self._pending.result(_ANSWER_S)
        except TimeoutError:
            return None
        except RuntimeError:
            self._pending = None
            raise
        self._pending = None
        return news

    def _judges(self, now: float, waits: bool) -> bool:
        """Whether it is for this process to say who holds the others up."""
        if self._rank == 0 or not waits:
            return self._rank == 0
        turn = 4 + self._rank % 8  # where rank 0 is not there, the first one that waits
        return now - self._judged_at > turn * self._tick_s

    def _ask(
        self, waits: bool, alarmed: bool, judges: bool, store: distributed_c10d.Store
    ) -> _News:
        self._heartbeats += 1
        if not self._holder_host and store.check(["stand 0"]):
            self._holder_host = RankStand.read(store.get("stand 0")).host
        if waits:
            store.set("alarm", f"{self._rank} {self._heartbeats}")
        if alarmed:
            self._tell(self._written(), store)
            self._show_kept(store)
        if judges:
            store.set("judged", f"{self._rank} {self._heartbeats}")
        return _News(
            store.get("alarm"),
            store.get("judged") if alarmed else self._judged,
            store.get("verdict") if alarmed else b" ",
            stands(store, self._size) if judges else None,
        )

    def _show_kept(self, store: distributed_c10d.Store) -> None:
        """Writes the calls of this process, once for each who asks."""
        asked = store.get("trace")
        if self._keep is not None and asked not in (b" ", self._kept_for):
            self._kept_for = asked
            content: Any = self._keep()  # the stubs know text alone
            store.set(f"trace {asked.decode()} {self._rank}", content)

    def _take(self, news: _News, now: float) -> None:
        if news.alarm != self._alarm:
            if self._alarm is not None:
                if now > self._alarm_until:  # it begins
                    self._heard, self._candidate, self._judged_at = Heard(), None, now
                    self._alarm_began = now
                self._alarm_until = now + self._heard_s
            self._alarm = news.alarm
        if news.judged != self._judged:
            self._judged, self._judged_at = news.judged, now
        if news.verdict not in (b" ", self._news):
            self._news = news.verdict
            self._hear(json.loads(news.verdict))
        if news.stands is not None:
            self._judge(news.stands, now)

    def _judge(self, found: dict[int, RankStand], now: float) -> None:
        """Says who holds the others up, once two readings in turn come to the same."""
        stands_before = self._heard.stands
        self._heard.hear(found)
        certain = now - self._heard.since >= self._heard_s
        holdup = Ranks(
            found,
            self._heard.present(self._heard_s),
            certain=certain,
            patience_s=self._patience_s,
            links=links_in_use(stands_before, found),
            known=processes(found),
        ).holdup()
        before, self._candidate = self._candidate, holdup
        if holdup is None or before is None or not holdup.confirms(before):
            return
        if self._said is None or not holdup.confirms(self._said):
            if self._said is None:
                self._said_at = now
            self._said = holdup
            self._publish(holdup)
            self._say(holdup.text)

    def _publish(self, holdup: Holdup) -> None:
        news = {"kind": holdup.kind.value, "ranks": holdup.ranks, "text": holdup.text}
        written = json.dumps(news | {"at": time.time(), "by": self._rank})
        self._news = written.encode()
        self._store.ask(lambda store: store.set("verdict", written))

    def _hear(self, news: dict) -> None:
        """Takes what another process has found."""
        self._knew_at = time.monotonic()
        if time.time() - news["at"] < _STALE_S and self._rank in (0, *news["ranks"]):
            _log.warning("%s", news["text"])

    def _say(self, text: str) -> None:
        _log.warning("%s", text)
        self._knew_at = time.monotonic()

    def _over(self) -> None:
        assert self._said is not None
        seconds = self._alarm_until - self._heard_s - self._said_at + self._said.for_s
        ranks = [str(rank) for rank in self._said.ranks]
        whom = f" for rank{'s' * (len(ranks) > 1)} {listed(ranks)}" if ranks else ""
        _log.warning("it goes on after %.0f s: nobody waits%s any more", seconds, whom)
        self._said = None

    def _say_store(self) -> None:
        """Says that the store is not there, where this process waits and so cannot ask for whom."""
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
        """Waits, but not for long, until somebody has found whose loss is behind a failed call."""
        until = time.monotonic() + _LEAVE_S
        while time.monotonic() < until:
            alarmed = time.monotonic() < self._alarm_until
            if self._store_said or (alarmed and self._knew_at >= self._alarm_began):
                return
            time.sleep(self._tick_s)

    def _linger(self) -> None:
        """Keeps the store until all others have left."""
        until = time.monotonic() + _LEAVE_S
        while time.monotonic() < until:
            found = self._store.ask(lambda store: stands(store, self._size)).result(_ANSWER_S)
            gone = set(self._said.ranks if self._said else ())
            if all(r in gone or (r in found and found[r].left) for r in range(self._size)):
                return
            time.sleep(self._tick_s)


def stands(store: distributed_c10d.Store, size: int) -> dict[int, RankStand]:
    """Where ranks stand, as they have written it.

    Args:
        store: of the monitors.
        size: of the job.
    """
    keys = {rank: f"stand {rank}" for rank in range(size)}
    if not store.check(list(keys.values())):
        keys = {rank: key for rank, key in keys.items() if store.check([key])}
    return {rank: RankStand.read(store.get(key)) for rank, key in keys.items()}
