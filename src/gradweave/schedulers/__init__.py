"""Schedulers: they take a topology and return a verified schedule; one strategy per file."""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily
from gradweave.common.stop import Interrupt
from gradweave.schedulers import spread
from gradweave.schedulers.exact.demand import DemandProof, ExactDemand
from gradweave.schedulers.exact.exact import Exact
from gradweave.schedulers.exact.proof import Proof
from gradweave.schedulers.flows.flows import Flows
from gradweave.schedulers.greedy.planned import Planned
from gradweave.schedulers.grid.hierarchical import Hierarchical
from gradweave.schedulers.learned import Learned
from gradweave.schedulers.packing.joint import Joint
from gradweave.schedulers.packing.packed import Packed
from gradweave.schedulers.repairing.repair import Repair
from gradweave.schedulers.repairing.under_way import Replanned, replan
from gradweave.schedulers.scheduler import DemandStrategy, Scheduler, Traits, to_spec
from gradweave.schedulers.solving.demands import solve_demand
from gradweave.schedulers.solving.portfolio import DEFAULT, Apart, Group
from gradweave.schedulers.solving.solution import Attempt, Solution
from gradweave.schedulers.solving.solve import OBJECTIVES, Objective, solve
from gradweave.schedulers.solving.timing import Timing
from gradweave.schedulers.spec import DEMAND_STRATEGIES, STRATEGIES, demand_strategy
from gradweave.schedulers.textbook.binomial import Binomial
from gradweave.schedulers.textbook.double_tree import DoubleTree
from gradweave.schedulers.textbook.exchanges import Bruck, Butterfly
from gradweave.schedulers.textbook.halving_doubling import HalvingDoubling, RecursiveDoubling
from gradweave.schedulers.textbook.hierarchical_ring import HierarchicalRing
from gradweave.schedulers.textbook.parameter_server import CentralParameterServer, ParameterServer
from gradweave.schedulers.textbook.postal import Postal
from gradweave.schedulers.textbook.postal_tree import PostalTree
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedulers.textbook.runtimes import BinomialTree, Chain, Direct, DoubleBinaryTree
from gradweave.schedulers.trees.disjoint_trees import DisjointTrees
from gradweave.schedulers.trees.grown import Grown
from gradweave.schedulers.trees.implicit import implicit
from gradweave.schedulers.trees.merged import Merged
from gradweave.schedulers.trees.symmetric import Symmetric
from gradweave.schedulers.trees.timed import Timed

if TYPE_CHECKING:  # compiled loops, which are loaded on first use
    from gradweave.schedulers.flows.unicast import UnicastPlan, plan_unicast

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
    "DemandProof",
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
    "Interrupt",
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
    "Solution",
    "Symmetric",
    "Timed",
    "Timing",
    "Traits",
    "UnicastPlan",
    "demand_strategy",
    "implicit",
    "plan_unicast",
    "replan",
    "solve",
    "solve_demand",
    "spread",
    "to_spec",
]
