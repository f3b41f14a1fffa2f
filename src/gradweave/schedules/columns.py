"""Storage of a schedule's columns: their types, and when copies are avoided."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import ScheduleError
from gradweave.topology.topology import Integers

MANY = 1 << 26
"""Number of transfers beyond which columns are stored as narrow as their values allow: an
all-reduce of 16,384 servers then takes 9 to 11 bytes per transfer instead of 33 to 37, and 5 to 6
GB instead of 20."""
PART = 1 << 20
"""Number of values that are compared at a time."""


class RouteOffsets:
    """The field `Schedule.route_offsets`: an array to its readers.

    It may be given as one number, the number of nodes of every route. Beyond `MANY` transfers only
    that number is stored if routes are equally long, and the array is created on each read.
    """

    def __get__(self, schedule: Any, owner: Any = None) -> Integers:
        if schedule is None:  # the dataclass asks for a default
            raise AttributeError("route_offsets")
        kept = vars(schedule)["route_offsets"]
        return as_offsets(kept, len(schedule.round)) if isinstance(kept, int) else kept

    def __set__(self, schedule: Any, value: Integers | int) -> None:
        vars(schedule)["route_offsets"] = value


def as_offsets(length: int, transfers: int) -> NDArray[np.int64]:
    """[T+1] where each route starts, if all have the same number of nodes."""
    return np.arange(transfers + 1, dtype=np.int64) * length


def flat(field: str, values: Any) -> NDArray:
    """A column as a flat array of integers of any size.

    Raises:
        ScheduleError: it is anything else; names the field.
    """
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ScheduleError(f"{field}: expected a flat list, got a ragged one") from error
    if array.ndim != 1:
        raise ScheduleError(f"{field}: expected a flat list, got {array.ndim} dimensions")
    if array.size and array.dtype.kind not in "iu":
        raise ScheduleError(f"{field}: expected integers, got {array.dtype}")
    return array


def kept(array: NDArray, dtype: type, transfers: int) -> NDArray:
    """A column in its stored type: a copy, unless it cannot change.

    Args:
        array: an array whose values fit the type.
        dtype: the type if transfers are few; the result is then also contiguous.
        transfers: number of transfers of the schedule.
    """
    many = transfers > MANY
    if many and dtype is np.int32:
        dtype = narrowest(int(array.max(initial=0)), transfers)
    if array.dtype == dtype and (many or array.flags.c_contiguous) and _cannot_change(array):
        return array
    return array.astype(dtype)


def narrowest(largest: int, transfers: int) -> type[np.int16 | np.int32]:
    """The type in which a schedule stores values up to some number.

    Args:
        largest: the number.
        transfers: number of transfers of the schedule.
    """
    return np.int16 if transfers > MANY and largest <= np.iinfo(np.int16).max else np.int32


def frozen(array: NDArray) -> NDArray:
    """The same array, read-only, so that a schedule need not copy it."""
    array.flags.writeable = False
    return array


def ascends(array: NDArray) -> bool:
    """Whether no value is less than the previous one; checked in parts, to save memory."""
    parts = (array[first : first + PART + 1] for first in range(0, len(array), PART))
    return not any((part[1:] < part[:-1]).any() for part in parts)


def ends_of(nodes: NDArray, length: int) -> tuple[NDArray, NDArray]:
    """Views of the first and the last nodes of routes with equally many nodes; read-only."""
    frozen(nodes)
    return nodes[::length], nodes[length - 1 :: length]


def same_view(first: NDArray, second: NDArray) -> bool:
    """Whether two arrays are the same elements of the same memory."""
    one, other = first.__array_interface__, second.__array_interface__
    return all(one[key] == other[key] for key in ("data", "strides", "shape", "typestr"))


def constant(value: int, dtype: type, length: int) -> NDArray:
    """A read-only column of one value, which takes no memory."""
    return np.broadcast_to(frozen(np.array(value, dtype)), length)


def _cannot_change(array: Any) -> bool:
    """Whether an array and everything that it is a view of are read-only."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or isinstance(array, bytes)
