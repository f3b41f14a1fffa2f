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


Certificate = Exhausted | Cut | Distance | LinkLoad | TreeDepth | Ports


@dataclasses.dataclass(frozen=True)
class Bound:
    """A number of rounds below which there is no schedule, and why.

    For an all-reduce with a barrier the bound is the sum of two stages', and there are two
    certificates.
    """

    rounds: int
    kind: str
    """``cut``, ``depth``, ``ports``, ``link_load``, ``tree_depth`` or ``exact``; of two stages with
    different kinds, both: ``cut+depth``."""
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
