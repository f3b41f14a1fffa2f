"""Copies of process groups, so that messages of different users never meet."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import OptionError
from gradweave.execute.torch_distributed.store import group_store, group_timeout

Group = dist.ProcessGroup


def default_group() -> Group:
    """The group of all processes.

    Raises:
        OptionError: torch.distributed has not been initialised.
    """
    group = dist.group.WORLD if dist.is_initialized() else None
    if group is None:
        raise OptionError("torch.distributed has no process group; call init_process_group first")
    return group


def member_of(group: Any) -> Any:
    """The group, or the default group if None is given.

    Raises:
        OptionError: this process is not in it, or torch.distributed has not been initialised.
    """
    if isinstance(group, int):  # dist.new_group returns a number in this case
        raise OptionError("group: this process is not in it")
    return group or default_group()


def copy_of(group: Group | None) -> Group:
    """A new group of the same processes, whose messages never meet those of the original.

    All processes of the group must call it; on gloo, no others.

    Args:
        group: the original; the default group if not given.

    Raises:
        OptionError: there is no group, or this process is not in it.
    """
    parent = member_of(group)
    ranks = dist.get_process_group_ranks(parent)
    timeout, backend = group_timeout(parent), dist.get_backend(parent)
    if backend != "gloo":
        return member_of(dist.new_group(ranks, timeout=timeout, backend=backend))
    store, rank = group_store(parent), parent.rank()
    number = store.add(f"gradweave copies of {rank}", 1)
    return gloo_group(
        store, f"gradweave copy {number} of {parent.group_name}", rank, ranks, timeout
    )


def gloo_group(
    store: distributed_c10d.Store, name: str, place: int, ranks: Sequence[int], timeout: timedelta
) -> Group:
    """A new gloo group that torch.distributed knows; only its processes call this.

    Args:
        store: the store through which the processes find each other.
        name: name of the group, used once in this process and in the store.
        place: rank of this process in the group.
        ranks: the processes' ranks in the default group. It need not have all of them: processes
            that came later have default groups of their own.
        timeout: timeout of the group.
    """
    # dist.new_group waits for all processes of the job, and names groups by the number of groups
    # that a process is in: copies of two groups, made simultaneously, would have the same name.
    ranks = list(ranks)
    if ranks[place] != dist.get_rank():  # PyTorch wants to find this process among them
        ranks = [dist.get_world_size() + rank for rank in ranks]
        ranks[place] = dist.get_rank()
    made, _ = distributed_c10d._new_process_group_helper(
        len(ranks),
        place,
        ranks,
        dist.Backend("gloo"),
        store,
        name,  # pyright: ignore[reportArgumentType]
        timeout=timeout,
    )
    members = {global_rank: place for place, global_rank in enumerate(ranks)}
    distributed_c10d._world.pg_group_ranks[made] = members
    return member_of(made)


def alone(name: str) -> Group:
    """A new gloo group of this process only.

    Args:
        name: name of the group, used once in this process.
    """
    made: Any = dist  # the stubs lack the store
    return gloo_group(
        made.HashStore(), name, 0, [dist.get_rank()], distributed_c10d.default_pg_timeout
    )
