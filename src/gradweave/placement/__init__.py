"""Placement: which server computes which stage, which servers average, and the time of a step."""

from typing import TYPE_CHECKING

from gradweave.lazy import lazily

if TYPE_CHECKING:
    from gradweave.placement.bound.duals import GroupDuals
    from gradweave.placement.bound.search import placement_bound
    from gradweave.placement.bound.sequences import Sequences
    from gradweave.placement.exchange import exchange_cost
    from gradweave.placement.pairs import Pairs, pairs_of
    from gradweave.placement.placement import Placement, load_placement, load_workload
    from gradweave.placement.placing import Cost, cost_of, place, recounted
    from gradweave.placement.problem import problem_of
    from gradweave.placement.strategies.annealing import Annealing
    from gradweave.placement.strategies.baselines import RandomOrder, RankOrder
    from gradweave.placement.strategies.evolutionary import Evolutionary
    from gradweave.placement.strategies.exact import ExactPlacer
    from gradweave.placement.strategies.spec import PLACERS
    from gradweave.placement.strategies.strategy import Placer
    from gradweave.placement.timeline.groups import group_schedules
    from gradweave.placement.timeline.step import StepTime, step_time
    from gradweave.placement.workload import Stage, Transformer, Workload, even_stages

__all__ = [
    "PLACERS",
    "Annealing",
    "Cost",
    "Evolutionary",
    "ExactPlacer",
    "GroupDuals",
    "Pairs",
    "Placement",
    "Placer",
    "RandomOrder",
    "RankOrder",
    "Sequences",
    "Stage",
    "StepTime",
    "Transformer",
    "Workload",
    "cost_of",
    "even_stages",
    "exchange_cost",
    "group_schedules",
    "load_placement",
    "load_workload",
    "pairs_of",
    "place",
    "placement_bound",
    "problem_of",
    "recounted",
    "step_time",
]

__getattr__, __dir__ = lazily(__name__)
