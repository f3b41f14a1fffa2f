"""Placement: who computes which stage, who averages with whom, and how long a step takes."""

from typing import TYPE_CHECKING

from gradweave.lazy import lazily

if TYPE_CHECKING:
    from gradweave.placement.bound.duals import GroupDuals
    from gradweave.placement.bound.search import PlacementBound, placement_bound
    from gradweave.placement.bound.sequences import Sequences
    from gradweave.placement.exchange import ExchangeCost, exchange_cost
    from gradweave.placement.pairs import Pairs, pairs_of
    from gradweave.placement.placement import (
        Placement,
        ScheduledCost,
        load_placement,
        load_workload,
    )
    from gradweave.placement.placing import (
        COSTS,
        Cost,
        cost_of,
        place,
        problem_for,
        recounted,
    )
    from gradweave.placement.problem import Problem, problem_of
    from gradweave.placement.scheduled import scheduled_cost
    from gradweave.placement.strategies.annealing import Annealing
    from gradweave.placement.strategies.baselines import RandomOrder, RankOrder
    from gradweave.placement.strategies.evolutionary import Evolutionary
    from gradweave.placement.strategies.exact import Exact
    from gradweave.placement.strategies.spec import PLACERS, as_placer
    from gradweave.placement.strategies.strategy import Placer
    from gradweave.placement.timeline.groups import GroupSchedule, group_schedules
    from gradweave.placement.timeline.orders import ORDERS, Order, Pass, stage_order
    from gradweave.placement.timeline.step import (
        StepTime,
        exchange_seconds,
        pass_seconds,
        step_time,
    )
    from gradweave.placement.workload import Stage, Transformer, Workload, even_stages

__all__ = [
    "COSTS",
    "ORDERS",
    "PLACERS",
    "Annealing",
    "Cost",
    "Evolutionary",
    "Exact",
    "ExchangeCost",
    "GroupDuals",
    "GroupSchedule",
    "Order",
    "Pairs",
    "Pass",
    "Placement",
    "PlacementBound",
    "Placer",
    "Problem",
    "RandomOrder",
    "RankOrder",
    "ScheduledCost",
    "Sequences",
    "Stage",
    "StepTime",
    "Transformer",
    "Workload",
    "as_placer",
    "cost_of",
    "even_stages",
    "exchange_cost",
    "exchange_seconds",
    "group_schedules",
    "load_placement",
    "load_workload",
    "pairs_of",
    "pass_seconds",
    "place",
    "placement_bound",
    "problem_for",
    "problem_of",
    "recounted",
    "scheduled_cost",
    "stage_order",
    "step_time",
]

__getattr__, __dir__ = lazily(__name__)
