"""Works out who holds a job up, from the status of its ranks."""

import collections
import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping

from gradweave.common.wording import counted, listed
from gradweave.execute.torch_distributed.status import LaneStatus, RankStatus
from gradweave.execute.torch_distributed.waits import awaited, ends
from gradweave.topology.units import format_rate
from gradweave.torch.links import LinkUse, slow_link


class Kind(enum.Enum):
    """The cause of a hold-up."""

    LATE = "late"
    """A rank that responds but has not entered the call."""
    LOST = "lost"
    """A rank that does not respond: stopped, dead or cut off."""
    LEFT = "left"
    """A rank that has left the job without entering the call."""
    MISMATCH = "mismatch"
    """Ranks that make a different call from the others."""
    CYCLE = "cycle"
    """Ranks that wait for each other."""
    LINK = "link"
    """A slow link; the ranks are its sender and its receiver."""
    NETWORK = "network"
    """No rank or link stands out; no ranks are named."""


@dataclasses.dataclass(frozen=True)
class Holdup:
    """The ranks that hold a job up, and why."""

    kind: Kind
    ranks: tuple[int, ...]
    text: str
    """A description in one line, without a full stop."""
    for_s: float
    """How long other ranks have waited."""

    def confirms(self, other: "Holdup") -> bool:
        """Whether an earlier finding had the same cause and named at least these ranks."""
        if self.kind is Kind.LINK:
            return (self.kind, self.ranks) == (other.kind, other.ranks)
        return self.kind is other.kind and set(self.ranks) <= set(other.ranks)


@dataclasses.dataclass(frozen=True)
class _Wait:
    """One rank that waits in one call."""

    rank: int
    key: str
    lane: LaneStatus
    number: int


class Ranks:
    """The status of a job's ranks, from which `holdup` draws its conclusion.

    Args:
        statuses: the latest status of each rank.
        present: ranks whose status is recent. Ranks that send bytes over a link count as present
            even if their status is late.
        certain: whether enough time has passed to treat silent ranks as lost.
        patience_s: how long a call may take.
        links: recent traffic.
        known: for silent ranks on this machine, the state of their processes.
    """

    def __init__(
        self,
        statuses: Mapping[int, RankStatus],
        present: Collection[int],
        *,
        certain: bool,
        patience_s: float,
        links: Collection[LinkUse] = (),
        known: Mapping[int, str] | None = None,
    ) -> None:
        self._statuses = statuses
        self._left = {rank for rank, status in statuses.items() if status.left}
        self._present = set(present) - self._left
        self._able = {rank: statuses[rank] for rank in self._present | self._left}
        self._certain, self._patience_s, self._links = certain, patience_s, links
        self._known = known or {}

    def holdup(self) -> Holdup | None:
        """Who holds the others up, if a rank has waited for long and the cause is clear."""
        waits = sorted(self._waits(), key=lambda wait: -wait.lane.open_s)
        if not waits:
            return None
        for wait in waits:
            if (found := self._mismatch(wait)) is not None:
                return found
        reached = ends({wait.rank for wait in waits}, self._able, self._statuses)
        sending = {link.source for link in self._links if link.bytes} - self._present
        absent = reached - self._present - self._left - sending
        if absent:
            return self._lost(sorted(absent), waits) if self._certain else None
        if left := {r for r in reached & self._left if not self._statuses[r].failed}:
            return self._gone(sorted(left), waits)
        if any(self._statuses[wait.rank].failed for wait in waits):
            return None  # connections broke: ranks that are only late get here too
        late = {r for r in reached - sending if not any(self._statuses[r].open)}
        if late:
            return self._late(sorted(late), waits)
        if not reached:
            return self._cycle(waits)
        return self._slow(waits)

    def _waits(self) -> Iterable[_Wait]:
        for rank, status in self._able.items():
            for key, lane in status.open:
                if lane.open is not None and (status.failed or lane.open_s >= self._patience_s):
                    yield _Wait(rank, key, lane, lane.open)

    def _mismatch(self, wait: _Wait) -> Holdup | None:
        """Finds ranks whose calls with the same number differ."""
        calls: dict[str, list[int]] = {}
        for rank in wait.lane.members:
            status = self._statuses.get(rank)
            lane = status.lanes.get(wait.key) if status is not None else None
            text = lane.text(wait.number) if lane is not None else None
            if text is not None:
                calls.setdefault(text, []).append(rank)
        if len(calls) < 2:
            return None
        (common, most), *others = sorted(calls.items(), key=lambda each: -len(each[1]))
        clear = len(most) > len(others[0][1])
        ranks = sorted(rank for _, some in others for rank in some)
        if not clear:
            ranks = sorted({*ranks, *most})
        said = [f"{self._named(some)} {_verb(some, 'calls')} {text}" for text, some in others]
        end = f"{self._named(most)} {_verb(most, 'calls')} {common}"
        where = f"as call {wait.number}{self._group(wait.lane)}"
        text = f"{listed(said)} {where}, while {end}"
        return Holdup(Kind.MISMATCH, tuple(ranks), text, wait.lane.open_s)

    def _lost(self, ranks: list[int], waits: list[_Wait]) -> Holdup:
        text = f"{self._named(ranks)} {_verb(ranks, 'holds')} up {self._held(waits)}: "
        if any(rank in self._known for rank in ranks):
            text += listed(sorted({self._known.get(rank, _SILENT) for rank in ranks}))
        else:
            text += _SILENT
        return Holdup(Kind.LOST, tuple(ranks), text, waits[0].lane.open_s)

    def _gone(self, ranks: list[int], waits: list[_Wait]) -> Holdup:
        text = f"{self._named(ranks)} {_verb(ranks, 'has', 'have')} ended without entering the "
        text += f"call of {self._held(waits)}"
        return Holdup(Kind.LEFT, tuple(ranks), text, waits[0].lane.open_s)

    def _late(self, ranks: list[int], waits: list[_Wait]) -> Holdup:
        text = f"{self._named(ranks)} {_verb(ranks, 'holds')} up {self._held(waits)}"
        status = self._statuses[ranks[0]]
        after = f" since {status.last} ended" if status.last else ""
        who = "it" if len(ranks) == 1 else f"rank {ranks[0]}"
        text += f": {who} has been in its own code for {status.idle_s:.1f} s{after}"
        text += f", at {status.where}" if status.where else ""
        return Holdup(Kind.LATE, tuple(ranks), text, waits[0].lane.open_s)

    def _cycle(self, waits: list[_Wait]) -> Holdup | None:
        """Finds ranks that wait for each other in a cycle."""
        if waits[0].lane.open_s < 2 * self._patience_s:
            return None  # a rank that has started a call may not be waiting for it yet
        rank, seen = waits[0].rank, list[int]()
        while rank not in seen:
            seen.append(rank)
            rank = min(awaited(rank, self._able, self._statuses))
        ranks = seen[seen.index(rank) :]
        said = []
        for one in ranks:
            key, lane = max(self._statuses[one].open, key=lambda each: each[1].open_s)
            call = self._call(_Wait(one, key, lane, lane.open or 0))
            said.append(f"{self._named([one])} in {call}")
        text = f"wait for each other: {listed(said)}"
        return Holdup(Kind.CYCLE, tuple(sorted(ranks)), text, waits[0].lane.open_s)

    def _slow(self, waits: list[_Wait]) -> Holdup | None:
        """Finds the slow link if every rank that others wait for is in a call itself."""
        held = f"holds up {self._held(waits)}"
        link = slow_link(self._links)
        if link is None:
            if waits[0].lane.open_s < 2 * self._patience_s:
                return None
            text = f"no single rank or link holds up {self._held(waits)}: all ranks are present, "
            text += "and no link is busier than the others"
            return Holdup(Kind.NETWORK, (), text, waits[0].lane.open_s)
        ends_ = link.source, link.target
        text = f"the link from {self._named(ends_[:1])} to {self._named(ends_[1:])} {held}: it "
        text += f"carries {format_rate(link.bytes_per_s)}, while most others are idle"
        return Holdup(Kind.LINK, ends_, text, waits[0].lane.open_s)

    def _held(self, waits: list[_Wait]) -> str:
        """The ranks that are held up, and the call that they wait in."""
        first = waits[0]
        here = {wait.rank for wait in waits if (wait.key, wait.number) == (first.key, first.number)}
        others = len({wait.rank for wait in waits} - here)
        more = f" ({others} more elsewhere)" if others else ""
        which = f"rank {first.rank}" if len(here) == 1 else counted(len(here), "rank")
        if self._statuses[first.rank].failed:
            return f"{which}{more}: {self._call(first)} has failed there"
        verb = _verb(here, "has waited", "have waited")
        return f"{which}{more}, which {verb} in {self._call(first)} for {first.lane.open_s:.1f} s"

    def _call(self, wait: _Wait) -> str:
        text = wait.lane.text(wait.number) or "a call"
        return f"{text} (call {wait.number}{self._group(wait.lane)})"

    def _group(self, lane: LaneStatus) -> str:
        if len(lane.members) == len(self._statuses):
            return ""
        return f" of ranks {listed([str(rank) for rank in lane.members])}"

    def _named(self, ranks: Iterable[int]) -> str:
        """Ranks with the names of their hosts."""
        by_host: dict[str, list[int]] = collections.defaultdict(list)
        for rank in ranks:
            by_host[self._statuses[rank].host if rank in self._statuses else "?"].append(rank)
        parts = [
            f"{'rank' if len(some) == 1 else 'ranks'} {listed([str(one) for one in some])} ({host})"
            for host, some in by_host.items()
        ]
        return listed(parts)


_SILENT = "its process does not respond: it was stopped, has ended, or is cut off"


def _verb(ranks: Collection[int], one: str, many: str = "") -> str:
    return one if len(ranks) == 1 else many or one.removesuffix("s")
