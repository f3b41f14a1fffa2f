"""A cyclic order of all servers in which neighbours are near and their routes share no link."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import NoScheduleError
from gradweave.topology.routes import follow, switch_only_trees
from gradweave.topology.topology import Topology

SEARCH_SECONDS = 20.0
"""Time that the search takes at most where no limit is given."""


def hamiltonian_order(
    topology: Topology, *, seed: int = 0, time_limit: float | None = None
) -> NDArray[np.int32]:
    """Finds a Hamiltonian cycle of servers whose routes share no link direction.

    A step of a ring in that order is one round.
    Tries the shortest switch-only routes first and lengthens them until there is a cycle.

    Args:
        topology: the network.
        seed: of the search.
        time_limit: seconds in all.

    Returns:
        [N] node ids, in order round the cycle, from the first server.

    Raises:
        NoScheduleError: where there is no such cycle, or none was found in time.

    Source: the circuit constraint of OR-Tools CP-SAT.
    """
    toward, lengths = switch_only_trees(topology)
    lengths = lengths[:, topology.servers]
    limit = SEARCH_SECONDS if time_limit is None else time_limit
    hops = np.unique(lengths[lengths > 0])
    for longest in hops.tolist():
        to_rank, from_rank = np.nonzero((lengths > 0) & (lengths <= longest))
        if len(np.unique(to_rank)) < topology.num_servers:
            continue
        nodes, offsets = follow(
            toward[to_rank], topology.servers[from_rank], topology.servers[to_rank]
        )
        starts = np.delete(np.arange(len(nodes)), offsets[1:] - 1)
        links = topology.find_links(nodes[starts], nodes[starts + 1])
        arc = np.repeat(np.arange(len(to_rank)), np.diff(offsets) - 1)
        order, known = _circuit(topology, from_rank, to_rank, links, arc, seed, limit / len(hops))
        if order is not None:
            return topology.servers[order]
        if not known:
            cycle = f"found no Hamiltonian cycle of {topology.num_servers} servers"
            remedy = f" within {limit:g} s; use order=id, or give more time"
            break
    else:
        cycle = f"there is no Hamiltonian cycle of the {topology.num_servers} servers"
        remedy = "; use order=id"
    raise NoScheduleError(f"{cycle} with disjoint shortest routes on {topology.name!r}{remedy}")


def _circuit(
    topology: Topology,
    tail: NDArray,
    head: NDArray,
    links: NDArray,
    arc: NDArray,
    seed: int,
    seconds: float,
) -> tuple[list[int] | None, bool]:
    """The order of a circuit through all servers, and whether the answer is known for certain."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    used = [model.new_bool_var("") for _ in range(len(tail))]
    model.add_circuit([(int(a), int(b), var) for a, b, var in zip(tail, head, used, strict=True)])
    by_link = np.argsort(links, kind="stable")
    for group in np.split(by_link, np.flatnonzero(np.diff(links[by_link])) + 1):
        capacity = int(topology.capacity[links[group[0]]])
        if len(group) > capacity:
            model.add(sum(used[arc[i]] for i in group) <= capacity)
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    # The solver would take Ctrl-C for itself and return without an answer, as if out of time.
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        try:
            status = pool.submit(solver.solve, model).result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, status == cp_model.INFEASIBLE
    following = {
        int(a): int(b) for a, b, var in zip(tail, head, used, strict=True) if solver.value(var)
    }
    order = [0]
    while len(order) < topology.num_servers:
        order.append(following[order[-1]])
    return order, True
