"""Lower bounds on rounds, with certificates that a person can check."""

import dataclasses
from collections.abc import Callable

from gradweave.wording import counted, listed, noun_of

Name = Callable[[int], str]
"""(node id) -> what a person calls it; certificates know nodes by their ids alone."""


class _Reasoned:
    """A certificate in words."""

    def reason(self, name: Name = str) -> str:
        """The certificate in words.

        Args:
            name: (node id) -> what it is called.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        return self.reason()


@dataclasses.dataclass(frozen=True)
class Cut(_Reasoned):
    """A set of nodes that pieces must leave, or enter, over few links."""

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
        return f"{_pieces(self.pieces)} must {verb} {inside} at {self.capacity:,} a round"


@dataclasses.dataclass(frozen=True)
class LateEntry(_Reasoned):
    """A set of nodes whose last pieces must enter some rounds before the end, to spread inside.

    Of the `pieces` that must enter, at most `late` do in the last `last_rounds` rounds and `early`
    in the first `first_rounds`; `capacity` do in any other.
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
    """Least number of transfers that bring a piece from outside to one of `reach`."""
    deliveries: int = 0
    """Transfers that can bring late pieces to `reach` in the rounds that are left there."""
    needed: int = 0
    """How many of them each piece needs."""
    leaving: bool = False
    """Whether all is reversed, as in a reduce-scatter: pieces must leave, the last of them after
    sums from all servers inside have met."""

    @property
    def rounds(self) -> int:
        """Rounds that it proves."""
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
        text = f"{_pieces(self.pieces)} must {verb} {inside} at {self.capacity:,} a round"
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
class ClosingCut(_Reasoned):
    """Sets of nodes around a server, each within the one before, that pieces cannot enter in time.

    In each round pieces move by one transfer: from servers outside that round's first set, through
    switches, into its second set, which is the next round's first.
    """

    target: int
    """The server that some piece does not reach."""
    pieces: int
    """Pieces that start outside the first set."""
    capacities: tuple[int, ...]
    """Transfers that can enter in each round."""
    servers: tuple[tuple[int, ...], ...]
    """The servers inside at the start of each round, and at the end."""
    switches: tuple[tuple[int, ...], ...]
    """The switches inside in each round."""
    leaving: bool = False
    """Whether all is reversed, as in a reduce-scatter: rounds count from the end."""

    @property
    def rounds(self) -> int:
        """Rounds that it proves: one more than are too few."""
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
class Distance(_Reasoned):
    """Two servers between which a piece needs several transfers, at most one per round."""

    source: int
    target: int
    transfers: int

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        ends = f"from server {name(self.source)} to server {name(self.target)}"
        return f"a piece needs {counted(self.transfers, 'transfer')} {ends}"


@dataclasses.dataclass(frozen=True)
class LinkLoad(_Reasoned):
    """The link direction that the trees load most, relative to its capacity."""

    source: int
    target: int
    load: int
    capacity: int

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        link = f"{name(self.source)}→{name(self.target)}"
        load = f"{counted(self.load, 'transfer')} {noun_of(self.load, 'crosses', 'cross')}"
        return f"{load} the link {link} at {self.capacity:,} a round"


@dataclasses.dataclass(frozen=True)
class TreeDepth(_Reasoned):
    """A chain of transfers in one tree, each of which waits for the one before."""

    piece: int
    transfers: int

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        return (
            f"the tree of piece {self.piece} has a chain of {counted(self.transfers, 'transfer')}"
        )


@dataclasses.dataclass(frozen=True)
class Ports(_Reasoned):
    """All transfers, and how many the servers' ports can send in one round."""

    transfers: int
    capacity: int

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        moved = counted(self.transfers, "transfer")
        return f"there are {moved} in all, and the servers' ports take {self.capacity:,} a round"


@dataclasses.dataclass(frozen=True)
class Exhausted(_Reasoned):
    """An exhaustive search found no schedule of fewer rounds."""

    searcher: str
    """Such as ``CP-SAT``."""
    collective: str
    impossible_below: int

    def reason(self, name: Name = str) -> str:
        """The certificate in words."""
        fewer = f"{self.collective} of fewer than {counted(self.impossible_below, 'round')}"
        return f"{self.searcher} found no {fewer}, by search, not certified"


Certificate = Exhausted | Cut | LateEntry | ClosingCut | Distance | LinkLoad | TreeDepth | Ports


@dataclasses.dataclass(frozen=True)
class Bound:
    """A number of rounds below which there is no schedule, and why.

    For an all-reduce with a barrier the bound is the sum of two stages', and there are two
    certificates.
    """

    rounds: int
    kind: str
    """``cut``, ``late_entry``, ``closing_cut``, ``depth``, ``ports``, ``link_load``, ``tree_depth``
    or ``exact``; of two stages with different kinds, both: ``cut+depth``."""
    certificates: tuple[Certificate, ...]

    def __str__(self) -> str:
        return self.described()

    def described(self, name: Name = str) -> str:
        """The bound and its reason in one sentence.

        Args:
            name: (node id) -> what it is called, such as `Topology.id_name`; ids if not given.
        """
        first, *rest = self.certificates
        reason = first.reason(name)
        if rest and rest[0] == reversed_certificate(first):
            reason += ", and the reverse in the other stage"
        elif rest:
            reason += f", then {rest[0].reason(name)}"
        return f"at least {counted(self.rounds, 'round')} ({self.kind}), since {reason}"

    def then(self, following: "Bound") -> "Bound":
        """The bound of this stage, a barrier, and the following one."""
        kinds = dict.fromkeys((self.kind, following.kind))
        return Bound(
            self.rounds + following.rounds,
            "+".join(kinds),
            self.certificates + following.certificates,
        )


def best(*bounds: Bound) -> Bound:
    """The strongest of several bounds; the first among equals."""
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
    """The same of the other stage, all transfers reversed; None where it has no direction."""
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
