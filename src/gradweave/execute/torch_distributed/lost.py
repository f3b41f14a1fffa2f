"""Which process went away or fell silent: agreed on by those that are left, through the store."""

import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import LostServerError, RunError
from gradweave.execute.lost import lost_server
from gradweave.execute.torch_distributed.store import Board, group_timeout, store_holder
from gradweave.topology.topology import Topology

POLL_S = 0.25
"""How often a process that waits asks whether a server was lost."""
LINGER_S = 5.0
"""How long the process that may hold the store stays, so that the others can ask."""
GRACE_S = (2.0, 10.0)
"""Least and most time for the answers to a roll call; between them, half the group's timeout."""
_BROKEN = ("connection closed", "connection reset", "broken pipe", "connection refused")
_Answer = TypeVar("_Answer")


class Call:
    """A collective under way: whether it is over, when it last got on, and who is awaited."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: RunError | None = None
        self._moved = time.monotonic()
        self._awaited: dict[int, int] = {}

    def moved(self) -> None:
        """Notes that something was completed."""
        self._moved = time.monotonic()

    def still_s(self) -> float:
        """How long nothing was completed."""
        return time.monotonic() - self._moved

    @contextmanager
    def awaiting(self, peer: int) -> Iterator[None]:
        """Notes that this thread waits for a message from or to a rank."""
        thread = threading.get_ident()
        self._awaited[thread] = peer
        try:
            yield
        finally:
            del self._awaited[thread]

    def awaited(self) -> list[int]:
        """Ranks that messages are awaited from or to."""
        return sorted(set(self._awaited.copy().values()))

    def attempt(self, job: Callable[[], object]) -> None:
        """Does the whole of it in a thread, and keeps the error for whoever waits."""
        try:
            job()
        except Exception as error:
            self.fail(error)
        self.over.set()

    def fail(self, error: Exception) -> None:
        """Ends it with an error; the first one counts."""
        if self.error is None:
            self.error = error if isinstance(error, RunError) else RunError(str(error))
        self.over.set()


class Lost:
    """Learns and tells which process went away, or is silent.

    gloo tells of a death only those that wait for the dead. When they give up, others, who wait for
    them, would name the wrong server: so the first to see a broken connection writes in the store
    whose it was, and everybody who waits looks there.

    Of a process that is stopped no connection breaks. Whoever has waited for as long as the
    group's timeout calls the roll in the store: everybody who waits for messages answers, and says
    for whose. Who is awaited and does not answer is named.

    Args:
        topology: whose servers are the group's processes, by rank.
        group: the process group.
    """

    def __init__(self, topology: Topology, group: dist.ProcessGroup) -> None:
        self._topology = topology
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._timeout_s = group_timeout(group).total_seconds()
        self._grace_s = min(max(self._timeout_s / 2, GRACE_S[0]), GRACE_S[1])
        self._may_hold_store = dist.get_rank() == 0
        self._holder = store_holder(group)
        self._board = Board(group, "gradweave")
        self._heard = 0
        self._claims = (0, 0)
        self._yields_until = 0.0
        self._verdict: RunError | None = None
        self._others = self._size - 1

    def watch(self, call: Call) -> None:
        """Waits until a call is over; ends it with an error where it never would be."""
        calm_until, news = 0.0, None
        while not call.over.wait(POLL_S):
            try:
                news = news or self._board.ask(functools.partial(self._hear, call))
                try:
                    lost = news.result(POLL_S)
                    news = None
                except TimeoutError:
                    lost = None
                silent = call.still_s() >= self._timeout_s and time.monotonic() >= calm_until
                if lost is None and silent:
                    lost, calm_s = self._call_the_roll(call)
                    calm_until = time.monotonic() + calm_s
            except (TimeoutError, RuntimeError) as error:
                lost = self._without_store(error)
            if lost is not None:
                call.fail(lost)

    def explain(self, error: RuntimeError, peer: int | None) -> RunError:
        """What an error of gloo's means.

        Args:
            error: the error.
            peer: rank of the process that the message was for; None where there were many.
        """
        text = str(error)
        broken = any(each in text.lower() for each in _BROKEN)
        if broken and peer is None:
            time.sleep(2 * POLL_S)  # for one who knows to say it
        try:
            if broken and peer is not None:
                return self._asked(functools.partial(self._decide, [peer], "its connection broke"))
            if told := self._asked(self._told):
                return told
        except (TimeoutError, RuntimeError) as failure:
            return self._without_store(failure)
        return RunError(f"torch.distributed: {'a process went away: ' * broken}{text}")

    def linger(self) -> None:
        """Waits until every process knows, if this one may hold the store."""
        if not self._may_hold_store:
            return
        until = time.monotonic() + LINGER_S
        try:
            while time.monotonic() < until:
                if self._asked(lambda store: store.add("knowing", 0)) >= self._others:
                    return
                time.sleep(POLL_S / 5)
        except (TimeoutError, RuntimeError):
            return

    def _asked(self, question: Callable[[distributed_c10d.Store], _Answer]) -> _Answer:
        """The store's answer; TimeoutError where it does not answer."""
        return self._board.ask(question).result(self._grace_s)

    def _hear(self, call: Call, store: distributed_c10d.Store) -> RunError | None:
        """Answers roll calls; returns what was decided, if that is known by now."""
        number = store.add("rolls", 0)
        if number > self._heard:
            for roll in range(self._heard + 1, number + 1):
                self._answer(call, roll, store)
            self._heard = number
            self._yield()
            self._told(store)
        return self._verdict

    def _answer(self, call: Call, roll: int, store: distributed_c10d.Store) -> None:
        answer = {"still_s": call.still_s(), "awaits": call.awaited()}
        store.set(f"here {roll} {self._rank}", json.dumps(answer))

    def _yield(self) -> None:
        # Who called will decide; if nothing comes of it, the next to have waited too long calls.
        self._yields_until = time.monotonic() + 2 * self._grace_s

    def _call_the_roll(self, call: Call) -> tuple[RunError | None, float]:
        """Asks who is there, unless another process does.

        Returns:
            What was decided, None for nothing; and for how many seconds not to ask again.
        """
        if time.monotonic() < self._yields_until:
            return None, 0.0
        roll = self._asked(functools.partial(self._claim, call))
        if roll is None:
            return None, 0.0
        until = time.monotonic() + self._grace_s
        while not call.over.wait(POLL_S):
            everybody = self._asked(lambda store: store.check(self._keys(roll)))
            if everybody or time.monotonic() > until:
                return self._asked(functools.partial(self._judge, roll))
        return None, 0.0

    def _keys(self, roll: int) -> list[str]:
        return [f"here {roll} {rank}" for rank in range(self._size)]

    def _claim(self, call: Call, store: distributed_c10d.Store) -> int | None:
        """The number of a roll call that is this process's to make; None if another makes it."""
        roll, mine = store.add("rolls", 0) + 1, str(self._rank)
        # Whoever claimed the same one before fell silent, or had its call end.
        self._claims = (roll, self._claims[1] + 1 if self._claims[0] == roll else 0)
        if store.compare_set(f"caller {self._claims}", "", mine).decode() != mine:
            self._yield()
            return None
        self._answer(call, roll, store)
        self._heard = store.add("rolls", 1)
        return roll

    def _judge(self, roll: int, store: distributed_c10d.Store) -> tuple[RunError | None, float]:
        """What the answers to a roll call say; as `_call_the_roll`."""
        keys = self._keys(roll)
        silent = [rank for rank, key in enumerate(keys) if not store.check([key])]
        present = [json.loads(store.get(keys[r])) for r in range(self._size) if r not in silent]
        awaited = {rank for each in present for rank in each["awaits"]}
        # A process that has done its part and gone on does not answer, and is not awaited.
        lost = [rank for rank in silent if rank in awaited] or silent
        if lost:
            how = f"nothing was heard of it for {self._timeout_s:g} s, the process group's timeout"
            if others := ", ".join(str(self._topology.servers[rank]) for rank in lost[1:]):
                how += f", nor of server{'s' * (len(lost) > 2)} {others}"
            return self._decide(lost, how, store), 0.0
        calm_s = self._timeout_s - min(each["still_s"] for each in present)
        if calm_s > 0:
            return None, calm_s
        how = (
            f"torch.distributed: no server completed a message for {self._timeout_s:g} s, the "
            "process group's timeout, though the processes of all are there; if the network is "
            "that slow, give init_process_group a longer timeout"
        )
        return self._decide([], how, store), 0.0

    def _decide(self, lost: list[int], how: str, store: distributed_c10d.Store) -> RunError:
        """Writes who was lost, unless another process wrote before; returns what is written."""
        verdict = json.dumps({"lost": lost, "how": how})
        written = store.compare_set("lost", "", verdict)
        store.add("rolls", 1)  # so that everybody looks
        return self._note(written, store)

    def _told(self, store: distributed_c10d.Store) -> RunError | None:
        return self._note(store.get("lost"), store) if store.check(["lost"]) else None

    def _note(self, written: bytes, store: distributed_c10d.Store) -> RunError:
        if self._verdict is None:
            verdict: dict[str, Any] = json.loads(written)
            lost: list[int] = verdict["lost"]
            how: str = verdict["how"]
            self._verdict = self._named(lost[0], how) if lost else RunError(how)
            self._others = self._size - len(lost)
            store.add("knowing", 1)
        return self._verdict

    def _without_store(self, error: Exception) -> RunError:
        """What it means that the store is no more, or does not answer."""
        how = "does not answer" if isinstance(error, TimeoutError) else "ended"
        if self._holder is not None:
            return self._named(self._holder, f"the process that holds the store {how}")
        return RunError(f"torch.distributed: the process that holds the store {how} {error}")

    def _named(self, rank: int, how: str) -> LostServerError:
        return lost_server(self._topology, rank, how)
