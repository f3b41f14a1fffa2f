"""The entry point for tables: the fastest of a library's own algorithms, by size."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from gradweave.common.checks import did_you_mean
from gradweave.errors import OptionError, TopologyError
from gradweave.ranks.algorithms import messages
from gradweave.ranks.pattern import Routes, pattern_of, routes_of
from gradweave.ranks.stock import LIBRARIES, Library, Named, StockAlgorithm
from gradweave.simulator.runtime import Runtime, runtime_of
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology

MAX_RANKS = 512
"""Number of servers up to which tables are predicted: an all-to-all has a message per pair."""
SIZES = tuple(1 << power for power in range(3, 31))
"""Sizes that are predicted: 8 B to 1 GiB."""
GAIN = 0.25
"""Part of the default's predicted time that another algorithm must save to be named.

In the lab, larger predicted savings were real, and one of 23% was not; see
docs/experiments/runtimes.md.
"""
_ALIKE = 1.03
"""An algorithm within this factor of the fastest is kept from the previous size on."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """What a library should use for sizes from `from_bytes` to the next entry's."""

    from_bytes: int
    """Smallest size, in total bytes; see `gradweave.ranks.algorithms`."""
    algorithm: str | None
    """The library's name for the algorithm, or None for what it uses by default."""
    segment_bytes: int = 0
    """Bytes per segment, or 0 if messages are not cut."""


@dataclasses.dataclass(frozen=True)
class Point:
    """The times at one size."""

    collective: Named
    bytes: int
    default: str | None
    """The library's default algorithm, or None if it is not known."""
    default_s: float | None
    """Its time."""
    algorithm: str
    """The fastest algorithm."""
    segment_bytes: int
    seconds: float
    """Its time."""

    @property
    def gain(self) -> float:
        """Part of the default's time that the fastest algorithm saves."""
        return 0.0 if self.default_s is None else 1 - self.seconds / self.default_s


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A library's algorithms by collective and size, for one network and order of ranks."""

    library: Library
    topology: Topology
    ranks: tuple[int, ...]
    """[N] node id of the server at each rank."""
    entries: dict[Named, tuple[Entry, ...]]
    """By collective, in ascending sizes, the first from 0 on."""
    points: tuple[Point, ...]
    """The times from which entries were chosen."""
    measured: bool = False

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def named(self) -> dict[Named, tuple[Entry, ...]]:
        """The entries of collectives for which the table differs from the library's defaults."""
        return {
            collective: entries
            for collective, entries in self.entries.items()
            if any(entry.algorithm is not None for entry in entries)
        }

    def as_object(self) -> dict[str, Any]:
        """The table as JSON values."""
        return {
            "library": self.library.name,
            "ranks": [*self.ranks],
            "measured": self.measured,
            "entries": {
                collective: [dataclasses.asdict(entry) for entry in entries]
                for collective, entries in self.entries.items()
            },
            "points": [dataclasses.asdict(one) | {"gain": one.gain} for one in self.points],
        }


class Times(NamedTuple):
    """The time of one algorithm at one size."""

    seconds: float
    links_s: float
    """The time of links only. Where message costs decide, a library's default is kept: they differ
    between machines more than links do."""


class Source(Protocol):
    """Where times come from."""

    def times(
        self, collective: Named, algorithm: StockAlgorithm, size: int, segment: int
    ) -> Times | None:
        """The algorithm's times, or None if it does not run or was not measured."""
        ...

    def default(self, collective: Named, size: int) -> tuple[str | None, Times | None]:
        """The library's default and its times, None where they are not known."""
        ...

    def segments(self, algorithm: StockAlgorithm) -> Sequence[int]:
        """Bytes per segment to try."""
        ...


def predict_table(
    topology: TopologyLike,
    library: str,
    ranks: Sequence[int] | None = None,
    *,
    runtime: Runtime | str | Path | None = None,
    gain: float = GAIN,
    sizes: Sequence[int] = SIZES,
) -> Table:
    """Predicts which of a library's algorithms is fastest, by collective and size.

    An algorithm is a sequence of phases in which all ranks wait for their messages: a phase takes
    the time of its busiest link, the longest latency and the message costs of its busiest rank.
    Another algorithm than the library's default is named only where it saves `gain` with message
    costs as well as without them.

    Args:
        topology: the network.
        library: one of `gradweave.ranks.stock.LIBRARIES`.
        ranks: [N] node id of the server at each rank; in order of id if not given.
        runtime: a profile of message costs, or its name; the library's if not given.
        gain: part of the default's time to be saved, from 0 to 1.
        sizes: total bytes, ascending.

    Raises:
        OptionError: for an unknown library or profile, or ranks that are not each server once.
        TopologyError: if servers are fewer than 2 or more than `MAX_RANKS`.

    >>> import gradweave as gw
    >>> table = predict_table(gw.topology.star(8), "openmpi", sizes=(8, 1 << 26))
    >>> [entry.algorithm for entry in table.entries["broadcast"]]
    [None, 'pipeline']
    """
    topology = as_topology(topology)
    of = _library(library)
    order = tuple(topology.servers.tolist()) if ranks is None else tuple(ranks)
    _check(topology, order, gain)
    profile = runtime_of(of.runtime if runtime is None else runtime)
    predicted = _Prediction(of, topology, order, profile)
    tried = [size for size in sizes if size >= of.least_bytes]
    return _chosen(of, topology, order, predicted, gain, {one: tried for one in of.algorithms})


def measured_table(
    topology: TopologyLike,
    library: str,
    rows: Sequence[tuple[str, int, str, int, float]],
    ranks: Sequence[int] | None = None,
    *,
    gain: float = 0.05,
) -> Table:
    """The same from measurements.

    Args:
        topology: the network, for the number and names of servers.
        library: one of `gradweave.ranks.stock.LIBRARIES`.
        rows: collective, total bytes, algorithm or ``default``, bytes per segment, seconds. Of
            several rows alike, the median counts.
        ranks: [N] node id of the server at each rank; in order of id if not given.
        gain: part of the default's time to be saved, from 0 to 1.

    Raises:
        OptionError: for an unknown library, collective or algorithm, or a size without default.
    """
    topology = as_topology(topology)
    of = _library(library)
    order = tuple(topology.servers.tolist()) if ranks is None else tuple(ranks)
    _check(topology, order, gain)
    times: dict[tuple[str, int, str, int], list[float]] = {}
    for given, size, name, segment, seconds in rows:
        collective = of.collective(given)
        if name != "default":
            of.algorithm(collective, name)  # refuses an unknown one
        if not (size > 0 and 0 < seconds < math.inf):
            raise OptionError(
                f"{collective}: expected a size and a time above 0, got {size} and {seconds}"
            )
        times.setdefault((collective, size, name, segment), []).append(seconds)
    medians = {key: float(np.median(one)) for key, one in times.items()}
    sizes: dict[Named, Sequence[int]] = {
        collective: sorted({size for one, size, *_ in medians if one == collective})
        for collective in of.algorithms
    }
    chosen = _Measured(of, len(order), medians)
    return dataclasses.replace(_chosen(of, topology, order, chosen, gain, sizes), measured=True)


@dataclasses.dataclass(frozen=True)
class _Measured:
    """Measured times."""

    library: Library
    ranks: int
    medians: dict[tuple[str, int, str, int], float]

    def times(
        self, collective: Named, algorithm: StockAlgorithm, size: int, segment: int
    ) -> Times | None:
        found = self.medians.get((collective, size, algorithm.name, segment))
        return None if found is None else Times(found, found)

    def default(self, collective: Named, size: int) -> tuple[str | None, Times | None]:
        found = self.medians.get((collective, size, "default", 0))
        if found is None:
            raise OptionError(f"{collective}: {size} bytes: expected a row default, got none")
        return self.library.default(collective, self.ranks, size), Times(found, found)

    def segments(self, algorithm: StockAlgorithm) -> Sequence[int]:
        return sorted({segment for *_, name, segment in self.medians if name == algorithm.name})


class _Prediction:
    """Times by phases on the network's routes."""

    def __init__(
        self, library: Library, topology: Topology, order: Sequence[int], profile: Runtime
    ) -> None:
        self.library = library
        self.routes: Routes = routes_of(topology)
        self.places = topology.rank[[*order]].astype(np.int64)
        self.profile = profile

    def times(
        self, collective: Named, algorithm: StockAlgorithm, size: int, segment: int
    ) -> Times | None:
        if not algorithm.works(len(self.places), size) or 0 < size <= segment:
            return None
        return self._of(algorithm, size, segment)

    def _of(self, algorithm: StockAlgorithm, size: int, segment: int) -> Times:
        from gradweave.ranks.search_kernel import steady_seconds

        ranks, costs = len(self.places), self.profile.executor
        pattern = pattern_of(algorithm.maker(ranks, size, segment))
        links_s = steady_seconds(self.places, self.routes, pattern)
        steps, busiest, total = messages(pattern, ranks)
        # Half of a message's cost is at either end; each step waits for a whole message.
        work_s = steps * costs.message_s + busiest * costs.message_s / 2 / self.profile.at_once
        if self.profile.processors is not None:
            work_s = max(work_s, total * costs.message_s / self.profile.processors)
        start_s = self.profile.time_for_all(ranks, costs.start_s)
        return Times(links_s + work_s + start_s, links_s)

    def default(self, collective: Named, size: int) -> tuple[str | None, Times | None]:
        name = self.library.default(collective, len(self.places), size)
        if name is None:
            return None, None
        return name, self._of(self.library.algorithm(collective, name), size, 0)

    def segments(self, algorithm: StockAlgorithm) -> Sequence[int]:
        return algorithm.segments if algorithm.tried else ()


def _chosen(
    library: Library,
    topology: Topology,
    order: tuple[int, ...],
    source: Source,
    gain: float,
    sizes: dict[Named, Sequence[int]],
) -> Table:
    """Chooses at each size, and joins sizes with the same choice."""
    points: list[Point] = []
    entries: dict[Named, tuple[Entry, ...]] = {}
    for collective, algorithms in library.algorithms.items():
        rows: list[Entry] = []
        for size in sizes.get(collective, ()):
            default, at_default = source.default(collective, size)
            found = {
                (one.name, segment): times
                for one in algorithms
                for segment in source.segments(one)
                if (times := source.times(collective, one, size, segment)) is not None
            }
            other = at_default or _second(found)
            if other is None or not found:
                continue
            saving = {key: one for key, one in found.items() if _saves(one, other, gain)}
            best = min(saving or found, key=lambda key: found[key].seconds)
            if rows and rows[-1].algorithm is not None:
                before = rows[-1].algorithm, rows[-1].segment_bytes
                if before in saving and found[before].seconds <= found[best].seconds * _ALIKE:
                    best = before
            default_s = None if at_default is None else at_default.seconds
            points.append(Point(collective, size, default, default_s, *best, found[best].seconds))
            named = best in saving and best != (default, 0)
            if not rows and named and size > SIZES[0]:
                rows.append(Entry(0, None))  # nothing is known of smaller sizes
            entry = Entry(size if rows else 0, *(best if named else (None, 0)))
            if not rows or dataclasses.replace(entry, from_bytes=rows[-1].from_bytes) != rows[-1]:
                rows.append(entry)
        entries[collective] = tuple(rows)
    return Table(library, topology, order, entries, tuple(points))


def _saves(one: Times, other: Times, gain: float) -> bool:
    return all(mine <= theirs * (1 - gain) for mine, theirs in zip(one, other, strict=True))


def _second(found: dict[tuple[str, int], Times]) -> Times | None:
    """The times of the fastest algorithm of another name than the fastest; None if there is none.

    If a library's default is not known, an algorithm is named only if it beats all others.
    """
    if not found:
        return None
    fastest = min(found, key=lambda key: found[key].seconds)[0]
    others = [times for (name, _), times in found.items() if name != fastest]
    return min(others, key=lambda times: times.seconds, default=None)


def _library(name: str) -> Library:
    if name not in LIBRARIES:
        guess = did_you_mean(name, LIBRARIES)
        raise OptionError(f"library: {guess}expected {', '.join(LIBRARIES)}, got {name!r:.60}")
    return LIBRARIES[name]


def _check(topology: Topology, order: Sequence[int], gain: float) -> None:
    if not 2 <= topology.num_servers <= MAX_RANKS:
        raise TopologyError(
            f"{topology.name}: expected 2 to {MAX_RANKS} servers, got {topology.num_servers}"
        )
    if sorted(order) != topology.servers.tolist():
        raise OptionError(
            f"ranks: expected each of the {topology.num_servers} servers once, got {[*order]!r:.60}"
        )
    if not 0 <= gain < 1:
        raise OptionError(f"gain: expected at least 0 and less than 1, got {gain}")
