"""Whether the ranks of a new group run plans: rank 0 decides, and all do the same."""

import dataclasses
import json
import logging
import socket
from importlib import metadata
from typing import Any

import torch.distributed as dist

from gradweave.errors import GradweaveError, OptionError
from gradweave.torch.planner import Planner
from gradweave.torch.plans import Sources
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
    sources = _sources(settings or Settings.of(), job, ranks)
    store.set("gradweave wanted", "no" if sources is None else "yes")
    if sources is None:
        return Agreement(False)
    abouts = [_about(), *(json.loads(store.get(f"gradweave {other}")) for other in range(1, size))]
    plans = None
    try:
        _check_versions([about["version"] for about in abouts])
        if not ranks:
            job.order = sources.order([about["host"] for about in abouts])
        plans = sources.of_group(job.size, _part(ranks, job), job.order)
    except GradweaveError as error:
        _log.warning("no plans, the collectives are gloo's own: %s", error)
        job.plans = bool(ranks)
    agreed = {"plans": plans is not None, "order": job.order}
    store.set("gradweave agreed", json.dumps(agreed))
    return Agreement(plans is not None, None if plans is None else Planner(plans))


def _about() -> dict[str, str]:
    return {"host": socket.gethostname(), "version": metadata.version("gradweave")}


def _sources(settings: Settings, job: Job, ranks: list[int]) -> Sources | None:
    """What plans come from; None where there can be none."""
    if not settings.wanted or not job.plans:
        return None
    if _part(ranks, job) and settings.topology is None:
        return None  # plans that are given are the whole job's
    try:
        return Sources.read(settings)
    except GradweaveError as error:
        _log.warning("no plans, the collectives are gloo's own: %s", error)
        job.plans = bool(ranks)
    return None


def _part(ranks: list[int], job: Job) -> list[int]:
    """The ranks of a group, none where they are the whole job's in order."""
    return [] if ranks == list(range(job.size)) else ranks


def _check_versions(versions: list[str]) -> None:
    for rank, version in enumerate(versions):
        if version != versions[0]:
            raise OptionError(
                f"rank {rank} has Gradweave {version}, rank 0 {versions[0]}; install the same "
                "everywhere"
            )
