"""A job on the network of its servers: as a collective there, and its schedule elsewhere."""

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.demand import Demand, Sets
from gradweave.schedules.schedule import DEMAND, Collective, Schedule
from gradweave.topology.subnetwork import subnetwork
from gradweave.topology.topology import Topology


def collective_of(demand: Demand) -> tuple[Collective, NDArray[np.int64]] | None:
    """The collective that a demand is among its servers, and the block of each server's part.

    None if it is no all-reduce, all-gather or reduce-scatter in equal parts.
    """
    count = len(demand.servers)
    given, wanted = demand.contributors, demand.destinations
    if len(demand.jobs) > 1 or np.ptp(demand.bytes) > 1:  # division may leave a byte over
        return None
    if len(demand) == 1 and given.sizes[0] == wanted.sizes[0] == count:
        return "all_reduce", np.zeros(count, np.int64)
    if _parts_for_all(given, wanted, demand.servers):
        return "all_gather", np.argsort(given.servers)
    if _parts_for_all(wanted, given, demand.servers):
        return "reduce_scatter", np.argsort(wanted.servers)
    return None


def _parts_for_all(one: Sets, every: Sets, servers: NDArray[np.int64]) -> bool:
    """Whether the sets of `one` are single servers, and each set of `every` is all of them."""
    alike = (one.sizes == 1).all() and (every.sizes == len(servers)).all()
    return bool(alike) and np.array_equal(np.sort(one.servers), servers)


def lifted(
    schedule: Schedule,
    topology: Topology,
    nodes: NDArray[np.integer],
    demand: Demand,
    of_root: NDArray[np.int64],
) -> Schedule:
    """Translates a schedule on a group's network to the whole network, for a demand.

    Args:
        schedule: among all servers of the group's network.
        topology: the whole network.
        nodes: for each node of the group's network, its id in the whole network.
        demand: the group's demand.
        of_root: [N] block of each of the group's ranks.
    """
    block = of_root[schedule.topology.rank[schedule.root]]
    order = np.argsort(block, kind="stable")
    name = np.argsort(order)
    return Schedule(
        topology=topology,
        collective=DEMAND,
        root=nodes[schedule.root[order]],
        round=schedule.round,
        piece=name[schedule.piece],
        source=nodes[schedule.source],
        target=nodes[schedule.target],
        op=schedule.op,
        route_nodes=nodes[schedule.route_nodes],
        route_offsets=schedule.route_offsets,
        shares=schedule.weights[order],
        demand=demand,
        block=block[order],
    )


def alone_on_group(topology: Topology, alone: Demand) -> tuple[bytes, NDArray[np.int32]]:
    """A key that is equal for jobs that differ only in their nodes, and the job's nodes."""
    net, nodes = subnetwork(topology, alone.servers)
    place = np.full(topology.num_nodes, -1)
    place[nodes] = np.arange(len(nodes))
    links = (net.is_server, net.source, net.target, net.bandwidth_bytes_per_s, net.capacity)
    sets = (alone.contributors, alone.destinations)
    asked = [part for one in sets for part in (place[one.servers], one.offsets)]
    columns = (*links, net.latency_s, net.overhead_s, alone.bytes, *asked, alone.relays)
    return repr([(one.shape, one.tobytes()) for one in columns]).encode(), nodes


def moved(
    schedule: Schedule, nodes: NDArray[np.int32], others: NDArray[np.int32], demand: Demand
) -> Schedule | None:
    """A job's schedule moved to the nodes of an equal job, or None if it passes others.

    Args:
        schedule: the first job's schedule.
        nodes: the first job's nodes.
        others: the second job's nodes, in the same order.
        demand: the second job.
    """
    to = np.full(schedule.topology.num_nodes, -1)
    to[nodes] = others
    if (to[schedule.route_nodes] < 0).any():
        return None
    return schedule.replace(
        root=to[schedule.root],
        source=to[schedule.source],
        target=to[schedule.target],
        route_nodes=to[schedule.route_nodes],
        demand=demand,
    )
