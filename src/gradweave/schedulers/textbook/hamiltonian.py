"""Cyclic orders of all servers in which neighbours are near and their routes share no link."""

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common import cp_sat
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.errors import NoScheduleError
from gradweave.topology.routes import follow, switch_only_trees
from gradweave.topology.topology import Topology

SEARCH_SECONDS = 20.0
"""Maximum time of the search if no limit is given."""


def hamiltonian_order(
    topology: Topology, *, seed: int = 0, stop: Stop = UNLIMITED
) -> NDArray[np.int32]:
    """Finds one Hamiltonian cycle of servers, travelled one way; see `hamiltonian_orders`."""
    return hamiltonian_orders(topology, seed=seed, stop=stop)[0]


def hamiltonian_orders(
    topology: Topology,
    *,
    cycles: int = 1,
    both_ways: bool = False,
    seed: int = 0,
    stop: Stop = UNLIMITED,
) -> NDArray[np.int32]:
    """Finds Hamiltonian cycles of servers whose routes, all together, fit the links' capacities.

    A step of a ring in that order, or of all rings together, then takes one round. If a cycle is
    travelled both ways, it must leave a server by another port than it entered, unless the port
    takes two transfers. The search tries the shortest switch-only routes first, and allows longer
    ones until such cycles exist.

    Args:
        topology: the network.
        cycles: number of cycles, used at the same time.
        both_ways: whether each cycle is also travelled backwards, on the reversed routes.
        seed: the seed of the search.
        stop: when to stop; `SEARCH_SECONDS` at the latest if it has no deadline.

    Returns:
        [cycles, N] node ids, in order round each cycle, from the first server.

    Raises:
        NoScheduleError: if there are no such cycles, or none were found in time.

    Source: the circuit constraint of OR-Tools CP-SAT.
    """
    toward, lengths = switch_only_trees(topology)
    lengths = lengths[:, topology.servers]
    limit = stop.seconds_left if math.isfinite(stop.deadline) else SEARCH_SECONDS
    hops = np.unique(lengths[lengths > 0])
    decided = True
    for longest in hops.tolist():
        to_rank, from_rank = np.nonzero((lengths > 0) & (lengths <= longest))
        if len(np.unique(to_rank)) < topology.num_servers:
            continue
        nodes, offsets = follow(
            toward[to_rank], topology.servers[from_rank], topology.servers[to_rank]
        )
        links = topology.links_along(nodes, offsets)
        arc = np.repeat(np.arange(len(to_rank)), np.diff(offsets) - 1)
        if both_ways:
            links, arc = np.concatenate([links, topology.opposite[links]]), np.tile(arc, 2)
        arcs = _Arcs(from_rank, to_rank, links, arc)
        orders, decided = _circuits(topology, arcs, cycles, seed, stop.within(limit / len(hops)))
        if orders is not None:
            return topology.servers[np.array(orders)]
        if not decided:
            break
    raise NoScheduleError(_reason(topology, cycles, both_ways, limit, decided))


def _reason(topology: Topology, cycles: int, both_ways: bool, limit: float, decided: bool) -> str:
    """The message that there are no such cycles, or that none were found in time."""
    count, many = topology.num_servers, cycles > 1
    what = f"{cycles} Hamiltonian cycles" if many else "Hamiltonian cycle"
    if decided:
        found = f"there {'are' if many else 'is'} no {what} of the {count} servers"
    else:
        found = f"found no {what} of {count} servers"
    both = ", both ways," if both_ways else ""
    fewer = "".join(
        f"{option}, " for option, on in (("cycles=1", many), ("directions=1", both_ways)) if on
    )
    remedy = f"; use {fewer}order=id" if not fewer else f"; use {fewer}or order=id"
    if not decided:
        remedy = f" within {round(limit, 1):g} s{remedy}, or give more time"
    return f"{found} with disjoint shortest routes{both} on {topology.name!r}{remedy}"


@dataclasses.dataclass(frozen=True, eq=False)
class _Arcs:
    """The arcs of which cycles may consist."""

    tail: NDArray
    """[A] rank of the server that an arc leaves."""
    head: NDArray
    """[A] rank of the server that an arc enters."""
    links: NDArray
    """Link directions that arcs use, in both directions if cycles are travelled both ways."""
    arc: NDArray
    """The arc that uses each link direction."""


def _circuits(
    topology: Topology, arcs: _Arcs, cycles: int, seed: int, stop: Stop
) -> tuple[list[list[int]] | None, bool]:
    """Orders of circuits through all servers, and whether the answer is known for certain."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    ends = list(zip(arcs.tail.tolist(), arcs.head.tolist(), strict=True))
    used = [[model.new_bool_var("") for _ in ends] for _ in range(cycles)]
    for circuit in used:
        model.add_circuit([(*pair, var) for pair, var in zip(ends, circuit, strict=True)])
    by_link = np.argsort(arcs.links, kind="stable")
    for group in np.split(by_link, np.flatnonzero(np.diff(arcs.links[by_link])) + 1):
        capacity = int(topology.capacity[arcs.links[group[0]]])
        if len(group) * cycles > capacity:
            model.add(sum(circuit[arcs.arc[i]] for circuit in used for i in group) <= capacity)
    solver, status = _solve(model, seed, stop)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, status == cp_model.INFEASIBLE
    orders = []
    for circuit in used:
        following = {a: b for (a, b), var in zip(ends, circuit, strict=True) if solver.value(var)}
        order = [0]
        while len(order) < topology.num_servers:
            order.append(following[order[-1]])
        orders.append(order)
    return orders, True


def _solve(model: Any, seed: int, stop: Stop) -> tuple[Any, Any]:
    """Runs the solver; returns it with its status."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1
    return solver, cp_sat.solve(solver, model, stop)
