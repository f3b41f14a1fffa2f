"""Follows changes of the network during a job: who notices them, and the networks that follow."""

import contextlib
import json
import time
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from torch.distributed import distributed_c10d

from gradweave.errors import RunError
from gradweave.execute.torch_distributed.sockets import connections
from gradweave.execute.torch_distributed.store import value_of
from gradweave.processes.peers import Count, Text, peer_value
from gradweave.torch.planner import Planner, Running
from gradweave.torch.rates import SentRates

QUIET, QUIET_MOST = 4, 32
"""Votes between two requests for the rates of all ranks; doubled while the plans stay the same."""
REPORTS_S = 3.0
"""How long rank 0 waits for the rates of all ranks."""
TICK_S = 0.25
_Ratio = Annotated[float, msgspec.Meta(gt=0.0, lt=1e9)]


class Counted(NamedTuple):
    """The result of a vote."""

    changes: int
    """Number of changes of the network so far."""
    recovers: bool
    """Whether messages have become faster since the network last changed."""


class Changes:
    """One rank's part in noticing that the network has changed.

    Each rank compares the rates of its messages with what they were when the present plans were
    adopted. In the votes of `Choices`, the ranks agree that one of them has seen a lasting change;
    all ranks then write their rates into the store, and rank 0 locates the change on links. A later
    vote tells all ranks that there is a new network.

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
        self._quiet, self._votes = QUIET, 0
        self._requested = self._written = 0
        self._collecting: tuple[int, float] | None = None

    def use(self, running: Sequence[Running]) -> None:
        """Notes, at the same call on all ranks, how the calls of most bytes run.

        Args:
            running: those calls; empty while candidates are timed.
        """
        self._running, self._uses = running, self._uses + 1
        self._votes, self._quiet = 0, QUIET

    def ballot(self) -> list[int]:
        """What this rank contributes to a vote; the minimum over all ranks is counted."""
        changes = 0 if self._planner is None else self._planner.changes
        return [-int(self._rates.slower), -int(self._rates.faster), -changes]

    def counted(self, votes: Sequence[int], *, adapting: bool) -> "Counted":
        """Acts on the result of a vote, at the same call on all ranks.

        Args:
            votes: the result.
            adapting: whether plans for the last change are still searched for or on trial.
        """
        slower, faster, changes = (-vote for vote in votes)
        self._votes += 1
        if adapting or self._votes < self._quiet or not (slower or faster):
            return Counted(changes, False)
        self._votes, self._quiet = 0, min(2 * self._quiet, QUIET_MOST)
        if faster and not slower and any(one.change for one in self._running):
            return Counted(changes, True)
        self._requested += 1
        return Counted(changes, False)

    def tick(self, store: distributed_c10d.Store) -> float:
        """Samples the rates, and exchanges them on request; called by the thread of the store.

        Returns:
            Seconds until it must be called again.
        """
        ends, running = connections(), self._running
        if self._used != self._uses:
            self._used = self._uses
            self._rates.use(tuple((one.of, one.plan is None, one.change) for one in running))
            store.set(f"ends {self._used} {self._rank}", json.dumps([end.local for end in ends]))
            self._heard.clear()
        if running:
            self._hear(store)
            self._rates.sample(time.monotonic(), ends, self._owner)
        if self._written < self._requested:
            self._written = self._requested
            report = json.dumps(list(self._rates.ratios().items()))
            store.set(f"rates {self._written} {self._rank}", report)
            if self._planner is not None:
                self._collecting = self._written, time.monotonic() + REPORTS_S
        if self._collecting is not None:
            self._collect(store, *self._collecting)
        return TICK_S

    def _hear(self, store: distributed_c10d.Store) -> None:
        """Reads which addresses the other ranks have."""
        for rank in set(range(self._size)) - self._heard - {self._rank}:
            if (text := value_of(store, f"ends {self._used} {rank}")) is not None:
                self._heard.add(rank)
                with contextlib.suppress(RunError):  # its messages are not compared
                    ends = peer_value(text, list[Text], "the addresses of a rank")
                    self._owner.update(dict.fromkeys(ends, rank))

    def _collect(self, store: distributed_c10d.Store, number: int, until_s: float) -> None:
        assert self._planner is not None
        found = {rank: value_of(store, f"rates {number} {rank}") for rank in range(self._size)}
        if None in found.values() and time.monotonic() < until_s:
            return
        self._collecting, running = None, self._running
        if not running:
            return
        ratios: dict[tuple[int, int], float] = {}
        for rank, text in found.items():
            with contextlib.suppress(RunError):
                kind = list[tuple[Count, _Ratio]]
                theirs = peer_value(text or b"[]", kind, "the rates of a rank")
                ratios |= {(rank, target): ratio for target, ratio in theirs}
        self._planner.note(running, ratios)
