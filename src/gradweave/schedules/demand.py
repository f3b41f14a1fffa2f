"""Demands: blocks of data, each with its contributors and its destinations.

Every collective is such a demand, and so is any mix of them, among any servers:

    collective       blocks                     contributors    destinations
    broadcast        one                        the root        all
    reduce           one                        all             the root
    scatter          one for each server        the root        that server
    gather           one of each server         that server     the root
    all_gather       one of each server         that server     all
    reduce_scatter   one for each server        all             that server
    all_reduce       one                        all             all
    all_to_all       one for each pair          its first       its second
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradweave.common.checks import did_you_mean
from gradweave.errors import OptionError
from gradweave.schedules.shares import apportion
from gradweave.topology.topology import Floats, Integers, Topology
from gradweave.topology.units import as_size

MAX_BYTES = 1 << 53
"""Maximum bytes of a demand, so that no sum of sizes is rounded: 9 petabytes."""
MAX_CELLS = 1 << 24
"""Largest table of sets and servers that is made to look servers up, 16 MB; above, they are sought
in a sorted list, which takes four times as long."""
MAX_SERVERS = 1 << 31
"""Upper limit of servers' ids."""
LET_RELAY = "let them relay, by relays=all in --job or relays=topology.servers in Python"
"""The remedy for a job whose servers cannot reach each other."""
ROOTED = ("broadcast", "reduce", "scatter", "gather")
"""Collectives with a root."""
NAMES = (*ROOTED, "all_gather", "reduce_scatter", "all_reduce", "all_to_all")
"""Collectives that `collective` knows."""

Sizes = int | str | Sequence[int | str] | NDArray[np.integer[Any]] | Sequence[Sequence[int | str]]
"""Bytes: one size, such as 10**9 or ``"1GB"``, or one for each block."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sets:
    """Sets of servers. A set that occurs several times is stored once.

    A reduce-scatter of N servers has N blocks with the same N contributors: listing them for each
    block takes 2 GB for 16,384 servers.
    """

    members: Integers
    """[sum of stored sizes] node ids of the stored sets, one after the other, ascending within a
    set."""
    starts: Integers
    """[stored+1] stored set r is ``members[starts[r]:starts[r + 1]]``."""
    stored: Integers
    """[sets] the stored set that each set is."""

    @staticmethod
    def of(sets: Sequence[Sequence[int]]) -> "Sets":
        """Sets from lists in any order.

        Raises:
            OptionError: a server occurs twice in a set, or an entry is not an id.
        """
        number: dict[tuple[int, ...], int] = {}
        try:
            stored = [number.setdefault(tuple(one), len(number)) for one in sets]
            sizes = np.fromiter(map(len, number), np.int64, len(number))
            listed = itertools.chain.from_iterable(number)
            members = np.fromiter(listed, np.int64, int(sizes.sum()))
        except (TypeError, ValueError, OverflowError) as error:
            raise OptionError("demand: expected lists of node ids") from error
        owner = np.repeat(np.arange(len(sizes)), sizes)
        members = members[np.lexsort((members, owner))]
        if members.size and members.min() < 0:
            raise OptionError(f"demand: expected node ids of at least 0, got {members.min()}")
        twice = np.flatnonzero((members[1:] == members[:-1]) & (owner[1:] == owner[:-1]))
        if twice.size:
            block = stored.index(int(owner[twice[0]]))
            raise OptionError(
                f"demand: block {block}: server {members[twice[0]]} twice; expected each once"
            )
        return Sets(members, _ends(sizes), np.array(stored, np.int64))

    @staticmethod
    def alike(servers: Integers, count: int) -> "Sets":
        """The same set, repeated."""
        return Sets(servers, np.array([0, len(servers)]), np.zeros(count, np.int64))

    @staticmethod
    def single(servers: Integers) -> "Sets":
        """Sets of one server each."""
        each = np.arange(len(servers) + 1)
        return Sets(np.asarray(servers, np.int64), each, each[:-1])

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, number: int) -> Integers:
        row = self.stored[number]
        return self.members[self.starts[row] : self.starts[row + 1]]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """[sets] number of servers in each set."""
        return np.diff(self.starts)[self.stored]

    @cached_property
    def servers(self) -> NDArray[np.int64]:
        """[sum of sizes] node ids of all sets, one after the other."""
        first = self.starts[self.stored] - self.offsets[:-1]
        place = np.arange(self.offsets[-1]) + np.repeat(first, self.sizes)
        return self.members[place].astype(np.int64)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """[sets+1] set b is ``servers[offsets[b]:offsets[b + 1]]``."""
        return _ends(self.sizes)

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """[sum of sizes] the set that each entry of `servers` belongs to."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @cached_property
    def union(self) -> NDArray[np.int64]:
        """Node ids in any set, ascending."""
        return np.unique(self.take(np.unique(self.stored, return_index=True)[1]).servers)

    def first(self) -> NDArray[np.int64]:
        """[sets] the lowest id in each set; no set may be empty."""
        return self.members[self.starts[self.stored]].astype(np.int64)

    def take(self, index: Integers) -> "Sets":
        """Some of the sets, in this order; they share the stored sets."""
        return Sets(self.members, self.starts, self.stored[index])

    def mapped(self, ids: Integers) -> "Sets":
        """The same sets with other ids.

        Args:
            ids: the new id of each id.
        """
        moved = np.asarray(ids)[self.members]
        owner = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        return Sets(moved[np.lexsort((moved, owner))], self.starts, self.stored)

    def same(self, other: "Sets") -> bool:
        """Whether both have the same sets in the same order."""
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(
            self.servers, other.servers
        )

    def has(self, number: Integers, server: Integers) -> NDArray[np.bool_]:
        """Whether servers are in sets, pair by pair.

        Args:
            number: [M] index of a set.
            server: [M] node id.
        """
        owner = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        server = np.asarray(server)
        shape = len(self.starts) - 1, 1 + int(max(self.members.max(), server.max(initial=0)))
        if shape[0] * shape[1] <= MAX_CELLS:
            table = np.zeros(shape, np.bool_)
            table[owner, self.members] = True
            return table[0, server] if shape[0] == 1 else table[self.stored[number], server]
        known = owner << 32 | self.members.astype(np.int64)
        sought = self.stored[number] << 32 | server.astype(np.int64)
        place = np.minimum(np.searchsorted(known, sought), len(known) - 1)
        return known[place] == sought


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """[sets+1] where each set starts, and the end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


@dataclasses.dataclass(frozen=True, eq=False)
class Demand:
    """Blocks of data to sum and move.

    Each contributor of a block has a contribution of the block's size. In the end each destination
    has the sum of all contributions. A block of one contributor is moved, not summed.

    Raises:
        OptionError: a block has no bytes, contributors or destinations, or needs no transfer; or
            there are more bytes than `MAX_BYTES`.
    """

    bytes: Integers
    """[B] size of each block, above 0."""
    contributors: Sets
    """B sets of node ids."""
    destinations: Sets
    """B sets of node ids."""
    job: Integers = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    """[B] index in `jobs` of each block's job; the first, if not given."""
    jobs: tuple[str, ...] = ("send",)
    """Name of each job, usually its collective."""
    relays: Integers = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    """Servers that may relay any block, or be on its routes. A job's servers may relay its
    blocks."""
    ready_at_s: Floats = dataclasses.field(default_factory=lambda: np.zeros(0))
    """[jobs] seconds before which none of a job's blocks is sent; 0, if not given."""
    weight: Floats = dataclasses.field(default_factory=lambda: np.zeros(0))
    """[jobs] weight of each job's end time, above 0; 1, if not given. Only the objective
    ``weighted`` uses it."""

    def __post_init__(self) -> None:
        size = _column("bytes", self.bytes)
        blocks = len(size)
        if not blocks:
            raise OptionError(
                "demand: expected at least one block, got none: nothing is to be moved"
            )
        job = _column("job", self.job) if len(self.job) else np.zeros(blocks, np.int64)
        if len(job) != blocks or job.min() < 0 or job.max() >= len(self.jobs):
            raise OptionError(
                f"demand: job: expected {blocks} numbers from 0 to {len(self.jobs) - 1}"
            )
        if size.min() <= 0:
            block = int((size <= 0).argmax())
            raise OptionError(
                f"demand: block {block}: expected at least one byte, got {size[block]}"
            )
        if size.astype(np.float64).sum() > MAX_BYTES:
            raise OptionError(
                f"demand: expected at most {MAX_BYTES:,} bytes in all, got "
                f"{size.astype(np.float64).sum():.4g}"
            )
        for field in ("contributors", "destinations"):
            sets: Sets = getattr(self, field)
            if len(sets) != blocks:
                raise OptionError(f"demand: {field}: expected {blocks} sets, got {len(sets)}")
            if not sets.sizes.all():
                block = int((sets.sizes == 0).argmax())
                raise OptionError(f"demand: block {block}: expected {field}, got none")
        same = np.flatnonzero(_need_no_transfer(self.contributors, self.destinations))
        if same.size:
            raise OptionError(
                f"demand: block {same[0]}: its only contributor, server "
                f"{self.contributors[same[0]][0]}, is its only destination; leave it out"
            )
        columns = {
            "bytes": size,
            "job": job,
            "relays": np.unique(_ids(self.relays, "relays")),
            "ready_at_s": self._of_jobs("ready_at_s", 0.0, "seconds, zero or more"),
            "weight": self._of_jobs("weight", 1.0, "numbers above zero"),
        }
        for field, array in columns.items():
            array.flags.writeable = False
            object.__setattr__(self, field, array)

    def _of_jobs(self, field: str, usual: float, expected: str) -> NDArray[np.float64]:
        """[jobs] a number for each job."""
        given = np.array(getattr(self, field), np.float64)
        if not given.size:
            return np.full(len(self.jobs), usual)
        if given.shape != (len(self.jobs),):
            raise OptionError(f"demand: {field}: expected {len(self.jobs)}, one for each job")
        wrong = np.flatnonzero(~(np.isfinite(given) & (given >= 0) & ((given > 0) | (usual == 0))))
        if wrong.size:
            raise OptionError(
                f"demand: {field}: expected finite {expected}, got {given[wrong[0]]:g} for job "
                f"{wrong[0]}"
            )
        return given

    def __len__(self) -> int:
        """B, the number of blocks."""
        return len(self.bytes)

    @cached_property
    def total_bytes(self) -> int:
        """Total bytes of all blocks."""
        return int(self.bytes.sum())

    @property
    def name(self) -> str:
        """Its name: the names of its jobs, with repeated names counted.

        >>> both = Demand.together([collective("broadcast", [0, 1], 8, root=0)] * 2)
        >>> both.name
        '2 × broadcast'
        """
        count: dict[str, int] = {}
        for job in self.jobs:
            count[job] = count.get(job, 0) + 1
        return " + ".join(job if n == 1 else f"{n} × {job}" for job, n in count.items())

    @cached_property
    def servers(self) -> NDArray[np.int64]:
        """Node ids of all contributors and destinations, ascending."""
        return self.groups.union

    @cached_property
    def groups(self) -> Sets:
        """[jobs] the contributors and destinations of each job."""
        found = []
        for sets in (self.contributors, self.destinations):
            _, first = np.unique(self.job << 32 | sets.stored, return_index=True)
            each = sets.take(first)
            found.append(self.job[first][each.owner] << 32 | each.servers.astype(np.int64))
        job, servers = np.divmod(np.unique(np.concatenate(found)), 1 << 32)
        jobs = np.arange(len(self.jobs) + 1)
        return Sets(servers, np.searchsorted(job, jobs), jobs[:-1])

    @cached_property
    def unicast(self) -> bool:
        """Whether every block has one contributor and one destination."""
        return bool((self.contributors.sizes == 1).all() and (self.destinations.sizes == 1).all())

    def servers_of(self, job: int) -> NDArray[np.int64]:
        """Node ids of a job's contributors and destinations, ascending."""
        return self.groups[job].astype(np.int64)

    def of_job(self, job: int) -> "Demand":
        """The blocks of one job."""
        return self.of_jobs([job])

    def of_jobs(self, jobs: Sequence[int]) -> "Demand":
        """The blocks of some jobs.

        Args:
            jobs: indices, ascending.
        """
        chosen = np.asarray(jobs, np.int64)
        mine = np.flatnonzero(np.isin(self.job, chosen))
        return Demand(
            self.bytes[mine],
            self.contributors.take(mine),
            self.destinations.take(mine),
            np.searchsorted(chosen, self.job[mine]),
            tuple(self.jobs[job] for job in jobs),
            self.relays,
            self.ready_at_s[chosen],
            self.weight[chosen],
        )

    def mapped(self, ids: Integers) -> "Demand":
        """The same demand with other node ids.

        Args:
            ids: [V] the new id of each node.
        """
        return dataclasses.replace(
            self,
            contributors=self.contributors.mapped(ids),
            destinations=self.destinations.mapped(ids),
            relays=np.asarray(ids)[self.relays],
        )

    @staticmethod
    def together(demands: Sequence["Demand"]) -> "Demand":
        """Several demands as one, with their jobs in order.

        Args:
            demands: at least one; their servers may overlap.
        """
        if not demands:
            raise OptionError("demand: expected at least one job, got none")
        first = np.cumsum([0, *(len(one.jobs) for one in demands)])

        def joined(sets: list[Sets]) -> Sets:
            sizes = [np.diff(one.starts) for one in sets]
            before = np.cumsum([0, *map(len, sizes)])[:-1]
            stored = [one.stored + at for one, at in zip(sets, before, strict=True)]
            members = np.concatenate([one.members for one in sets])
            return Sets(members, _ends(np.concatenate(sizes)), np.concatenate(stored))

        return Demand(
            np.concatenate([one.bytes for one in demands]),
            joined([one.contributors for one in demands]),
            joined([one.destinations for one in demands]),
            np.concatenate([one.job + at for one, at in zip(demands, first[:-1], strict=True)]),
            tuple(itertools.chain.from_iterable(one.jobs for one in demands)),
            np.unique(np.concatenate([one.relays for one in demands])),
            np.concatenate([one.ready_at_s for one in demands]),
            np.concatenate([one.weight for one in demands]),
        )

    def check_servers(self, topology: Topology) -> None:
        """Rejects ids that are not servers of a network.

        Raises:
            OptionError: names the first.
        """
        for what, ids in (
            ("contributors", self.contributors.union),
            ("destinations", self.destinations.union),
            ("relays", self.relays),
        ):
            known = (ids >= 0) & (ids < topology.num_nodes)
            known[known] = topology.is_server[ids[known]]
            if not known.all():
                wrong = int(ids[~known][0])
                switch = 0 <= wrong < topology.num_nodes
                raise OptionError(
                    f"demand: {what}: {topology.name} has no server {wrong}"
                    + (", which is a switch" if switch else f", only {topology.num_servers}")
                )


def collective(
    name: str,
    servers: ArrayLike,
    bytes: Sizes,
    *,
    root: int | None = None,
    relays: ArrayLike = (),
) -> Demand:
    """The demand of one collective among some servers.

    Args:
        name: one of `NAMES`.
        servers: node ids of the group, in the order of its ranks.
        bytes: size of the message. For ``broadcast``, ``reduce`` and ``all_reduce``, the whole
            message; for ``scatter``, ``gather``, ``all_gather`` and ``reduce_scatter``, all parts
            together, or a list with each rank's part; for ``all_to_all``, the bytes that each
            server sends to all, including itself, or a table of the bytes from rank i to rank j.
            Empty parts are left out.
        root: node id of the root of ``broadcast``, ``reduce``, ``scatter`` and ``gather``.
        relays: node ids of other servers that may relay blocks.

    Raises:
        OptionError: an unknown collective, a missing or superfluous root, or invalid sizes; or
            nothing has to move.

    >>> collective("all_to_all", [0, 1, 2], 300).total_bytes
    600
    """
    if name not in NAMES:
        meant = did_you_mean(name, NAMES)
        raise OptionError(f"collective: {meant}expected one of {', '.join(NAMES)}, got {name!r}")
    listed = _listed(servers, "servers")
    _ids(listed, f"servers of {name}")
    group = np.asarray(listed, np.int64)
    if (root is not None) != (name in ROOTED):
        expected = "a root" if name in ROOTED else "no root"
        raise OptionError(f"{name}: expected {expected}, got {root}")
    if root is not None and root not in group:
        raise OptionError(f"{name}: root: expected one of its servers, got {root}")
    if len(group) < 2:
        raise OptionError(f"{name}: expected at least two servers, got {len(group)}")
    count, everyone = len(group), np.sort(group)
    single = Sets.single(group)
    at_root = Sets.alike(np.array([-1 if root is None else root]), count)
    if name in ("broadcast", "reduce", "all_reduce"):
        size = np.asarray([_whole(name, bytes)])
        all_of, rooted = Sets.alike(everyone, 1), at_root.take(np.arange(1))
        sources = rooted if name == "broadcast" else all_of
        targets = rooted if name == "reduce" else all_of
    elif name == "all_to_all":
        size = _table(bytes, count).reshape(-1)
        pairs = np.arange(count)
        sources = single.take(np.repeat(pairs, count))
        targets = single.take(np.tile(pairs, count))
    else:
        size, all_of = _parts(name, bytes, count), Sets.alike(everyone, count)
        sources = {"scatter": at_root, "reduce_scatter": all_of}.get(name, single)
        targets = {"gather": at_root, "all_gather": all_of}.get(name, single)
    kept = np.flatnonzero((size > 0) & ~_need_no_transfer(sources, targets))
    if not kept.size:
        raise OptionError(f"{name}: expected bytes to move, got none")
    return Demand(
        size[kept],
        sources.take(kept),
        targets.take(kept),
        jobs=(name,),
        relays=_ids(relays, "relays"),
    )


def sends(messages: Iterable[tuple[int, int, int]], *, relays: ArrayLike = ()) -> Demand:
    """The demand of messages from server to server.

    Args:
        messages: node id of the sender, of the receiver, and bytes.
        relays: node ids of other servers that may relay blocks.

    Raises:
        OptionError: a message is empty or goes from a server to itself, or there is none.
    """
    rows = np.array([_message(number, one) for number, one in enumerate(messages)], np.int64)
    source, target, size = rows.reshape(-1, 3).T
    return Demand(size, Sets.single(source), Sets.single(target), relays=_ids(relays, "relays"))


def _need_no_transfer(contributors: Sets, destinations: Sets) -> NDArray[np.bool_]:
    """[B] whether a block's only contributor is its only destination; no set is empty."""
    alone = (contributors.sizes == 1) & (destinations.sizes == 1)
    return alone & (contributors.first() == destinations.first())


def _message(number: int, message: Any) -> tuple[int, int, int]:
    try:
        source, target, size = message
        return int(source), int(target), _size(size, f"message {number}")
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f"message {number}: expected sender, receiver and bytes, got {message!r:.60}"
        ) from error


def _whole(name: str, size: Any) -> int:
    if isinstance(size, int | np.integer | str):
        return _size(size, name)
    raise OptionError(f"{name}: bytes: expected one number, got {size!r:.60}")


def _parts(name: str, size: Any, count: int) -> NDArray[np.int64]:
    """[count] bytes of each rank's part; a single number is divided evenly, larger parts first."""
    if isinstance(size, int | np.integer | str):
        return apportion(_size(size, name), np.ones(count, np.int64))
    parts = _listed(size, f"{name}: bytes")
    if len(parts) != count:
        raise OptionError(f"{name}: bytes: expected {count} parts, one a server, got {len(parts)}")
    return np.array([_size(part, name) for part in parts], np.int64)


def _table(size: Any, count: int) -> NDArray[np.int64]:
    """[count, count] bytes from rank to rank."""
    if isinstance(size, int | np.integer | str):
        return np.tile(_parts("all_to_all", size, count), (count, 1))
    rows = _listed(size, "all_to_all: bytes")
    if len(rows) != count:
        raise OptionError(
            f"all_to_all: bytes: expected {count} rows, one a server, got {len(rows)}"
        )
    return np.array([_parts("all_to_all", row, count) for row in rows], np.int64)


def _size(size: Any, what: str) -> int:
    size = as_size(size)
    whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
    if not whole or not 0 <= int(size) <= MAX_BYTES:
        raise OptionError(
            f"{what}: bytes: expected a whole number from 0 to {MAX_BYTES:,}, got {size!r:.40}"
        )
    return int(size)


def _listed(values: Any, what: str) -> list[Any]:
    try:
        return list(values)
    except TypeError as error:
        raise OptionError(f"{what}: expected a list, got {values!r:.40}") from error


def _column(field: str, values: Any) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise OptionError(f"demand: {field}: expected a flat list of integers")
    return array.astype(np.int64)


def _ids(values: ArrayLike, what: str) -> NDArray[np.int64]:
    """Distinct node ids, ascending."""
    try:
        array = np.asarray(_listed(values, what))
    except ValueError:  # lists of different lengths
        array = np.zeros((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise OptionError(f"{what}: expected a flat list of node ids")
    array = np.sort(array.astype(np.int64))
    if array.size and not 0 <= array[0] <= array[-1] < MAX_SERVERS:
        raise OptionError(f"{what}: expected node ids of at least 0, got {array[0]} to {array[-1]}")
    twice = np.flatnonzero(array[1:] == array[:-1])
    if twice.size:
        raise OptionError(f"{what}: server {array[twice[0]]} twice; expected each once")
    return array
