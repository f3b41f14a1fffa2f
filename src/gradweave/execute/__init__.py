"""Schedules on real processes: what each server does, and backends that do it.

The backends `jax_mesh`, `mpi` and `torch_distributed` are imported on first use, and need JAX,
mpi4py or PyTorch: the extras ``jax``, ``mpi`` and ``torch``, or ``run`` for all three.
"""

from typing import TYPE_CHECKING

from gradweave.execute.program import Action, Program, same_bits
from gradweave.execute.reduction import REDUCTIONS, Reduction
from gradweave.execute.reference import play
from gradweave.lazy import lazily

if TYPE_CHECKING:
    from gradweave.execute import jax_mesh, mpi, torch_distributed

BACKENDS = ("jax_mesh", "mpi", "torch_distributed")

__all__ = [
    "BACKENDS",
    "REDUCTIONS",
    "Action",
    "Program",
    "Reduction",
    "jax_mesh",
    "mpi",
    "play",
    "same_bits",
    "torch_distributed",
]

__getattr__, __dir__ = lazily(__name__)
