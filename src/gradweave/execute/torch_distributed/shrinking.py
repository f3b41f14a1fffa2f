"""Averages over the servers that are left: a step in which one is lost is completed by the others.

A step averages several tensors, such as DDP's buckets, and ends with a vote, which is a tiny
all-reduce. The tensors themselves are kept; averages are made in copies. If a server is lost, the
others agree on the new list of members (`Members`), connect again, and compare how far each came:

- If one of them has passed the vote, all have completed every tensor, and the step stands.
- If all have completed every tensor, it stands as well.
- Otherwise all tensors of the step are averaged again, without the lost server.

So either all averages of a step include a server, or none does, and all servers have the same ones.
"""

import dataclasses
import functools
import io
import itertools
import json
import logging
import threading
import time
import traceback
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.common.wording import counted
from gradweave.errors import OptionError, RunError
from gradweave.execute.program import check_all_reduce, check_servers, is_own
from gradweave.execute.torch_distributed.backend import Collective
from gradweave.execute.torch_distributed.gloo_messages import Messages, connected
from gradweave.execute.torch_distributed.groups import Group, gloo_group, member_of
from gradweave.execute.torch_distributed.lost import LossDetector
from gradweave.execute.torch_distributed.members import FIRST, LeftOutError, Members, Membership
from gradweave.execute.torch_distributed.store import group_store, group_timeout
from gradweave.execute.torch_distributed.verdict import Verdict
from gradweave.printable import in_one_line
from gradweave.processes.peers import Count, peer_value
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule
from gradweave.topology.families.complete import complete

OnLoss = Literal["raise", "shrink"]
"""The reaction of the other servers to a loss: an error, or continuing without the server."""
Planner = Callable[[Sequence[int]], ScheduleLike | None]
"""From the ranks of the servers that are left to the all-reduce between them; the i-th of them is
the i-th server in order of id. None: gloo's own. All servers must return the same."""
_CONNECT_S = 10.0
"""Timeout for connecting, once all members have come."""
_ATTEMPTS = 5
"""Number of times that members try to connect: see `gloo_messages.connected`."""
_EXPLAINED_S = 5.0
"""How long a server whose collective failed without a verdict looks for a new list of members."""
_POLL_S = 0.05
_log = logging.getLogger("gradweave")


@dataclasses.dataclass(frozen=True)
class Returning:
    """A server that takes part again, or for the first time, in a job that runs.

    Args:
        store: the job's store, as given to `torch.distributed.init_process_group` by the others.
        rank: rank of this server in the job.
        size: number of servers of the whole job.
        timeout: the group's timeout, and the longest wait to be admitted.
    """

    store: distributed_c10d.Store
    rank: int
    size: int
    timeout: timedelta = distributed_c10d.default_pg_timeout


@dataclasses.dataclass(frozen=True)
class Report:
    """How far a server has come."""

    steps: Count | None
    """Number of steps completed; None for a server that needs the others' state."""
    complete_in: int
    """Number of the list of members by which it has all averages of the next step, or -1."""
    settled: bool = True
    """Whether it is in a step; if not, servers are being admitted."""


@dataclasses.dataclass
class _Part:
    """A tensor of a step."""

    source: torch.Tensor
    """This server's contribution."""
    result: torch.Tensor
    mean: bool
    """Whether all contributions are averaged; if not, the first member's is copied."""


class _Circle:
    """Connections among some members.

    Args:
        members: all members.
        ranks: ranks of these, ascending.
        name: name of these connections, for this list of members.
        labels: their servers' names.
        schedule: the all-reduce among them; None: gloo's own.
        given: any schedule.
        timeout: the group's timeout.
    """

    def __init__(
        self,
        members: Members,
        ranks: Sequence[int],
        name: str,
        labels: Sequence[str],
        schedule: Schedule | None,
        given: Schedule,
        timeout: timedelta,
    ) -> None:
        self.ranks, place = tuple(ranks), tuple(ranks).index(members.rank)
        short, size = min(timeout, timedelta(seconds=_CONNECT_S)), len(self.ranks)
        self.up = gloo_group(members.place, f"{name} up", place, ranks, short)
        try:
            self._down: Any = connected(members.place, f"{name} down", place, size, short)
        except RunError:
            dist.destroy_process_group(self.up)
            raise
        for backend in (self.up._get_backend(torch.device("cpu")), self._down):
            backend._set_default_timeout(timeout)  # pyright: ignore[reportAttributeAccessIssue]
        named = dataclasses.replace(complete(size), labels=tuple(labels))
        self.detector = LossDetector.of(self.up, named, stays=True)
        channels = ([(self.up, self._down)], None)
        # Runs gloo's own collectives only, so that any schedule will do.
        self._messages = Messages(given, channels, self.up, self.detector)
        self.collective: Collective | None = None
        """The collective by the schedule."""
        if schedule is not None and not is_own(schedule, "gloo"):
            self.collective = Collective(schedule, self.up, channels=channels)

    def mean(self, tensor: torch.Tensor) -> None:
        """Averages a tensor, in place."""
        if self.collective is not None:
            self.collective(tensor, reduction="mean")
            return
        self._own(tensor, lambda flat: self._down.allreduce([flat]))
        tensor /= len(self.ranks)

    def copy(self, tensor: torch.Tensor, source: int) -> None:
        """Overwrites a tensor by that of one rank."""
        options: Any = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = self.ranks.index(source), 0
        self._own(tensor, lambda flat: self._down.broadcast([flat], options))

    def end(self) -> None:
        """Has collectives in progress end with an error, at all ranks; does not wait."""
        changed = Verdict((), ("the members have changed",))
        self.detector.store.ask(functools.partial(self.detector.shared.decide, changed))

    def least(self, tensor: torch.Tensor) -> None:
        """Takes the minimum of each element, in place."""
        options: Any = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        self._own(tensor, lambda flat: self._down.allreduce([flat], options))

    def _own(self, tensor: torch.Tensor, start: Callable[[torch.Tensor], dist.Work]) -> None:
        """Calls one of gloo's collectives on a contiguous tensor; an error names who was lost."""
        host = tensor if tensor.device.type == "cpu" else tensor.cpu()
        self._messages.attended(lambda: start(host.view(-1)).wait())
        if host is not tensor:
            tensor.copy_(host)

    def lost(self) -> dict[int, str]:
        """How servers were lost, if known, by rank."""
        verdict = self.detector.shared.known or Verdict((), ())
        return {self.ranks[at]: how for at, how in zip(verdict.lost, verdict.how, strict=False)}

    def close(self) -> None:
        """Ends the connections."""
        del self.collective, self._messages
        self.detector.store.close()
        dist.destroy_process_group(self.up)
        del self.detector, self._down


class Shrinking:
    """Averages over the members, see above.

    Args:
        schedule: an all-reduce for all servers of the job that average with each other, or a
            `Planner`.
        group: the process group of all servers of the job, or this server's place in a running one.
        block: number of consecutive ranks that hold the shards of one replica. Servers average with
            those that hold the same shard, and a replica is lost as a whole.
        state: objects whose ``state_dict`` servers that come later receive; without any, nobody is
            admitted.

    Raises:
        ScheduleError: the schedule is for another number of servers, or another collective.
        RunError: the servers could not connect, or this server was not admitted.
    """

    def __init__(
        self,
        schedule: ScheduleLike | Planner,
        group: Group | Returning | None,
        *,
        block: int = 1,
        state: Sequence[Any] = (),
    ) -> None:
        returning = group if isinstance(group, Returning) else None
        if returning is None:
            member: Any = member_of(group)
            store, self._timeout = group_store(member), group_timeout(member)
            rank, size = member.rank(), member.size()
            ranks = dist.get_process_group_ranks(member)
            if dist.get_backend(member) not in ("gloo", "gradweave"):
                raise OptionError("group: on_loss='shrink' needs a group of gloo")
        else:
            store, self._timeout = returning.store, returning.timeout
            rank, size = returning.rank, returning.size
            ranks = range(size)
        if size % block:
            raise OptionError(f"group: {size} ranks are no replicas of {block} shards")
        self._state = list(state)
        self._rank, self._block = rank, block
        self._planner = schedule if callable(schedule) else _only(as_schedule(schedule))
        replicas = range(size // block)
        given = self._schedule(replicas)  # checked before anybody waits
        if given is None:
            raise OptionError("schedule: expected a schedule for all servers")
        self._given, topology = given, given.topology
        names = [topology.id_name(server) for server in topology.servers.tolist()]
        self._names = names if block == 1 else [str(other) for other in range(size)]
        key = f"{zlib.crc32(json.dumps(list(ranks)).encode()):x} {next(_numbers)}"
        begin = Members.returning if returning is not None else Members
        seconds = self._timeout.total_seconds()
        self.members = begin(store, key, rank, size, block=block, timeout_s=seconds)
        """The servers that are there."""
        self.name = f"gradweave members {key}"
        """A name that all servers have for this, and used once in each process."""
        self.steps = 0
        """Number of steps completed; of a server that came later, with those before it came."""
        self.averaged: tuple[int, ...] = ()
        """The ranks whose tensors the last step has averaged."""
        self._fresh = returning is not None
        self._parts: list[_Part] = []
        self._results: list[torch.Tensor] = []
        self._done, self._complete_in = 0, -1
        self._pending: tuple[int, ...] = ()
        self._all: _Circle | None = None
        """The connections among all members; None if this is the only member."""
        self._peers: _Circle | None = None
        """The connections among the members with this shard; None if this is the only one."""
        self._number, self._attempts = -1, 0
        """The number of the list of members that are connected, and attempts to connect others."""
        self._busy = threading.Lock()
        """Held while this server works for a step."""
        self._reported = False
        """Whether this server has reported for a newer list while it was not busy."""
        this = weakref.ref(self)
        self.members.notice = lambda bring: _notice(this(), bring)
        if returning is None:
            self._ready()
        else:
            self._welcome()

    def _schedule(self, replicas: Sequence[int]) -> Schedule | None:
        """The schedule among some replicas."""
        if (planned := self._planner(replicas)) is None:
            return None
        schedule = as_schedule(planned)
        check_all_reduce(schedule)
        check_servers(schedule, len(replicas), what="servers that average with each other")
        return schedule

    @property
    def _there(self) -> tuple[int, ...]:
        """The ranks of the members."""
        return self.members.membership.ranks

    @property
    def sent_bytes(self) -> int:
        """Bytes that this server has sent by schedules over the present connections."""
        planned = self._peers and self._peers.collective
        return int(planned.sent_bytes.sum()) if planned else 0

    # Steps

    def mean(self, source: torch.Tensor) -> torch.Tensor:
        """Averages the next tensor of a step.

        Args:
            source: contiguous; it is not changed, and must not be until the step is committed.

        Returns:
            The average, which is valid once the step is committed, until the next step.
        """
        return self._add(source, True)

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """The first member's tensor, as the next tensor of a step; see `mean`."""
        return self._add(source, False)

    def _add(self, source: torch.Tensor, mean: bool) -> torch.Tensor:
        with self._busy:
            return self._added(source, mean)

    def _added(self, source: torch.Tensor, mean: bool) -> torch.Tensor:
        number = len(self._parts)
        kept = self._results[number] if number < len(self._results) else None
        if kept is None or (kept.dtype, kept.shape) != (source.dtype, source.shape):
            kept = torch.empty_like(source)
        self._parts.append(_Part(source, kept, mean))
        self._advance()
        return self._parts[number].result

    def results(self) -> list[torch.Tensor]:
        """The results of the present step's tensors."""
        return [part.result for part in self._parts]

    def commit(self, layout: int = 0) -> list[torch.Tensor]:
        """Completes the step; returns the results, which all members have.

        Args:
            layout: a number that must be equal at all members.

        Raises:
            LeftOutError: this server was taken for lost.
            RunError: the members could not agree, for example because the store has ended.
        """
        with self._busy:
            return self._committed(layout)

    def _committed(self, layout: int) -> list[torch.Tensor]:
        while True:
            self._advance()
            self._complete_in, self.averaged = self.members.number, self._there
            try:
                asked = self._vote(layout)
            except RunError as error:
                if not self._recover(error):
                    continue
                asked = ()
            break
        results = self.results()
        self.steps += 1
        self._results = results
        self._parts, self._done, self._complete_in, self._pending = [], 0, -1, asked
        return results

    def _advance(self) -> None:
        """Averages all tensors of the step that there are."""
        if self._reported:
            self.members.advance()
            self._close()
            self._begin_again()
        self._ready()
        while self._done < len(self._parts):
            part = self._parts[self._done]
            part.result.copy_(part.source)
            try:
                if self._peers is not None and part.mean:
                    self._peers.mean(part.result)
                elif self._peers is not None:
                    self._peers.copy(part.result, self._peers.ranks[0])
                self._done += 1
            except RunError as error:
                if self._recover(error):
                    raise RunError(
                        "the other servers have completed a step without this server"
                    ) from error

    def _vote(self, layout: int) -> tuple[int, ...]:
        """Confirms that all members have completed the step; returns the ranks to admit."""
        asking = self.members.asking if self._state else ()
        asked = [int(rank in asking) for rank in range(self.members.size)]
        ballot = torch.tensor([*asked, layout, -layout])
        if self._all is not None:
            self._all.least(ballot)
        *asked, least, most = ballot.tolist()
        if least != -most:
            raise OptionError(
                "model: the servers' gradients are complete in different orders, so that their "
                "buckets differ; use one model, or on_loss='raise'"
            )
        size = self._block
        blocks = [range(first, first + size) for first in range(0, len(asked), size)]
        return tuple(rank for block in blocks if all(asked[r] for r in block) for rank in block)

    # Changes of the members

    def _recover(self, error: RunError) -> bool:
        """Continues without lost servers.

        Args:
            error: the error of a collective.

        Returns:
            Whether the step stands; if not, its tensors are averaged again.

        Raises:
            RunError: the error itself, if no server is lost.
        """
        begin = time.monotonic()
        report, before = Report(self.steps, self._complete_in), self._there
        how = self._lose(error)
        while not (stand := stands(report, self._gather(report))) and not self._connect():
            pass
        if self._rank == self._there[0]:
            lost = [rank for rank in before if rank not in self._there]
            texts = [
                f"server {self._names[r]} (rank {r}): {how.get(r, 'lost with it')}" for r in lost
            ]
            what = "stands" if stand else "is repeated"
            count, seconds = counted(len(self._there), "server"), time.monotonic() - begin
            line = f"lost {', '.join(texts)}; {count} continue after {seconds:.2f} s"
            _log.warning("%s", in_one_line(f"{line}, and step {self.steps} {what}"))
        if not stand:
            self._begin_again()
        return stand

    def _begin_again(self) -> None:
        """Has all tensors of the step averaged again."""
        self._done, self._complete_in, self._reported = 0, -1, False
        for part in self._parts:  # a thread of a failed attempt may still write there
            part.result = torch.empty_like(part.source)

    def _lose(self, error: RunError) -> dict[int, str]:
        """Goes on to a list of members without those whose loss has caused an error.

        Returns:
            How servers were lost, as far as is known here, by rank.
        """
        until, lost = time.monotonic() + _EXPLAINED_S, dict[int, str]()
        for circle in (self._all, self._peers):
            lost |= circle.lost() if circle is not None else {}
        try:  # others that find these connections closed must find the new list as well
            if lost:
                self.members.lose(lost)
            while not lost and not self.members.advance():
                if time.monotonic() > until:
                    raise error
                time.sleep(_POLL_S)
        finally:
            _release(error)
            self._close()
        return lost

    def _gather(self, report: Report) -> dict[int, Report]:
        """How far all members have come, without those that are lost meanwhile.

        A server that is not busy reports as well, by its thread, so that nobody waits for a server
        that is itself waiting for another, such as the next server of its replica.
        """
        while True:
            came = self.members.meet(FIRST, json.dumps(dataclasses.asdict(report)))
            if came is None:
                continue
            reports = {
                rank: peer_value(written, Report, "a server's report in the job's store")
                for rank, written in came.items()
            }
            fresh = [rank for rank in reports if reports[rank].steps is None]
            if not fresh or not report.settled:
                return reports
            self.members.lose(fresh)

    def _connect(self) -> bool:
        """Connects the members; returns whether they still are the members, and are connected."""
        if self.members.meet("here", "") is None:
            return False
        made = self._connected()
        answers = self.members.meet("connected", "no" if made is None else "yes")
        if made is not None and answers is not None and set(answers.values()) == {b"yes"}:
            self._close()
            (self._all, self._peers), self._number, self._attempts = made, self.members.number, 0
            return True
        _close(*made or ())
        if answers is not None:
            self._attempts += 1
            if self._attempts == _ATTEMPTS:
                raise RunError("the servers that are left could not connect")
            self.members.propose(self.members.membership)
        return False

    def _ready(self) -> None:
        """Connects the members, if they are not yet, at the start of a step."""
        while self._number != self.members.number:
            self._gather(Report(self.steps, -1))
            self._connect()

    def _connected(self) -> tuple[_Circle | None, _Circle | None] | None:
        """Connections of all members and of those with the same shard; None after a failure."""
        all_made = None
        shard = self._rank % self._block
        peers = [rank for rank in self._there if rank % self._block == shard]
        schedule = self._schedule([rank // self._block for rank in peers])
        try:
            if self._block > 1:
                all_made = self._circle(self._there, "all", None)
            peers_made = self._circle(peers, f"shard {shard}", schedule)
        except RuntimeError:  # gloo's, or a RunError
            _close(all_made)
            return None
        return all_made or peers_made, peers_made

    def _circle(self, ranks: Sequence[int], name: str, schedule: Schedule | None) -> _Circle | None:
        if len(ranks) == 1:
            return None
        labels = [self._names[rank] for rank in ranks]
        name = f"{self.name} {self.members.number} {name}"
        return _Circle(self.members, ranks, name, labels, schedule, self._given, self._timeout)

    def _close(self) -> None:
        _close(self._all, self._peers)
        self._all = self._peers = None

    # Servers that come later

    def boundary(self) -> bool:
        """Admits the servers that have asked; called by all members between the same two steps.

        Returns:
            Whether there were any.
        """
        joined = tuple(rank for rank in self._pending if rank not in self._there)
        self._pending = ()
        if not joined:
            return False
        with self._busy:
            self._admit(joined)
        return not set(joined).isdisjoint(self._there)

    def _admit(self, joined: tuple[int, ...]) -> None:
        self.members.propose(Membership(tuple(sorted((*self._there, *joined))), joined))
        self._welcome()
        if self._rank == self._there[0]:
            names = ", ".join(self._names[rank] for rank in joined if rank in self._there)
            _log.info("%s", in_one_line(f"server {names} takes part from step {self.steps}"))

    def _welcome(self) -> None:
        """Gives servers that were just admitted the others' state."""
        while True:
            steps = None if self._fresh else self.steps
            try:
                reports = self._gather(Report(steps, -1, settled=False))
                if any(report.settled for report in reports.values()):
                    break  # they have seen that all are admitted, or have left those out
                if not self._connect():
                    continue
                if fresh := [rank for rank in reports if reports[rank].steps is None]:
                    self._transfer(fresh)
                self._vote(0)
                break
            except LeftOutError:
                if not self._fresh:
                    raise
                self.members.be_admitted()
            except RunError as error:
                self._lose(error)
        self.members.settled()

    def _transfer(self, fresh: Sequence[int]) -> None:
        circle = self._peers
        assert circle is not None
        source = next(rank for rank in circle.ranks if rank not in fresh)
        content = io.BytesIO()
        if self._rank == source:
            states = [one.state_dict() for one in self._state]
            torch.save({"steps": self.steps, "states": states}, content)
        size = torch.tensor([len(content.getbuffer())])
        circle.copy(size, source)
        sent = torch.empty(int(size), dtype=torch.uint8)
        if self._rank == source:
            sent.copy_(torch.frombuffer(content.getbuffer(), dtype=torch.uint8))
        circle.copy(sent, source)
        if self._fresh:
            found = torch.load(io.BytesIO(sent.numpy().tobytes()), weights_only=True)
            for one, state in zip(self._state, found["states"], strict=True):
                one.load_state_dict(state)
            self.steps, self._fresh = found["steps"], False

    def close(self) -> None:
        """Ends the connections and threads."""
        self._close()
        self.members.close()


def stands(mine: Report, all_reports: Mapping[int, Report]) -> bool:
    """Whether the present step stands, by how far this server and all members have come."""
    assert mine.steps is not None
    steps = [report.steps or 0 for report in all_reports.values()]
    if mine.steps < max(steps):  # a member has passed the vote
        return True
    complete = {report.complete_in for report in all_reports.values()}
    return min(steps) == max(steps) and len(complete) == 1 and complete != {-1}


def _release(error: BaseException | None) -> None:
    """Releases what the tracebacks of a handled error hold, such as threads and connections."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _only(schedule: Schedule) -> Planner:
    """The planner that has a schedule for all servers only."""
    return lambda ranks: schedule if len(ranks) == schedule.topology.num_servers else None


def _close(*circles: _Circle | None) -> None:
    for circle in {circle for circle in circles if circle is not None}:
        circle.close()


def _notice(shrinking: Shrinking | None, bring: Callable[[str], None]) -> None:
    """Reports for a server that is not busy; otherwise ends what it is busy with."""
    if shrinking is None:
        return
    if not shrinking._busy.acquire(blocking=False):
        for circle in {shrinking._all, shrinking._peers}:
            if circle is not None:
                circle.end()
        return
    try:
        bring(json.dumps(dataclasses.asdict(Report(shrinking.steps, -1))))
        shrinking._reported = True
    finally:
        shrinking._busy.release()


_numbers = itertools.count()
"""Numbers of the `Shrinking` of a process; all processes make them in the same order."""
