"""Whether the ranks of a new group run plans: rank 0 decides, and all do the same."""

import dataclasses
import json
import logging
import socket
from importlib import metadata
from typing import Any

from gradweave.errors import GradweaveError
from gradweave.execute.running.hosts import elsewhere
from gradweave.torch.planner import Planner
from gradweave.torch.settings import Settings

_log = logging.getLogger("gradweave")


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What a group's ranks agreed on."""

    plans: bool
    """Whether there are to be plans."""
    planner: Planner | None = None
    """In rank 0's process, who makes them."""


def agreement(options: Any, settings: Settings | None = None) -> Agreement:
    """Has rank 0 of a new group decide whether it runs plans; collective.

    The environment of rank 0 counts. Where plans are wanted, all tell their host and version of
    Gradweave. Whatever is wrong is said by rank 0 in one line, and the group runs without plans.

    Args:
        options: PyTorch's `DistributedBackendOptions`.
        settings: of rank 0; of its environment if not given.
    """
    store, rank, size = options.store, options.group_rank, options.group_size
    if size == 1:
        return Agreement(False)
    if rank:
        if store.get("gradweave wanted") == b"no":
            return Agreement(False)
        store.set(f"gradweave {rank}", json.dumps(_about()))
        return Agreement(store.get("gradweave agreed") == b"yes")
    settings = settings or Settings.of()
    planner = _planner(settings, options) if settings.wanted else None
    store.set("gradweave wanted", "no" if planner is None else "yes")
    if planner is None:
        return Agreement(False)
    told = [_about(), *(json.loads(store.get(f"gradweave {other}")) for other in range(1, size))]
    problem = _problem(told, planner)
    if problem:
        _log.warning("no plans, the collectives are gloo's own: %s", problem)
    store.set("gradweave agreed", "no" if problem else "yes")
    return Agreement(not problem, None if problem else planner)


def _about() -> dict[str, str]:
    return {"host": socket.gethostname(), "version": metadata.version("gradweave")}


def _planner(settings: Settings, options: Any) -> Planner | None:
    """Who makes the plans of a group; None where there can be none."""
    ranks = list(options.global_ranks_in_group)
    if ranks and ranks != list(range(options.group_size)):
        return None  # servers are the default group's ranks
    try:
        return Planner(settings, options.group_size)
    except GradweaveError as error:
        if not ranks:  # smaller groups are other groups than the network's
            _log.warning("no plans, the collectives are gloo's own: %s", error)
        return None


def _problem(told: list[dict[str, str]], planner: Planner) -> str | None:
    """What keeps the ranks from running plans."""
    for rank, about in enumerate(told):
        if about["version"] != told[0]["version"]:
            return (
                f"rank {rank} has Gradweave {about['version']}, rank 0 {told[0]['version']}; "
                "install the same everywhere"
            )
    topology = planner.topology
    if not topology.labels:
        return None
    names = [topology.label(server) for server in topology.servers.tolist()]
    return elsewhere(names, [about["host"] for about in told])
