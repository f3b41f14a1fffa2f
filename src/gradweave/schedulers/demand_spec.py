"""Strategies for demands in words: ``bruck:radix=4``; or the schedulers of an all-reduce."""

from collections.abc import Iterable

from gradweave.errors import OptionError, SpecError
from gradweave.schedulers.demands.disjoint_trees import DisjointTrees
from gradweave.schedulers.demands.exact import ExactDemand
from gradweave.schedulers.demands.exchanges import Bruck, Butterfly
from gradweave.schedulers.demands.flows import Flows
from gradweave.schedulers.demands.hierarchical_ring import HierarchicalRing
from gradweave.schedulers.demands.joint import Joint
from gradweave.schedulers.demands.postal_tree import PostalTree
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.schedulers.demands.textbook import BinomialTree, Chain, Direct, DoubleBinaryTree
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solve.demands import Apart
from gradweave.schedulers.solve.group import Group
from gradweave.schedulers.spec import from_spec, made_of, split_specs
from gradweave.specification import parse_spec

DEMAND_STRATEGIES: dict[str, type[DemandStrategy]] = {
    strategy.name: strategy
    for strategy in (
        Direct,
        Chain,
        BinomialTree,
        DoubleBinaryTree,
        Butterfly,
        Bruck,
        HierarchicalRing,
        PostalTree,
        DisjointTrees,
        Joint,
        Flows,
        Group,
        Apart,
        ExactDemand,
    )
}
"""Every strategy for demands by its name. A new one is one more entry."""


def demand_strategy(text: str) -> DemandStrategy:
    """Makes the strategy for demands that a specification describes.

    Args:
        text: a name of `DEMAND_STRATEGIES` and its options; or a scheduler, as
            `gradweave.schedulers.from_spec` takes it, which plans each group's all-reduce,
            all-gather or reduce-scatter as among all servers.

    Raises:
        SpecError: the text is not understood.
        OptionError: an option has a value that the strategy does not take.

    >>> demand_strategy("bruck:radix=4")
    Bruck(radix=4)
    >>> demand_strategy("ring").scheduler.name
    'ring'
    """
    name = text.partition(":")[0].strip().lower().replace("-", "_")
    if name in DEMAND_STRATEGIES:
        return made_of(DEMAND_STRATEGIES[name], name, parse_spec(text)[1])
    try:
        return Apart(from_spec(text))
    except SpecError as error:
        raise SpecError(f"{error}; for demands also {', '.join(DEMAND_STRATEGIES)}") from error


def as_demand_strategies(
    given: Iterable[DemandStrategy | Scheduler | str] | str,
) -> tuple[DemandStrategy, ...]:
    """Strategies for demands, each given as itself, as a scheduler or as a specification.

    Raises:
        OptionError: for anything else.
        SpecError: a specification that is not understood.
    """
    made: list[DemandStrategy] = []
    for one in split_specs(given) if isinstance(given, str) else given:
        if isinstance(one, str):
            made.append(demand_strategy(one))
        elif isinstance(one, Scheduler):
            made.append(Apart(one))
        elif isinstance(one, DemandStrategy):
            made.append(one)
        else:
            raise OptionError(
                "expected strategies for jobs, schedulers or specifications such as "
                f"'bruck:radix=4'; got {type(one).__name__}"
            )
    return tuple(made)
