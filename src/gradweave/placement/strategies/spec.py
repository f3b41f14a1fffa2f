"""Specifications of placement strategies, such as ``annealing:restarts=16``."""

from gradweave.common.checks import did_you_mean
from gradweave.common.specification import field_kinds, parse_spec, read_options
from gradweave.errors import OptionError, SpecError
from gradweave.placement.strategies.annealing import Annealing
from gradweave.placement.strategies.baselines import RandomOrder, RankOrder
from gradweave.placement.strategies.evolutionary import Evolutionary
from gradweave.placement.strategies.exact import ExactPlacer
from gradweave.placement.strategies.strategy import Placer

PLACERS: dict[str, type[Placer]] = {
    one.name: one for one in (Annealing, Evolutionary, ExactPlacer, RankOrder, RandomOrder)
}
"""Every strategy by its name. A new strategy is one more entry."""


def as_placer(strategy: Placer | str) -> Placer:
    """The given strategy, or the strategy that a specification describes.

    Raises:
        SpecError: the text is not understood.
        OptionError: an option has a value that the strategy does not accept.

    >>> as_placer("annealing:restarts=2")
    Annealing(restarts=2, moves=6000)
    """
    if isinstance(strategy, Placer):
        return strategy
    if not isinstance(strategy, str):
        raise OptionError(
            "expected a strategy, or its specification such as 'annealing:restarts=2'; got "
            f"{type(strategy).__name__}"
        )
    name, values = parse_spec(strategy)
    placer = PLACERS.get(name.lower().replace("-", "_"))
    if placer is None:
        raise SpecError(
            f"no placement strategy {name!r:.60}; {did_you_mean(name, PLACERS)}there are "
            f"{', '.join(PLACERS)}"
        )
    return placer(**read_options(name, values, field_kinds(placer)))
