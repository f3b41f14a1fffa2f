"""What each server does in a schedule, and a reference that runs it in NumPy.

Real processes run schedules by `gradweave.jax`, `gradweave.mpi` and `gradweave.torch`.
"""

from gradweave.execute.program import Action, Program, same_bits
from gradweave.execute.reference import play

__all__ = [
    "Action",
    "Program",
    "play",
    "same_bits",
]
