"""Parameter servers: every contribution travels to its piece's server, and the sum back."""

import dataclasses
from typing import ClassVar

import numpy as np

from gradweave.common.stop import Stop
from gradweave.errors import OptionError
from gradweave.schedulers.ordering.list_scheduling_in_rounds import Rule, list_schedule
from gradweave.schedulers.scheduler import Scheduler, from_stage
from gradweave.schedules.flow_tree import FlowTrees, Workloads
from gradweave.schedules.schedule import Collective, Provenance, Schedule
from gradweave.simulator.rounds import schedule_from_rounds
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class ParameterServer(Scheduler):
    """Peer to peer: each server is the parameter server of one piece.

    Flows are not merged; each takes its whole shortest path in one round, also through other
    servers. One random order per run, first fit over the remaining flows in each round. The
    all-gather is the reversed reduce-scatter.

    Source: the paper's baseline, section 5.
    """

    name: ClassVar[str] = "parameter_server"
    forwards: ClassVar[bool] = True

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return from_stage(
            "reduce_scatter",
            lambda network: _first_fit(network, network.servers, seed),
            topology,
            collective,
        )


@dataclasses.dataclass(frozen=True)
class CentralParameterServer(Scheduler):
    """Centralised: one server holds all pieces, and its links carry everything.

    The gradient is still cut into one piece per server, so that rounds are comparable with those of
    other strategies.

    Source: Bandyopadhyay, "Modern Distributed Computing", lecture, 2025.
    """

    name: ClassVar[str] = "central_parameter_server"
    forwards: ClassVar[bool] = True

    server: int | None = None
    """Node id of the parameter server; the first server if not given."""

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        server = int(topology.servers[0]) if self.server is None else self.server
        if not 0 <= server < topology.num_nodes or not topology.is_server[server]:
            raise OptionError(
                f"central_parameter_server: server: {server} is not a server of {topology.name!r}"
            )
        root = np.full(topology.num_servers, server, np.int32)
        return from_stage(
            "reduce_scatter", lambda network: _first_fit(network, root, seed), topology, collective
        )


def _first_fit(topology: Topology, root: np.ndarray, seed: int) -> Schedule:
    workloads = Workloads.of(FlowTrees.unmerged(topology, root), "reduce_scatter")
    rounds = list_schedule(workloads, Rule.RANDOM, seed)
    assert rounds is not None
    return schedule_from_rounds(workloads, rounds, Provenance("first_fit"))
