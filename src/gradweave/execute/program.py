"""One server's sends, receives and reductions, and the actions that each must wait for.

A program follows from the schedule alone, so every server derives its own without communication.
It has no barriers and no rounds: an action starts as soon as the actions named in `Program.after`
are complete.
"""

import collections
import dataclasses
import enum
import functools
import itertools
import weakref

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import InvalidScheduleError, OptionError, ScheduleError
from gradweave.execute.reference import play_pieces
from gradweave.schedule.schedule import COPY, OWN, Collective, Schedule
from gradweave.simulate.seconds import rates
from gradweave.topology.topology import Integers
from gradweave.topology.units import ROUNDING
from gradweave.verify.verify import verify

_verified: weakref.WeakSet[Schedule] = weakref.WeakSet()


class Action(enum.IntEnum):
    """Kinds of action on a piece."""

    SEND = 0
    """Sends the piece, as it is here, to the peer."""
    RECEIVE = 1
    """Receives from the peer: into a place of the scratch memory, or over the piece itself."""
    REDUCE = 2
    """Combines a place of the scratch memory into the piece."""
    COPY = 3
    """Copies a place of the scratch memory over the piece."""


AHEAD = 2
"""Transfers beyond those that a link carries at once, where their order is lost anyway."""
UNICAST_AHEAD = 16
"""The same of messages from server to server, few of which wait for others' data: the more are
under way, the better links between switches are filled. In the lab, an all-to-all on a leaf–spine
network took 12% more than predicted with 2 ahead, and 5% with 16."""
FAR_S = 1e-3
"""Latency of a route from which on a message's announcement is worth sending early."""
_MOST_EARLY = 16
"""Messages that a server may announce on a link before their turn, at most."""
LOCAL = (Action.REDUCE, Action.COPY)
"""Actions without a message."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """The actions of one server, in the order of the schedule.

    An action waits for what its data needs: a send for the last write to its piece, a write for the
    write before it and for the sends of what it overwrites. So reductions into a piece happen in
    the schedule's order however the messages arrive, and every run gives the same bits.

    It also waits for its turn on its server's link: a link direction of capacity c has no more than
    c + `ahead` transfers of one server under way, or as many as their rates leave room for, where
    other links are slower. That keeps the scheduler's order where more is ready than the link can
    carry. An action waits for earlier rounds alone, or, a reduction, for sends and receives of its
    round; so no two servers can wait for each other forever.

    From far away, the announcement that a receiver is ready takes long too, so it is sent before
    the turn: for as many messages as the link carries in a round trip; and, where those under way
    come from one server, whose sends keep their order anyway, for one more.

    Attributes are arrays over the A actions.
    """

    schedule: Schedule
    server: int
    """Node id."""
    rank: int
    """Place of the server among `Topology.servers`."""
    kind: NDArray[np.int8]
    """[A] `Action`."""
    transfer: Integers
    """[A] row of the schedule."""
    message: Integers
    """[A] number of the transfer among those from its source to its target: both servers know it by
    this number, which serves as a tag."""
    peer: Integers
    """[A] rank of the other server."""
    piece: Integers
    """[A] piece."""
    place: Integers
    """[A] place in the scratch memory that is written or read; −1 for none: sends, and receives
    over the piece itself."""
    places: int
    """Places of scratch memory, each as large as the largest piece."""
    at_once: int
    """Messages that can be under way at one time, at most."""
    after: Integers
    """Actions that must be complete before each action starts, one action's after the other."""
    after_offsets: NDArray[np.int64]
    """[A+1] action a waits for ``after[after_offsets[a]:after_offsets[a + 1]]``."""

    @staticmethod
    def of(
        schedule: Schedule,
        rank: int,
        *,
        ahead: int | None = None,
        gradient_bytes: float | None = None,
    ) -> "Program":
        """Derives the program of one server.

        Args:
            schedule: a schedule of any collective; it is verified, once per object.
            rank: which server, from 0.
            ahead: how many transfers a server may start on a link beyond those that the link
                carries at once; if not given, none, which keeps the schedule's order, or `AHEAD`
                (`UNICAST_AHEAD`) where that order is lost anyway and more under way fills the
                gaps: where other servers' transfers meet these on links between switches, and
                where a receiver's link is slower than a sender's, whose other messages delay those
                for it.
            gradient_bytes: size of the gradient, which says what is early enough for messages from
                far away; if not given, nothing is announced before its turn.

        Raises:
            OptionError: there is no such rank.
            InvalidScheduleError: the verifier rejects the schedule.

        >>> import gradweave as gw
        >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(3))
        >>> program = Program.of(schedule, rank=0)
        >>> [Action(kind).name for kind in program.kind[:6]]
        ['SEND', 'RECEIVE', 'REDUCE', 'SEND', 'RECEIVE', 'REDUCE']
        """
        check_runs(schedule)
        if not 0 <= rank < schedule.topology.num_servers:
            raise OptionError(
                f"rank: expected 0 to {schedule.topology.num_servers - 1}, got {rank}"
            )
        if ahead is None:
            ahead = default_ahead(schedule)
        return _ProgramBuilder(schedule, rank, ahead, _early(schedule, gradient_bytes)).program()


def check_runs(schedule: Schedule) -> None:
    """Refuses an invalid schedule, or one in which switches reduce, which cannot run.

    Raises:
        InvalidScheduleError: naming the first violation.
    """
    if schedule not in _verified:
        verdict = verify(schedule)
        if verdict.violation:
            raise InvalidScheduleError(f"cannot run: {verdict.violation.message}")
        _verified.add(schedule)


def check_among_all(schedule: Schedule) -> Collective:
    """The collective among all servers; refuses a demand before processes start for it.

    Raises:
        ScheduleError: naming what is demanded.
    """
    return schedule.collective


def is_own(schedule: Schedule, runtime: str) -> bool:
    """Whether a schedule stands for the all-reduce that a runtime has itself.

    `gradweave.solve` returns one where no plan is faster there. Executors then call the runtime's:
    the sum is the same, its association, and so its last bits, are the runtime's.

    Args:
        schedule: the schedule.
        runtime: the one that is to run it: ``gloo``, ``nccl`` or ``mpi``.
    """
    options = schedule.scheduler.options
    whole = schedule.demand is None and schedule.collective == "all_reduce"
    return whole and options.get(OWN) is True and options.get("runtime") == runtime


def check_servers(schedule: Schedule, size: int, *, what: str) -> None:
    """Refuses a number of processes that is not the schedule's number of servers.

    Raises:
        ScheduleError: naming both numbers.
    """
    servers = schedule.topology.num_servers
    if size != servers:
        raise ScheduleError(
            f"the schedule is for the {servers} servers of {schedule.topology.name}, but there are "
            f"{size} {what}; start {servers}, or make a schedule for {size} servers"
        )


def check_all_reduce(schedule: Schedule) -> None:
    """Refuses a schedule of one stage for an all-reduce.

    Raises:
        ScheduleError: naming the collective.
    """
    check_collective(schedule, "all_reduce")


def check_collective(schedule: Schedule, expected: Collective) -> None:
    """Refuses a schedule of another collective.

    Raises:
        ScheduleError: naming both.
    """
    if schedule.collective != expected:
        raise ScheduleError(
            f"expected a schedule of collective {expected}, got {schedule.collective}"
        )


@functools.lru_cache(maxsize=16)
def default_ahead(schedule: Schedule) -> int:
    """`AHEAD` where the order of transfers is lost anyway, none where servers can keep it."""
    if not (_meets_others(schedule) or _slower_at_receivers(schedule)):
        return 0
    unicast = schedule.demand is not None and schedule.demand.unicast
    return UNICAST_AHEAD if unicast else AHEAD


def _meets_others(schedule: Schedule) -> bool:
    """Whether two successive transfers on a link share neither of their servers.

    Servers keep the schedule's order among their own transfers. Nothing keeps it between two such
    transfers; their messages may meet on the link and share it.
    """
    links, transfer = schedule.route_links
    order = np.argsort(links, kind="stable")  # by link, and on each link in the schedule's order
    earlier, later = transfer[order[:-1]], transfer[order[1:]]
    return bool(
        (
            (links[order[:-1]] == links[order[1:]])
            & (schedule.source[earlier] != schedule.source[later])
            & (schedule.target[earlier] != schedule.target[later])
        ).any()
    )


def _slower_at_receivers(schedule: Schedule) -> bool:
    """Whether some transfer's last link has less bandwidth than its first."""
    first, last = _end_links(schedule, np.arange(schedule.num_transfers))
    bandwidth = schedule.topology.bandwidth_bytes_per_s
    return bool((bandwidth[last] < bandwidth[first] * (1 - ROUNDING)).any())


def same_bits(schedule: Schedule) -> bool:
    """Whether all servers that end with a piece have the same bits of it.

    They have where all add the contributions in the same association; rounded addition commutes,
    but does not associate. Decided by running the schedule once on labels in place of numbers.

    >>> import gradweave as gw
    >>> same_bits(gw.schedulers.Ring().schedule(gw.topology.ring(3)))
    True
    """
    servers = schedule.topology.num_servers
    labels = np.random.default_rng(0).integers(0, 1 << 63, (servers, schedule.pieces), np.uint64)

    def combine(into: np.ndarray, other: np.ndarray) -> None:
        label = into + other + (into ^ other) * np.uint64(0x9E3779B97F4A7C15)
        label ^= label >> np.uint64(29)
        label *= np.uint64(0xBF58476D1CE4E5B9)
        into[:] = label ^ (label >> np.uint64(32))

    ends = play_pieces(schedule, labels, np.arange(schedule.pieces + 1), combine)
    if schedule.demand is not None:
        gets = schedule.destinations
        held = ends[schedule.topology.rank[gets.servers], gets.owner]
        return bool((held == held[gets.offsets[:-1]][gets.owner]).all())
    if schedule.collective == "reduce_scatter":
        return True  # One server ends with each piece.
    return bool((ends == ends[0]).all())


class _ProgramBuilder:
    """Builds a program, action by action."""

    def __init__(self, schedule: Schedule, rank: int, ahead: int, early: NDArray[np.int64]) -> None:
        topology = schedule.topology
        self._schedule, self._rank, self._ahead, self._early = schedule, rank, ahead, early
        self._most_early: dict[tuple[int, bool], int] = {}  # by link and way, of its transfers
        self._server = int(topology.servers[rank])
        self._rows: list[tuple[int, ...]] = []
        self._messages: dict[tuple[int, bool], int] = {}  # by peer and way: how many so far
        self._after: list[list[int]] = []
        self._write: dict[int, int] = {}  # by piece: the last action that wrote to it
        self._reads: dict[int, list[int]] = {}  # by piece: sends since then
        self._queues: dict[
            tuple[int, bool], list[int]
        ] = {}  # by link and direction: actions, in order
        self._ends: dict[tuple[int, bool], list[int]] = {}  # of these, before which each waits
        self._ended: dict[tuple[int, bool], int] = {}  # the largest of them so far
        self._fits: dict[int, int] = {}  # by row: its server's last transfers that share its link
        self._rooms: dict[tuple[int, bool], int] = {}  # by link and way: the most of a row
        self._mixed: set[tuple[int, bool]] = set()  # links and ways whose rows have different rooms
        self._freed: dict[int, list[int]] = {}  # by link: reductions that empty its places
        self._first_place: dict[int, int] = {}
        self._places = 0
        self._most = topology.num_servers  # or transfers in a round, if more
        self._round_starts = 0  # first action of the round

    def program(self) -> Program:
        schedule = self._schedule
        mine = np.flatnonzero((schedule.source == self._server) | (schedule.target == self._server))
        starts = np.flatnonzero(np.diff(schedule.round[mine], prepend=-1))
        self._most = int(np.diff(starts, append=len(mine)).max(initial=self._most))
        sends = schedule.source[mine] == self._server
        out_link, in_link = _end_links(schedule, mine)
        link = np.where(sends, out_link, in_link)
        self._most_early = self._early_by_link(mine, link, sends)
        self._find_room(mine, link, sends)
        for first, last in itertools.pairwise([*starts, len(mine)]):
            rows = range(first, last)
            self._round_starts = len(self._rows)
            # A round sends pieces as they were when it began: sends come before writes.
            for i in rows:
                if sends[i]:
                    self._send(int(mine[i]), int(out_link[i]))
            for i in rows:
                if not sends[i]:
                    self._receive(int(mine[i]), int(in_link[i]))
        columns = np.array(self._rows, np.int64).reshape(-1, 6).T
        lengths = [len(after) for after in self._after]
        return Program(
            schedule=schedule,
            server=self._server,
            rank=self._rank,
            kind=columns[0].astype(np.int8),
            transfer=columns[1],
            message=columns[2],
            peer=columns[3],
            piece=columns[4],
            place=columns[5],
            places=self._places,
            at_once=sum(self._at_once(link, out=out) for link, out in self._queues),
            after=np.array([a for after in self._after for a in after], np.int64),
            after_offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        )

    def _early_by_link(
        self, rows: NDArray, links: NDArray, sends: NDArray
    ) -> dict[tuple[int, bool], int]:
        """By link and way, the most messages that are announced early, and no more than come."""
        most: dict[tuple[int, bool], int] = {}
        keys = list(zip(links.tolist(), sends.tolist(), strict=True))
        for key, row in zip(keys, rows.tolist(), strict=True):
            most[key] = max(most.get(key, 0), int(self._early[row]))
        come = collections.Counter(keys)
        return {key: min(early, come[key]) for key, early in most.items()}

    def _find_room(self, rows: NDArray, links: NDArray, sends: NDArray) -> None:
        """How many of this server's transfers a link carries at once, the last of them each row.

        As many as its capacity, and more where their rates, which other links of their routes
        limit, leave bandwidth; as in `gradweave.simulate.event_seconds`.
        """
        bandwidth = self._schedule.topology.bandwidth_bytes_per_s.tolist()
        taken: dict[tuple[int, bool], collections.deque[float]] = {}
        rate = rates(self._schedule)[rows].tolist()
        for row, link, out, mine in zip(
            rows.tolist(), links.tolist(), sends.tolist(), rate, strict=True
        ):
            together = taken.setdefault((link, out), collections.deque())
            together.append(mine)
            while sum(together) > bandwidth[link] * (1 + ROUNDING) and len(together) > 1:
                together.popleft()
            self._fits[row] = len(together)
            room = self._room(row, link)
            most = self._rooms.get((link, out), room)
            if room != most:
                self._mixed.add((link, out))
            self._rooms[link, out] = max(most, room)

    def _send(self, row: int, link: int) -> None:
        piece = int(self._schedule.piece[row])
        after = self._turn(row, link, out=True)
        if piece in self._write:
            after.append(self._write[piece])
        action = self._act(Action.SEND, row, -1, after)
        self._queues[link, True].append(action)
        self._reads.setdefault(piece, []).append(action)

    def _receive(self, row: int, link: int) -> None:
        piece = int(self._schedule.piece[row])
        before = self._reads.pop(piece, [])
        if piece in self._write:
            before.append(self._write[piece])
        turn = self._turn(row, link, out=False)
        copies = self._schedule.op[row] == COPY
        if copies and max(before, default=-1) < self._round_starts:
            action = self._act(Action.RECEIVE, row, -1, [*turn, *before])
            self._queues[link, False].append(action)
        else:
            # Not over the piece itself, which this round sends: two servers that swap would each
            # wait for the other to receive.
            place, free = self._place(link)
            received = self._act(Action.RECEIVE, row, place, [*turn, *free])
            self._queues[link, False].append(received)
            kind = Action.COPY if copies else Action.REDUCE
            action = self._act(kind, row, place, [received, *before])
            self._freed[link].append(action)
        self._write[piece] = action

    def _act(self, kind: Action, row: int, place: int, after: list[int]) -> int:
        schedule = self._schedule
        out = kind == Action.SEND
        peer = int(schedule.topology.rank[(schedule.target if out else schedule.source)[row]])
        message = self._messages.get((peer, out), 0)
        if kind in LOCAL:
            message -= 1  # of the receive that came just before
        else:
            self._messages[peer, out] = message + 1
        self._rows.append((kind, row, message, peer, int(schedule.piece[row]), place))
        self._after.append(after)
        return len(self._rows) - 1

    def _turn(self, row: int, link: int, *, out: bool) -> list[int]:
        """The actions that must be complete before one more may start on a link."""
        queue = self._queues.setdefault((link, out), [])
        early, back = int(self._early[row]), self._room(row, link)
        if out:
            back += self._waiting(link)
        else:
            back += max(self._ahead, early - 1)
            peer = self._schedule.topology.rank[self._schedule.source[row]]
            if early > self._ahead and all(
                self._rows[action][3] == peer for action in queue[-back:]
            ):
                back += 1
        end, ends = max(len(queue) + 1 - back, 0), self._ends.setdefault((link, out), [])
        if (link, out) in self._mixed:
            # All before `end` must have ended, since which are under way decides how many more fit.
            # What the last of them waited for has.
            first = ends[end - 1] if end else 0
        else:
            # As many always fit: one start for each end. Fewer may be early than before this one:
            # then several must have ended.
            first = min(self._ended.get((link, out), 0), max(end - 1, 0))
        ends.append(end)
        self._ended[link, out] = max(end, self._ended.get((link, out), 0))
        return queue[first:end]

    def _place(self, link: int) -> tuple[int, list[int]]:
        """A place of scratch memory for what comes over a link, and what must free it first."""
        count = self._at_once(link) + 1
        if link not in self._first_place:
            self._first_place[link], self._freed[link] = self._places, []
            self._places += count
        freed = self._freed[link]
        free = [freed[-count]] if len(freed) >= count else []
        return self._first_place[link] + len(freed) % count, free

    def _at_once(self, link: int, *, out: bool = False) -> int:
        """Transfers that one server has under way on a link, of however large a capacity."""
        if out:
            return self._rooms[link, out] + self._waiting(link)
        return self._rooms[link, out] + max(self._ahead, self._most_early.get((link, out), 0))

    def _waiting(self, link: int) -> int:
        """Sends that may wait ahead of their turn.

        One where its receiver is not yet ready, which costs the link nothing, and tells soon when
        the receiver is gone. Those of far servers are ready before.
        """
        return max(self._ahead, int(not self._most_early.get((link, True), 0)))

    def _room(self, row: int, link: int) -> int:
        # A round's transfers never wait for each other's turns: there is room for all of them.
        room = min(int(self._schedule.topology.capacity[link]), self._most)
        return max(room, self._fits[row])


def _early(schedule: Schedule, gradient_bytes: float | None) -> NDArray[np.int64]:
    """[T] how many messages may be announced before their turn when this one is; 0: none."""
    if gradient_bytes is None:
        return np.zeros(schedule.num_transfers, np.int64)
    topology, (links, transfer) = schedule.topology, schedule.route_links
    latency_s = np.bincount(transfer, topology.latency_s[links], minlength=schedule.num_transfers)
    slot = topology.bandwidth_bytes_per_s / topology.capacity
    bytes_per_s = np.full(schedule.num_transfers, np.inf)
    np.minimum.at(bytes_per_s, transfer, slot[links])
    piece_bytes = np.maximum(gradient_bytes * schedule.share[schedule.piece], 1.0)
    in_a_round_trip = 2 * latency_s * bytes_per_s / piece_bytes
    return np.where(latency_s < FAR_S, 0, np.minimum(in_a_round_trip, _MOST_EARLY - 1) + 1).astype(
        np.int64
    )


def _end_links(schedule: Schedule, rows: NDArray) -> tuple[NDArray, NDArray]:
    """First and last link direction of the routes of some transfers."""
    links, _ = schedule.route_links
    first = schedule.route_offsets[:-1] - np.arange(schedule.num_transfers)
    last = schedule.route_offsets[1:] - np.arange(schedule.num_transfers) - 2
    return links[first[rows]], links[last[rows]]
