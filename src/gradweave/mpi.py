"""MPI: schedules on communicators of mpi4py. Needs the extra ``mpi``."""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily

if TYPE_CHECKING:
    from gradweave.execute.mpi import Collective, all_reduce, exchange

__all__ = ["Collective", "all_reduce", "exchange"]

__getattr__, __dir__ = lazily(__name__)
