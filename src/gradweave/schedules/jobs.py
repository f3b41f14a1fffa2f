"""Jobs that share a network: collectives of groups of servers, or of a parallel mesh."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from gradweave.errors import OptionError
from gradweave.schedules.demand import Demand, Sizes, collective
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology

JobOfAxis = tuple[str, Sizes]
"""Collective and bytes for each group along an axis."""


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """A collective among some servers."""

    collective: str
    """One of `gradweave.schedules.demand.NAMES`."""
    bytes: Sizes
    """Size of the message, in the form of `gradweave.schedules.collective`."""
    servers: ArrayLike | None = None
    """Node ids of the group, in the order of its ranks; all servers if not given."""
    root: int | None = None
    """Node id of the root, if the collective has one."""
    name: str = ""
    """Name of the job; the collective's name, if not given."""
    relays: ArrayLike = ()
    """Node ids of other servers that may relay its data."""
    ready_at: float = 0.0
    """Seconds before which none of its data is sent."""
    weight: float = 1.0
    """Weight of its end time, for the objective ``weighted``."""

    def demand(self, topology: Topology) -> Demand:
        """The blocks of the job on a network.

        Raises:
            OptionError: an invalid collective, servers, root or sizes.
        """
        group = topology.servers if self.servers is None else self.servers
        made = collective(self.collective, group, self.bytes, root=self.root, relays=self.relays)
        made.check_servers(topology)
        return dataclasses.replace(
            made,
            jobs=(self.name or self.collective,),
            ready_at_s=np.array([_number("ready_at", self.ready_at)]),
            weight=np.array([_number("weight", self.weight)]),
        )


def _number(field: str, value: object) -> float:
    if isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value)
    raise OptionError(f"{field}: expected a number, got {value!r:.40}")


def demand_of(topology: TopologyLike, jobs: Sequence[Job]) -> Demand:
    """All jobs as one demand.

    Args:
        topology: the network.
        jobs: at least one; their servers may overlap.

    Raises:
        OptionError: names the first invalid job.
    """
    topology = as_topology(topology)
    made = []
    for number, job in enumerate(jobs):
        try:
            made.append(job.demand(topology))
        except OptionError as error:
            if len(jobs) == 1:
                raise
            raise OptionError(f"job {number}: {error}") from error
    return Demand.together(made)


def mesh_jobs(
    topology: TopologyLike, axes: Mapping[str, int], does: Mapping[str, JobOfAxis]
) -> list[Job]:
    """The jobs of a parallel mesh: along each axis, every group runs the axis's collective.

    The mesh contains the servers in the order of their ids, row by row, so servers along the last
    axis are consecutive.

    Args:
        topology: the network.
        axes: size of each axis, such as ``{"dp": 4, "tp": 8}``; the product is the number of
            servers.
        does: by axis, collective and bytes of its groups, such as
            ``{"tp": ("all_reduce", 10**8)}``.

    Raises:
        OptionError: the mesh has another size, or lacks an axis.

    >>> import gradweave as gw
    >>> boxes = gw.topology.from_spec("a100:boxes=2")
    >>> jobs = mesh_jobs(boxes, {"dp": 2, "tp": 8}, {"dp": ("all_reduce", 10**9)})
    >>> len(jobs), list(jobs[0].servers)
    (8, [0, 8])
    """
    topology = as_topology(topology)
    places = math.prod(axes.values())
    if places != topology.num_servers:
        raise OptionError(
            f"mesh: expected {topology.num_servers} places, one for each server, got "
            f"{' × '.join(map(str, axes.values()))} = {places}"
        )
    servers = topology.servers.reshape(tuple(axes.values()))
    jobs = []
    for axis, (name, size) in does.items():
        if axis not in axes:
            raise OptionError(f"mesh: expected axes {', '.join(axes)}, got {axis!r:.40}")
        if axes[axis] > 1:
            groups = np.moveaxis(servers, list(axes).index(axis), -1).reshape(-1, axes[axis])
            jobs += [Job(name, size, group.tolist(), name=f"{axis} {name}") for group in groups]
    return jobs
