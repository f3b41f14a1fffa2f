"""Explains the bandwidths of nccl-tests, next to a network's links and lower bounds."""

import dataclasses
from typing import Any, cast

import numpy as np

from gradweave.bounds.classes import SWITCHES_ADD, holds_for
from gradweave.bounds.demands.demand_bound import demand_bound
from gradweave.bounds.seconds_bound import SecondsBound, seconds_bound
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.probe.nccl_tests import Measurement
from gradweave.schedules.demand import ROOTED
from gradweave.schedules.jobs import Job, demand_of
from gradweave.schedules.schedule import COLLECTIVES, Collective
from gradweave.simulator.bandwidths import STAGES, bus_factor
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_rate, format_seconds, format_size

_FACTOR_TEXTS = {0: "1", 1: "(N−1)/N", 2: "2(N−1)/N"}
_TRANSFERS = {
    "all_reduce": "each rank sends, and receives, that many times the buffer, as in a ring",
    "broadcast": "the whole buffer leaves the root once",
    "reduce": "the whole buffer enters the root once",
    "send_recv": "each rank sends one whole buffer and receives one",
    "hypercube": "algbw already leaves out each rank's own part",
}
_BOUNDED = {"hypercube": "all_gather"}
"""Collectives whose bound is that of another."""
_ALMOST = 0.999
"""A measured time below this part of a bound contradicts it; printed times have four digits."""


@dataclasses.dataclass(frozen=True)
class Explained:
    """A measurement with the limits of a network."""

    measured: Measurement
    topology: Topology | None
    bounds: tuple[SecondsBound | None, ...]
    """The lower bound at each size; None without a network, or if none is known."""

    @property
    def ranks_per_server(self) -> int:
        """Ranks in each server of the network."""
        return 1 if self.topology is None else self.measured.ranks // self.topology.num_servers

    @property
    def link_bus_bytes_per_s(self) -> float | None:
        """The bus bandwidth at which the links of the servers would be busy all the time."""
        if self.topology is None or self.measured.collective == "all_to_all_v":
            return None
        return _link_limit(self.topology, self.measured)

    def bound_bus_bytes_per_s(self, point: int) -> float | None:
        """The bus bandwidth of the lower bound at one size; None if there is no bound."""
        bound, size = self.bounds[point], self.measured.points[point].bytes
        if bound is None or not bound.seconds:
            return None
        own = (self.measured.ranks - 1) / self.measured.ranks
        factor = own if self.measured.collective == "hypercube" else self.measured.factor
        return factor * size / bound.seconds

    def as_object(self) -> dict[str, Any]:
        """The measurement as JSON values."""
        one = self.measured
        rows = []
        for number, (point, bound) in enumerate(zip(one.points, self.bounds, strict=True)):
            limits = {} if bound is None else _limits(bound, self.bound_bus_bytes_per_s(number))
            rows.append(dataclasses.asdict(point) | limits)
        return {
            "collective": one.collective,
            "ranks": one.ranks,
            "root": one.root,
            "hosts": len(set(one.hosts)),
            "device": one.device,
            "library": one.library,
            "factor": one.factor,
            "average_bus_bytes_per_s": one.average_bus_bytes_per_s,
            "links_bus_bytes_per_s": self.link_bus_bytes_per_s,
            "points": rows,
        }

    def lines(self) -> list[str]:
        """The explanation, each figure with its condition in the same line."""
        found = [self._title(), *self._definitions(), *self._best(), *self._latency()]
        if self.topology is None:
            found.append(
                "hardware's limit and lower bound: not known without --network, the network of "
                f"these {self.measured.ranks} ranks"
            )
        else:
            found += [*self._links(), *self._bound()]
        return found + self._wrong()

    def _title(self) -> str:
        one = self.measured
        hosts = len(set(one.hosts))
        where = [counted(one.ranks, "rank"), *([counted(hosts, "host")] if hosts else [])]
        named = [text for text in (one.device, one.library) if text]
        root = "" if one.root is None else f" from root {one.root}"
        return f"{one.collective}{root}: {', '.join(where + named)}"

    def _definitions(self) -> list[str]:
        one = self.measured
        stages = STAGES.get(one.collective, 1)
        why = _TRANSFERS.get(one.collective, "a rank's own part of the buffer moves nowhere")
        times = "busbw = algbw" if not stages else f"busbw = algbw × {_FACTOR_TEXTS[stages]}"
        shown = f", {one.factor:.4g} for N = {one.ranks}" if stages else ""
        return [
            "algbw = size / time: use it to predict the time of a size, on this number of ranks",
            f"{times}{shown}: {why}; it is a rate of links only if all ranks' links are equal "
            "and equally loaded, and if no switch adds (NVLS, SHARP)",
        ]

    def _best(self) -> list[str]:
        best = max(self.measured.points, key=lambda point: point.bus_bytes_per_s)
        line = f"largest: {format_rate(best.bus_bytes_per_s)} busbw at {format_size(best.bytes)}"
        average = self.measured.average_bus_bytes_per_s
        if average is None or len(self.measured.points) == 1:
            return [line]
        return [
            f"{line}; 'Avg bus bandwidth' ({format_rate(average)}) is the mean over "
            f"{counted(len(self.measured.points), 'size')}, small ones included"
        ]

    def _latency(self) -> list[str]:
        points = sorted(self.measured.points, key=lambda point: point.bytes)
        least = min(point.seconds for point in points)
        flat = [point.bytes for point in points if point.seconds < 2 * least]
        if len(points) < 3 or max(flat) == points[-1].bytes:
            return []
        return [
            f"latency: {format_seconds(least)} at least, and less than twice that up to "
            f"{format_size(max(flat))}: below, bandwidths say nothing about links"
        ]

    def _links(self) -> list[str]:
        assert self.topology is not None
        limit = self.link_bus_bytes_per_s
        if limit is None:
            return []
        out, into = _rates(self.topology)
        least, most = float(min(out.min(), into.min())), float(max(out.max(), into.max()))
        each = format_rate(least)
        if least < most * _ALMOST:
            each += f" to {format_rate(most)}"
        together = self.ranks_per_server
        ranks = f", which the {together} ranks of a server share" * (together > 1)
        return [
            f"hardware's limit: {format_rate(limit)} busbw, if each server's links ({each} in "
            f"each direction{ranks}) are busy all the time and no switch adds"
        ]

    def _bound(self) -> list[str]:
        found = [(number, bound) for number, bound in enumerate(self.bounds) if bound is not None]
        if not found:
            return ["lower bound: none is known for this collective on this network"]
        number, bound = max(found, key=lambda one: self.measured.points[one[0]].bytes)
        point = self.measured.points[number]
        assert self.topology is not None
        name = self.topology.id_name
        bus = self.bound_bus_bytes_per_s(number)
        most = "" if bus is None else f", busbw at most {format_rate(bus)},"
        line = (
            f"lower bound at {format_size(point.bytes)}: {format_seconds(bound.seconds)}{most} "
            f"for {holds_for(bound.holds_unless)}: {bound.reason(name)}"
        )
        if self.ranks_per_server > 1:
            line += "; the ranks of a server count as one"
        return [line, *self._against(found)]

    def _against(self, found: list[tuple[int, SecondsBound]]) -> list[str]:
        points = self.measured.points
        over = [points[number].seconds / max(bound.seconds, 1e-15) for number, bound in found]
        largest = max(range(len(found)), key=lambda one: points[found[one][0]].bytes)
        lines = [
            f"measured: {over[largest]:.2f} times the bound at "
            f"{format_size(points[found[largest][0]].bytes)}"
        ]
        if min(over) < _ALMOST:
            fast = found[over.index(min(over))]
            size = format_size(points[fast[0]].bytes)
            unless = fast[1].holds_unless
            reasons = ["the network's file states less than the hardware has"]
            reasons += ["switches add (NVLS, SHARP)"] * (SWITCHES_ADD in unless)
            reasons += ["the bound does not hold for the algorithm"] * bool(unless - {SWITCHES_ADD})
            lines.append(
                f"faster than the bound at {size} ({min(over):.2f} of it): {' or '.join(reasons)}"
            )
        return lines

    def _wrong(self) -> list[str]:
        wrong = [point for point in self.measured.points if point.wrong]
        if not wrong:
            return []
        sizes = ", ".join(format_size(point.bytes) for point in wrong[:4])
        return [f"wrong results at {sizes}{', …' * (len(wrong) > 4)}: do not use these times"]


def explain(measured: Measurement, topology: Topology | None = None) -> Explained:
    """A measurement next to what a network permits.

    Args:
        measured: the times.
        topology: the network, whose servers are the ranks, in order of id, or else their hosts,
            each with as many ranks as the others.

    Raises:
        OptionError: the network has another number of servers.
    """
    if topology is None:
        return Explained(measured, None, (None,) * len(measured.points))
    hosts, servers = len(set(measured.hosts)), topology.num_servers
    if servers != measured.ranks and (servers != hosts if hosts else measured.ranks % servers):
        or_hosts = f" or {hosts} hosts" * (hosts not in (0, measured.ranks))
        raise OptionError(
            f"network: expected {measured.ranks} servers, one for each rank{or_hosts}, got "
            f"{servers}"
        )
    if servers < 2 or measured.ranks % servers:
        raise OptionError(
            f"network: expected at least two servers with equally many of the {measured.ranks} "
            f"ranks each, got {servers}"
        )
    bounds = tuple(_bound_of(measured, point.bytes, topology) for point in measured.points)
    return Explained(measured, topology, bounds)


def _bound_of(measured: Measurement, size: int, topology: Topology) -> SecondsBound | None:
    """The lower bound for one size; with hosts as servers, for what hosts exchange."""
    name = _BOUNDED.get(measured.collective, measured.collective)
    servers = topology.num_servers
    if name in COLLECTIVES:
        return seconds_bound(topology, cast(Collective, name), size)
    if name in ("send_recv", "all_to_all_v"):
        return None
    if name == "all_to_all":
        size = size * (measured.ranks // servers) // servers * servers
    elif name in ("gather", "scatter"):
        size = size // servers * servers
    if not size:
        return None
    root = None
    if name in ROOTED:
        root = int(topology.servers[(measured.root or 0) * servers // measured.ranks])
    return demand_bound(topology, demand_of(topology, [Job(name, size, root=root)]))


def _rates(topology: Topology) -> tuple[np.ndarray, np.ndarray]:
    """[N] bytes per second out of each server, and into it."""
    found = [
        np.bincount(end, topology.bandwidth_bytes_per_s, topology.num_nodes)[topology.servers]
        for end in (topology.source, topology.target)
    ]
    return found[0], found[1]


def _link_limit(topology: Topology, measured: Measurement) -> float:
    """The bus bandwidth of servers whose links are busy all the time.

    An all-reduce moves 2(N−1) buffers into servers altogether, so that the mean counts; any other
    collective moves some part into or out of each server, or of the root.
    """
    servers, name = topology.num_servers, measured.collective
    out, into = _rates(topology)
    root = (measured.root or 0) * servers // measured.ranks
    others = np.arange(servers) != root
    rate = {
        "all_reduce": min(out.mean(), into.mean()),
        "all_gather": into.min(),
        "hypercube": into.min(),
        "reduce_scatter": out.min(),
        "broadcast": min(out[root], into[others].min()),
        "reduce": min(into[root], out[others].min()),
        "gather": into[root],
        "scatter": out[root],
    }.get(name, min(out.min(), into.min()))
    kind = _BOUNDED.get(name, name)
    sizes = measured.ranks // servers if name == "all_to_all" else 1
    per_size = float(rate) / (bus_factor(kind, servers) * sizes)
    return per_size * bus_factor(kind, measured.ranks)


def _limits(bound: SecondsBound, bus_bytes_per_s: float | None) -> dict[str, Any]:
    return {
        "bound_s": bound.seconds,
        "bound_bus_bytes_per_s": bus_bytes_per_s,
        "bound_holds_for": holds_for(bound.holds_unless),
        "bound_reason": bound.reason(bound.topology.id_name),
    }
