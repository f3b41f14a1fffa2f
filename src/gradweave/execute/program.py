"""The program of one server: its sends, receives and reductions, and their dependencies.

A program follows from the schedule alone, so every server derives its program without
communication. It has no barriers and no rounds: an action starts as soon as the actions named in
`Program.after` are complete.
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
from gradweave.execute.exchanges import OWN as OWN_VALUE
from gradweave.execute.exchanges import Write, writes
from gradweave.execute.reference import play_pieces
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import COPY, OWN, Collective, Schedule
from gradweave.simulator.seconds import rates
from gradweave.topology.topology import Integers
from gradweave.topology.units import ROUNDING, as_size
from gradweave.verifier.verify import verify

_verified: weakref.WeakSet[Schedule] = weakref.WeakSet()


class Action(enum.IntEnum):
    """Kinds of action on a piece."""

    SEND = 0
    """Sends the current value of the piece to the peer."""
    RECEIVE = 1
    """Receives from the peer, into a slot of scratch memory or directly into the piece."""
    REDUCE = 2
    """Combines a slot of scratch memory into the piece."""
    COPY = 3
    """Copies a slot of scratch memory over the piece."""
    KEEP = 4
    """Copies the piece into a slot of scratch memory."""


AHEAD = 2
"""Extra transfers in flight, beyond the link's capacity, if their order is lost anyway."""
UNICAST_AHEAD = 16
"""The same for messages from server to server. Few of these wait for other servers' data, and the
more are in flight, the better they fill the links between switches. In the lab, an all-to-all on a
leaf–spine network took 12% longer than predicted with 2 ahead, and 5% longer with 16."""
FAR_S = 1e-3
"""Minimum latency of a route for which a message is announced early."""
_MOST_EARLY = 16
"""Maximum number of messages that a server may announce on a link before their turn."""
LOCAL = (Action.REDUCE, Action.COPY, Action.KEEP)
"""Actions without a message."""


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """The actions of one server, in the order of the schedule.

    An action waits until its data is ready: a send waits for the last write to its piece; a write
    waits for the preceding write and for the sends of the data that it overwrites. So reductions
    into a piece happen in the order of `gradweave.execute.exchanges.writes`, in whichever order the
    messages arrive, and every run gives the same bits.

    An action also waits for its turn on its server's link. On a link direction of capacity c, at
    most c + `ahead` transfers of one server are in flight, or more if other links limit their
    rates and leave room. That keeps the scheduler's order if more transfers are ready than the link
    can carry. An action waits only for earlier rounds or, if it is a reduction, for sends and
    receives of its round; so servers never wait for each other forever.

    Over long distances, a receiver's announcement that it is ready also takes long. So it is sent
    before the turn: for as many messages as the link carries in one round trip. If all transfers
    in flight come from one server, whose sends keep their order anyway, it is sent for one more.

    Attributes are arrays over the A actions.
    """

    schedule: Schedule
    server: int
    """Node id of the server."""
    rank: int
    """Position of the server among `Topology.servers`."""
    kind: NDArray[np.int8]
    """[A] `Action`."""
    transfer: Integers
    """[A] row of the transfer in the schedule."""
    message: Integers
    """[A] number of the transfer among those from its source to its target. Both servers know this
    number, which serves as the tag."""
    peer: Integers
    """[A] rank of the other server."""
    piece: Integers
    """[A] piece."""
    place: Integers
    """[A] slot of scratch memory that is written or read; −1 for actions that use no slot: sends,
    and receives directly into the piece."""
    places: int
    """Number of slots in scratch memory, each as large as the largest piece."""
    at_once: int
    """Maximum number of messages in flight."""
    after: Integers
    """Actions that must be complete before each action starts, concatenated."""
    after_offsets: NDArray[np.int64]
    """[A+1] action a waits for ``after[after_offsets[a]:after_offsets[a + 1]]``."""

    @staticmethod
    def of(
        schedule: ScheduleLike,
        rank: int,
        *,
        ahead: int | None = None,
        gradient_bytes: float | str | None = None,
    ) -> "Program":
        """Derives the program of one server.

        Args:
            schedule: a schedule of any collective. It is verified, once per object.
            rank: rank of the server, from 0.
            ahead: how many transfers a server may start on a link beyond the number that the link
                carries simultaneously. The default is 0, which keeps the schedule's order, or
                `AHEAD` (`UNICAST_AHEAD`) if that order is lost anyway and more transfers fill the
                gaps. That is so if other servers' transfers meet these on links between switches,
                or if a receiver's link is slower than a sender's, so that it delays the sender's
                other messages.
            gradient_bytes: size of the gradient, which determines how early messages from far away
                are announced. If not given, every message is announced at its turn.

        Raises:
            OptionError: the rank does not exist.
            InvalidScheduleError: the verifier rejects the schedule.

        >>> import gradweave as gw
        >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(3))
        >>> program = Program.of(schedule, rank=0)
        >>> [Action(kind).name for kind in program.kind[:6]]
        ['SEND', 'RECEIVE', 'REDUCE', 'SEND', 'RECEIVE', 'REDUCE']
        """
        schedule = as_schedule(schedule)
        gradient_bytes = None if gradient_bytes is None else as_size(gradient_bytes)
        check_runs(schedule)
        if not 0 <= rank < schedule.topology.num_servers:
            raise OptionError(
                f"rank: expected 0 to {schedule.topology.num_servers - 1}, got {rank}"
            )
        if ahead is None:
            ahead = default_ahead(schedule)
        return _ProgramBuilder(schedule, rank, ahead, _early(schedule, gradient_bytes)).program()


def check_runs(schedule: Schedule) -> None:
    """Refuses a schedule that cannot run: an invalid one, or one in which switches reduce.

    Raises:
        InvalidScheduleError: the message names the first violation.
    """
    if schedule not in _verified:
        verdict = verify(schedule)
        if verdict.violation:
            raise InvalidScheduleError(f"cannot run: {verdict.violation.message}")
        _verified.add(schedule)


def check_among_all(schedule: Schedule) -> Collective:
    """The collective among all servers; refuses a demand before processes start for it.

    Raises:
        ScheduleError: the message names the demand.
    """
    return schedule.collective


def is_own(schedule: Schedule, runtime: str) -> bool:
    """Whether a schedule stands for a runtime's built-in all-reduce.

    `gradweave.solve` returns such a schedule if no plan is faster. Executors then call the
    runtime's all-reduce: the sum is the same, but its association, and so its last bits, are the
    runtime's.

    Args:
        schedule: the schedule.
        runtime: the runtime that should run it: ``gloo``, ``nccl`` or ``mpi``.
    """
    options = schedule.scheduler.options
    whole = schedule.kind == "all_reduce"
    return whole and options.get(OWN) is True and options.get("runtime") == runtime


def check_servers(schedule: Schedule, size: int, *, what: str) -> None:
    """Refuses a number of processes that is not the schedule's number of servers.

    Raises:
        ScheduleError: the message names both numbers.
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
        ScheduleError: the message names the collective.
    """
    check_collective(schedule, "all_reduce")


def check_collective(schedule: Schedule, expected: Collective) -> None:
    """Refuses a schedule of another collective.

    Raises:
        ScheduleError: the message names both collectives.
    """
    if schedule.collective != expected:
        raise ScheduleError(
            f"expected a schedule of collective {expected}, got {schedule.collective}"
        )


@functools.lru_cache(maxsize=16)
def default_ahead(schedule: Schedule) -> int:
    """How many transfers a server sends ahead of the schedule's order, if not given.

    It is 0 if the servers can keep that order; otherwise `AHEAD`, or `UNICAST_AHEAD` for demands
    that are unicast.
    """
    if not (_meets_others(schedule) or _slower_at_receivers(schedule)):
        return 0
    unicast = schedule.demand is not None and schedule.demand.unicast
    return UNICAST_AHEAD if unicast else AHEAD


def _meets_others(schedule: Schedule) -> bool:
    """Whether two consecutive transfers on a link have no server in common.

    A server runs its transfers in the schedule's order. Two transfers without a common server may
    run in either order; their messages may meet on the link and share it.
    """
    links, transfer = schedule.route_links
    order = np.argsort(links, kind="stable")  # by link, then in the schedule's order
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


def same_bits(schedule: ScheduleLike) -> bool:
    """Whether all servers that end with a piece have the same bits of it.

    This holds if all of them add the contributions in the same association: rounded addition
    commutes, but is not associative. To find out, the schedule is played once on labels instead of
    numbers.

    >>> import gradweave as gw
    >>> same_bits(gw.schedulers.Ring().schedule(gw.topology.ring(3)))
    True
    """
    schedule = as_schedule(schedule)
    servers = schedule.topology.num_servers
    labels = np.random.default_rng(0).integers(0, 1 << 63, (servers, schedule.pieces), np.uint64)

    def combine(into: np.ndarray, other: np.ndarray) -> None:
        label = into + other + (into ^ other) * np.uint64(0x9E3779B97F4A7C15)
        label ^= label >> np.uint64(29)
        label *= np.uint64(0xBF58476D1CE4E5B9)
        into[:] = label ^ (label >> np.uint64(32))

    ends = play_pieces(schedule, labels, np.arange(schedule.pieces + 1), combine)
    gets = schedule.destinations
    held = ends[schedule.topology.rank[gets.servers], gets.owner]
    return bool((held == held[gets.offsets[:-1]][gets.owner]).all())


def check_plan(schedule: Schedule) -> None:
    """Refuses a plan of unknown origin that must not replace a backend's own collective.

    Every path by which the torch.distributed backend adopts a plan calls this function.

    Raises:
        InvalidScheduleError: the verifier rejects the plan.
        ScheduleError: servers would end with different bits.
    """
    check_runs(schedule)
    if not same_bits(schedule):
        raise ScheduleError(
            "servers add in different orders and would end with different bits; use another "
            "strategy"
        )


class _ProgramBuilder:
    """Builds a program, action by action."""

    def __init__(self, schedule: Schedule, rank: int, ahead: int, early: NDArray[np.int64]) -> None:
        topology = schedule.topology
        self._schedule, self._rank, self._ahead, self._early = schedule, rank, ahead, early
        self._most_early: dict[tuple[int, bool], int] = {}  # by link and direction
        self._server = int(topology.servers[rank])
        self._rows: list[tuple[int, ...]] = []
        self._messages: dict[tuple[int, bool], int] = {}  # by peer and direction: count so far
        self._after: list[list[int]] = []
        self._number: dict[int, int] = {}  # by received row: index of its message at the sender
        self._own_place, self._own_added = -1, list[int]()  # of `_keep_own`; actions that free it
        self._write: dict[int, int] = {}  # by piece: the last action that wrote it
        self._reads: dict[int, list[int]] = {}  # by piece: sends since that write
        self._queues: dict[
            tuple[int, bool], list[int]
        ] = {}  # by link and direction: actions, in order
        self._ends: dict[tuple[int, bool], list[int]] = {}  # for these: end of what each waits for
        self._ended: dict[tuple[int, bool], int] = {}  # the largest end so far
        self._fits: dict[int, int] = {}  # by row: its server's transfers that share its link
        self._rooms: dict[tuple[int, bool], int] = {}  # by link and direction: maximum per row
        self._mixed: set[tuple[int, bool]] = set()  # links and directions with unequal room
        self._freed: dict[int, list[int]] = {}  # by link: reductions that empty its slots
        self._first_place: dict[int, int] = {}
        self._places = 0
        self._most = topology.num_servers  # or the number of transfers in a round, if larger
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
            # A round sends pieces as they were at its beginning, so sends come before writes.
            for i in rows:
                if sends[i]:
                    self._send(int(mine[i]), int(out_link[i]))
            received = {int(mine[i]): int(in_link[i]) for i in rows if not sends[i]}
            for row in received:  # numbered in the schedule's order, like at the senders
                key = int(schedule.topology.rank[schedule.source[row]]), False
                self._number[row] = self._messages.get(key, 0)
                self._messages[key] = self._number[row] + 1
            last = -1
            for write in writes(schedule, received):
                last = last if write.row == OWN_VALUE else write.row
                if write.row == OWN_VALUE:
                    self._add_own(last)
                else:
                    self._receive(write, received[write.row])
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
        """By link and direction, how many messages are announced early; at most all that come."""
        most: dict[tuple[int, bool], int] = {}
        keys = list(zip(links.tolist(), sends.tolist(), strict=True))
        for key, row in zip(keys, rows.tolist(), strict=True):
            most[key] = max(most.get(key, 0), int(self._early[row]))
        come = collections.Counter(keys)
        return {key: min(early, come[key]) for key, early in most.items()}

    def _find_room(self, rows: NDArray, links: NDArray, sends: NDArray) -> None:
        """Finds how many of this server's transfers fit on a link together, up to each row.

        The count is the link's capacity, or more if other links on the routes limit the rates and
        so leave bandwidth; `gradweave.simulator.event_seconds` counts in the same way.
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

    def _receive(self, write: Write, link: int) -> None:
        row = write.row
        piece = int(self._schedule.piece[row])
        before = self._reads.pop(piece, [])
        if piece in self._write:
            before.append(self._write[piece])
        turn = self._turn(row, link, out=False)
        copies = write.op == COPY
        if write.first_own:
            before = [self._keep_own(row, before)]
        if copies and max(before, default=-1) < self._round_starts:
            action = self._act(Action.RECEIVE, row, -1, [*turn, *before])
            self._queues[link, False].append(action)
        else:
            # Received into scratch memory, since this round sends the piece: two servers that swap
            # would each wait for the other to receive.
            place, free = self._place(link)
            received = self._act(Action.RECEIVE, row, place, [*turn, *free])
            self._queues[link, False].append(received)
            kind = Action.COPY if copies else Action.REDUCE
            action = self._act(kind, row, place, [received, *before])
            self._freed[link].append(action)
        self._write[piece] = action

    def _keep_own(self, row: int, before: list[int]) -> int:
        """Saves the server's value of a transfer's piece, until `_add_own`."""
        if self._own_place < 0:
            self._own_place, self._places = self._places, self._places + 1
        return self._act(Action.KEEP, row, self._own_place, [*before, *self._own_added])

    def _add_own(self, row: int) -> None:
        piece = int(self._schedule.piece[row])
        action = self._act(Action.REDUCE, row, self._own_place, [self._write[piece]])
        self._write[piece], self._own_added = action, [action]

    def _act(self, kind: Action, row: int, place: int, after: list[int]) -> int:
        schedule = self._schedule
        out = kind == Action.SEND
        peer = int(schedule.topology.rank[(schedule.target if out else schedule.source)[row]])
        if out:
            message = self._messages.get((peer, out), 0)
            self._messages[peer, out] = message + 1
        else:
            message = self._number[row]
        self._rows.append((kind, row, message, peer, int(schedule.piece[row]), place))
        self._after.append(after)
        return len(self._rows) - 1

    def _turn(self, row: int, link: int, *, out: bool) -> list[int]:
        """The actions that must be complete before one more action may start on a link."""
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
            # All actions before `end` must have ended, since the ones in flight decide how many
            # more fit. The actions that the last of them waited for have ended.
            first = ends[end - 1] if end else 0
        else:
            # The same number always fits: one start for each end. If fewer may be early than before
            # this action, several must have ended.
            first = min(self._ended.get((link, out), 0), max(end - 1, 0))
        ends.append(end)
        self._ended[link, out] = max(end, self._ended.get((link, out), 0))
        return queue[first:end]

    def _place(self, link: int) -> tuple[int, list[int]]:
        """A scratch slot for a message on a link, and the actions that must free it first."""
        count = self._at_once(link) + 1
        if link not in self._first_place:
            self._first_place[link], self._freed[link] = self._places, []
            self._places += count
        freed = self._freed[link]
        free = [freed[-count]] if len(freed) >= count else []
        return self._first_place[link] + len(freed) % count, free

    def _at_once(self, link: int, *, out: bool = False) -> int:
        """Maximum number of one server's transfers in flight on a link, whatever its capacity."""
        if out:
            return self._rooms[link, out] + self._waiting(link)
        return self._rooms[link, out] + max(self._ahead, self._most_early.get((link, out), 0))

    def _waiting(self, link: int) -> int:
        """Number of sends that may wait ahead of their turn.

        One send may wait while its receiver is not ready: that costs the link nothing, and reveals
        soon that a receiver is gone. Messages to far servers are announced early instead.
        """
        return max(self._ahead, int(not self._most_early.get((link, True), 0)))

    def _room(self, row: int, link: int) -> int:
        # A round's transfers never wait for each other's turns: the room is enough for all of them.
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
    """The first and the last link direction on the routes of some transfers."""
    links, _ = schedule.route_links
    first = schedule.route_offsets[:-1] - np.arange(schedule.num_transfers)
    last = schedule.route_offsets[1:] - np.arange(schedule.num_transfers) - 2
    return links[first[rows]], links[last[rows]]
