"""Shortest-path trees whose ties are broken evenly, so that the busiest link carries least."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from gradweave.common import cp_sat
from gradweave.schedulers.exact.trees import Choice
from gradweave.schedules.flow_tree import FlowTrees
from gradweave.topology.topology import Topology

Route = tuple[int, ...]
Choices = Mapping[tuple[int, int], Sequence[Route]]
"""By piece and child: the parts of shortest paths to the root that end at the next server."""
PATIENCE = 60.0
"""Deterministic seconds of CP-SAT; the networks of Table 2 need less than one."""


def choices_of(network: Topology) -> Choices:
    """All shortest-path trees, as the routes from which each server may choose in each tree."""
    servers = network.servers
    allowed = Choice.of(network, servers, "shortest").allowed

    def routes(away: Mapping[int, list[int]], node: int) -> Iterator[Route]:
        for nearer in away.get(node, ()):
            if network.is_server[nearer]:
                yield node, nearer
            else:
                yield from ((node, *rest) for rest in routes(away, nearer))

    found = {}
    for piece, root in enumerate(servers.tolist()):
        nearer: dict[int, list[int]] = {}
        for link in np.flatnonzero(allowed[piece]):
            nearer.setdefault(int(network.target[link]), []).append(int(network.source[link]))
        for child in servers.tolist():
            if child != root:
                found[piece, child] = sorted(routes(nearer, child))
    return found


def trees_of(network: Topology, chosen: Mapping[tuple[int, int], Route]) -> FlowTrees:
    """The trees of a choice.

    Args:
        network: the network.
        chosen: by piece and child, the route to the child's parent.
    """
    keys = sorted(chosen)
    routes = [chosen[key] for key in keys]
    return FlowTrees(
        topology=network,
        root=network.servers,
        piece=np.array([piece for piece, _ in keys], np.int32),
        child=np.array([child for _, child in keys], np.int32),
        parent=np.array([route[-1] for route in routes], np.int32),
        route_nodes=np.concatenate(routes).astype(np.int32),
        route_offsets=np.cumsum([0, *map(len, routes)]),
    )


def even_trees(network: Topology) -> FlowTrees:
    """The trees whose busiest link carries least, by CP-SAT; proved on all but large networks.

    The paper's trees are shortest paths, and it does not say how it breaks ties between them. These
    trees are one end of what is possible; `FlowTrees.shortest_path`, by lowest ids, is another.

    >>> import gradweave as gw
    >>> from gradweave.environment.even_trees import even_trees
    >>> network = gw.topology.bcube(n=3, k=1)
    >>> pinned = gw.schedules.FlowTrees.shortest_path(network)
    >>> [gw.bounds.fixed_trees(trees).rounds for trees in (pinned, even_trees(network))]
    [6, 4]
    """
    from ortools.sat.python import cp_model

    choices = choices_of(network)
    model = cp_model.CpModel()
    most, loads = model.new_int_var(0, len(choices), "most"), {}
    takes = {key: [model.new_bool_var("") for _ in each] for key, each in choices.items()}
    for key, each in choices.items():
        model.add_exactly_one(takes[key])
        for route, taken in zip(each, takes[key], strict=True):
            for link in pairwise(route):
                loads.setdefault(link, []).append(taken)
    links = zip(network.source.tolist(), network.target.tolist(), strict=True)
    capacity = dict(zip(links, network.capacity.tolist(), strict=True))
    for link, carried in loads.items():
        model.add(sum(carried) <= most * capacity[link])
    model.minimize(most)
    solver = cp_model.CpSolver()
    # One worker, a seed and no clock: the same trees on every machine.
    solver.parameters.num_workers, solver.parameters.random_seed = 1, 0
    solver.parameters.max_deterministic_time = PATIENCE
    assert cp_sat.solve(solver, model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    picked = {key: [solver.value(taken) for taken in each] for key, each in takes.items()}
    return trees_of(network, {key: choices[key][picked[key].index(1)] for key in choices})
