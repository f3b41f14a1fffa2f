"""Strategies for demands from text: ``bruck:radix=4``; or the schedulers of an all-reduce."""

from collections.abc import Iterable

from gradweave.errors import OptionError, SpecError
from gradweave.schedulers.exact.demand import ExactDemand
from gradweave.schedulers.flows.flows import Flows
from gradweave.schedulers.packing.joint import Joint
from gradweave.schedulers.scheduler import DemandStrategy, Scheduler
from gradweave.schedulers.solving.demands import Apart
from gradweave.schedulers.solving.group import Group
from gradweave.schedulers.spec import from_spec, made_of, split_specs
from gradweave.schedulers.textbook.exchanges import Bruck, Butterfly
from gradweave.schedulers.textbook.hierarchical_ring import HierarchicalRing
from gradweave.schedulers.textbook.postal_tree import PostalTree
from gradweave.schedulers.textbook.runtimes import BinomialTree, Chain, Direct, DoubleBinaryTree
from gradweave.schedulers.trees.disjoint_trees import DisjointTrees
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
        text: a name of `DEMAND_STRATEGIES` and its options; or a scheduler as in
            `schedulers.spec.from_spec`, which then plans each group's all-reduce, all-gather
            or reduce-scatter as among all servers.

    Raises:
        SpecError: if the text cannot be parsed.
        OptionError: if an option has a value that the strategy does not accept.

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
    """Strategies for demands, each given as an object, as a scheduler or as a specification.

    Raises:
        OptionError: for anything else.
        SpecError: for a specification that cannot be parsed.
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
