"""Decides whether the ranks of a new group run plans: rank 0 decides for all of them."""

import contextlib
import dataclasses
import json
import logging
import socket
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import torch.distributed as dist

from gradweave.errors import GradweaveError, OptionError, RunError
from gradweave.printable import in_one_line
from gradweave.processes.peers import Count, Text, peer_value
from gradweave.torch.measuring import kept_network, measured, measured_file
from gradweave.torch.planner import Planner
from gradweave.torch.plans import Sources
from gradweave.torch.settings import Settings, mistyped

_log = logging.getLogger("gradweave")


@dataclasses.dataclass(frozen=True)
class Agreement:
    """The outcome of the agreement among a group's ranks."""

    plans: bool
    """Whether the group runs plans."""
    planner: Planner | None = None
    """Finds the plans; only in the process of rank 0."""
    follows: bool = False
    """Whether the plans follow changes of the network."""


@dataclasses.dataclass(frozen=True)
class _Agreed:
    """Rank 0's message to the other ranks; see `DefaultGroup`."""

    plans: bool
    order: list[Count] | None
    network: str | None
    follows: bool


@dataclasses.dataclass
class DefaultGroup:
    """Settings of all groups in this process, as agreed for the default group."""

    size: int
    """Number of ranks in the default group."""
    plans: bool = True
    """Whether groups may have plans."""
    order: list[int] | None = None
    """The network's servers by rank; if None, ranks follow the order of server ids."""
    network: str | None = None
    """The measured network, in the format of its file."""


_default: DefaultGroup | None = None
"""Set by the default group, unless it belongs to another backend."""


def agreement(options: Any, settings: Settings | None = None) -> Agreement:
    """Lets rank 0 of a new group decide whether the group runs plans; collective.

    Only the environment of rank 0 counts. If plans are wanted, every rank reports its host and its
    version of Gradweave. Rank 0 logs any problem in one line, and the group then runs without
    plans.

    Args:
        options: PyTorch's `DistributedBackendOptions`.
        settings: for rank 0; read from its environment if not given.
    """
    global _default
    store, rank, size = options.store, options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    if rank == 0 and not ranks:
        for line in mistyped():
            _log.warning("%s", line)
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
    told = [store.get(f"gradweave {other}") for other in range(1, size)]
    hosts, problem = _hosts(told)
    plans = output = kept = None
    if sources.settings.measures and not problem:
        output = measured_file(sources.settings.cache, hosts)
        kept = None if ranks else kept_network(output)
    measures = not (ranks or output is None or kept is not None)
    store.set("gradweave measures", "yes" if measures else "no")
    try:
        if problem:
            raise OptionError(problem)
        if output is not None and not ranks:
            default.network = kept or measured(store, 0, size, output)
            sources = sources.with_network(default.network)
        if not ranks:
            default.order = sources.order(hosts)
        plans = sources.of_group(default.size, _part(ranks, default), default.order)
    except Exception as error:  # of any kind: the other ranks wait for the agreement
        _say(error)
        default.plans = bool(ranks)
    follows = plans is not None and plans.network is not None and plans.settings.replan
    if sources.settings.replan and not follows and not ranks:
        _log.warning("GRADWEAVE_REPLAN: plans do not follow the network without GRADWEAVE_TOPOLOGY")
    agreed = _Agreed(plans is not None, default.order, default.network, follows)
    store.set("gradweave agreed", json.dumps(dataclasses.asdict(agreed)))
    return Agreement(plans is not None, None if plans is None else Planner(plans), follows)


def _followed(store: Any, rank: int, size: int, default: DefaultGroup | None) -> Agreement:
    """The part of every rank except rank 0; `default` is given for the default group."""
    if store.get("gradweave wanted") == b"no":
        return Agreement(False)
    store.set(f"gradweave {rank}", json.dumps(dataclasses.asdict(_about())))
    if store.get("gradweave measures") == b"yes":
        with contextlib.suppress(OptionError):  # rank 0's child reports it in more detail
            measured(store, rank, size)
    told: _Agreed = peer_value(store.get("gradweave agreed"), _Agreed, "the agreement of rank 0")
    if default is not None:
        default.plans, default.order, default.network = told.plans, told.order, told.network
    return Agreement(told.plans, follows=told.follows)


@dataclasses.dataclass(frozen=True)
class _About:
    """A rank's message to rank 0."""

    host: Text
    version: Text


def _about() -> _About:
    return _About(socket.gethostname(), metadata.version("gradweave"))


def _hosts(told: Sequence[bytes]) -> tuple[list[str], str | None]:
    """The hosts of all ranks, from their messages, and the problem with those messages, if any."""
    try:
        abouts = [
            _about(),
            *(peer_value(each, _About, "a rank's version") for each in told),
        ]
    except RunError as error:
        return [], str(error)
    return [about.host for about in abouts], _other_version([about.version for about in abouts])


def _say(error: Exception) -> None:
    """Logs in one line why there are no plans."""
    named = error if isinstance(error, GradweaveError) else f"{type(error).__name__}: {error}"
    _log.warning("%s", in_one_line(f"no plans, the collectives are gloo's own: {named}"))


def _sources(settings: Settings, default: DefaultGroup, ranks: list[int]) -> Sources | None:
    """The sources of a group's plans, or None if the group cannot have plans."""
    if not settings.wanted or not default.plans:
        return None
    if _part(ranks, default) and settings.topology is None:
        return None  # plans from files are for the whole job
    if ranks and settings.measures and default.network is None:
        return None
    try:
        read = Sources.read(settings)
        return read.with_network(default.network) if ranks and default.network else read
    except Exception as error:  # of any kind: the other ranks wait for this rank's message
        _say(error)
        default.plans = bool(ranks)
    return None


def _part(ranks: list[int], default: DefaultGroup) -> list[int]:
    """The ranks of a group, or no ranks if the group is the whole job in order."""
    return [] if ranks == list(range(default.size)) else ranks


def _other_version(versions: list[str]) -> str | None:
    """A line for the first rank whose version of Gradweave differs from rank 0's, if any."""
    for rank, version in enumerate(versions):
        if version != versions[0]:
            return (
                f"rank {rank} has Gradweave {version}, rank 0 {versions[0]}; install the same "
                "everywhere"
            )
    return None
