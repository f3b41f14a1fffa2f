"""The paper's cost model: direct exchange of gradients, activations over the best matching."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.placement.problem import Problem


@dataclasses.dataclass(frozen=True, eq=False)
class ExchangeCost:
    """The communication cost of a placement, and the placement with matched pipelines."""

    devices: NDArray[np.int64]
    """[S, D] ranks of devices; row s computes stage s, column p is pipeline p."""
    data_s: float
    """DataP: the longest time for which a device exchanges gradients with its group."""
    pipeline_s: float
    """PipelineP: activations and their gradients, from the first stage to the last."""

    @property
    def seconds(self) -> float:
        """DataP plus PipelineP."""
        return self.data_s + self.pipeline_s


def exchange_cost(
    problem: Problem,
    devices: NDArray[np.integer],
    *,
    as_placed: bool = False,
    stage: int | None = None,
) -> ExchangeCost:
    """The paper's cost of groups, in the best order and with the best matching between neighbours.

    DataP is the maximum over all devices of Σ 2(α + c/(D·β)) over the others of its group. An edge
    between two groups costs the minimum, over perfect matchings, of the largest 2(α + a/β).
    PipelineP is the shortest path through all groups. α and β are the latency and bandwidth of a
    pair, c the stage's gradient, a the activations of all micro-batches. If the two directions of a
    pair differ, each counts once; if stages differ, groups keep their order. Compute and shared
    links are left out.

    Args:
        problem: the placement problem.
        devices: [S, D] ranks, a row for each stage.
        as_placed: whether to keep the given order and pipelines, as random placement does.
        stage: the only stage whose group counts for DataP; all stages if not given.

    Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous
        Environments", NeurIPS 2022, section 3.
    """
    from gradweave.placement.exchange_kernel import group_seconds, ordered

    delay, per_byte = problem.pairs.there_and_back_s, problem.pairs.there_and_back_s_per_byte
    groups = np.ascontiguousarray(devices, np.int64)
    if as_placed:
        ends = groups[:-1], groups[1:]
        moved = problem.activation_bytes[:, None]
        pipeline = float((delay[ends] + moved * per_byte[ends]).max(axis=1, initial=0.0).sum())
    else:
        pipeline, groups = ordered(delay, per_byte, problem.activation_bytes, problem.alike, groups)
    data = max(
        group_seconds(delay, per_byte, float(part), group)
        for s, (part, group) in enumerate(zip(problem.part_bytes, groups, strict=True))
        if stage in (None, s)
    )
    return ExchangeCost(groups, float(data), float(pipeline))
