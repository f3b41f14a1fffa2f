"""Schedules made of steps with a barrier after each; first fit puts a step's flows into rounds."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import NoScheduleError
from gradweave.schedulers.ordering.list_scheduling_in_rounds import first_fit
from gradweave.schedulers.problem import number_within
from gradweave.schedules.schedule import Collective, Schedule, take_rows
from gradweave.topology.routes import routes_between
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """Flows that only wait for the step before."""

    source: NDArray[np.int32]
    """[F] node that sends."""
    target: NDArray[np.int32]
    """[F] node that receives."""
    piece: NDArray[np.int64]
    """[F] piece of each flow."""
    op: int
    """The operation of all flows."""
    together: int = 1
    """K: flows f, f + F/K, f + 2·F/K and so on must be in the same round, because servers that
    reduce into each other all send the sums they held before."""

    @staticmethod
    def of(source: NDArray, target: NDArray, pieces: NDArray, op: int) -> "Step":
        """Each source sends several pieces to its target: all first pieces, then all second pieces.

        Args:
            source: [S] nodes.
            target: [S] nodes.
            pieces: [S, K] pieces of each source; −1 if it has fewer than K.
            op: the operation of the flows.
        """
        columns = pieces.shape[1]
        piece, kept = pieces.T.ravel(), pieces.T.ravel() >= 0
        return Step(np.tile(source, columns)[kept], np.tile(target, columns)[kept], piece[kept], op)


def schedule_steps(
    topology: Topology,
    collective: Collective,
    root: NDArray,
    steps: Sequence[Step],
    rng: np.random.Generator,
) -> Schedule:
    """The schedule of some steps.

    Flows take the shortest route with only switches inside, or else the shortest through servers.
    Within a step, pieces go in the order given; the order in which senders choose is random.

    Args:
        topology: the network.
        collective: the collective that the steps perform.
        root: [P] root of each piece.
        steps: the steps; at least one has a flow.
        rng: randomises the senders' order.
    """
    steps = [step for step in steps if len(step.piece)]
    source = np.concatenate([step.source for step in steps])
    target = np.concatenate([step.target for step in steps])
    ends, route = np.unique(
        source.astype(np.int64) * topology.num_nodes + target, return_inverse=True
    )
    nodes, offsets = routes_between(topology, *np.divmod(ends, topology.num_nodes))
    links = topology.links_along(nodes, offsets)
    first_link = offsets - np.arange(len(offsets))
    rounds, begin, low = [], 0, 0
    for step in steps:
        high = low + len(step.piece)
        taken = _first_fit(topology, step, *take_rows(links, first_link, route[low:high]), rng)
        rounds.append(begin + taken)
        begin, low = begin + int(taken.max()) + 1, high
    route_nodes, route_offsets = take_rows(nodes, offsets, route)
    return Schedule(
        topology=topology,
        collective=collective,
        root=root,
        round=np.concatenate(rounds),
        piece=np.concatenate([step.piece for step in steps]),
        source=source,
        target=target,
        op=np.concatenate([np.full(len(step.piece), step.op, np.int8) for step in steps]),
        route_nodes=route_nodes,
        route_offsets=route_offsets,
    )


def _first_fit(
    topology: Topology, step: Step, links: NDArray, first: NDArray, rng: np.random.Generator
) -> NDArray[np.int64]:
    """[F] round of each flow of a step, from 0."""
    count, together = len(step.piece), step.together
    if together > 1:
        # All flows of an exchange choose together, with all of their links.
        parts = np.arange(count).reshape(together, -1).T
        links, offsets = take_rows(links, first, parts.ravel())
        offsets = offsets[::together]
        _check_fits(topology, links, offsets)
        taken = first_fit(links, offsets, topology.capacity, rng.permutation(count // together))
        return np.tile(taken, together).astype(np.int64)
    tie = rng.permutation(topology.num_nodes)[step.source]
    order = np.lexsort((tie, number_within(step.source)))
    return first_fit(links, first, topology.capacity, order).astype(np.int64)


def _check_fits(topology: Topology, links: NDArray, offsets: NDArray) -> None:
    """Refuses exchanges that do not fit into one round even by themselves."""
    exchange = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    key, load = np.unique(exchange * len(topology.source) + links, return_counts=True)
    if (load > topology.capacity[key % len(topology.source)]).any():
        raise NoScheduleError(
            f"{topology.name!r} does not have enough links for servers to exchange with several "
            "others in one round; give fewer partners"
        )
