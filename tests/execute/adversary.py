"""All programs of a schedule on one machine, whose scheduler means them ill.

Messages are rendezvous: neither end is complete before both have been posted. Between its start and
its end an action owns what it writes: the machine fills that with rubbish at once, reads what is
sent twice, and notes who else touches it. Which of the actions that may start does so next, and
which of the messages under way arrives next, is drawn at random, or always decided against the same
servers, or rigged.
"""

import collections
import dataclasses
import functools
import itertools
import random
from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.execute import Action, Program
from gradweave.execute import program as program_module
from gradweave.execute.program import default_ahead
from gradweave.execute.reference import Combine
from gradweave.execute.tracker import Tracker
from gradweave.schedules import Schedule
from gradweave.simulator.seconds import rates

RUBBISH = 0xBAD
# Plain numbers: comparing with members of an enumeration takes most of a machine's time.
SEND, REDUCE, COPY = int(Action.SEND), int(Action.REDUCE), int(Action.COPY)
KEEP = int(Action.KEEP)
LOCAL = frozenset(map(int, program_module.LOCAL))

Event = tuple[Literal["start", "meet", "end"], int, int]
"""What can happen next, at which server, with which action; "meet" goes by the receiving one."""
Number = tuple[int, int, int]
"""A message: source, target, and its number among those."""
Memory = tuple[Literal["piece", "place"], int]
"""A server's own piece, or a place of its scratch memory."""


class CaughtError(AssertionError):
    """A program that did what it may not, or stopped before its end."""


def mix(into: np.ndarray, other: np.ndarray) -> None:
    """Combines so that every order and every association gives another result."""
    label = into * np.uint64(3) + other * np.uint64(0x9E3779B97F4A7C15)
    label ^= label >> np.uint64(29)
    into[:] = label * np.uint64(0xBF58476D1CE4E5B9)


def labels(servers: int, elements: int) -> NDArray[np.uint64]:
    """What each server brings, for `mix`."""
    return np.random.default_rng(0).integers(0, 1 << 63, (servers, elements), np.uint64)


def programs(schedule: Schedule) -> list[Program]:
    servers = range(schedule.topology.num_servers)
    return [Program.of(schedule, rank) for rank in servers]


@dataclasses.dataclass(frozen=True)
class Rigged:
    """Starts `early` before `late`, at the same server, has ended, if that is possible at all."""

    server: int
    early: int
    late: int


class Machine:
    """Runs programs to their ends.

    Args:
        run: a program a server.
        held: [N, elements] what the servers bring; a copy is worked on.
        combine: how contributions are combined.
        seed: of the scheduler's draws. Odd seeds rank the servers once and mostly let the highest
            go on; every third seed lets messages meet only when little else can happen.
        rigged: what to force.
        ahead: the programs' option.
    """

    def __init__(
        self,
        run: list[Program],
        held: NDArray,
        combine: Combine,
        seed: int = 0,
        rigged: Rigged | None = None,
        ahead: int | None = None,
    ) -> None:
        if ahead is None:
            ahead = default_ahead(run[0].schedule)
        self._combine, self._rigged = combine, rigged
        self.held = held.copy()
        at = run[0].schedule.piece_offsets(held.shape[1])
        self._servers = [
            _Server(program, rank, self.held[rank], at, ahead)  # whose memory is this array's
            for rank, program in enumerate(run)
        ]
        self._posted: dict[Number, dict[bool, int]] = {}  # by whether it is the sender's end
        self._random = random.Random(seed)
        self._ranks = self._random.sample(range(len(run)), len(run)) if seed % 2 else None
        self._meet_last = seed % 3 == 2
        self._events: list[Event] = []

    def play(self) -> NDArray:
        """Runs all to the end; returns what the servers then hold.

        Raises:
            CaughtError: a program touched what another action owned, had more under way than it
                said, or waits forever.
        """
        do = {"start": self._start, "meet": self._meet, "end": self._end}
        for server in self._servers:
            self._offer(server, server.tracker.restart())
        while self._events:
            kind, rank, action = self._next()
            do[kind](self._servers[rank], action)
        for server in self._servers:
            if server.tracker.left or not all(server.done):
                left = server.tracker.left
                raise CaughtError(f"{left} actions of server {server.rank} wait forever")
        return self.held

    def _next(self) -> Event:
        events = self._events
        if self._rigged is None:
            i = self._choice()
        else:
            i = self._rigged_choice(self._rigged)
        events[i], events[-1] = events[-1], events[i]
        return events.pop()

    def _choice(self) -> int:
        events = self._events
        if self._ranks is None and not self._meet_last:
            return int(self._random.random() * len(events))
        few = [int(self._random.random() * len(events)) for _ in range(min(8, len(events)))]
        if self._meet_last:
            few = [i for i in few if events[i][0] != "meet"] or few
        ranks = self._ranks
        return few[0] if ranks is None else max(few, key=lambda i: ranks[events[i][1]])

    def _rigged_choice(self, rigged: Rigged) -> int:
        """The start of `late`, else anything else, else that of `early`, and last of all the end of
        `late`: so both own what they use at the same time, if that is possible.
        """
        if self._servers[rigged.server].begun[rigged.early]:
            return self._choice()
        order: dict[Event, int] = {
            ("start", rigged.server, rigged.late): 0,
            ("start", rigged.server, rigged.early): 2,
            ("end", rigged.server, rigged.late): 3,
        }
        return min(range(len(self._events)), key=lambda i: order.get(self._events[i], 1))

    def _offer(self, server: "_Server", ready: Iterable[int]) -> None:
        for action in ready:
            if not all(server.done[before] for before in server.after[action]):
                raise CaughtError(f"action {action} of server {server.rank} is not yet to start")
            self._events.append(("start", server.rank, action))

    def _start(self, server: "_Server", action: int) -> None:
        server.take(action)
        kind, piece, place = server.kind[action], server.part[action], server.scratch[action]
        if kind in LOCAL:
            assert place is not None
            result = place.copy() if kind == COPY else piece.copy()
            if kind == REDUCE:
                self._combine(result, place)
            server.taken[action] = result
            (place if kind == KEEP else piece)[:] = RUBBISH
            self._events.append(("end", server.rank, action))
            return
        if kind == SEND:
            server.taken[action] = piece.copy()
        else:
            (piece if place is None else place)[:] = RUBBISH
        server.count(action)
        number = server.number[action]
        ends = self._posted.setdefault(number, {})
        if (kind == SEND) in ends:
            raise CaughtError(f"message {number} is there twice")
        ends[kind == SEND] = action
        if len(ends) == 2:
            self._events.append(("meet", number[1], ends[False]))

    def _meet(self, receiver: "_Server", receive: int) -> None:
        """A message arrives; each end hears of it by itself."""
        number = receiver.number[receive]
        sender, send = self._servers[number[0]], self._posted.pop(number)[True]
        if sender.transfer[send] != receiver.transfer[receive]:
            raise CaughtError(f"message {number} is one transfer here and another there")
        data = sender.part[send]
        if not np.array_equal(data, sender.taken.pop(send)):
            raise CaughtError(f"what server {sender.rank} sends changed on its way")
        place = receiver.scratch[receive]
        (receiver.part[receive] if place is None else place)[:] = data
        self._events += [("end", sender.rank, send), ("end", receiver.rank, receive)]

    def _end(self, server: "_Server", action: int) -> None:
        if server.kind[action] in LOCAL:
            into = server.scratch if server.kind[action] == KEEP else server.part
            into[action][:] = server.taken.pop(action)  # pyright: ignore[reportOptionalSubscript]
        server.give_back(action)
        self._offer(server, server.tracker.complete(action))


class _Server:
    """A program's columns, its memory, and who uses what of it."""

    def __init__(
        self, program: Program, rank: int, held: NDArray, at: NDArray[np.int64], ahead: int
    ) -> None:
        sizes = np.diff(at)
        places = np.empty((program.places, int(sizes.max())), held.dtype)
        facts = _facts(program, ahead)
        self.rank = rank
        self.tracker = Tracker(program, sizes)
        self.kind, self.transfer, self.number = facts.kind, facts.transfer, facts.number
        self.part = [held[at[p] : at[p + 1]] for p in facts.piece]
        self.scratch = [
            None if place < 0 else places[place, : len(part)]
            for place, part in zip(facts.place, self.part, strict=True)
        ]
        self.after = facts.after
        self.done = (sizes[program.piece] == 0).tolist()  # these are never started
        self.begun = [False] * len(facts.kind)
        self.taken: dict[int, NDArray] = {}
        self._memories = facts.memories
        self._users: dict[Memory, list[tuple[int, bool]]] = collections.defaultdict(list)
        self._under_way = 0
        self._on_links: dict[tuple[int, bool], list[float]] = collections.defaultdict(list)
        self._end_links = facts.end_links
        self._at_once = program.at_once

    def take(self, action: int) -> None:
        """Notes that an action starts and owns what it uses."""
        if self.begun[action]:
            raise CaughtError(f"action {action} of server {self.rank} starts twice")
        self.begun[action] = True
        for memory, writes in self._memories[action]:
            users = self._users[memory]
            if users and (writes or any(other_writes for _, other_writes in users)):
                raise CaughtError(
                    f"action {action} of server {self.rank} meets {users} at {memory}"
                )
            users.append((action, writes))

    def count(self, action: int) -> None:
        """Notes that a message is under way."""
        link, share, capacity, ahead = self._end_links[action]
        under_way = self._on_links[link]
        under_way.append(share)
        self._under_way += 1
        carried = sorted(under_way)[: max(len(under_way) - ahead, 0)]
        if len(carried) > capacity and sum(carried) > 1 + 1e-6:
            raise CaughtError(f"server {self.rank} has more messages on a link than it carries")
        if self._under_way > self._at_once:
            raise CaughtError(f"server {self.rank} has more messages under way than it says")

    def give_back(self, action: int) -> None:
        """Notes that an action is complete."""
        for use in self._memories[action]:
            self._users[use[0]].remove((action, use[1]))
        if self.kind[action] not in LOCAL:
            link, share, _, _ = self._end_links[action]
            self._on_links[link].remove(share)
            self._under_way -= 1
        self.done[action] = True


EndLink = tuple[tuple[int, bool], float, int, int]
"""Of a message: the link direction at its server's end, the share of it that the message takes, the
direction's capacity, and how many messages more may wait ahead."""


@dataclasses.dataclass(frozen=True)
class _Facts:
    """A program's columns as lists, and what follows from them, an entry an action."""

    kind: list[int]
    transfer: list[int]
    piece: list[int]
    place: list[int]
    after: list[list[int]]
    """Actions that each waits for."""
    number: list[Number]
    memories: list[list[tuple[Memory, bool]]]
    """What it reads, or writes (True)."""
    end_links: list[EndLink]


@functools.lru_cache(maxsize=128)
def _facts(program: Program, ahead: int) -> _Facts:
    """The same for every run of a program, so found once."""
    kind, piece, place = program.kind.tolist(), program.piece.tolist(), program.place.tolist()
    transfer = program.transfer.tolist()
    ends = itertools.pairwise(program.after_offsets.tolist())
    after = program.after.tolist()
    return _Facts(
        kind,
        transfer,
        piece,
        place,
        [after[a:b] for a, b in ends],
        _numbers(program),
        [_memories(*each) for each in zip(kind, piece, place, strict=True)],
        _end_links(program, kind, transfer, ahead),
    )


def _memories(kind: int, piece: int, place: int) -> list[tuple[Memory, bool]]:
    if kind == SEND:
        return [(("piece", piece), False)]
    if kind in LOCAL:
        return [(("piece", piece), kind != KEEP), (("place", place), kind == KEEP)]
    return [(("place", place) if place >= 0 else ("piece", piece), True)]


def _numbers(program: Program) -> list[Number]:
    """The message of each action."""
    rank = program.rank
    columns = program.kind.tolist(), program.peer.tolist(), program.message.tolist()
    return [
        (rank, peer, message) if kind == SEND else (peer, rank, message)
        for kind, peer, message in zip(*columns, strict=True)
    ]


def _end_links(
    program: Program, kinds: list[int], transfers: list[int], ahead: int
) -> list[EndLink]:
    topology, rate = program.schedule.topology, rates(program.schedule)
    links, capacity = _links(program.schedule), topology.capacity.tolist()
    found = []
    for kind, row in zip(kinds, transfers, strict=True):
        sends = kind == SEND
        link = links[row][0 if sends else -1]
        share = float(rate[row] / topology.bandwidth_bytes_per_s[link])
        more = max(ahead, 1) if sends else ahead
        found.append(((link, sends), share, capacity[link], more))
    return found


@functools.lru_cache(maxsize=4)
def _links(schedule: Schedule) -> list[list[int]]:
    """For each transfer the link directions of its route."""
    topology, nodes, at = schedule.topology, schedule.route_nodes, schedule.route_offsets
    ends = zip(topology.source.tolist(), topology.target.tolist(), strict=True)
    number = {pair: link for link, pair in enumerate(ends)}
    return [
        [number[pair] for pair in itertools.pairwise(nodes[a:b].tolist())]
        for a, b in itertools.pairwise(at)
    ]


def redundant(run: list[Program], server: int, early: int, late: int) -> bool:
    """Whether an action comes after another even where nobody says so: others' messages see to it.

    Follows what happens before what: an end before the starts that wait for it, and the start of
    either end of a message before the end of both.
    """
    first = np.cumsum([0, *(len(p.kind) for p in run)])
    other_end = _other_ends(run, first)
    waiting = [list[int]() for _ in range(first[-1])]
    for s, program in enumerate(run):
        for action in range(len(program.kind)):
            slots = range(program.after_offsets[action], program.after_offsets[action + 1])
            for before in (int(program.after[i]) for i in slots):
                if (s, action, before) != (server, early, late):
                    waiting[first[s] + before].append(first[s] + action)
    reached, left = set[int](), [first[server] + late]
    while left:  # actions whose end comes after the end of `late`
        for starts in waiting[left.pop()]:
            if starts == first[server] + early:
                return True
            for ends in (starts, other_end.get(starts, starts)):
                if ends not in reached:
                    reached.add(ends)
                    left.append(ends)
    return False


def _other_ends(run: list[Program], first: NDArray) -> dict[int, int]:
    """For each action that sends the one that receives, and back."""
    ends: dict[Number, list[int]] = {}
    for s, program in enumerate(run):
        numbers = _numbers(program)
        for action in np.flatnonzero(~np.isin(program.kind, [*LOCAL])).tolist():
            ends.setdefault(numbers[action], []).append(int(first[s]) + action)
    pairs = [tuple(pair) for pair in ends.values()]
    return {a: b for a, b in pairs} | {b: a for a, b in pairs}
