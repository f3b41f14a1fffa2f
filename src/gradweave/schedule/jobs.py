"""Jobs that share a network: collectives of groups of servers, and those of a parallel mesh."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from gradweave.errors import OptionError
from gradweave.schedule.demand import Demand, Sizes, collective
from gradweave.topology.topology import Topology

JobOfAxis = tuple[str, Sizes]
"""Collective and bytes of each group along an axis."""


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One collective of some servers."""

    collective: str
    """One of `gradweave.schedule.demand.NAMES`."""
    bytes: Sizes
    """Of the message, as `gradweave.schedule.collective` takes them."""
    servers: ArrayLike | None = None
    """Node ids of the group, in the order of its ranks; all servers if not given."""
    root: int | None = None
    """Node id of the root, where the collective has one."""
    name: str = ""
    """What it is called; like its collective, if not given."""
    relays: ArrayLike = ()
    """Node ids of other servers that may pass on what moves."""
    ready_at: float = 0.0
    """Seconds before which nothing of it is sent."""
    weight: float = 1.0
    """What a second until it has ended counts, for the objective ``weighted``."""

    def demand(self, topology: Topology) -> Demand:
        """The blocks that it comes to on a network.

        Raises:
            OptionError: a collective, servers, a root or sizes that make no sense.
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


def demand_of(topology: Topology, jobs: Sequence[Job]) -> Demand:
    """All jobs as one demand.

    Args:
        topology: the network.
        jobs: at least one; their servers may overlap.

    Raises:
        OptionError: naming the first job that makes no sense.
    """
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
    topology: Topology, axes: Mapping[str, int], does: Mapping[str, JobOfAxis]
) -> list[Job]:
    """The jobs of a parallel mesh: along each axis, every group has its collective.

    Servers in the order of their ids are the mesh, row by row: those along the last axis follow
    each other.

    Args:
        topology: the network.
        axes: size of each axis, such as ``{"dp": 4, "tp": 8}``; as many places as servers.
        does: by axis its groups' collective and bytes, such as ``{"tp": ("all_reduce", 10**8)}``.

    Raises:
        OptionError: a mesh of another size, or an axis that it has not.

    >>> import gradweave as gw
    >>> boxes = gw.topology.from_spec("a100:boxes=2")
    >>> jobs = mesh_jobs(boxes, {"dp": 2, "tp": 8}, {"dp": ("all_reduce", 10**9)})
    >>> len(jobs), list(jobs[0].servers)
    (8, [0, 8])
    """
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
