"""Lower bounds on rounds, with certificates that a person can check."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cut:
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

    def __str__(self) -> str:
        inside = named("server", self.servers) + (
            f" and {named('switch', self.switches)}" if self.switches else ""
        )
        verb = "leave" if self.leaving else "enter"
        return f"{self.pieces} pieces must {verb} {inside}, {self.capacity} a round"


@dataclasses.dataclass(frozen=True)
class LateEntry:
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

    def __str__(self) -> str:
        inside = named("server", self.servers) + (
            f" and {named('switch', self.switches)}" if self.switches else ""
        )
        verb, last, first = (
            ("leave", "first", "last") if self.leaving else ("enter", "last", "first")
        )
        text = f"{self.pieces} pieces must {verb} {inside}, {self.capacity} a round"
        if self.last_rounds:
            text += f", {_at_most(self.late)} of them in the {_rounds(last, self.last_rounds)}: "
            text += self._why()
        if self.first_rounds:
            text += f", {_at_most(self.early)} in the {_rounds(first, self.first_rounds)}, since "
            text += "the others are rooted farther away"
        return text

    def _why(self) -> str:
        reach = "the servers inside" if self.reach == self.servers else named("server", self.reach)
        moved = "transfer" if self.deliveries == 1 else "transfers"
        if not self.deliveries:
            path = f"{reach} to outside" if self.leaving else f"outside to {reach}"
            return f"it takes {self.transfers} transfers from {path}"
        each = f", {self.needed} for each piece" if self.needed > 1 else ""
        return f"{self.deliveries} {moved} {'from' if self.leaving else 'to'} {reach} in time{each}"


@dataclasses.dataclass(frozen=True)
class ClosingCut:
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

    def __str__(self) -> str:
        start, end = named("server", self.servers[0]), named("server", (self.target,))
        way = f"from {end} to outside {start}" if self.leaving else f"from outside {start} to {end}"
        order = "from the last to the first" if self.leaving else "in turn"
        room = ", ".join(map(str, self.capacities))
        return (
            f"{self.pieces} pieces must come {way}, and {len(self.capacities)} rounds let "
            f"at most {sum(self.capacities)} past a boundary that closes in: {order} {room}"
        )


@dataclasses.dataclass(frozen=True)
class Distance:
    """Two servers between which a piece needs several transfers, at most one per round."""

    source: int
    target: int
    transfers: int

    def __str__(self) -> str:
        ends = f"from server {self.source} to server {self.target}"
        return f"a piece needs {self.transfers} transfers {ends}"


@dataclasses.dataclass(frozen=True)
class LinkLoad:
    """The link direction that the trees load most, relative to its capacity."""

    source: int
    target: int
    load: int
    capacity: int

    def __str__(self) -> str:
        link = f"{self.source}→{self.target}"
        return f"{self.load} transfers cross the link {link}, {self.capacity} a round"


@dataclasses.dataclass(frozen=True)
class TreeDepth:
    """A chain of transfers in one tree, each of which waits for the one before."""

    piece: int
    transfers: int

    def __str__(self) -> str:
        return f"the tree of piece {self.piece} has a chain of {self.transfers} transfers"


@dataclasses.dataclass(frozen=True)
class Ports:
    """All transfers, and how many the servers' ports can send in one round."""

    transfers: int
    capacity: int

    def __str__(self) -> str:
        return f"{self.transfers} transfers in all, the servers' ports take {self.capacity} a round"


@dataclasses.dataclass(frozen=True)
class Exhausted:
    """An exhaustive search found no schedule of fewer rounds."""

    searcher: str
    """Such as ``CP-SAT``."""
    collective: str
    impossible_below: int

    def __str__(self) -> str:
        fewer = f"{self.collective} of fewer than {self.impossible_below} rounds"
        return f"{self.searcher} proved that there is no {fewer}"


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
        reasons = "; then ".join(str(certificate) for certificate in self.certificates)
        return f"at least {self.rounds} rounds ({self.kind}): {reasons}"

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


def named(kind: str, ids: tuple[int, ...]) -> str:
    """Nodes of one kind in words: ``servers 0, 1``."""
    plural = {"server": "servers", "switch": "switches"}[kind]
    shown = ", ".join(map(str, ids[:12])) + (f" and {len(ids) - 12} more" if len(ids) > 12 else "")
    return f"{kind if len(ids) == 1 else plural} {shown}"


def _at_most(count: int) -> str:
    return f"at most {count}" if count else "none"


def _rounds(which: str, count: int) -> str:
    return f"{which} round" if count == 1 else f"{which} {count} rounds"
