"""Prices of links: any prices prove a bound, which is recounted in exact arithmetic."""

import dataclasses
import functools
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.topology.topology import Topology

Unit = Literal["seconds", "rounds"]

MAX_LENGTH = 1 << 40
"""Largest length of a link, so that sums along paths are exact in floats."""


@dataclasses.dataclass(frozen=True, eq=False)
class Prices:
    """A price of each link direction for what crosses it, in windows of time.

    Whatever must cross the links owes at least some total, however it is routed. Per second, or
    per round, each link charges at most its capacity times its price. So the time is at least that
    in which all links together can charge what is due. Prices rise from window to window: a
    boundary that must be crossed after some moment is charged for from then on.
    """

    topology: Topology
    length: NDArray
    """[W, L] integers of at least 0; no price falls from one window to the next."""
    since_s: tuple[float, ...] = (0.0,)
    """[W] start of each window, ascending, the first at 0."""
    unit: Unit = "seconds"
    """Whether links carry their bandwidths per second, or their capacities per round."""

    @functools.cached_property
    def offered(self) -> Fraction:
        """The exact charge of all links per second or round, from the last window on."""
        return self._rate(np.arange(len(self.topology.source)), self.length[-1])

    def time(self, due: Fraction, idle: NDArray, per_second: int = 1) -> Fraction:
        """The minimum time in which links can charge what is due; exact, and 0 if nothing is.

        Args:
            due: the minimum total of what everything pays.
            idle: [L] minimum time for which each link carries nothing, whether at the start or at
                the end; below 0 for links that carry nothing at all.
            per_second: units of `idle` in a second.
        """
        rises = np.diff(self.length, axis=0, prepend=self.length[:1] * 0)
        window, link = np.nonzero((rises > 0) & (idle >= 0))
        since = np.maximum(idle[link], np.array(self.since_s, idle.dtype)[window] * per_second)
        order = np.argsort(since, kind="stable")
        rate, time, unpaid = Fraction(0), Fraction(0), due
        for alike in np.split(order, np.flatnonzero(np.diff(since[order])) + 1):
            at = Fraction(since[alike[0]].item()) / per_second if len(alike) else Fraction(0)
            if rate and time <= at:
                break
            more = self._rate(link[alike], rises[window[alike], link[alike]])
            rate, unpaid = rate + more, unpaid + more * at
            time = unpaid / rate if rate else time
        return time if due else Fraction(0)

    def step(self, stage: str) -> dict[str, Any]:
        """The last window's prices as a step of a certificate, for the bytes of one stage."""
        return {"kind": "lengths", "stage": stage, "lengths": self.length[-1].tolist()}

    @functools.cached_property
    def _capacity(self) -> NDArray[np.float64]:
        return capacity_in(self.topology, self.unit)

    def _rate(self, links: NDArray[np.int64], length: NDArray) -> Fraction:
        """Capacity times price of some link directions."""
        values, kind = np.unique(self._capacity[links], return_inverse=True)
        length = length.astype(object)
        pairs = ((value, length[kind == k].sum()) for k, value in enumerate(values.tolist()))
        return sum((Fraction(value) * int(total) for value, total in pairs), Fraction(0))


def capacity_in(topology: Topology, unit: Unit) -> NDArray[np.float64]:
    """[L] capacity of link directions in bytes per second, or in pieces per round.

    Args:
        topology: the network.
        unit: which of the two.
    """
    kept = topology.bandwidth_bytes_per_s if unit == "seconds" else topology.capacity
    return kept.astype(np.float64)


def checked_integers(topology: Topology, lengths: NDArray) -> NDArray[np.int64]:
    """[L] lengths of a certificate.

    Raises:
        OptionError: unless there is an integer from 0 to `MAX_LENGTH` for each link direction.
    """
    given = np.asarray(lengths)
    if given.shape != (len(topology.source),) or given.dtype.kind not in "iu":
        raise OptionError("lengths: expected integers, one for each link direction")
    if given.min() < 0 or given.max() > MAX_LENGTH:
        link = int(np.argmax((given < 0) | (given > MAX_LENGTH)))
        raise OptionError(
            f"lengths: link {topology.link_name(link)}: expected 0 to {MAX_LENGTH:,}, "
            f"got {given[link]}"
        )
    return given.astype(np.int64)
