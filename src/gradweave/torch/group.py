"""The process group that torch.distributed makes for the backend ``gradweave``."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

Group = dist.ProcessGroup
_GLOO = Group.BackendType.GLOO  # pyright: ignore[reportAttributeAccessIssue]
_NCCL = Group.BackendType.NCCL  # pyright: ignore[reportAttributeAccessIssue]


def create(options: Any) -> Group:
    """Makes a process group; collective.

    Args:
        options: PyTorch's `DistributedBackendOptions`: store, rank, size, timeout and ranks.
    """
    return own_group(options)


def own_group(options: Any) -> Group:
    """A process group whose collectives are all the backends' own: gloo's, on GPUs NCCL's.

    It is one of PyTorch's C++ groups, so that calls never come by Python.

    Args:
        options: PyTorch's `DistributedBackendOptions`.
    """
    store, rank, size = options.store, options.group_rank, options.group_size
    group = Group(store, rank, size)
    group._set_default_backend(_GLOO)
    gloo = dist.ProcessGroupGloo(store, rank, size, options.timeout)
    _named(gloo.options, options)
    group._register_backend(torch.device("cpu"), _GLOO, _checked(gloo, options))
    gloo._set_sequence_number_for_group()
    if torch.cuda.is_available() and dist.is_nccl_available():
        group._register_backend(torch.device("cuda"), _NCCL, _nccl(options))
    return group


def _nccl(options: Any) -> Any:
    """NCCL for tensors on GPUs; it connects when one is there."""
    kind: Any = getattr(dist, "ProcessGroupNCCL")  # noqa: B009  # not in every build
    given = kind.Options()
    given._timeout = options.timeout
    _named(given, options)
    store = distributed_c10d.PrefixStore("cuda", options.store)
    made = kind(store, options.group_rank, options.group_size, given)
    made._set_sequence_number_for_group()
    return _checked(made, options)


def _named(given: Any, options: Any) -> None:
    given.global_ranks_in_group = options.global_ranks_in_group
    given.group_name = options.group_id


def _checked(backend: Any, options: Any) -> Any:
    """The backend in PyTorch's wrapper that compares calls, where TORCH_DISTRIBUTED_DEBUG asks."""
    if distributed_c10d.get_debug_level() != distributed_c10d.DebugLevel.DETAIL:
        return backend
    return distributed_c10d._create_process_group_wrapper(
        wrapped_pg=backend,
        store_prefix=options.group_id,
        store=options.store,
        rank=options.group_rank,
        world_size=options.group_size,
        timeout=options.timeout,
    )
