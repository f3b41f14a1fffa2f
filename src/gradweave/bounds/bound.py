"""Lower bounds on rounds, with certificates that a person can check."""

import abc
import dataclasses
from collections.abc import Callable

from gradweave.bounds.classes import (
    FEWER_PIECES,
    ROUTES_PASS_SERVERS,
    STAGES_OVERLAP,
    SUMS_MEET_ANYWHERE,
    SWITCHES_ADD,
    TREES_ARE_LEFT,
    class_of,
    impossible_on,
)
from gradweave.common.wording import counted, listed, noun_of
from gradweave.topology.topology import Topology

Name = Callable[[int], str]
"""(node id) -> the node's display name; certificates themselves store only ids."""
WORTH_SAYING = 0.01
"""Share of a bound from which on its words mention the overhead and latency of messages."""


class Certificate(abc.ABC):
    """The proof of a bound, in a form that a person can check."""

    @abc.abstractmethod
    def reason(self, name: Name = str) -> str:
        """The certificate in words.

        Args:
            name: (node id) -> display name; ids if not given.
        """

    def __str__(self) -> str:
        return self.reason()


@dataclasses.dataclass(frozen=True)
class Cut(Certificate):
    """A set of nodes that pieces must leave or enter over few links."""

    servers: tuple[int, ...]
    """The servers inside."""
    switches: tuple[int, ...]
    """The switches inside."""
    pieces: int
    """Pieces that must cross the boundary."""
    capacity: int
    """Transfers that can cross it in one round, in that direction."""
    leaving: bool = True
    """Whether the pieces leave the set or enter it."""

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        inside = inside_named(self.servers, self.switches, name)
        verb = "leave" if self.leaving else "enter"
        return f"{_pieces(self.pieces)} must {verb} {inside} at {self.capacity:,} per round"


@dataclasses.dataclass(frozen=True)
class LateEntry(Certificate):
    """A set of nodes that its last pieces must enter some rounds before the end, to spread inside.

    `pieces` must enter, at most `late` of them in the last `last_rounds` rounds and at most `early`
    in the first `first_rounds`; every other round admits `capacity`.
    """

    servers: tuple[int, ...]
    """The servers inside."""
    switches: tuple[int, ...]
    """The switches inside."""
    pieces: int
    """Pieces that must enter: those of the servers outside."""
    capacity: int
    """Transfers that can enter in one round."""
    first_rounds: int = 0
    early: int = 0
    """Pieces that start at most `first_rounds` transfers away."""
    last_rounds: int = 0
    late: int = 0
    """Pieces that can enter in the last rounds and still reach every server inside."""
    reach: tuple[int, ...] = ()
    """The servers inside, or some of them, that limit `late`."""
    transfers: int = 0
    """Minimum number of transfers that bring a piece from outside to one of `reach`."""
    deliveries: int = 0
    """Transfers that can bring late pieces to `reach` in the remaining rounds."""
    needed: int = 0
    """How many of those transfers each piece needs."""
    leaving: bool = False
    """Whether time is reversed, as in a reduce-scatter: pieces must leave, and the last of them
    only after the sums from all servers inside have met."""

    @property
    def rounds(self) -> int:
        """The number of rounds that this certificate proves."""
        others = -(-(self.pieces - self.late - self.early) // self.capacity)
        return self.first_rounds + self.last_rounds + others

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        inside = inside_named(self.servers, self.switches, name)
        verb, last, first = (
            ("leave", "first", "last") if self.leaving else ("enter", "last", "first")
        )
        limits = []
        if self.last_rounds:
            when = _rounds(last, self.last_rounds)
            limits.append(f"{_at_most(self.late)} in the {when} ({self._why(name)})")
        if self.first_rounds:
            when = _rounds(first, self.first_rounds)
            limits.append(
                f"{_at_most(self.early)} in the {when} (the others are rooted farther away)"
            )
        text = f"{_pieces(self.pieces)} must {verb} {inside} at {self.capacity:,} per round"
        return f"{text}, {' and '.join(limits)}" if limits else text

    def _why(self, name: Name) -> str:
        inside = self.reach == self.servers
        reach = "the servers inside" if inside else named("server", self.reach, name)
        if not self.deliveries:
            path = f"{reach} to outside" if self.leaving else f"outside to {reach}"
            return f"it takes {counted(self.transfers, 'transfer')} from {path}"
        each = f", and each piece needs {self.needed}" if self.needed > 1 else ""
        moved = counted(self.deliveries, "transfer")
        return f"in time for {moved} {'from' if self.leaving else 'to'} {reach}{each}"


@dataclasses.dataclass(frozen=True)
class ClosingCut(Certificate):
    """Nested sets of nodes around a server that not all pieces can enter in time.

    In each round pieces move by one transfer: from servers outside that round's first set, through
    switches, into its second set. The second set is the first set of the next round.
    """

    target: int
    """The server that some piece cannot reach."""
    pieces: int
    """Pieces that start outside the first set."""
    capacities: tuple[int, ...]
    """Transfers that can enter in each round."""
    servers: tuple[tuple[int, ...], ...]
    """The servers inside at the start of each round, and at the end."""
    switches: tuple[tuple[int, ...], ...]
    """The switches inside in each round."""
    leaving: bool = False
    """Whether time is reversed, as in a reduce-scatter: rounds then count from the end."""

    @property
    def rounds(self) -> int:
        """The number of rounds it proves: one more than the rounds that it rules out."""
        return len(self.capacities) + 1

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        start, end = named("server", self.servers[0], name), named("server", (self.target,), name)
        way = f"from {end} to outside {start}" if self.leaving else f"from outside {start} to {end}"
        order = "from the last to the first" if self.leaving else "in turn"
        rounds = counted(len(self.capacities), "round")
        lets = "let" if len(self.capacities) > 1 else "lets"
        return (
            f"{_pieces(self.pieces)} must come {way}, and {rounds} {lets} at most "
            f"{sum(self.capacities)} past a boundary that closes in ({order} "
            f"{listed([*map(str, self.capacities)])})"
        )


@dataclasses.dataclass(frozen=True)
class Distance(Certificate):
    """Two servers between which a piece needs several transfers, one per round at most."""

    source: int
    target: int
    transfers: int

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        ends = f"from server {name(self.source)} to server {name(self.target)}"
        return f"a piece needs {counted(self.transfers, 'transfer')} {ends}"


@dataclasses.dataclass(frozen=True)
class LinkLoad(Certificate):
    """The link direction that the trees load most relative to its capacity."""

    source: int
    target: int
    load: int
    capacity: int

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        link = f"{name(self.source)}→{name(self.target)}"
        load = f"{counted(self.load, 'transfer')} {noun_of(self.load, 'crosses', 'cross')}"
        return f"{load} the link {link} at {self.capacity:,} per round"


@dataclasses.dataclass(frozen=True)
class TreeDepth(Certificate):
    """A chain of transfers in one tree, each of which waits for the previous one."""

    piece: int
    transfers: int

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        return (
            f"the tree of piece {self.piece} has a chain of {counted(self.transfers, 'transfer')}"
        )


@dataclasses.dataclass(frozen=True)
class Ports(Certificate):
    """The total number of transfers, and how many the servers' ports can send in one round."""

    transfers: int
    capacity: int

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        moved = counted(self.transfers, "transfer")
        return f"there are {moved} in all, and the servers' ports take {self.capacity:,} per round"


@dataclasses.dataclass(frozen=True)
class Exhausted(Certificate):
    """An exhaustive search found no schedule of fewer rounds."""

    searcher: str
    """The solver, for example ``CP-SAT``."""
    collective: str
    impossible_below: int

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        fewer = f"{self.collective} of fewer than {counted(self.impossible_below, 'round')}"
        return f"{self.searcher} found no {fewer}, by search, not certified"


@dataclasses.dataclass(frozen=True)
class Bound:
    """A minimum number of rounds that every schedule needs, and the reason.

    For an all-reduce with a barrier between its stages the bound is the sum of the bounds of the
    two stages, and it has two certificates.
    """

    rounds: int
    kind: str
    """``cut``, ``late_entry``, ``closing_cut``, ``depth``, ``ports``, ``lengths``, ``link_load``,
    ``tree_depth`` or ``exact``; two stages of different kinds have both: ``cut+depth``."""
    certificates: tuple[Certificate, ...]
    holds_unless: frozenset[str] = frozenset()
    """`gradweave.bounds.classes.LIBERTIES` that a schedule must not take for the bound to hold."""
    pieces_per_server: int = 1
    """Minimum number of pieces rooted at each server, in the schedules that the bound holds for."""

    def __str__(self) -> str:
        return self.described()

    def described(self, name: Name = str) -> str:
        """The bound and its reason in one sentence.

        Args:
            name: (node id) -> display name, such as `Topology.id_name`; ids if not given.
        """
        least = f"at least {counted(self.rounds, 'round')} ({self.kind})"
        return f"{least}{self.holds_for}, since {self.reason(name)}"

    def reason(self, name: Name = str) -> str:
        """The reason in words."""
        first, *rest = self.certificates
        reason = first.reason(name)
        if rest and rest[0] == reversed_certificate(first):
            reason += ", and the reverse in the other stage"
        elif rest:
            reason += f", then {rest[0].reason(name)}"
        return reason

    @property
    def holds_for(self) -> str:
        """The schedules that the bound holds for, as a phrase; empty if it holds for all."""
        return class_of(self.holds_unless, [self.pieces_per_server])

    def on(self, topology: Topology, pieces_per_server: int = 1) -> "Bound":
        """The bound together with the class of schedules that it holds for.

        Args:
            topology: the bound's network.
            pieces_per_server: pieces per server that the bound counts.
        """
        forbidden = {FEWER_PIECES}.union(*(_FORBIDDEN[type(one)] for one in self.certificates))
        both = len(self.certificates) > 1
        both |= any(getattr(one, "collective", "") == "all_reduce" for one in self.certificates)
        forbidden |= {STAGES_OVERLAP, SUMS_MEET_ANYWHERE} if both else set()
        unless = frozenset(forbidden) - impossible_on(topology)
        return dataclasses.replace(self, holds_unless=unless, pieces_per_server=pieces_per_server)

    def then(self, following: "Bound") -> "Bound":
        """The bound of this stage, a barrier, and the following one."""
        kinds = dict.fromkeys((self.kind, following.kind))
        return Bound(
            self.rounds + following.rounds,
            "+".join(kinds),
            self.certificates + following.certificates,
        )


_SPREADS = {ROUTES_PASS_SERVERS, SWITCHES_ADD}
_FORBIDDEN: dict[type, set[str]] = {
    Cut: set(),
    LateEntry: _SPREADS,
    ClosingCut: _SPREADS,
    Distance: {ROUTES_PASS_SERVERS},
    LinkLoad: {SWITCHES_ADD, TREES_ARE_LEFT},
    TreeDepth: {TREES_ARE_LEFT},
    Ports: {SWITCHES_ADD},
    Exhausted: _SPREADS,
}
"""Liberties that each kind of certificate forbids; every kind also forbids fewer pieces."""


def best(*bounds: Bound) -> Bound:
    """The strongest of several bounds; the first if several are equal."""
    return max(bounds, key=lambda bound: bound.rounds)


def named(kind: str, ids: tuple[int, ...], name: Name = str) -> str:
    """Nodes of one kind in words.

    >>> named("server", (3,)), named("server", (0, 1)), named("switch", (4, 5, 6, 7))
    ('server 3', 'servers 0 and 1', 'switches 4 to 7')
    """
    nouns = noun_of(len(ids), kind, {"server": "servers", "switch": "switches"}[kind])
    if name is str and len(ids) > 2 and ids == tuple(range(ids[0], ids[-1] + 1)):
        return f"{nouns} {ids[0]} to {ids[-1]}"
    return f"{nouns} {listed([*map(name, ids)])}"


def inside_named(servers: tuple[int, ...], switches: tuple[int, ...], name: Name = str) -> str:
    """The nodes of a set in words."""
    kinds = (("server", servers), ("switch", switches))
    return " and ".join(named(kind, ids, name) for kind, ids in kinds if ids)


def reversed_certificate(certificate: Certificate) -> Certificate | None:
    """The certificate for the other stage, whose transfers run backwards.

    It is None for certificates that do not depend on the direction of transfers.
    """
    if isinstance(certificate, Cut | LateEntry | ClosingCut):
        return dataclasses.replace(certificate, leaving=not certificate.leaving)
    if isinstance(certificate, Distance):
        return Distance(certificate.target, certificate.source, certificate.transfers)
    return None


def _pieces(count: int) -> str:
    return counted(count, "piece")


def _at_most(count: int) -> str:
    return f"at most {count} of them" if count else "none of them"


def _rounds(which: str, count: int) -> str:
    return f"{which} round" if count == 1 else f"{which} {count} rounds"
