"""The schedule: all transfers and their rounds, in an immutable struct of arrays."""

import copy
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradweave.common.drawn import Drawn
from gradweave.common.wording import counted
from gradweave.errors import OptionError, ScheduleError
from gradweave.schedules import columns as kept_as
from gradweave.schedules.columns import (
    RouteOffsets,
    as_offsets,
    ascends,
    ends_of,
    flat,
    kept,
    same_view,
)
from gradweave.schedules.demand import Demand, Sets
from gradweave.schedules.shares import apportion, normalised
from gradweave.topology.topology import Integers, Topology

Stage = Literal["reduce_scatter", "all_gather"]
"""A stage of an all-reduce."""
Collective = Literal["all_reduce", "reduce_scatter", "all_gather"]
COLLECTIVES: tuple[str, ...] = get_args(Collective)
"""Collectives among all servers, for which schedules need no demand."""
DEMAND: Any = "demand"
"""Takes the place of a collective if a schedule has a demand."""

REDUCE = 0
"""The transfer adds the source's partial sum of the piece into the target's."""
COPY = 1
"""The transfer overwrites the target's piece with the source's."""
OPS = ("reduce", "copy")
"""Names of the ops in files, by number."""

MAX_ROUNDS = 1 << 26
"""Largest number of rounds accepted, to guard against malformed files; the code has no limit."""
COLUMNS = ("root", "round", "piece", "source", "target", "op", "route_nodes", "route_offsets")
"""The fields of a schedule that are arrays."""
OWN = "own"
"""Option of a schedule's provenance: the schedule has the messages of the runtime's own all-reduce,
and executors on the runtime in option ``runtime`` call that instead."""


def check_collective(name: object) -> None:
    """Refuses what is not in `COLLECTIVES`."""
    if name not in COLLECTIVES:
        raise OptionError(f"collective: expected one of {', '.join(COLLECTIVES)}, got {name!r}")


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The scheduler that made a schedule, and its options."""

    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int | None = None


@dataclasses.dataclass(frozen=True)
class StatedBound:
    """The lower bound on rounds that a schedule carries and its file states."""

    rounds: int
    kind: str
    computed: bool = dataclasses.field(default=False, compare=False)
    """Whether this process computed it; a bound read from a file is only a statement, which
    `gradweave.bounds.of_schedule` can check."""
    holds_for: str = dataclasses.field(default=" for some class of schedules", compare=False)
    """The schedules that a computed bound holds for; see `Bound.holds_for`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule(Drawn):
    """Transfers in rounds, on a topology.

    Rows are sorted by round (stable). Construction checks shapes, types and ranges, so that every
    id can be used as an index; `gradweave.verifier` decides whether the schedule is *valid*. Arrays
    are read-only. Columns are int32; with more than 2^26 transfers they are int16 if all values
    fit, so convert before adding or multiplying, and the ends are views of the routes.

    Source: docs/reference/schedule-file.md; the paper's section 4.1.

    Raises:
        ScheduleError: names the column and row at fault.
    """

    topology: Topology
    collective: Collective
    """A collective among all servers, or `DEMAND` if there is a demand; reading it then raises
    ScheduleError, see `AmongAll`."""
    root: Integers
    """[P] node id of the server at which each piece is reduced; with a demand, of a server that
    eventually holds the whole piece."""
    round: Integers
    """[T] round in which the transfer happens, from 0."""
    piece: Integers
    """[T] piece that it moves."""
    source: Integers
    """[T] node that sends."""
    target: Integers
    """[T] node that receives."""
    op: Integers
    """[T] `REDUCE` or `COPY`."""
    route_nodes: Integers
    """[sum of route lengths] the routes' nodes, one route after the other, source and target
    included."""
    route_offsets: RouteOffsets = RouteOffsets()  # noqa: RUF009 — a descriptor, no default
    """[T+1] the route of transfer t is ``route_nodes[route_offsets[t]:route_offsets[t + 1]]``. May
    be given as one number: the number of nodes of every route."""
    scheduler: Provenance = Provenance("unknown")
    bound: StatedBound | None = None
    shares: Integers | None = None
    """[P] integers: piece p is ``shares[p] / shares.sum()`` of the gradient; with a demand, of its
    block, with the sum over the block's pieces. In lowest terms; None if all pieces are equal."""
    demand: Demand | None = None
    """The data to sum and move, unless it is a collective among all servers."""
    block: Integers | None = None
    """[P] the demand's block that each piece is a part of, ascending: every block has pieces."""
    certificates: tuple[Mapping[str, Any], ...] = ()
    """Proofs that no schedule takes less, as its file carries them; mere claims until
    `gradweave.bounds.check_certificate` has recounted them."""

    def __post_init__(self) -> None:
        if self.kind not in (COLLECTIVES if self.demand is None else (DEMAND,)):
            raise ScheduleError(
                f"collective: expected one of {', '.join(COLLECTIVES)}, or {DEMAND} with a demand, "
                f"got {self.kind!r}"
            )
        columns = self._columns_in_range()
        self._check_roots(columns["root"])
        _check_lengths(columns)
        columns["route_offsets"] = self._checked_offsets(columns["route_nodes"])
        for field, array in _with_ends_of_routes(_sorted_by_round(columns)).items():
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
            object.__setattr__(self, field, array)
        object.__setattr__(self, "block", self._checked_blocks())
        shares = normalised(self.shares, self.pieces, self.first_pieces)
        if shares is not None:
            shares.flags.writeable = False
        object.__setattr__(self, "shares", shares)

    def _columns_in_range(self) -> dict[str, Any]:
        """The arrays except `route_offsets`, with their types; all ids are valid indices."""
        columns = {field: flat(field, getattr(self, field)) for field in COLUMNS[:-1]}
        nodes, pieces = self.topology.num_nodes, len(columns["root"])
        transfers = len(columns["round"])
        if not pieces:
            raise ScheduleError("root: expected at least one piece, got none")
        for field, dtype, largest in (
            ("root", np.int32, nodes - 1),
            ("round", np.int32, MAX_ROUNDS - 1),
            ("piece", np.int32, pieces - 1),
            ("source", np.int32, nodes - 1),
            ("target", np.int32, nodes - 1),
            ("op", np.int8, len(OPS) - 1),
            ("route_nodes", np.int32, nodes - 1),
        ):
            _check_range(field, columns[field], largest)
            columns[field] = kept(columns[field], dtype, 0 if field == "root" else transfers)
        return columns

    def _checked_offsets(self, nodes: NDArray) -> NDArray[np.int64] | int:
        """The offsets, or only the length for very many equally long routes."""
        given, transfers = vars(self)["route_offsets"], len(self.round)
        many = transfers > kept_as.MANY
        if isinstance(given, int | np.integer) and not isinstance(given, bool):
            length = int(given)
            if length < 2 or length * transfers != len(nodes):
                raise ScheduleError(
                    f"route_offsets: expected the number of nodes of each route, at least 2, such "
                    f"that {transfers} routes have {len(nodes)} route_nodes, got {length}"
                )
            return length if many else as_offsets(length, transfers)
        offsets = flat("route_offsets", given)
        _check_range("route_offsets", offsets, len(nodes))
        offsets = kept(offsets, np.int64, 0)
        _check_routes(nodes, offsets, transfers)
        alike = many and bool((np.diff(offsets) == offsets[1]).all())
        return int(offsets[1]) if alike else offsets

    def _checked_blocks(self) -> Integers | None:
        """The blocks of the pieces, with the demand's servers checked."""
        if self.demand is None:
            if self.block is not None:
                raise ScheduleError("block: expected none, since there is no demand")
            return None
        try:
            self.demand.check_servers(self.topology)
        except OptionError as error:
            raise ScheduleError(str(error)) from error
        block = flat("block", self.block if self.block is not None else ())
        if len(block) != self.pieces:
            raise ScheduleError(
                f"block: expected {self.pieces} entries, one a piece, got {len(block)}"
            )
        _check_range("block", block, len(self.demand) - 1)
        step = np.diff(block.astype(np.int64), prepend=-1, append=len(self.demand))
        if step.min() < 0:
            piece = int(step.argmin())
            raise ScheduleError(f"block[{piece}]: expected ascending blocks, got {block[piece]}")
        if step.max() > 1:
            missing = int(block[step.argmax() - 1]) + 1 if step[0] <= 1 else 0
            raise ScheduleError(f"block: expected at least one piece of block {missing}, got none")
        made = block.astype(np.int32)
        made.flags.writeable = False
        return made

    def _check_roots(self, root: NDArray) -> None:
        switches = np.flatnonzero(~self.topology.is_server[root])
        if switches.size:
            piece = int(switches[0])
            found = self.topology.node_name(int(root[piece]))
            raise ScheduleError(f"root[{piece}]: expected a server, got {found}")

    @staticmethod
    def from_rows(
        topology: Topology,
        rows: Sequence[tuple[int, int, int, Sequence[int]]],
        *,
        collective: Collective = "all_reduce",
        root: Sequence[int] | NDArray | None = None,
        scheduler: Provenance = Provenance("unknown"),
    ) -> "Schedule":
        """Creates a small schedule by hand.

        Args:
            topology: the network.
            rows: one (round, piece, op, route) per transfer; source and target are the route's
                ends.
            collective: collective of the schedule.
            root: server of each piece; one piece per server in order of id if not given.
            scheduler: provenance.

        >>> import gradweave as gw
        >>> pair = gw.topology.complete(2)
        >>> REDUCE, COPY = gw.schedules.REDUCE, gw.schedules.COPY
        >>> rows = [
        ...     (0, 0, REDUCE, (1, 0)),
        ...     (0, 1, REDUCE, (0, 1)),
        ...     (1, 0, COPY, (0, 1)),
        ...     (1, 1, COPY, (1, 0)),
        ... ]
        >>> gw.schedules.Schedule.from_rows(pair, rows)
        Schedule(all_reduce on 'complete:n=2': 4 transfers in 2 rounds, by unknown)
        """
        routes = [np.asarray(route, np.int64) for *_, route in rows]
        return Schedule(
            topology=topology,
            collective=collective,
            root=topology.servers if root is None else np.asarray(root),
            round=np.array([row[0] for row in rows], np.int64),
            piece=np.array([row[1] for row in rows], np.int64),
            source=np.array([route[0] for route in routes], np.int64),
            target=np.array([route[-1] for route in routes], np.int64),
            op=np.array([row[2] for row in rows], np.int64),
            route_nodes=np.concatenate(routes) if routes else np.zeros(0, np.int64),
            route_offsets=np.cumsum([0, *(len(route) for route in routes)]),
            scheduler=scheduler,
        )

    @property
    def pieces(self) -> int:
        """P, the number of pieces that the gradient is divided into."""
        return len(self.root)

    @cached_property
    def contributors(self) -> Sets:
        """P sets of servers that contribute to each piece."""
        if self.demand is not None:
            return self.demand.contributors.take(self._blocks)
        return Sets.single(self.root) if self.collective == "all_gather" else self._everyone

    @cached_property
    def destinations(self) -> Sets:
        """P sets of servers that must receive each piece."""
        if self.demand is not None:
            return self.demand.destinations.take(self._blocks)
        return Sets.single(self.root) if self.collective == "reduce_scatter" else self._everyone

    @property
    def demanded(self) -> Demand:
        """The demand.

        Raises:
            ScheduleError: there is no demand.
        """
        if self.demand is None:
            raise ScheduleError(f"expected a schedule with a demand, got {self.name}")
        return self.demand

    @property
    def _everyone(self) -> Sets:
        return Sets.alike(self.topology.servers, self.pieces)

    @property
    def _blocks(self) -> Integers:
        return np.zeros(0, np.int64) if self.block is None else self.block

    @property
    def kind(self) -> str:
        """The collective among all servers, or `DEMAND` if there is a demand."""
        return vars(self)["collective"]

    @property
    def name(self) -> str:
        """Its collective, or the name of its demand."""
        return self.kind if self.demand is None else self.demand.name

    @cached_property
    def first_pieces(self) -> NDArray[np.int64]:
        """The first piece of each of the demand's blocks; 0 without a demand."""
        if self.block is None:
            return np.zeros(1, np.int64)
        return np.flatnonzero(np.diff(self.block, prepend=-1))

    @cached_property
    def share(self) -> NDArray[np.float64]:
        """[P] each piece's share of the gradient, or of all the demand's bytes.

        The shares sum to one.
        """
        if self.demand is None:
            return self.weights / self.weights.sum()
        block, weights = self._blocks, self.weights
        whole = np.add.reduceat(weights, self.first_pieces)[block]
        return weights / whole * (self.demand.bytes[block] / self.demand.total_bytes)

    def piece_offsets(self, length: int) -> NDArray[np.int64]:
        """Where the pieces of a gradient start: each has its share, rounded down or up.

        Remaining elements go to the pieces with the largest remainders, earlier pieces first. With
        a demand, all its blocks in order are divided.

        Args:
            length: elements of the gradient; if it is smaller than the number of pieces, some
                pieces are empty. With a demand, its bytes, or their number in elements.

        Returns:
            [P+1] piece p is the elements ``offsets[p]`` to ``offsets[p + 1] − 1``.

        Raises:
            OptionError: for a negative length; with a demand, for elements that do not fill blocks.

        >>> import gradweave as gw
        >>> gw.schedulers.Ring().schedule(gw.topology.ring(4)).piece_offsets(10).tolist()
        [0, 3, 6, 8, 10]
        """
        sizes = apportion(length, self.weights) if self.demand is None else self._elements(length)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    def _elements(self, length: int) -> NDArray[np.int64]:
        """[P] elements of each piece of a demand's blocks."""
        demand = self.demanded
        width, rest = divmod(demand.total_bytes, max(length, 1))
        if rest or not width or (demand.bytes % width).any():
            raise OptionError(
                f"length: expected elements that fill blocks of {demand.total_bytes:,} bytes in "
                f"all, got {length:,}"
            )
        blocks = np.split(self.weights, self.first_pieces[1:])
        elements = (demand.bytes // width).tolist()
        return np.concatenate([apportion(n, one) for n, one in zip(elements, blocks, strict=True)])

    @property
    def weights(self) -> Integers:
        """[P] the shares as integers, also for equal pieces."""
        return np.ones(self.pieces, np.int64) if self.shares is None else self.shares

    @property
    def num_transfers(self) -> int:
        """T, the number of transfers."""
        return len(self.round)

    @property
    def rounds(self) -> int:
        """Number of rounds: 1 + the last round that has a transfer; 0 if there is no transfer."""
        return int(self.round[-1]) + 1 if self.num_transfers else 0

    @cached_property
    def stages(self) -> dict[str, int]:
        """Rounds of each stage: up to the last reduce, and from the first copy on.

        Without overlap they add up to `rounds`.
        """
        if self.demand is not None:
            return {DEMAND: self.rounds}
        if self.kind != "all_reduce":
            return {stage: self.rounds if stage == self.kind else 0 for stage in COLLECTIVES[1:]}
        reduces, copies = self.round[self.op == REDUCE], self.round[self.op == COPY]
        reduce_scatter = int(reduces[-1]) + 1 if reduces.size else 0
        all_gather = self.rounds - (
            min(int(copies[0]), reduce_scatter) if copies.size else self.rounds
        )
        return {"reduce_scatter": reduce_scatter, "all_gather": all_gather}

    @cached_property
    def round_offsets(self) -> NDArray[np.int64]:
        """[rounds+1] round t has the transfers ``round_offsets[t]`` to ``round_offsets[t+1]−1``."""
        # In the column's type, since NumPy would otherwise convert the whole column.
        begins = np.searchsorted(self.round, np.arange(self.rounds, dtype=self.round.dtype))
        return np.append(begins, self.num_transfers).astype(np.int64)

    @property
    def route_length(self) -> int | None:
        """Nodes of every route if only that is stored for `route_offsets`; otherwise None."""
        length = vars(self)["route_offsets"]
        return length if isinstance(length, int) else None

    @cached_property
    def route_links(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Link directions of all routes, route by route, and the transfer that each belongs to.

        Two arrays of equal length, in the order of the transfers; a link is −1 if the topology has
        none between the two nodes.
        """
        if not self.num_transfers:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        links = self.topology.links_along(self.route_nodes, self.route_offsets)
        transfer = np.repeat(np.arange(self.num_transfers), np.diff(self.route_offsets) - 1)
        return links, transfer

    def route(self, transfer: int) -> tuple[int, ...]:
        """The nodes that a transfer passes, including source and target."""
        length = self.route_length
        if length is None:
            begin, end = self.route_offsets[transfer : transfer + 2]
        else:
            begin, end = transfer * length, transfer * length + length
        return tuple(self.route_nodes[begin:end].tolist())

    def replace(self, **changes: Any) -> "Schedule":
        """The same schedule with some fields changed, checked again; columns are shared.

        Certificates belong to the original schedule and are dropped.
        """
        if changes.keys() <= {"scheduler", "bound", "certificates"}:  # these need no check
            same = copy.copy(self)
            vars(same).update(changes)
            return same
        kept = {name: vars(self)[name] for name in ("collective", "route_offsets")}
        return dataclasses.replace(self, **kept | {"certificates": ()} | changes)

    def take(self, rows: NDArray[np.int64], **changes: Any) -> "Schedule":
        """The schedule of some of its transfers, with fields changed as by `replace`.

        Args:
            rows: [R] indices of the transfers, in the order of the new columns.
            changes: the fields; columns have R values.
        """
        nodes, offsets = take_rows(self.route_nodes, self.route_offsets, rows)
        columns = {name: getattr(self, name)[rows] for name in COLUMNS[1:6] if name not in changes}
        return self.replace(**columns, route_nodes=nodes, route_offsets=offsets, **changes)

    def with_server_order(self, order: ArrayLike) -> "Schedule":
        """The same schedule on the network with its servers in another order.

        Args:
            order: see `Topology.with_server_order`.
        """
        topology = self.topology.with_server_order(order)
        ids = np.arange(topology.num_nodes)
        ids[topology.servers[np.asarray(order)]] = topology.servers
        nodes: dict[str, Any] = {
            name: ids[getattr(self, name)] for name in ("root", "source", "target")
        }
        if self.demand is not None:
            nodes["demand"] = self.demand.mapped(ids)
        return self.replace(topology=topology, route_nodes=ids[self.route_nodes], **nodes)

    def save(self, path: str | Path) -> None:
        """Writes the schedule file in JSON, gzipped if the name ends in ``.gz``."""
        from gradweave.schedules.file import save

        save(self, path)

    def __repr__(self) -> str:
        return (
            f"Schedule({self.name} on {self.topology.name!r}: "
            f"{counted(self.num_transfers, 'transfer')} in {counted(self.rounds, 'round')}, "
            f"by {self.scheduler.name})"
        )


class AmongAll:
    """Raises an error on reading the collective of a schedule that has a demand.

    So code that knows only the three collectives among all servers cannot mistake it for one.
    """

    def __get__(self, schedule: Schedule, owner: Any = None) -> Collective:
        if schedule.demand is not None:
            raise ScheduleError(
                f"expected {', '.join(COLLECTIVES[:-1])} or {COLLECTIVES[-1]} among all servers, "
                f"got {schedule.name}"
            )
        return vars(schedule)["collective"]

    def __set__(self, schedule: Schedule, value: Collective) -> None:
        vars(schedule)["collective"] = value


Schedule.collective = AmongAll()  # pyright: ignore[reportAttributeAccessIssue]


def _check_lengths(columns: Mapping[str, NDArray]) -> None:
    transfers = len(columns["round"])
    for field in ("piece", "source", "target", "op"):
        if len(columns[field]) != transfers:
            raise ScheduleError(
                f"{field}: expected {transfers} entries, as many as round has, "
                f"got {len(columns[field])}"
            )


def _check_routes(nodes: NDArray, offsets: NDArray, transfers: int) -> None:
    lengths = np.diff(offsets)
    if len(offsets) != transfers + 1:
        raise ScheduleError(
            f"route: expected {transfers} routes, as many as round has, got {len(lengths)}"
        )
    if (offsets[0], offsets[-1]) != (0, len(nodes)):
        raise ScheduleError(
            f"route_offsets: expected 0 to {len(nodes)}, the number of route_nodes; "
            f"got {offsets[0]} to {offsets[-1]}"
        )
    if transfers and lengths.min() < 2:
        row = int(np.flatnonzero(lengths < 2)[0])
        raise ScheduleError(
            f"route[{row}]: expected at least its source and target, got {lengths[row]} nodes"
        )


def _check_range(field: str, array: NDArray, largest: int) -> None:
    if array.size and (array.min() < 0 or array.max() > largest):
        row = int(np.flatnonzero((array < 0) | (array > largest))[0])
        raise ScheduleError(f"{field}[{row}]: expected 0 to {largest}, got {array[row]}")


def _sorted_by_round(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns with transfers in the order of their rounds; unchanged if they are sorted."""
    rounds = columns["round"]
    if ascends(rounds):
        return columns
    if rounds.max() <= np.iinfo(np.uint16).max:
        rounds = rounds.astype(np.uint16)  # counting sort, which takes a fifth of the time
    order = np.argsort(rounds, kind="stable")
    by_transfer = ("round", "piece", "source", "target", "op")
    nodes, offsets = columns["route_nodes"], columns["route_offsets"]
    if isinstance(offsets, int):
        nodes = nodes.reshape(-1, offsets)[order].ravel()
    else:
        nodes, offsets = take_rows(nodes, offsets, order)
    return (
        columns
        | {field: columns[field][order] for field in by_transfer}
        | {"route_nodes": nodes, "route_offsets": offsets}
    )


def _with_ends_of_routes(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns; if only one length is stored for routes, the ends are views of them."""
    length, nodes = columns["route_offsets"], columns["route_nodes"]
    if isinstance(length, int):
        for field, view in zip(("source", "target"), ends_of(nodes, length), strict=True):
            if not same_view(columns[field], view) and np.array_equal(columns[field], view):
                columns[field] = view
    return columns


def take_rows(nodes: NDArray, offsets: NDArray, index: NDArray) -> tuple[NDArray, NDArray]:
    """Selects routes from ragged rows.

    Args:
        nodes: the rows' entries, one row after the other.
        offsets: [rows+1] where each row starts.
        index: [M] rows to take, in this order.

    Returns:
        The taken rows' entries, and their offsets [M+1].
    """
    lengths = np.diff(offsets)[index]
    taken = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    place = np.arange(taken[-1]) - np.repeat(taken[:-1] - np.asarray(offsets)[:-1][index], lengths)
    return nodes[place], taken


def distinct_rows(nodes: NDArray, offsets: NDArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct ones among ragged rows, in the order in which they first occur.

    Args:
        nodes: the rows' entries, one row after the other.
        offsets: [rows+1] where each row starts.

    Returns:
        [D] the first row of each kind, and [rows] the kind of each row.
    """
    number: dict[bytes, int] = {}
    first: list[int] = []
    kind = np.empty(len(offsets) - 1, np.int64)
    ends = np.asarray(offsets).tolist()
    for row, (begin, end) in enumerate(itertools.pairwise(ends)):
        kind[row] = number.setdefault(nodes[begin:end].tobytes(), len(number))
        if kind[row] == len(first):
            first.append(row)
    return np.array(first, np.int64), kind


def table_of_rows(nodes: NDArray, offsets: NDArray, fill: int = -1) -> NDArray:
    """Ragged rows as a padded table [rows, longest].

    Args:
        nodes: the rows' entries, one row after the other.
        offsets: [rows+1] where each row starts.
        fill: padding after a row's last entry.
    """
    lengths = np.diff(offsets)
    table = np.full((len(lengths), int(lengths.max(initial=1))), fill, nodes.dtype)
    place = np.arange(len(nodes)) - np.repeat(np.asarray(offsets)[:-1], lengths)
    table[np.repeat(np.arange(len(lengths)), lengths), place] = nodes
    return table


def inside_rows(offsets: NDArray) -> NDArray[np.bool_]:
    """[entries] whether each entry of ragged rows is neither the first nor the last of its row."""
    inside = np.ones(int(offsets[-1]), bool)
    inside[offsets[:-1]] = False
    inside[offsets[1:] - 1] = False
    return inside


def reverse_rows(nodes: NDArray, offsets: NDArray) -> NDArray:
    """The same ragged routes, each reversed; the offsets stay the same."""
    lengths = np.diff(offsets)
    return nodes[np.repeat(offsets[:-1] + offsets[1:] - 1, lengths) - np.arange(len(nodes))]
