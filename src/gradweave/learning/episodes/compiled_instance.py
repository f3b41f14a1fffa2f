"""A scheduling problem as arrays for the learned policies' compiled loops."""

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from gradweave.environment.instance import Instance
from gradweave.learning.episodes.repair import slots_of
from gradweave.learning.episodes.repair_kernel import HopSlots
from gradweave.learning.episodes.state_kernel import WorkloadTable
from gradweave.schedulers.kernels.bitset import pack
from gradweave.schedulers.problem import HopTable, hop_table, hops_over, integers


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledInstance:
    """A scheduling problem as arrays for the compiled round."""

    instance: Instance
    hops: HopTable
    workloads: WorkloadTable
    waiting: NDArray[np.int64]
    pending: NDArray[np.bool_]
    root: NDArray[np.int64]
    stage: NDArray[np.int64]
    then: NDArray[np.int64]
    bound: NDArray[np.int64]
    hop_of_link: NDArray[np.int64]
    """Hop of each entry of `HopTable.links`."""
    carries: NDArray[np.bool_]
    """[H, stages] whether a hop carries a tree of a stage."""
    total: NDArray[np.int64]
    """[Q] transfers of each tree."""
    barrier: bool

    @staticmethod
    def of(instance: Instance) -> "CompiledInstance":
        """Lays out an instance as arrays."""
        arrays, routes = instance.arrays, instance.hops
        links, first_link = routes.links, routes.first_link
        lengths = np.diff(first_link)
        allowed, allowed_row = arrays["allowed"], np.arange(len(lengths))
        if arrays["grown"]:  # every hop of a stage carries all of its trees
            allowed, allowed_row = _distinct_rows(allowed)
        servers = len(arrays["intake"])
        hops = hop_table(arrays["sender"], arrays["receiver"], links, first_link, servers)
        workloads = WorkloadTable(
            sender_link=integers(arrays["sender_link"]),
            receiver_link=integers(arrays["receiver_link"]),
            over=hops_over(links, first_link, len(arrays["capacity"])),
            capacity=integers(arrays["capacity"]),
            intake=integers(arrays["intake"]),
            allowed=pack(np.ascontiguousarray(allowed)),
            allowed_row=integers(allowed_row),
            by_sender=arrays["by_sender"],
            height=integers(arrays["height"]),
            grown=bool(arrays["grown"]),
        )
        return CompiledInstance(
            instance,
            hops,
            workloads,
            pending=np.ascontiguousarray(arrays["pending"]),
            hop_of_link=np.repeat(np.arange(len(lengths)), lengths),
            carries=_carries(arrays["allowed"], arrays["stage"]),
            total=arrays["pending"].sum(0),
            barrier=bool(arrays["barrier"]),
            **{
                name: integers(arrays[name])
                for name in ("waiting", "root", "stage", "then", "bound")
            },
        )

    @functools.cached_property
    def slots(self) -> HopSlots:
        """The problem as arrays for repairs."""
        return slots_of(self.instance, self.workloads.intake)


def _distinct_rows(table: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The distinct rows of a table whose rows are equal or disjoint, and each row's number."""
    _, first, which = np.unique(table.argmax(1), return_index=True, return_inverse=True)
    return table[first], which


def _carries(allowed: NDArray[np.bool_], stage: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[H, stages] whether a hop carries a tree of a stage."""
    return np.stack([allowed[:, stage == one].any(1) for one in range(stage.max() + 1)], 1)
