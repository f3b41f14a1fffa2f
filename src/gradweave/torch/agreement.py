"""Whether the ranks of a new group run plans: rank 0 decides, and all do the same."""

import dataclasses
import json
import logging
import socket
from importlib import metadata
from typing import Any

import torch.distributed as dist

from gradweave.errors import GradweaveError, OptionError
from gradweave.execute.running.hosts import order_by_hosts, server_names
from gradweave.torch.planner import Planner
from gradweave.torch.plans import Plans
from gradweave.torch.settings import Settings

_log = logging.getLogger("gradweave")


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What a group's ranks agreed on."""

    plans: bool
    """Whether there are to be plans."""
    planner: Planner | None = None
    """In rank 0's process, who finds them."""


@dataclasses.dataclass
class Job:
    """What holds for all groups of this process, by what the default one agreed on."""

    size: int
    """Of the default group."""
    plans: bool = True
    """Whether there may be any."""
    order: list[int] | None = None
    """The network's servers by rank, where it is not that of their ids."""


_job: Job | None = None
"""None while the default group is another backend's."""


def agreement(options: Any, settings: Settings | None = None) -> Agreement:
    """Has rank 0 of a new group decide whether it runs plans; collective.

    The environment of rank 0 counts. Where plans are wanted, all tell their host and version of
    Gradweave. Whatever is wrong is said by rank 0 in one line, and the group runs without plans.

    Args:
        options: PyTorch's `DistributedBackendOptions`.
        settings: of rank 0; of its environment if not given.
    """
    global _job
    store, rank, size = options.store, options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    if not ranks:
        _job = Job(size)
    job = _job or Job(dist.get_world_size())
    if size == 1:
        return Agreement(False)
    if rank:
        if store.get("gradweave wanted") == b"no":
            return Agreement(False)
        store.set(f"gradweave {rank}", json.dumps(_about()))
        told = json.loads(store.get("gradweave agreed"))
        if not ranks:
            job.plans, job.order = told["plans"], told["order"]
        return Agreement(told["plans"])
    plans = _plans(settings or Settings.of(), job, ranks)
    store.set("gradweave wanted", "no" if plans is None else "yes")
    if plans is None:
        return Agreement(False)
    abouts = [_about(), *(json.loads(store.get(f"gradweave {other}")) for other in range(1, size))]
    try:
        _check_versions([about["version"] for about in abouts])
        if not ranks and (order := _order(plans, [about["host"] for about in abouts])) is not None:
            plans, job.order = Plans.of_group(plans.settings, size, order=order), order
    except GradweaveError as error:
        _log.warning("no plans, the collectives are gloo's own: %s", error)
        plans, job.plans = None, job.plans and bool(ranks)
    agreed = {"plans": plans is not None, "order": job.order}
    store.set("gradweave agreed", json.dumps(agreed))
    return Agreement(plans is not None, None if plans is None else Planner(plans))


def _about() -> dict[str, str]:
    return {"host": socket.gethostname(), "version": metadata.version("gradweave")}


def _plans(settings: Settings, job: Job, ranks: list[int]) -> Plans | None:
    """Those of a group, the default one if it has no ranks; None where there can be none."""
    if not settings.wanted or not job.plans or ranks != sorted(ranks):
        return None
    part = [] if ranks == list(range(job.size)) else ranks
    try:
        found = Plans.of_group(settings, job.size, part, job.order)
    except GradweaveError as error:
        if not ranks or _job is None:  # else the default group has said it
            _log.warning("no plans, the collectives are gloo's own: %s", error)
        if not ranks:
            job.plans = False
        return None
    return found if found.networks else None


def _check_versions(versions: list[str]) -> None:
    for rank, version in enumerate(versions):
        if version != versions[0]:
            raise OptionError(
                f"rank {rank} has Gradweave {version}, rank 0 {versions[0]}; install the same "
                "everywhere"
            )


def _order(plans: Plans, hosts: list[str]) -> list[int] | None:
    """The network's servers by the hosts of the ranks; None where that is the order of ids."""
    named = next((network for network in plans.networks if network.labels), None)
    return None if named is None else order_by_hosts(server_names(named), hosts)
