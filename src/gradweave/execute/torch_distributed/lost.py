"""Which process went away or fell silent, agreed on through the store by those that are left."""

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
from gradweave.execute.torch_distributed.store import StoreThread, group_timeout, store_holder
from gradweave.topology.topology import Topology

POLL_S = 0.25
"""How often a process that waits asks whether a server was lost."""
LINGER_S = 5.0
"""How long the process that may hold the store stays, so that the others can read it."""
GRACE_S = (2.0, 10.0)
"""Bounds on the time for the answers to a roll call, which is half the group's timeout."""
_BROKEN = ("connection closed", "connection reset", "broken pipe", "connection refused")
_Answer = TypeVar("_Answer")


class PendingCollective:
    """A collective under way: whether it is over, when it last progressed, and who is awaited."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: RunError | None = None
        self._moved = time.monotonic()
        self._awaited: dict[int, int] = {}

    def moved(self) -> None:
        """Notes that something was completed."""
        self._moved = time.monotonic()

    def still_s(self) -> float:
        """Seconds since a message was completed."""
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
        """Calls a function that does all of it, and keeps its error."""
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


class LossDetector:
    """Detects which process went away or is silent, and tells the others.

    gloo reports a death only to processes that wait for the dead one. When they give up, others,
    which wait for them, would name the wrong server: so the first that sees a broken connection
    writes in the store whose it was, and all that wait read it there.

    When a process is stopped no connection breaks. A process that has waited for as long as the
    group's timeout calls the roll in the store: all that wait for messages answer, with the ranks
    that they wait for. A process that is awaited and does not answer is named.

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
        self._store = StoreThread(group, "gradweave")
        self._answered = 0
        self._claims = (0, 0)
        self._silent_until = 0.0
        self._verdict: RunError | None = None
        self._others = self._size - 1

    def watch(self, call: PendingCollective) -> None:
        """Waits until a collective is over; ends it with an error where a process was lost."""
        calm_until, news = 0.0, None
        while not call.over.wait(POLL_S):
            try:
                news = news or self._store.ask(functools.partial(self._answer_rolls, call))
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
        """Explains an error of gloo's.

        Args:
            error: the error.
            peer: rank of the process that the message was for; None where there were many.
        """
        text = str(error)
        broken = any(each in text.lower() for each in _BROKEN)
        if broken and peer is None:
            time.sleep(2 * POLL_S)  # for a process that knows to write it
        try:
            if broken and peer is not None:
                return self._asked(functools.partial(self._decide, [peer], "its connection broke"))
            if verdict := self._asked(self._read_verdict):
                return verdict
        except (TimeoutError, RuntimeError) as failure:
            return self._without_store(failure)
        return RunError(f"torch.distributed: {'a process went away: ' * broken}{text}")

    def linger(self) -> None:
        """Waits until every process knows which was lost, if this one may hold the store."""
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

    def _asked(self, request: Callable[[distributed_c10d.Store], _Answer]) -> _Answer:
        """The store's answer; TimeoutError where it does not answer."""
        return self._store.ask(request).result(self._grace_s)

    def _answer_rolls(
        self, call: PendingCollective, store: distributed_c10d.Store
    ) -> RunError | None:
        """Answers roll calls; returns the verdict, if there is one."""
        number = store.add("rolls", 0)
        if number > self._answered:
            for roll in range(self._answered + 1, number + 1):
                self._answer(call, roll, store)
            self._answered = number
            self._wait_for_caller()
            self._read_verdict(store)
        return self._verdict

    def _answer(self, call: PendingCollective, roll: int, store: distributed_c10d.Store) -> None:
        answer = {"still_s": call.still_s(), "awaits": call.awaited()}
        store.set(f"here {roll} {self._rank}", json.dumps(answer))

    def _wait_for_caller(self) -> None:
        # The caller will decide; if it does not, the next that has waited too long calls.
        self._silent_until = time.monotonic() + 2 * self._grace_s

    def _call_the_roll(self, call: PendingCollective) -> tuple[RunError | None, float]:
        """Calls the roll, unless another process does.

        Returns:
            The verdict, None for none; and for how many seconds not to call again.
        """
        if time.monotonic() < self._silent_until:
            return None, 0.0
        roll = self._asked(functools.partial(self._claim, call))
        if roll is None:
            return None, 0.0
        until = time.monotonic() + self._grace_s
        while not call.over.wait(POLL_S):
            everybody = self._asked(lambda store: store.check(self._keys(roll)))
            if everybody or time.monotonic() > until:
                return self._asked(functools.partial(self._evaluate, roll))
        return None, 0.0

    def _keys(self, roll: int) -> list[str]:
        return [f"here {roll} {rank}" for rank in range(self._size)]

    def _claim(self, call: PendingCollective, store: distributed_c10d.Store) -> int | None:
        """The number of the next roll call, if this process is the one to make it."""
        roll, mine = store.add("rolls", 0) + 1, str(self._rank)
        # A process that claimed the same one before fell silent, or its collective ended.
        self._claims = (roll, self._claims[1] + 1 if self._claims[0] == roll else 0)
        if store.compare_set(f"caller {self._claims}", "", mine).decode() != mine:
            self._wait_for_caller()
            return None
        self._answer(call, roll, store)
        self._answered = store.add("rolls", 1)
        return roll

    def _evaluate(self, roll: int, store: distributed_c10d.Store) -> tuple[RunError | None, float]:
        """Verdict by the answers to a roll call; returns as `_call_the_roll`."""
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
        """Writes who was lost, unless another process has; returns the verdict in the store."""
        verdict = json.dumps({"lost": lost, "how": how})
        written = store.compare_set("lost", "", verdict)
        store.add("rolls", 1)  # so that everybody looks
        return self._accept(written, store)

    def _read_verdict(self, store: distributed_c10d.Store) -> RunError | None:
        return self._accept(store.get("lost"), store) if store.check(["lost"]) else None

    def _accept(self, written: bytes, store: distributed_c10d.Store) -> RunError:
        if self._verdict is None:
            verdict: dict[str, Any] = json.loads(written)
            lost: list[int] = verdict["lost"]
            how: str = verdict["how"]
            self._verdict = self._named(lost[0], how) if lost else RunError(how)
            self._others = self._size - len(lost)
            store.add("knowing", 1)
        return self._verdict

    def _without_store(self, error: Exception) -> RunError:
        """The error where the store has ended, or does not answer."""
        how = "does not answer" if isinstance(error, TimeoutError) else "ended"
        if self._holder is not None:
            return self._named(self._holder, f"the process that holds the store {how}")
        return RunError(f"torch.distributed: the process that holds the store {how} {error}")

    def _named(self, rank: int, how: str) -> LostServerError:
        return lost_server(self._topology, rank, how)
