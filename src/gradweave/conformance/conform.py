"""The entry point: resolves a name, and checks every promise of its kind."""

import functools
import inspect
from typing import Any

from gradweave.common import lazy, plugins
from gradweave.conformance.finding import Findings
from gradweave.errors import OptionError, SpecError
from gradweave.schedulers import spec as schedulers
from gradweave.schedulers.scheduler import Scheduler, Strategy
from gradweave.topology import spec as topologies

KINDS = (
    "a scheduler, a strategy for demands, a family of networks, an environment or a placement "
    "strategy"
)


def conform(target: Any, parameters: str = "") -> tuple[str, Findings]:
    """Checks the promises of a part; see `KINDS`.

    Args:
        target: ``module:object``, which is imported; the name of a plug-in of an installed package;
            or the class, function or `gradweave.marl.Family` itself. A text may end in a colon and
            parameters, as in ``my.nets:snake:rows=3,columns=4``: options of a strategy
            or of a game, or the network of a family to try the family on.
        parameters: the same parameters, for a target that is not a text.

    Returns:
        The kind of part, and the findings, one for each promise and case, computed lazily.

    Raises:
        SpecError: the text is not understood.
        OptionError: it cannot be imported, or cannot be checked.

    >>> from gradweave.schedulers import Ring
    >>> kind, findings = conform(Ring)
    >>> kind, [finding for finding in findings if finding.fault]
    ('scheduler ring', [])
    """
    if isinstance(target, str):
        name, given, parameters = _named(target)
    else:
        name, given = getattr(target, "__name__", ""), target
    if isinstance(given, type) and issubclass(given, Strategy):
        strategy = schedulers.with_options(schedulers.checked(given, name), parameters)
        if isinstance(strategy, Scheduler):
            from gradweave.conformance.scheduler import check_scheduler

            return f"scheduler {strategy.name}", check_scheduler(strategy)
        from gradweave.conformance.demand_strategy import check_demand_strategy

        return f"strategy for demands {strategy.name}", check_demand_strategy(strategy)
    function = inspect.isfunction(given) or isinstance(given, functools.partial)
    if function and _makes_networks(given):
        from gradweave.conformance.family import check_family

        plugins.check_name(f"family {name}", name, topologies.own_families())
        return f"family of networks {name}", check_family(name, given, parameters)
    return _of_an_extra(name, given, parameters)


def _makes_networks(function: Any) -> bool:
    """Whether a function makes a family's networks, which take ``link``, and not games."""
    return "link" in inspect.signature(function).parameters


def _of_an_extra(name: str, given: Any, parameters: str) -> tuple[str, Findings]:
    """The checks of parts that are slow to import, or need an extra."""
    from gradweave.marl.games.family import Family
    from gradweave.marl.games.own import seems_game
    from gradweave.placement.strategies.strategy import Placer

    if isinstance(given, type) and issubclass(given, Placer) and not inspect.isabstract(given):
        from gradweave.conformance.placer import check_placer

        return f"placement strategy {given.name}", check_placer(
            schedulers.with_options(given, parameters)
        )
    makes = inspect.isroutine(given) or isinstance(given, functools.partial)
    if isinstance(given, Family) or seems_game(given) or makes:
        from gradweave.marl.games.environments import check_options, checked, written_options

        family = checked(given, f"environment {name}", name)
        options = written_options(name, parameters)
        check_options(name, family, options)
        lazy.require("conformance of an environment", "jax", "equinox", extra="marl")
        from gradweave.conformance.environment import check_environment

        return f"environment {', '.join(family.ids)}", check_environment(family, options)
    raise OptionError(
        f"{name or 'part'}: expected {KINDS} (a class of either strategy, a function of "
        f"networks, which takes link, or of games, a gradweave.marl.Family), got {given!r:.60}"
    )


def _named(text: str) -> tuple[str, Any, str]:
    """A name for messages and files, the object that a text denotes, and its parameters."""
    head, _, parameters = text.partition(":")
    attribute, _, rest = parameters.partition(":")
    for kind, read in (
        (plugins.SCHEDULER, schedulers.read_plugin),
        (plugins.TOPOLOGY, topologies.read_plugin),
        (plugins.ENVIRONMENT, _environment),
    ):
        plugin = plugins.find(kind, head)
        if plugin is not None:
            return head, read(plugin), parameters
    if not plugins.names_object(f"{head}:{attribute}"):
        known = [name for kind in _KINDS for name in plugins.names(kind)]
        installed = f"; installed are {', '.join(known)}" if known else ""
        raise SpecError(
            f"{text!r:.60}: expected module:object, as in my.rings:Snake, or the name of what an "
            f"installed package brings{installed}"
        )
    return attribute, plugins.imported(f"{head}:{attribute}", "part"), rest


_KINDS = (plugins.SCHEDULER, plugins.TOPOLOGY, plugins.ENVIRONMENT)


def _environment(plugin: plugins.Plugin) -> Any:
    from gradweave.marl.games.environments import read_plugin

    return read_plugin(plugin)
