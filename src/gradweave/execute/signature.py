"""A digest of everything that the servers of a run must agree on."""

import hashlib
import weakref

import numpy as np
from numpy.typing import NDArray

from gradweave.common.wording import counted
from gradweave.errors import RunError
from gradweave.schedules.schedule import COLUMNS, Schedule

NAME_BYTES = 24
"""Number of bytes of a type's name that are compared."""
WORDS = 3 + NAME_BYTES // 8

_digests: weakref.WeakKeyDictionary[Schedule, int] = weakref.WeakKeyDictionary()


def digest(schedule: Schedule) -> int:
    """A 63-bit digest of a schedule, equal for schedules with the same transfers."""
    if schedule not in _digests:
        made = hashlib.blake2b(schedule.name.encode(), digest_size=8)
        for column in COLUMNS:
            made.update(np.ascontiguousarray(getattr(schedule, column)).tobytes())
        if schedule.shares is not None:
            made.update(schedule.shares.tobytes())
        if schedule.demand is not None:
            made.update(schedule.share.tobytes())
            for sets in (schedule.contributors, schedule.destinations):
                made.update(np.concatenate([sets.offsets, sets.servers]).tobytes())
        _digests[schedule] = int.from_bytes(made.digest(), "little") >> 1
    return _digests[schedule]


def signature(schedule: Schedule, elements: int, dtype: str, reduction: str) -> NDArray[np.int64]:
    """[WORDS] the schedule, number of elements, reduction and type, encoded as integers."""
    name = np.frombuffer(dtype.encode()[:NAME_BYTES].ljust(NAME_BYTES), np.int64)
    how = int.from_bytes(reduction.encode(), "little")
    return np.concatenate([[digest(schedule), elements, how], name]).astype(np.int64)


def mismatch(signatures: NDArray[np.int64]) -> RunError | None:
    """The error to raise if servers disagree, or None if they agree.

    Args:
        signatures: [N, WORDS] signatures by rank.
    """
    different = np.argwhere(signatures != signatures[0])
    if not len(different):
        return None
    rank, word = different[0].tolist()
    mine, other = (_words(signatures[r]) for r in (0, rank))
    if word == 0:
        return RunError(
            f"rank {rank} runs a different schedule from rank 0; give all ranks the same file"
        )
    if word == 2:
        return RunError(f"rank 0 asks for the {mine[1]}, rank {rank} for the {other[1]}")
    return RunError(
        f"rank 0 has {mine[0]}, rank {rank} has {other[0]}; an all-reduce needs equal ones"
    )


def _words(row: NDArray[np.int64]) -> tuple[str, str]:
    how = int(row[2]).to_bytes(8, "little").rstrip(b"\0").decode()
    return f"{counted(int(row[1]), 'element')} of {row[3:].tobytes().decode().strip()}", how
