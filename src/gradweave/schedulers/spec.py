"""The registry of strategies, and strategies from text: ``merged:rule=deepest,tries=4``."""

import inspect
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from gradweave.common import plugins
from gradweave.common.checks import did_you_mean
from gradweave.common.specification import field_kinds, parse_spec, read_options
from gradweave.errors import OptionError, SpecError
from gradweave.schedulers.exact.demand import ExactDemand
from gradweave.schedulers.exact.exact import Exact
from gradweave.schedulers.flows.flows import Flows
from gradweave.schedulers.greedy.planned import Planned
from gradweave.schedulers.grid.hierarchical import Hierarchical
from gradweave.schedulers.learned import Learned
from gradweave.schedulers.packing.joint import Joint
from gradweave.schedulers.packing.packed import Packed
from gradweave.schedulers.scheduler import DemandStrategy, Scheduler, Strategy
from gradweave.schedulers.solving.portfolio import DEFAULT, Apart, Group
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
from gradweave.schedulers.trees.merged import Merged
from gradweave.schedulers.trees.symmetric import Symmetric
from gradweave.schedulers.trees.timed import Timed

T = TypeVar("T")
S = TypeVar("S", bound=Strategy)
_BUILT_IN: tuple[type[Strategy], ...] = (
    Symmetric,
    Hierarchical,
    Learned,
    Grown,
    Timed,
    Packed,
    Planned,
    Exact,
    Merged,
    Ring,
    HalvingDoubling,
    RecursiveDoubling,
    Binomial,
    DoubleTree,
    Postal,
    ParameterServer,
    CentralParameterServer,
    # Strategies for demands.
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
"""Every built-in strategy. A new strategy is one more entry."""


def _by_name(kind: type[S]) -> dict[str, type[S]]:
    return {one.name: one for one in _BUILT_IN if issubclass(one, kind)}


STRATEGIES = _by_name(Scheduler)
"""The built-in schedulers by name."""
DEMAND_STRATEGIES = _by_name(DemandStrategy)
"""The built-in strategies for demands by name; ``exact`` names one of either kind."""
PORTFOLIO = "portfolio"
"""The name for all strategies that `solve` tries by default."""
OWN_NAMES = (*STRATEGIES, *DEMAND_STRATEGIES, PORTFOLIO)
"""Gradweave's own names, which no plug-in may take."""


def from_spec(text: str) -> Scheduler:
    """Makes the scheduler that a specification describes.

    Args:
        text: the strategy's name, and its options as fields of its class:
            ``ring:order=hamiltonian,steps=paper``. A ring's node ids are joined by dots:
            ``ring:order=0.2.1.3``. In addition to the names of `STRATEGIES`, names from installed
            packages are known, and a class as ``module:Class``, with options as
            ``module:Class:key=value``. The class is imported: never pass text from a file.

    Raises:
        SpecError: if the text cannot be parsed.
        OptionError: if an option has a value that the strategy does not accept.

    >>> from_spec("merged:rule=deepest,tries=4")
    Merged(rule='deepest', tries=4, swap_passes=8, overlap=False, aggregating_switches=False)
    """
    made = _read(text, STRATEGIES)
    if not isinstance(made, Scheduler):
        raise OptionError(f"scheduler {made.name}: plans jobs only, not one collective of all")
    return made


def demand_strategy(text: str) -> DemandStrategy:
    """Makes the strategy for demands that a specification describes.

    Args:
        text: a name of `DEMAND_STRATEGIES` and its options; or any other text as for `from_spec`. A
            scheduler then plans each group's all-reduce, all-gather or reduce-scatter as among all
            servers.

    Raises:
        SpecError: if the text cannot be parsed.
        OptionError: if an option has a value that the strategy does not accept.

    >>> demand_strategy("bruck:radix=4")
    Bruck(radix=4)
    >>> demand_strategy("ring").scheduler.name
    'ring'
    """
    return _for_demands(_read(text, STRATEGIES | DEMAND_STRATEGIES))


def _for_demands(strategy: Any) -> DemandStrategy:
    return Apart(strategy) if isinstance(strategy, Scheduler) else strategy


def _read(text: str, known: Mapping[str, type[Strategy]]) -> Strategy:
    """The strategy that a specification describes.

    Args:
        text: the specification.
        known: the built-in strategies that it may name.
    """
    if is_portfolio(text):
        raise SpecError(
            f"{PORTFOLIO}: expected one scheduler, but this stands for all that gradweave.solve "
            "tries; call that, or name one"
        )
    named, options = _class_and_options(text)
    if named:
        strategy = checked(plugins.imported(named, "scheduler"), f"scheduler {named}")
        return with_options(strategy, options)
    given, values = parse_spec(text)
    name = given.lower().replace("-", "_")
    if name in known:
        return made_of(known[name], given, values)
    plugin = plugins.find(plugins.SCHEDULER, name)
    if plugin is not None:
        return made_of(read_plugin(plugin), given, values)
    shown = sorted({*STRATEGIES, *plugins.names(plugins.SCHEDULER)})
    also = "" if known is STRATEGIES else f"; for demands also {', '.join(DEMAND_STRATEGIES)}"
    hint = did_you_mean(given, [*shown, *known])
    raise SpecError(f"no scheduler {given!r:.60}; {hint}there are {', '.join(shown)}{also}")


def with_options(strategy: Any, options: str = "") -> Any:
    """A strategy with options written as in a specification, ``rule=deepest,tries=4``.

    Raises:
        SpecError: if they cannot be parsed.
        OptionError: if an option has a value that the strategy does not accept.
    """
    name, values = parse_spec(f"{strategy.name}:{options}" if options else strategy.name)
    return made_of(strategy, name, values)


def made_of(strategy: type[T], name: str, values: Mapping[str, str]) -> T:
    """A strategy with its options given as text.

    Args:
        strategy: the class, a dataclass.
        name: its name, for messages.
        values: the options' values by field name.

    Raises:
        SpecError: if they cannot be parsed.
        OptionError: if an option has a value that the strategy does not accept.
    """
    try:
        return strategy(**read_options(name, values, field_kinds(strategy)))
    except TypeError as error:
        raise OptionError(f"{name}: {error}") from error


def checked(given: Any, label: str) -> type[Strategy]:
    """The class of an external strategy, checked.

    Args:
        given: the imported object.
        label: its name in messages.

    Raises:
        OptionError: if it is not a strategy, lacks required parts, or has the name of a built-in
            strategy.
    """
    if not (isinstance(given, type) and issubclass(given, Scheduler | DemandStrategy)):
        raise OptionError(
            f"{label}: expected a subclass of gradweave.schedulers.Scheduler or DemandStrategy, "
            f"got {given!r:.60}"
        )
    if inspect.isabstract(given) or not isinstance(getattr(given, "name", None), str):
        raise OptionError(f"{label}: {given.__name__} needs both a name and a make")
    if "__dataclass_fields__" not in vars(given) or not given.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise OptionError(
            f"{label}: {given.__name__} needs @dataclasses.dataclass(frozen=True): its fields are "
            "its options"
        )
    if given not in _BUILT_IN:
        plugins.check_name(label, given.name, OWN_NAMES)
    return given


def read_plugin(plugin: plugins.Plugin) -> type[Strategy]:
    """The class of an installed package's strategy, imported.

    Raises:
        OptionError: if it cannot be imported or is refused.
    """
    strategy = checked(plugin.load(), plugin.label)
    if strategy.name != plugin.name:
        raise OptionError(
            f"{plugin.label}: its class is named {strategy.name!r:.60}; give both the same name, "
            "since files contain that of the class"
        )
    return strategy


def _class_and_options(text: str) -> tuple[str, str]:
    """``module:Class`` at the start of a specification, or nothing, and the rest."""
    module, _, rest = text.strip().partition(":")
    name, _, options = rest.partition(":")
    if module.strip().lower().replace("-", "_") in OWN_NAMES or "=" in name:
        return "", text
    known = "." in module or plugins.find(plugins.SCHEDULER, module) is None
    named = f"{module}:{name}"
    return (named, options) if known and plugins.names_object(named) else ("", text)


def is_portfolio(text: object) -> bool:
    """Whether a specification is `PORTFOLIO`."""
    return isinstance(text, str) and text.strip().lower() == PORTFOLIO


def as_schedulers(strategies: Iterable[Scheduler | str] | str) -> tuple[Scheduler, ...]:
    """Strategies, each given as an object or a specification; or all as one text with commas.

    ``portfolio`` among them stands for `DEFAULT`.

    Raises:
        OptionError: for anything else; text raises the errors of `from_spec`.

    >>> [strategy.name for strategy in as_schedulers(["ring", Merged()])]
    ['ring', 'merged']
    """
    example = "a list of schedulers or of specifications such as 'merged:tries=4'"
    given = _listed(strategies, Scheduler, f"strategies: {example}")
    each = (DEFAULT if is_portfolio(one) else (one,) for one in given)
    known = itertools.chain.from_iterable(each)
    return tuple(from_spec(one) if isinstance(one, str) else one for one in known)


def as_demand_strategies(
    strategies: Iterable[DemandStrategy | Scheduler | str] | str,
) -> tuple[DemandStrategy, ...]:
    """Strategies for demands, each given as an object, as a scheduler or as a specification.

    Raises:
        OptionError: for anything else; text raises the errors of `demand_strategy`.
    """
    example = "strategies for jobs, schedulers or specifications such as 'bruck:radix=4'"
    return tuple(
        demand_strategy(one) if isinstance(one, str) else _for_demands(one)
        for one in _listed(strategies, Strategy, example)
    )


def _listed(strategies: Any, kind: type[Strategy], expected: str) -> list[Any]:
    """Strategies and specifications, from a list or from one text with commas.

    Args:
        strategies: the list or the text.
        kind: the kind of strategies.
        expected: what was expected, for messages.

    Raises:
        OptionError: for anything else.
    """
    if isinstance(strategies, str):
        return split_specs(strategies)
    alone = not isinstance(strategies, Iterable)
    given: list[Any] = [strategies] if alone else list(strategies)
    for one in given:
        if alone or not isinstance(one, kind | str):
            shown = getattr(one, "__name__", "") if isinstance(one, type) else ""
            hint = f"the class {shown}; write {shown}()" if shown else type(one).__name__
            raise OptionError(f"expected {expected}; got {hint}")
    return given


def split_specs(text: str) -> list[str]:
    """Splits a comma-separated list of specifications, which may contain commas themselves.

    A part with ``=`` and no ``:`` belongs to the specification before it.

    >>> split_specs("ring:order=hamiltonian,steps=paper,merged,torus:4x4")
    ['ring:order=hamiltonian,steps=paper', 'merged', 'torus:4x4']
    """
    specs: list[str] = []
    for part in text.split(","):
        if specs and "=" in part and ":" not in part:
            specs[-1] += f",{part.strip()}"
        elif part.strip():
            specs.append(part.strip())
    return specs
