"""Whether the ranks of a new group run plans: rank 0 decides, and all do the same."""

import contextlib
import dataclasses
import json
import logging
import socket
from importlib import metadata
from typing import Any

import torch.distributed as dist

from gradweave.errors import GradweaveError, OptionError
from gradweave.torch.measuring import measured, measured_file
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
class DefaultGroup:
    """What holds for all groups of this process, by what the default one agreed on."""

    size: int
    """Of the default group."""
    plans: bool = True
    """Whether there may be any."""
    order: list[int] | None = None
    """The network's servers by rank, where it is not that of their ids."""
    network: str | None = None
    """What was measured, as it stands in a file."""


_default: DefaultGroup | None = None
"""None while the default group is another backend's."""


def agreement(options: Any, settings: Settings | None = None) -> Agreement:
    """Has rank 0 of a new group decide whether it runs plans; collective.

    The environment of rank 0 counts. Where plans are wanted, all tell their host and version of
    Gradweave. Whatever is wrong is said by rank 0 in one line, and the group runs without plans.

    Args:
        options: PyTorch's `DistributedBackendOptions`.
        settings: of rank 0; of its environment if not given.
    """
    global _default
    store, rank, size = options.store, options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    if not ranks:
        _default = DefaultGroup(size)
    default = _default or DefaultGroup(dist.get_world_size())
    if size == 1:
        return Agreement(False)
    if rank:
        return _followed(store, rank, size, default if not ranks else None)
    sources = _sources(settings or Settings.of(), default, ranks)
    store.set("gradweave wanted", "no" if sources is None else "yes")
    if sources is None:
        return Agreement(False)
    abouts = [_about(), *(json.loads(store.get(f"gradweave {other}")) for other in range(1, size))]
    hosts, plans = [about["host"] for about in abouts], None
    problem = _other_version([about["version"] for about in abouts])
    output = measured_file(sources.settings.cache, hosts) if sources.settings.measures else None
    measures = not (problem or ranks or output is None or output.exists())
    store.set("gradweave measures", "yes" if measures else "no")
    try:
        if problem:
            raise OptionError(problem)
        if output is not None and not ranks:
            default.network = measured(store, 0, size, output) if measures else output.read_text()
            sources = sources.with_network(default.network)
        if not ranks:
            default.order = sources.order(hosts)
        plans = sources.of_group(default.size, _part(ranks, default), default.order)
    except (GradweaveError, OSError) as error:
        _log.warning("no plans, the collectives are gloo's own: %s", error)
        default.plans = bool(ranks)
    agreed = {"plans": plans is not None, "order": default.order, "network": default.network}
    store.set("gradweave agreed", json.dumps(agreed))
    return Agreement(plans is not None, None if plans is None else Planner(plans))


def _followed(store: Any, rank: int, size: int, default: DefaultGroup | None) -> Agreement:
    """What another rank than the first does; `default` is given where this is the default group."""
    if store.get("gradweave wanted") == b"no":
        return Agreement(False)
    store.set(f"gradweave {rank}", json.dumps(_about()))
    if store.get("gradweave measures") == b"yes":
        with contextlib.suppress(OptionError):  # the first rank's child says it better
            measured(store, rank, size)
    told = json.loads(store.get("gradweave agreed"))
    if default is not None:
        default.plans, default.order, default.network = (
            told["plans"],
            told["order"],
            told["network"],
        )
    return Agreement(told["plans"])


def _about() -> dict[str, str]:
    return {"host": socket.gethostname(), "version": metadata.version("gradweave")}


def _sources(settings: Settings, default: DefaultGroup, ranks: list[int]) -> Sources | None:
    """What plans come from; None where there can be none."""
    if not settings.wanted or not default.plans:
        return None
    if _part(ranks, default) and settings.topology is None:
        return None  # plans that are given are the whole job's
    if ranks and settings.measures and default.network is None:
        return None
    try:
        read = Sources.read(settings)
        return read.with_network(default.network) if ranks and default.network else read
    except GradweaveError as error:
        _log.warning("no plans, the collectives are gloo's own: %s", error)
        default.plans = bool(ranks)
    return None


def _part(ranks: list[int], default: DefaultGroup) -> list[int]:
    """The ranks of a group, none where they are the whole job's in order."""
    return [] if ranks == list(range(default.size)) else ranks


def _other_version(versions: list[str]) -> str | None:
    """What is wrong where ranks have other versions of Gradweave than the first."""
    for rank, version in enumerate(versions):
        if version != versions[0]:
            return (
                f"rank {rank} has Gradweave {version}, rank 0 {versions[0]}; install the same "
                "everywhere"
            )
    return None
