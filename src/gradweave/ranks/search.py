"""The entry point: the rank order that makes a stock library's all-reduce fast on a network."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common import clock
from gradweave.common.stop import Stop, Why
from gradweave.errors import NoScheduleError, OptionError, TopologyError
from gradweave.ranks.bound import ON_ROUTES, OrderBound, any_bound, ring_bound
from gradweave.ranks.libraries import OwnAllReduce, own_all_reduces
from gradweave.ranks.mesh import Mesh
from gradweave.ranks.pattern import Pattern, Routes, routes_of
from gradweave.ranks.starts import by_nearness, twins
from gradweave.schedulers.textbook.hamiltonian import hamiltonian_order
from gradweave.simulator.runtime import Runtime
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING, as_size, format_seconds

MAX_SERVERS = 1024
"""Number of servers up to which orders are searched: the routes of all pairs are stored."""
EXACT_SERVERS = 12
"""Number of servers up to which all rings are compared."""
GRADIENT_BYTES = 25e6
"""PyTorch's DDP reduces buckets of this size (``bucket_cap_mb``)."""
_KEPT = 64
"""Number of the best rings that are kept to be simulated."""
_ANNEALED = 16
"""Number of orders that are kept from each run of annealing."""
_PLAYED = 2_500
"""Servers times orders that are simulated, which takes some seconds."""
_NEAR = 1.01
"""A start whose steady-state time is within this factor of the bound needs no search."""
_CYCLE_S = 3.0
"""Seconds for finding a Hamiltonian cycle if the starts by nearness do not meet the bound."""
_TRIES = 1_000
"""Moves from each start, per server."""
_VISITS = 1e9
"""Maximum number of link visits by flows; for all starts together this takes a few seconds."""
_WARMTH = (0.02, 0.5)
"""Initial temperatures, relative to the cost: for a start that is nearly good, and for any."""


@dataclasses.dataclass(frozen=True, eq=False)
class Order:
    """The rank of each server, and the predicted time of a library's all-reduce."""

    topology: Topology
    library: str
    """``gloo``, ``nccl`` or ``openmpi``."""
    gradient_bytes: float
    """Size of the gradient; for a mesh, the total over all axes."""
    ranks: tuple[int, ...]
    """[N] node id of the server at each rank."""
    seconds: float
    """Predicted time of the library's own all-reduce; for a mesh, of all axes one after the
    other."""
    by_id_s: float
    """The same with ranks in order of the servers' ids."""
    by_name_s: float | None
    """The same with ranks in order of the servers' names, as in torchrun; None if the servers have
    no names."""
    bound: OrderBound
    """A lower bound for any order."""
    algorithm: str
    """The all-reduce that the library is predicted to use: ``ring``, ``halving_doubling``,
    ``recursive_doubling`` or ``double_tree``; ``mesh`` for a mesh."""
    compared_all: bool
    """Whether all orders were compared in the steady state; the best of them were simulated."""
    wall_s: float
    """Duration of the search."""
    stopped: Why
    """Why the search ended early; empty if it did not."""
    runtime: Runtime | str | Path | None = None
    """The given profile of message costs."""
    mesh: Mesh | None = None
    axis_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """For a mesh: the time of each axis."""

    @property
    def gap(self) -> float:
        """Relative distance of the time from the bound: 0.05 is 5 %."""
        return self.seconds / self.bound.seconds - 1

    @property
    def optimal(self) -> bool:
        """Whether the bound is met."""
        return self.gap <= 1e-6

    @property
    def permutation(self) -> tuple[int, ...]:
        """[N] the index in order of id of the server at each rank, for ``jax.make_mesh``."""
        return tuple(self.topology.rank[list(self.ranks)].tolist())

    @property
    def names(self) -> tuple[str, ...]:
        """[N] names of the servers at each rank; their ids if they have none."""
        return tuple(map(self.topology.id_name, self.ranks))

    def at(self, gradient_bytes: float) -> "Order":
        """The same rank order for another gradient size, with its times and bound.

        Args:
            gradient_bytes: size of the whole gradient.

        Raises:
            OptionError: for an invalid size, or a mesh, whose axes have separate sizes.
        """
        _check(self.topology, gradient_bytes, None)
        if self.mesh is not None:
            raise OptionError("at: expected an order without a mesh, whose axes have their bytes")
        count = self.topology.num_servers
        reduces = own_all_reduces(self.library, count, gradient_bytes, self.runtime)
        ranks = self.topology.rank[list(self.ranks)].astype(np.int64)
        played = _Played(self.topology, reduces)
        bounds = [_bounded(self.topology, reduce)[1] for reduce in reduces]
        kept = ("topology", "library", "runtime", "compared_all", "wall_s", "stopped")
        known = {field: getattr(self, field) for field in kept}
        return _made(played, known, ranks, bounds, float(gradient_bytes))

    def as_object(self) -> dict[str, Any]:
        """The result as plain values, ready for JSON."""
        mesh = None
        if self.mesh is not None:
            mesh = {
                "axes": dict(self.mesh.axes),
                "axis_bytes": dict(self.mesh.axis_bytes),
                "axis_s": dict(self.axis_s),
            }
        return {
            "topology": self.topology.name,
            "servers": self.topology.num_servers,
            "library": self.library,
            "gradient_bytes": self.gradient_bytes,
            "ranks": list(self.ranks),
            "names": list(self.names) if self.topology.labels else None,
            "permutation": list(self.permutation),
            "algorithm": self.algorithm,
            "seconds": self.seconds,
            "by_id_s": self.by_id_s,
            "by_name_s": self.by_name_s,
            "bound_s": self.bound.seconds,
            "bound_kind": self.bound.kind,
            "gap": self.gap,
            "compared_all": self.compared_all,
            "wall_s": self.wall_s,
            "stopped": self.stopped,
            "mesh": mesh,
        }

    def __repr__(self) -> str:
        return (
            f"Order({self.topology.name!r}, {self.library}: {format_seconds(self.seconds)}, by id "
            f"{format_seconds(self.by_id_s)}, at least {format_seconds(self.bound.seconds)})"
        )


def optimize(
    topology: TopologyLike,
    library: str = "gloo",
    gradient_bytes: float | str = GRADIENT_BYTES,
    *,
    mesh: Mapping[str, int] | None = None,
    axis_bytes: Mapping[str, float | str] | None = None,
    runtime: Runtime | str | Path | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Order:
    """Finds the rank order with which a library's own all-reduce is fastest on a network.

    The rings of gloo and NCCL follow the ranks, and so do NCCL's trees and Open MPI's exchanges, so
    the order determines which links they load. Orders are searched by their steady-state time
    (`gradweave.ranks.pattern`): the time of the busiest link, or of a piece's way around a ring. Up
    to `EXACT_SERVERS` servers, all rings are compared by branch and bound; beyond, simulated
    annealing starts with near servers next to each other. The best few orders are then simulated:
    the time of an order is that of the library's messages, event by event, with their costs.

    The model has one rank per server, which is a host; switches forward, and each message takes its
    shortest route. Inside a host, libraries choose their own order.

    With a mesh, every group along an axis has a ring, with all groups of an axis at the same time
    and one axis after the other; times are those of the steady state and not simulated.

    Args:
        topology: the network, a specification or the path of a file.
        library: ``gloo``, ``nccl`` or ``openmpi``.
        gradient_bytes: size of the whole gradient.
        mesh: size of each axis, such as ``{"dp": 4, "tp": 8}``; the last axis has consecutive
            ranks.
        axis_bytes: bytes per step along each axis; see `Mesh.axis_bytes`.
        runtime: message costs, as for `gradweave.solve`: a profile, its name or a TOML file; by
            default the library's profile; ``ideal`` for none.
        seed: determines every random choice.
        time_limit: seconds for the search.
        progress: called with each step under way.

    Returns:
        The order with its time, the times by id and by name, and a lower bound for any order.

    Raises:
        OptionError: for an unknown library, a mesh of another size, or invalid sizes.
        TopologyError: for more than `MAX_SERVERS` servers.

    >>> import gradweave as gw
    >>> racks = gw.topology.leaf_spine(2, 1, 4, oversubscription=4)
    >>> found = gw.ranks.optimize(racks, "gloo", 25e6, runtime="ideal")
    >>> found.ranks, f"{found.gap:.1%}"
    ((0, 1, 2, 3, 4, 5, 6, 7), '0.1%')
    """
    topology, gradient_bytes = as_topology(topology), as_size(gradient_bytes)
    _check(topology, gradient_bytes, time_limit)
    begun = clock.now()
    stop = Stop.after(time_limit)
    if mesh is not None:
        made = Mesh(mesh, {axis: as_size(size) for axis, size in (axis_bytes or {}).items()})
        found = _of_mesh(topology, library, made, runtime, seed, stop, progress)
    elif axis_bytes:
        raise OptionError("axis_bytes: expected a mesh with it, such as dp=4,tp=8")
    else:
        found = _of_all(topology, library, gradient_bytes, runtime, seed, stop, progress)
    return dataclasses.replace(found, wall_s=clock.now() - begun)


def _check(topology: Topology, gradient_bytes: float, time_limit: float | None) -> None:
    if topology.num_servers > MAX_SERVERS:
        raise TopologyError(
            f"expected at most {MAX_SERVERS} servers, got {topology.num_servers}; order "
            "racks, one server each, or a part of them"
        )
    if not 0 < gradient_bytes < math.inf:
        raise OptionError(f"gradient_bytes: expected a finite number above 0, got {gradient_bytes}")
    if time_limit is not None and not time_limit > 0:
        raise OptionError(f"time_limit: expected more than 0 seconds, got {time_limit:g}")


def _of_all(
    topology: Topology,
    library: str,
    gradient_bytes: float,
    runtime: Runtime | str | Path | None,
    seed: int,
    stop: Stop,
    progress: Callable[[str], None],
) -> Order:
    """The order for a single all-reduce of all ranks, simulated."""
    count = topology.num_servers
    reduces = own_all_reduces(library, count, gradient_bytes, runtime)
    names = _by_name(topology)
    found: list[tuple[float, bytes]] = []
    bounds, compared_all = [], True
    starts: list[tuple[_Search, list[NDArray[np.int64] | None]]] = []
    for reduce in reduces:
        progress(f"ordering for {library}'s {reduce.name.replace('_', ' ')}")
        routes, bound = _bounded(topology, reduce)
        bounds.append(bound)
        least = bound.seconds - reduce.start_s
        search = _Search(topology, routes, reduce.pattern(count), seed, stop)
        if reduce.is_ring and count <= EXACT_SERVERS:
            every, complete = search.every_ring(reduce)
            compared_all &= complete
            found += every
        else:
            compared_all = False
        if not (reduce.is_ring and count <= EXACT_SERVERS and compared_all):
            starts.append((search, [by_nearness(routes), np.arange(count), names]))
            found += search.improved(starts[-1][1], least)
    seconds_of = _Played(topology, reduces)
    best = _best_played(seconds_of, found, stop, progress)
    least_s = min(bound.seconds for bound in bounds)
    for search, given in starts:
        if seconds_of(best)[0] > _NEAR * least_s and not stop.reached():
            cycles = search.cycle()
            found += [(search.seconds(cycle), _key(cycle)) for cycle in cycles]
            best = _best_played(seconds_of, found, stop, progress)
        if seconds_of(best)[0] > _NEAR * least_s and not stop.reached():
            found += search.improved(given, 0.0)
            best = _best_played(seconds_of, found, stop, progress)
    if len(reduces) == 1 and reduces[0].is_ring:
        best = _from_a_group(seconds_of, best, routes_of(topology))
    known = {"compared_all": compared_all, "wall_s": 0.0, "stopped": stop.reached()}
    return _made(
        seconds_of,
        {"topology": topology, "library": library, "runtime": runtime, **known},
        best,
        bounds,
        float(gradient_bytes),
    )


def _from_a_group(
    seconds_of: "_Played", order: NDArray[np.int64], routes: Routes
) -> NDArray[np.int64]:
    """The same ring, started at the lowest server that is far from the previous one.

    So the start of the ring does not divide a rack. The direction is reversed if that is as fast
    and comes first in lexicographic order.
    """
    length = np.diff(routes.first).reshape(routes.servers, -1)

    def begun(way: NDArray[np.int64]) -> NDArray[np.int64]:
        far = length[np.roll(way, 1), way]
        return np.roll(way, -min(np.flatnonzero(far == far.max()), key=lambda at: way[at]))

    forward, backward = begun(order), begun(order[::-1])
    if backward.tolist() < forward.tolist() and (
        seconds_of(backward)[0] <= seconds_of(forward)[0] * (1 + ROUNDING)
    ):
        return backward
    return forward


def _made(
    seconds_of: "_Played",
    known: Mapping[str, Any],
    best: NDArray[np.int64],
    bounds: list[OrderBound],
    gradient_bytes: float,
) -> Order:
    """An order with its time and the times by id and by name."""
    topology = seconds_of.topology
    names = _by_name(topology)
    seconds, algorithm = seconds_of(best)
    return Order(
        **known,
        gradient_bytes=gradient_bytes,
        ranks=tuple(topology.servers[best].tolist()),
        seconds=seconds,
        by_id_s=seconds_of(np.arange(topology.num_servers))[0],
        by_name_s=None if names is None else seconds_of(names)[0],
        bound=min(bounds, key=lambda bound: bound.seconds),
        algorithm=algorithm,
    )


def _bounded(topology: Topology, reduce: OwnAllReduce) -> tuple[Routes, OrderBound]:
    """Routes with message costs, and the lower bound for any order."""
    network = reduce.network(topology)
    routes = routes_of(network)
    size, start_s = reduce.gradient_bytes, reduce.start_s
    if not reduce.is_ring:
        return routes, any_bound(network, size, start_s)
    work_s = reduce.least_work_s(topology, topology.servers.tolist())
    parts = reduce.algorithm.parts
    return routes, ring_bound(topology, routes, size, parts=parts, work_s=work_s, start_s=start_s)


def _by_name(topology: Topology) -> NDArray[np.int64] | None:
    """[N] servers in order of their names, as text, or None if they have none."""
    if not topology.labels:
        return None
    labels = [topology.labels[server] for server in topology.servers.tolist()]
    return np.array(sorted(range(len(labels)), key=labels.__getitem__), np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class _Search:
    """Searches for orders with low steady-state times; found orders are (seconds, bytes) pairs."""

    topology: Topology
    routes: Routes
    pattern: Pattern
    seed: int
    stop: Stop

    def every_ring(self, reduce: OwnAllReduce) -> tuple[list[tuple[float, bytes]], bool]:
        """The best of all rings, and whether all were compared."""
        from gradweave.ranks.search_kernel import every_ring

        with self.stop.watched() as stop:
            seconds, rings, complete = every_ring(
                self.routes,
                float(self.pattern.size[0]),
                float(self.pattern.piece[0]),
                float(self.pattern.times[0]),
                twins(self.topology),
                _KEPT,
                math.inf,
                stop.flag,
            )
        ranks = [np.array(reduce.travel(ring.tolist()), np.int64) for ring in rings]
        return list(zip(seconds.tolist(), map(_key, ranks), strict=True)), bool(complete)

    def cycle(self) -> list[NDArray[np.int64]]:
        """A cycle of neighbours whose routes share no link, if one is found soon."""
        if not self.pattern.is_ring[0]:
            return []
        try:
            cycle = hamiltonian_order(
                self.topology, seed=self.seed, stop=self.stop.within(_CYCLE_S)
            )
        except NoScheduleError:
            return []
        # Reversed if the ring sends to the previous rank.
        step = 1 if self.pattern.target[0] == (self.pattern.source[0] + 1) % len(cycle) else -1
        return [self.topology.rank[cycle][::step].astype(np.int64)]

    def improved(
        self, starts: list[NDArray[np.int64] | None], least: float
    ) -> list[tuple[float, bytes]]:
        """The best orders by annealing from each start, until one meets the lower bound."""
        from gradweave.ranks.search_kernel import improve

        rng = np.random.default_rng(self.seed)
        given = [start for start in starts if start is not None]
        found = [(self.seconds(start), _key(start)) for start in given]
        runs = [(start, _WARMTH[0]) for start in given]
        runs += [(given[0], _WARMTH[1]), (rng.permutation(len(given[0])), _WARMTH[1])]
        mean_length = len(self.routes.links) / max(len(self.routes.first) - 1, 1)
        visits = 5 * mean_length * len(self.pattern.source) * len(runs)
        tries = int(min(_TRIES * len(given[0]), max(_VISITS / visits, 100)))
        with self.stop.watched() as stop:
            for number, (start, warmth) in enumerate(runs):
                if stop.flag[0] or min(found)[0] <= least * (1 + ROUNDING):
                    break
                orders = improve(
                    np.asarray(start, np.int64),
                    self.routes,
                    self.pattern,
                    tries,
                    warmth,
                    _ANNEALED,
                    self.seed + number,
                    stop.flag,
                )
                found += [(self.seconds(order), _key(order)) for order in orders]
        return found

    def seconds(self, order: NDArray[np.int64]) -> float:
        """Seconds of an order in the steady state."""
        from gradweave.ranks.search_kernel import steady_seconds

        return steady_seconds(np.asarray(order, np.int64), self.routes, self.pattern)


@dataclasses.dataclass(frozen=True, eq=False)
class _Played:
    """The times of orders, with the all-reduce that achieves each; cached."""

    topology: Topology
    reduces: tuple[OwnAllReduce, ...]
    known: dict[bytes, tuple[float, str]] = dataclasses.field(default_factory=dict)

    def __call__(self, order: NDArray[np.int64]) -> tuple[float, str]:
        key = _key(order)
        if key not in self.known:
            ranks = self.topology.servers[order].tolist()
            self.known[key] = min(
                (one.seconds(self.topology, ranks), one.name) for one in self.reduces
            )
        return self.known[key]


def _key(order: NDArray[np.int64]) -> bytes:
    return np.asarray(order, np.int64).tobytes()


def _order(key: bytes) -> NDArray[np.int64]:
    return np.frombuffer(key, np.int64)


def _best_played(
    seconds_of: _Played,
    found: list[tuple[float, bytes]],
    stop: Stop,
    progress: Callable[[str], None],
) -> NDArray[np.int64]:
    """The fastest order in the simulation, of those that are fastest in the steady state."""
    count = seconds_of.topology.num_servers
    candidates = list(dict.fromkeys(key for _, key in sorted(found, key=lambda one: one[0])))
    best: NDArray[np.int64] | None = None
    for key in candidates[: max(_PLAYED // count, 2)]:
        progress("playing the best orders")
        order = _order(key)
        if best is None or seconds_of(order) < seconds_of(best):
            best = order
        if stop.reached():
            break
    assert best is not None
    return best


def _of_mesh(
    topology: Topology,
    library: str,
    mesh: Mesh,
    runtime: Runtime | str | Path | None,
    seed: int,
    stop: Stop,
    progress: Callable[[str], None],
) -> Order:
    """The order for the groups of a mesh, in the steady state."""
    count = topology.num_servers
    if mesh.size != count:
        raise OptionError(
            f"mesh: expected as many ranks as servers, {count}, got "
            f"{' × '.join(map(str, mesh.axes.values()))} = {mesh.size}"
        )
    moved = sum(mesh.axis_bytes.get(axis, 0.0) for axis in mesh.used)
    reduce = own_all_reduces(library, count, moved, runtime)[0]
    routes = routes_of(reduce.network(topology))
    bound = _mesh_bound(mesh, routes)
    progress("placing the groups of the mesh")
    search = _Search(topology, routes, mesh.pattern(), seed, stop)
    names = _by_name(topology)
    starts = [*mesh.layouts(by_nearness(routes))]
    starts.sort(key=search.seconds)
    found = search.improved([*starts[:2], np.arange(count), names], bound.seconds)
    best = _order(min(found)[1])
    seconds = search.seconds
    by_axis = {
        axis: dataclasses.replace(search, pattern=mesh.pattern(axis)).seconds(best)
        for axis in mesh.used
    }
    return Order(
        topology,
        library,
        moved,
        tuple(topology.servers[best].tolist()),
        seconds(best),
        seconds(np.arange(count)),
        None if names is None else seconds(names),
        bound,
        "mesh",
        compared_all=False,
        wall_s=0.0,
        stopped=stop.reached(),
        runtime=runtime,
        mesh=mesh,
        axis_s=by_axis,
    )


def _mesh_bound(mesh: Mesh, routes: Routes) -> OrderBound:
    """A lower bound for any order of a mesh in the steady state.

    Along each axis every server sends the flows of that axis to another server, over a route at
    most as wide as its widest; likewise for receiving.
    """
    off = np.where(np.eye(routes.servers, dtype=bool), np.inf, routes.slowest)
    per_byte = max(float(off.min(axis=1).max()), float(off.min(axis=0).max()))
    seconds = sum(float(mesh.phase(axis).size[0]) * per_byte for axis in mesh.used)
    why = f"along each axis every server sends to another, by its widest route, {ON_ROUTES}"
    return OrderBound(seconds, "any", why=why)
