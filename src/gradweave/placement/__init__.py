"""Placement: which server computes which stage, which servers average, and the time of a step."""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily

if TYPE_CHECKING:
    from gradweave.placement.bound.search import placement_bound
    from gradweave.placement.placement import Placement, load_placement, load_workload
    from gradweave.placement.placing import place, recounted
    from gradweave.placement.strategies.annealing import Annealing
    from gradweave.placement.strategies.baselines import RandomOrder, RankOrder
    from gradweave.placement.strategies.evolutionary import Evolutionary
    from gradweave.placement.strategies.exact import ExactPlacer
    from gradweave.placement.strategies.spec import PLACERS
    from gradweave.placement.strategies.strategy import Placer
    from gradweave.placement.timeline.step import StepTime, step_time
    from gradweave.placement.workload import Stage, Transformer, Workload, even_stages

__all__ = [
    "PLACERS",
    "Annealing",
    "Evolutionary",
    "ExactPlacer",
    "Placement",
    "Placer",
    "RandomOrder",
    "RankOrder",
    "Stage",
    "StepTime",
    "Transformer",
    "Workload",
    "even_stages",
    "load_placement",
    "load_workload",
    "place",
    "placement_bound",
    "recounted",
    "step_time",
]

__getattr__, __dir__ = lazily(__name__)
