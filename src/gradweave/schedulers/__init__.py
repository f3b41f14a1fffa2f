"""Topology in, verified schedule out; one strategy a file."""

from typing import TYPE_CHECKING

from gradweave.lazy import lazily
from gradweave.schedulers import spread
from gradweave.schedulers.demand_spec import DEMAND_STRATEGIES, demand_strategy
from gradweave.schedulers.demands.disjoint_trees import DisjointTrees
from gradweave.schedulers.demands.exact import DemandProof, ExactDemand
from gradweave.schedulers.demands.exchanges import Bruck, Butterfly
from gradweave.schedulers.demands.flows import Flows
from gradweave.schedulers.demands.hierarchical_ring import HierarchicalRing
from gradweave.schedulers.demands.joint import Joint
from gradweave.schedulers.demands.postal_tree import PostalTree
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.schedulers.demands.textbook import BinomialTree, Chain, Direct, DoubleBinaryTree
from gradweave.schedulers.exact.exact import Exact
from gradweave.schedulers.exact.proof import Proof
from gradweave.schedulers.hierarchical.hierarchical import Hierarchical
from gradweave.schedulers.learned.learned import Learned
from gradweave.schedulers.planned.planned import Planned
from gradweave.schedulers.scheduler import Scheduler, Traits, to_spec
from gradweave.schedulers.solve.demands import Apart, DemandAttempt, DemandSolution, solve_demand
from gradweave.schedulers.solve.group import Group
from gradweave.schedulers.solve.order import DEFAULT
from gradweave.schedulers.solve.repair import Repair
from gradweave.schedulers.solve.seconds_bound import SecondsBound, Timing
from gradweave.schedulers.solve.solution import Attempt, Solution
from gradweave.schedulers.solve.solve import OBJECTIVES, Objective, solve
from gradweave.schedulers.solve.under_way import Replanned, replan
from gradweave.schedulers.spec import STRATEGIES, from_spec
from gradweave.schedulers.textbook.binomial import Binomial
from gradweave.schedulers.textbook.double_tree import DoubleTree
from gradweave.schedulers.textbook.halving_doubling import HalvingDoubling, RecursiveDoubling
from gradweave.schedulers.textbook.parameter_server import CentralParameterServer, ParameterServer
from gradweave.schedulers.textbook.postal import Postal
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedulers.trees.grown import Grown
from gradweave.schedulers.trees.merged import Merged
from gradweave.schedulers.trees.symmetric import Symmetric
from gradweave.schedulers.trees.timed import Timed
from gradweave.schedulers.unequal.packed import Packed

if TYPE_CHECKING:  # compiled loops, which are loaded when they are first used
    from gradweave.schedulers.demands.unicast import UnicastPlan, plan_unicast

__getattr__, __dir__ = lazily(__name__)

__all__ = [
    "DEFAULT",
    "DEMAND_STRATEGIES",
    "OBJECTIVES",
    "STRATEGIES",
    "Apart",
    "Attempt",
    "Binomial",
    "BinomialTree",
    "Bruck",
    "Butterfly",
    "CentralParameterServer",
    "Chain",
    "DemandAttempt",
    "DemandProof",
    "DemandSolution",
    "DemandStrategy",
    "Direct",
    "DisjointTrees",
    "DoubleBinaryTree",
    "DoubleTree",
    "Exact",
    "ExactDemand",
    "Flows",
    "Group",
    "Grown",
    "HalvingDoubling",
    "Hierarchical",
    "HierarchicalRing",
    "Joint",
    "Learned",
    "Merged",
    "Objective",
    "Packed",
    "ParameterServer",
    "Planned",
    "Postal",
    "PostalTree",
    "Proof",
    "RecursiveDoubling",
    "Repair",
    "Replanned",
    "Ring",
    "Scheduler",
    "SecondsBound",
    "Solution",
    "Symmetric",
    "Timed",
    "Timing",
    "Traits",
    "UnicastPlan",
    "demand_strategy",
    "from_spec",
    "plan_unicast",
    "replan",
    "solve",
    "solve_demand",
    "spread",
    "to_spec",
]
