"""Follows changes of the network during a job: who notices them, and the networks that follow."""

import contextlib
import json
import math
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
from torch.distributed import distributed_c10d

from gradweave.errors import RunError
from gradweave.execute.torch_distributed.sockets import connections
from gradweave.execute.torch_distributed.store import value_of
from gradweave.processes.peers import Count, Text, peer_value
from gradweave.torch.planner import Planner, Running
from gradweave.torch.rates import HIGH, LOW, SentRates

QUIET_S, QUIET_MOST_S = 8.0, 64.0
"""Time between two attempts to locate a change; doubled while the same plans run."""
SETTLE_S = 0.75
"""Time from the first rank that reports a change until rank 0 reads the rates of all ranks."""
TICK_S = 0.25
NEWS = 0.1
"""Relative change of a ratio from which on a rank writes its rates again."""
_Ratio = Annotated[float, msgspec.Meta(gt=0.0, lt=1e9)]


class Changes:
    """One rank's part in noticing that the network has changed.

    Each rank compares the rates of its messages with what they were when the present plans were
    adopted, writes the ratios into the store, and counts up a key of the store once a change lasts.
    Rank 0 then locates the change on links, also if links recover. By the votes of `Choices`, all
    ranks learn at the same call that there is a new network.

    Args:
        rank: rank of this process in the group.
        size: number of processes.
        planner: locates changes, and plans for the networks that follow; in rank 0's process only.
    """

    def __init__(self, rank: int, size: int, planner: Planner | None) -> None:
        self._rank, self._size, self._planner = rank, size, planner
        self._rates, self._owner = SentRates(), dict[str, int]()
        self._heard = set[int]()
        self._running: Sequence[Running] = ()
        self._uses = self._used = 0
        self._written: dict[int, float] = {}
        self._reported = self._adapting = False
        self._reports = self._followed = 0
        self._quiet_s, self._due_s = QUIET_S, 0.0

    def use(self, running: Sequence[Running]) -> None:
        """Notes, at the same call on all ranks, how the calls of most bytes run.

        Args:
            running: those calls; empty while candidates are timed.
        """
        self._running, self._uses = running, self._uses + 1

    def ballot(self) -> int:
        """This rank's part of a vote; the minimum over all ranks is counted."""
        return 0 if self._planner is None else -self._planner.changes

    def counted(self, vote: int, *, adapting: bool) -> int:
        """Notes the result of a vote, at the same call on all ranks.

        Args:
            vote: the result.
            adapting: whether plans for an earlier change are still searched for or on trial.

        Returns:
            The number of changes of the network so far.
        """
        # Plans for a change that this vote has made known are requested after it.
        self._adapting, self._followed = adapting or -vote > self._followed, -vote
        return self._followed

    def tick(self, store: distributed_c10d.Store) -> float:
        """Samples the rates, and reports changes; called by the thread of the store.

        Returns:
            Seconds until it must be called again.
        """
        ends, running, now_s = connections(), self._running, time.monotonic()
        if self._used != self._uses:
            self._used = self._uses
            self._rates.use(tuple((one.of, one.plan is None, one.change) for one in running))
            store.set(f"ends {self._used} {self._rank}", json.dumps([end.local for end in ends]))
            self._heard.clear()
            self._written, self._reported = {}, False
            self._reports, self._quiet_s, self._due_s = 0, QUIET_S, 0.0
            if self._planner is not None:
                self._planner.timed(running)
        if running:
            self._hear(store)
            self._rates.sample(now_s, ends, self._owner)
            self._report(store)
            if self._planner is not None:
                self._locate(store, self._planner, running, now_s)
        return TICK_S

    def _report(self, store: distributed_c10d.Store) -> None:
        """Writes the rates, if they have changed since they were last written."""
        ratios = self._rates.ratios()
        if any(abs(math.log(r / self._written.get(to, 1e-9))) > NEWS for to, r in ratios.items()):
            store.set(f"rates {self._used} {self._rank}", json.dumps(list(ratios.items())))
            self._written = ratios
        changed = self._rates.slower or self._rates.faster
        if changed and not self._reported:
            store.add(f"changed {self._used}", 1)
        self._reported = changed

    def _locate(
        self,
        store: distributed_c10d.Store,
        planner: Planner,
        running: Sequence[Running],
        now_s: float,
    ) -> None:
        """Lets the planner locate a change, if a rank has reported one; in rank 0's process."""
        if self._adapting or planner.changes > self._followed:
            return
        if not self._due_s:
            if store.add(f"changed {self._used}", 0) > self._reports:
                self._due_s = now_s + SETTLE_S
            return
        if now_s < self._due_s:
            return
        self._reports, ratios = store.add(f"changed {self._used}", 0), self._ratios(store)
        if all(LOW <= ratio <= HIGH for ratio in ratios.values()):  # it did not last
            self._due_s = 0.0
            return
        self._due_s, self._quiet_s = now_s + self._quiet_s, min(2 * self._quiet_s, QUIET_MOST_S)
        planner.note(running, ratios)

    def _hear(self, store: distributed_c10d.Store) -> None:
        """Reads which addresses the other ranks have."""
        for rank in set(range(self._size)) - self._heard - {self._rank}:
            if (text := value_of(store, f"ends {self._used} {rank}")) is not None:
                self._heard.add(rank)
                with contextlib.suppress(RunError):  # its messages are not compared
                    ends = peer_value(text, list[Text], "the addresses of a rank")
                    self._owner.update(dict.fromkeys(ends, rank))

    def _ratios(self, store: distributed_c10d.Store) -> dict[tuple[int, int], float]:
        """The rates of messages between all ranks, in proportion to what they were."""
        found: dict[tuple[int, int], float] = {}
        for rank in range(self._size):
            text = value_of(store, f"rates {self._used} {rank}") or b"[]"
            with contextlib.suppress(RunError):
                theirs = peer_value(text, list[tuple[Count, _Ratio]], "the rates of a rank")
                found |= {(rank, target): ratio for target, ratio in theirs}
        return found
