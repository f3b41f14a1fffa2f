"""The front door: what a name stands for, and every promise of its kind."""

import functools
import inspect
from typing import Any

from gradweave import lazy, plugins
from gradweave.conformance.finding import Findings
from gradweave.errors import OptionError, SpecError
from gradweave.schedulers import spec as schedulers
from gradweave.schedulers.demands.strategy import DemandStrategy
from gradweave.schedulers.scheduler import Scheduler
from gradweave.specification import parse_spec
from gradweave.topology import spec as topologies

KINDS = (
    "a scheduler, a strategy for demands, a family of networks, an environment or a placement "
    "strategy"
)


def conform(target: Any, parameters: str = "") -> tuple[str, Findings]:
    """Checks what a part promises: see `KINDS`.

    Args:
        target: ``module:object``, which is imported; the name of an installed package's plug-in; or
            the class, function or `gradweave.marl.Family` itself. After a text a colon and
            parameters may stand, as in ``my.nets:snake:rows=3,columns=4``: options of a strategy,
            or the network of a family on which it is tried.
        parameters: the same, for what is no text.

    Returns:
        What it was taken for, and the findings, one for each promise and case, found as they are
        asked for.

    Raises:
        SpecError: the text is not understood.
        OptionError: it cannot be imported, or is nothing that can be checked.

    >>> from gradweave.schedulers import Ring
    >>> kind, findings = conform(Ring)
    >>> kind, [finding for finding in findings if finding.fault]
    ('scheduler ring', [])
    """
    if isinstance(target, str):
        name, given, parameters = _named(target)
    else:
        name, given = getattr(target, "__name__", ""), target
    if isinstance(given, type) and issubclass(given, Scheduler):
        strategy = schedulers.checked(given, name)
        made = schedulers.with_options(strategy, parameters)
        from gradweave.conformance.scheduler import check_scheduler

        return f"scheduler {made.name}", check_scheduler(made)
    if isinstance(given, type) and issubclass(given, DemandStrategy):
        from gradweave.conformance.demand_strategy import check_demand_strategy

        values = parse_spec(f"{given.name}:{parameters}" if parameters else given.name)[1]
        strategy = schedulers.made_of(given, given.name, values)
        return f"strategy for demands {given.name}", check_demand_strategy(strategy)
    if inspect.isfunction(given) or isinstance(given, functools.partial):
        from gradweave.conformance.family import check_family

        plugins.check_name(f"family {name}", name, topologies.own_families())
        return f"family of networks {name}", check_family(name, given, parameters)
    return _of_an_extra(name, given)


def _of_an_extra(name: str, given: Any) -> tuple[str, Findings]:
    """The same for what takes longer to import, or needs an extra."""
    from gradweave.marl.games.family import Family
    from gradweave.marl.games.own import seems_game
    from gradweave.placement.strategies.strategy import Placer

    if isinstance(given, type) and issubclass(given, Placer) and not inspect.isabstract(given):
        from gradweave.conformance.placer import check_placer

        return f"placement strategy {given.name}", check_placer(given())
    if isinstance(given, Family) or seems_game(given):
        from gradweave.marl.games.environments import checked

        family = checked(given, f"environment {name}", name)
        lazy.require("conformance of an environment", "jax", "equinox", extra="marl")
        from gradweave.conformance.environment import check_environment

        return f"environment {', '.join(family.ids)}", check_environment(family)
    raise OptionError(
        f"{name or 'part'}: expected {KINDS} (a class of either strategy, a function, a "
        f"gradweave.marl.Family), got {given!r:.60}"
    )


def _named(text: str) -> tuple[str, Any, str]:
    """A name for messages and files, what a text stands for, and the parameters after it."""
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
