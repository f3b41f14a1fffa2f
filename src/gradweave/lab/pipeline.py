"""Trains placements on an emulated network, with one process per server."""

import contextlib
import warnings
from collections.abc import Callable, Iterator

from gradweave.errors import InputWarning
from gradweave.execute.running.server_processes import ServerProcesses
from gradweave.lab.commands import server_commands
from gradweave.lab.emulation import Emulation, measured_network
from gradweave.lab.forwarding import first_routes
from gradweave.placement.training.running import COMMAND, Groups, Trainers
from gradweave.processes.ending import termination
from gradweave.topology.topology import Topology

_ATTEMPTS = 4
"""Attempts to find that the links match the request: a briefly busy machine delays messages of one
byte by more than a training step would notice."""


@contextlib.contextmanager
def training_lab(
    topology: Topology, progress: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[Trainers, Emulation]]:
    """An emulated network whose processes train, and the measurement of its links.

    Messages of a group's schedule take its routes; if it has several between two servers, they take
    the first. All other messages take shortest paths.

    Args:
        topology: the network, with the bandwidths and latencies to emulate.
        progress: called with the current step.

    Raises:
        OptionError: the caller is not root, the kernel lacks a feature, or the emulation is far
            from the request.
    """
    emulated = measured_network(topology, progress, attempts=_ATTEMPTS)
    with termination(), emulated as (network, emulation, folder):

        @contextlib.contextmanager
        def routed(groups: Groups) -> Iterator[None]:
            paths, others = first_routes(
                topology, [(group.schedule, group.nodes) for group in groups if group is not None]
            )
            if others:
                warnings.warn(
                    f"{others} transfers of the groups' schedules use a second route between two "
                    "servers, but take the first here: the prediction is less accurate",
                    InputWarning,
                    stacklevel=2,
                )
            network.route(paths)
            network.forward(None)  # groups connect in pairs that exchange nothing later
            yield
            network.forward(paths.forwarders)

        starts = server_commands(network, COMMAND)
        with ServerProcesses(topology, starts, folder / "log", network.check) as processes:
            trainers = Trainers(topology, processes, folder, routed, check=processes.check_alive)
            yield trainers, emulation
