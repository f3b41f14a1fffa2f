"""Reads the environment variables with which launchers start processes.

Supported launchers are mpirun (Open MPI; MPICH and similar through PMI; PMIx), torchrun and Slurm,
and JAX's three variables.
"""

import os
from collections.abc import Sequence
from typing import Any

from gradweave.errors import OptionError

_RANK = {
    "mpi": ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"),
    "torch": ("RANK",),
}
_SIZE = {
    "mpi": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"),
    "torch": ("WORLD_SIZE",),
}
"""A process without any of these was not started by the backend's launcher."""
JAX_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
"""JAX's variable for each argument of `jax.distributed.initialize`."""
_SEEN_BY_JAX = ("OMPI_MCA_orte_hnp_uri", "SLURM_JOB_ID")
"""Variables of older Open MPI and of Slurm. JAX detects other MPI launchers only through mpi4py."""


def rank_given(backend: str) -> int | None:
    """The rank that a launcher gave this process, or None if no launcher started it.

    Args:
        backend: ``mpi`` for mpirun, ``torch`` for torchrun; other backends have no launcher.

    >>> rank_given("jax") is None
    True
    """
    ranks = [os.environ[name] for name in _RANK.get(backend, ()) if name in os.environ]
    sized = any(name in os.environ for name in _SIZE.get(backend, ()))
    return int(ranks[0]) if ranks and sized and ranks[0].isdecimal() else None


def size_given(backend: str) -> int | None:
    """The number of processes that a launcher started, or None if it is not known.

    Args:
        backend: see `rank_given`.
    """
    names = [name for name in _SIZE.get(backend, ()) if name.endswith("SIZE")]
    sizes = [os.environ[name] for name in names if name in os.environ]
    return int(sizes[0]) if sizes and sizes[0].isdecimal() else None


def launcher() -> str | None:
    """The backend whose launcher started this process, or None if there is no launcher.

    For torchrun inside an MPI job, the answer is torchrun's backend.
    """
    return next((one for one in ("torch", "mpi") if rank_given(one) is not None), None)


def rank_of_any() -> int | None:
    """The rank that any launcher gave this process."""
    ranks = (rank_given(backend) for backend in _RANK)
    return next((rank for rank in ranks if rank is not None), None)


def numbered(hosts: Sequence[str]) -> list[str]:
    """A name for each process: its host, numbered if a host has several processes.

    >>> numbered(["a", "b", "a"])
    ['a:0', 'b', 'a:1']
    """
    counts = {host: hosts.count(host) for host in hosts}
    seen: dict[str, int] = {}
    names = []
    for host in hosts:
        number = seen[host] = seen.get(host, -1) + 1
        names.append(host if counts[host] == 1 else f"{host}:{number}")
    return names


def jax_arguments() -> dict[str, Any]:
    """JAX's variables as arguments of `jax.distributed.initialize`.

    Raises:
        OptionError: a variable has an invalid value.
    """
    arguments: dict[str, Any] = {}
    for name, variable in JAX_VARIABLES.items():
        if variable not in os.environ:
            continue
        value = os.environ[variable]
        if name == "coordinator_address":
            if not value.rpartition(":")[2].isdecimal():
                raise OptionError(f"{variable}: expected HOST:PORT, got {value!r}")
            arguments[name] = value
        elif not value.isdecimal():
            raise OptionError(f"{variable}: expected a number, got {value!r}")
        else:
            arguments[name] = int(value)
    return arguments


def only_through_mpi4py() -> bool:
    """Whether JAX detects the launcher of this process only through mpi4py."""
    seen = any(name in os.environ for name in _SEEN_BY_JAX)
    return rank_given("mpi") is not None and not seen
